"""The catalogue put to one server, and its answers kept or compared: `python -m tests.interop.differential`.

    record apache FILE        start Apache's servers, ask, write the answers
    record hotfire FILE       the same with Hotfire
    compare APACHE HOTFIRE    print what differs and is not forgiven

Recorded answers let someone who changes Hotfire compare without starting Java each time.
"""

from __future__ import annotations

import dataclasses
import fcntl
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.interop import (
    catalogue,
    catalogue_admin,
    catalogue_assignment,
    catalogue_namesrv,
    catalogue_replies,
    catalogue_transactions,
    clients,
)
from tests.interop.asking import Asker, Case
from tests.interop.clients import Server
from tests.interop.compare import Answer, differences, read_refusals, read_volatile, unforgiven
from tests.peers.apache import ApacheCluster
from tests.peers.hotfire import HotfireProcess

APACHE_SETTINGS = {
    # Cold and on few cores it refuses sends that waited 200 ms.
    "waitTimeMillsInSendQueue": "5000",
    # Hotfire's default, so that records are equal to the byte and lie at the same places.
    "enabledAppendPropCRC": "true",
}
LOCK = Path(tempfile.gettempdir()) / "apache.lock"


def cases() -> list[Case]:
    """Everything, in order."""
    return [
        *catalogue.topics(),
        *catalogue_admin.groups(),
        *catalogue.sends(),
        *catalogue_replies.replies(),
        *catalogue.pulls(),
        *catalogue.offsets(),
        *catalogue.queries(),
        *catalogue_admin.administration(),
        *catalogue_assignment.assignments(),
        *catalogue_transactions.transactions(),
        *catalogue_namesrv.names(),
        *catalogue_replies.filter_servers(),
    ]


def answers(server: Server) -> dict[str, Answer]:
    asker = Asker(server.namesrv, server.broker, {str(server.store): "<store>"})
    try:
        return asker.run(cases())
    finally:
        asker.close()


@contextmanager
def apache(directory: Path, settings: Mapping[str, str] | None = None) -> Iterator[ApacheCluster]:
    """Apache's servers; one broker of theirs at a time on this machine, which takes a gigabyte."""
    with LOCK.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with ApacheCluster(directory, settings={**APACHE_SETTINGS, **(settings or {})}) as cluster:
            yield cluster


def save(found: Mapping[str, Answer], path: Path) -> None:
    path.write_text(json.dumps({name: dataclasses.asdict(one) for name, one in found.items()}, indent=1))


def load(path: Path) -> dict[str, Answer]:
    return {name: Answer(**one) for name, one in json.loads(path.read_text()).items()}


def main(arguments: list[str]) -> int:
    if arguments[0] == "compare":
        allowed = read_volatile()
        found = differences(load(Path(arguments[1])), load(Path(arguments[2])))
        left = unforgiven(found, allowed, read_refusals())
        for one in left:
            sys.stdout.write(f"{one}\n")
        for entry in allowed:
            if not entry.used:
                sys.stdout.write(f"unused: {entry.where} {entry.code} {entry.path} {entry.case or ''}\n")
        return 1 if left else 0
    _, peer, path = arguments
    with tempfile.TemporaryDirectory() as place:
        context = (
            apache(Path(place), clients.APACHE_SETTINGS)
            if peer == "apache"
            else HotfireProcess(Path(place), arguments=clients.HOTFIRE_ARGUMENTS)
        )
        with context as server:
            began = time.monotonic()
            found = answers(server)
            sys.stdout.write(f"{len(found)} cases in {time.monotonic() - began:.1f} s\n")
    save(found, Path(path))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
