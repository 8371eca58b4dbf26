"""hotfire store snapshot, hotfire store restore: a copy of a store while its broker runs, and its drill.

`add_commands` adds both to the actions of `hotfire store`; the function that does it is left in `args.act`.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

MIB = 1 << 20
DAMAGE_SHOWN_MAX = 20
ACTIONS = "snapshot", "restore"


def run(args: argparse.Namespace) -> int:
    code: int = args.act(args)
    return code


def add_commands(actions: Any) -> None:
    """`snapshot` and `restore`, for the subparsers of `hotfire store`."""
    taking = actions.add_parser("snapshot", help="copy a store, also one that a broker is using")
    taking.add_argument("directory", metavar="DIR", help="the store: storePathRootDir of its broker")
    taking.add_argument("to", metavar="TO", help="the snapshot, a directory that does not exist yet")
    taking.set_defaults(act=_snapshot)
    restoring = actions.add_parser("restore", help="make a store of a snapshot and read all of it")
    restoring.add_argument("snapshot", metavar="FROM", help="a directory that `snapshot` made")
    restoring.add_argument("directory", metavar="DIR", help="the store to be, a new or an empty directory")
    restoring.add_argument(
        "-c",
        "--config",
        metavar="FILE",
        help="broker.conf of the broker that will use it, for the sizes of files",
    )
    restoring.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of that broker"
    )
    restoring.set_defaults(act=_restore)


def _snapshot(args: argparse.Namespace) -> int:
    from hotfire.store.backup import snapshot
    from hotfire.store.disk import Disk

    source, to = _absolute(args.directory), _absolute(args.to)
    with _Meter() as meter:
        taken = snapshot(Disk(source), to, now_ms=time.time_ns() // 1_000_000, progress=meter.show)
    print(
        f"snapshot {to}: log {taken.oldest} to {taken.end}, "
        f"{taken.linked} segments linked, {taken.copied} copied"
    )
    return 0


def _restore(args: argparse.Namespace) -> int:
    from hotfire.broker.config import BrokerConfig
    from hotfire.cli.serving import read_config_file
    from hotfire.settings import from_properties
    from hotfire.store.backup import restore
    from hotfire.store.disk import Disk

    given = dict(word.partition("=")[::2] for word in args.set)
    config, _ = from_properties(BrokerConfig, {**read_config_file(args.config).properties, **given})
    source, to = _absolute(args.snapshot), _absolute(args.directory)
    with _Meter() as meter:
        found = restore(Disk(source), to, config.store(), progress=meter.show)
    print(
        f"restored {to}: log {found.oldest} to {found.end}, {found.records} records"
        f"{'' if found.damage else ', all sound'}"
    )
    for topic, (queues, messages) in sorted(found.topics.items()):
        print(f"{topic}  queues {queues}  messages {messages}")
    for low, high in found.damage[:DAMAGE_SHOWN_MAX]:
        print(f"hotfire store: log is damaged from {low} to {high}: its messages are lost", file=sys.stderr)
    return 1 if found.damage else 0


def _absolute(name: str) -> Path:
    return Path(name).expanduser().absolute()


class _Meter:
    """Bytes copied, told to a person who waits."""

    def __init__(self) -> None:
        self._shown_at = time.monotonic()
        self._has_shown = False

    def __enter__(self) -> _Meter:
        return self

    def __exit__(self, *_: object) -> None:
        if self._has_shown:
            print(file=sys.stderr)

    def show(self, done: int, total: int) -> None:
        now = time.monotonic()
        if sys.stderr.isatty() and now - self._shown_at >= 0.5:
            self._shown_at, self._has_shown = now, True
            print(
                f"\rcopied {done // MIB} of at most {total // MIB} MiB", end="", file=sys.stderr, flush=True
            )
