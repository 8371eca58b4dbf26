"""Everything the two servers are asked, asked of one of them: the catalogue, mqadmin's commands, the rows.

The catalogue has a start of its own: it needs an empty store and leaves odd things behind, such as what
Apache's name server makes of a broker without a name. Owns the settings both start with.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from tests.interop import adminstory, differential
from tests.interop.clients import APACHE_SETTINGS, HOTFIRE_ARGUMENTS, Server
from tests.interop.compare import Answer
from tests.interop.proxy import RecordingProxy
from tests.interop.rowrun import rows_of, run_rows
from tests.interop.transcripts import Naming, situations
from tests.peers import remoting
from tests.peers.hotfire import HotfireProcess
from tests.peers.process import poll_until

Peer = Literal["apache", "hotfire"]
CLIENTS = ("java498", "java550", "java498json", "java550binary", "go")
OUR_CLIENTS_OWN = "is about our own client, which test_conversations holds against Java's"
NOT_COMPARED = {
    "retry-cut": "kills the broker while messages fail: what was under way is cut at no fixed place",
    "order-restarts": "kills the broker twice: what was under way is cut at no fixed place",
    "queues-change": "starts and stops a second broker, to which the proxy of the first does not lead",
    "offset-file": "waits for a file of the broker at hand, which the servers compared here are not",
    "mixed-java-dies": OUR_CLIENTS_OWN,
    "mixed-python-dies": OUR_CLIENTS_OWN,
    "request-java": OUR_CLIENTS_OWN,
    "reply-java": OUR_CLIENTS_OWN,
    "trace-java": OUR_CLIENTS_OWN,
    "trace-python": OUR_CLIENTS_OWN,
    "asked-java": OUR_CLIENTS_OWN,
    "asked-by-java": OUR_CLIENTS_OWN,
}
"""Rows of no client, each with its reason; the others are compared for each of `CLIENTS` that runs them."""
REGISTERED_TIMEOUT_S = 60.0


@dataclass
class Told:
    """What one server had to say."""

    catalogue: dict[str, Answer]
    admin: dict[str, str] = field(default_factory=dict)
    rows: dict[str, dict[str, Answer]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    """Rows that did not come to their end, with the reason."""


Pair = tuple[Told, Told]
"""Apache's servers and ours."""


def compared_rows(client: str) -> list[str]:
    return [name for name in rows_of(client) if name not in NOT_COMPARED]


@contextmanager
def started(peer: Peer, place: Path, **more: str) -> Iterator[Server]:
    told = [word for name, value in more.items() for word in ("--set", f"{name}={value}")]
    hotfire = HotfireProcess(place, arguments=[*HOTFIRE_ARGUMENTS, *told])
    with hotfire if peer == "hotfire" else differential.apache(place, {**APACHE_SETTINGS, **more}) as server:
        yield server


def tell(peer: Peer, place: Path) -> Told:
    told = Told(_catalogue(peer, place / "catalogue"))
    _tell_story_and_rows(peer, place / "clients", told)
    if told.failures:
        # Java's clients lose races of their own, with Apache's broker too (one that is told to end while its
        # last listener works may commit less). What rows must come to is test_rows' affair; here they are
        # compared, so they are told once more.
        told = Told(told.catalogue)
        _tell_story_and_rows(peer, place / "again", told)
    return told


def tell_catalogue(peer: Peer, place: Path) -> Told:
    """The catalogue alone."""
    return Told(_catalogue(peer, place))


def tell_rows(peer: Peer, place: Path, rows: Mapping[str, Sequence[str]]) -> Told:
    """Some rows of some clients alone, on a server of their own."""
    told = Told({})
    with started(peer, place) as server:
        _follow_all(server, place, rows, told)
    return told


def _catalogue(peer: Peer, place: Path) -> dict[str, Answer]:
    # its halves are asked about in vain: on a busy machine, often enough to be laid aside while it lasts
    with started(peer, place, transactionCheckMax="1000") as server:
        return differential.answers(server)


def _tell_story_and_rows(peer: Peer, place: Path, told: Told) -> None:
    """The administrator's story, then all clients' rows."""
    with started(peer, place) as server:
        told.admin = adminstory.story(server, place / "admin")
        _await_whole_routes(server)
        _follow_all(server, place, {client: compared_rows(client) for client in CLIENTS}, told)


def _follow_all(server: Server, place: Path, rows: Mapping[str, Sequence[str]], told: Told) -> None:
    with ThreadPoolExecutor(len(rows)) as threads:
        following = [
            threads.submit(_follow, client, chosen, server, place / client, told)
            for client, chosen in rows.items()
        ]
    for one in following:
        one.result()


def _await_whole_routes(server: Server) -> None:
    """The story took the right to write away and gave it back, which costs the template its right to be
    inherited from, and deleted a topic at last. The name server is then told anew what is so: by Hotfire at
    once, by Apache in its time, but not if another topic is made before."""

    def is_whole() -> bool:
        route = remoting.route(server.namesrv, "TBW102")
        return route is not None and [queues["perm"] for queues in route["queueDatas"]] == [7]

    what = f"registration of all topics of {server.broker}"
    poll_until(is_whole, what=what, timeout_s=REGISTERED_TIMEOUT_S)


def _follow(client: str, rows: Sequence[str], server: Server, out: Path, told: Told) -> None:
    """The client's rows, through a proxy of its own."""
    with RecordingProxy(server.namesrv, server.broker) as proxy:
        facts = run_rows(client, proxy.namesrv, rows, out)
        frames = proxy.frames()
    told.failures.update({f"{client} {row}": one.failure for row, one in facts.items() if one.failure})
    addresses = {server.broker: "<broker>", proxy.broker: "<broker>", proxy.namesrv: "<namesrv>"}
    told.rows[client] = situations(frames, Naming(client, rows, addresses))
