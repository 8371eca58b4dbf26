"""Test doubles as public API: clusters, clocks, disks and networks that do what a test asks of them.

>>> async def test_order_is_stored() -> None:
...     async with Cluster() as cluster, Producer(cluster.namesrv) as producer:
...         await producer.send(Message("orders", b"paid"))
...         await cluster.clock.turn(60)

    Cluster       real name servers and brokers in the test's process, with or without a loop of its own
    ChaosProxy    stands before a server and cuts, holds, delays and loses what passes
    TurnedClock   the clock of an asyncio loop, which a test turns: `cluster.clock`
    RequestCode   what a request asks for, by name: faults of a proxy may be meant for some only
    SimDisk       a disk in memory that loses power, fails and lies, from a seed
    SimLoop       an asyncio loop whose time goes from timer to timer, without waiting
    SimNetwork    connections between simulated hosts that are late, cut, and lead nowhere, from a seed
    Simulation    name servers, brokers and clients on all three: a run is a function of its seed

Names are imported when first used. pytest has fixtures of clusters: see `hotfire.testing.plugin`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hotfire.protocol.codes import RequestCode
    from hotfire.testing.chaos import ChaosProxy
    from hotfire.testing.cluster import Cluster
    from hotfire.testing.simdisk import SimDisk
    from hotfire.testing.simloop import SimLoop
    from hotfire.testing.simnet import SimNetwork
    from hotfire.testing.simsystem import PowerCut
    from hotfire.testing.simulation import Simulation
    from hotfire.testing.turned import TurnedClock

__all__ = [
    "ChaosProxy", "Cluster", "PowerCut", "RequestCode", "SimDisk", "SimLoop", "SimNetwork", "Simulation",
    "TurnedClock",
]  # fmt: skip

_HOMES = {
    "ChaosProxy": "hotfire.testing.chaos",
    "Cluster": "hotfire.testing.cluster",
    "PowerCut": "hotfire.testing.simsystem",
    "RequestCode": "hotfire.protocol.codes",
    "SimDisk": "hotfire.testing.simdisk",
    "SimLoop": "hotfire.testing.simloop",
    "SimNetwork": "hotfire.testing.simnet",
    "Simulation": "hotfire.testing.simulation",
    "TurnedClock": "hotfire.testing.turned",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'hotfire.testing' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
