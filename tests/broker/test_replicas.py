"""A master and its slaves as processes: one group in the route, whoever asks."""

from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.broker.programs import broker_config, namesrv_config, running
from tests.peers import remoting
from tests.peers.ports import free_port
from tests.peers.process import poll_until

GROUPS = {"a": ("ASYNC_MASTER", 1), "b": ("SYNC_MASTER", 2)}
"""By name: the master's role, and how many slaves it has."""


@pytest.mark.promise(55)
def test_roles_and_ids_make_one_group_in_the_route(tmp_path: Path) -> None:
    """brokerRole and brokerId of the files: the masters are 0, their slaves 1 and 2 under the same name."""
    with ExitStack() as stack:
        names = stack.enter_context(
            running(tmp_path, "namesrv", "-c", namesrv_config(tmp_path), log="names.err")
        )
        wanted: dict[str, dict[str, str]] = {}
        for name, (role, slaves) in GROUPS.items():
            for broker_id in range(slaves + 1):
                port = free_port(-2, 1)
                directory = tmp_path / f"{name}{broker_id}"
                directory.mkdir()
                file = broker_config(
                    directory, name=name, brokerId=broker_id, listenPort=port, haListenPort=port + 1,
                    brokerRole="SLAVE" if broker_id else role,
                )  # fmt: skip
                words = ("broker", "-c", file, "-n", names.namesrv)
                program = stack.enter_context(running(directory, *words))
                wanted.setdefault(name, {})[str(broker_id)] = program.broker
        for addresses in wanted.values():
            remoting.create_topic(addresses["0"], "T", 4)

        def route() -> dict[str, dict[str, str]]:
            told = remoting.route(names.namesrv, "T") or {"brokerDatas": []}
            return {one["brokerName"]: one["brokerAddrs"] for one in told["brokerDatas"]}

        poll_until(lambda: route() == wanted, what="both groups in the route", timeout_s=40.0)
