"""What `hotfire store` takes."""

from __future__ import annotations

import argparse

from hotfire.cli import backup
from hotfire.cli.options import number


def configure(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    info = actions.add_parser("info", help="what lies in the directory, at a glance")
    info.add_argument("--count", action="store_true", help="read the whole log and count its records")
    info.add_argument("--json", action="store_true")
    dump = actions.add_parser("dump", help="every record as one line of JSON")
    dump.add_argument("--topic", metavar="TOPIC", help="only this topic")
    dump.add_argument("--queue", metavar="N", type=number, help="only this queue id")
    dump.add_argument("--from", dest="start", metavar="OFFSET", type=number, default=0, help="log offset")
    dump.add_argument("--to", dest="stop", metavar="OFFSET", type=number, help="log offset to stop before")
    dump.add_argument("--bodies", action="store_true", help="with the bodies, inflated, in base64")
    instead = dump.add_mutually_exclusive_group()
    instead.add_argument("--queues", action="store_true", help="queue entries instead of records")
    instead.add_argument(
        "--index", action="store_true", help="key index headers and entries instead of records"
    )
    check = actions.add_parser("verify", help="hold everything in the store against its log")
    rebuild = actions.add_parser("rebuild", help="make queues and key index anew from the log")
    for action in (check, rebuild):
        action.add_argument(
            "--delay-levels",
            metavar="LEVELS",
            type=_levels,
            help="messageDelayLevel, if it is not the default",
        )
    backup.add_commands(actions)
    for action in (info, dump, check, rebuild):
        action.add_argument("directory", metavar="DIR", help="what storePathRootDir names")
        action.add_argument("--segment-bytes", metavar="N", type=number, default=0, help=_from_files("log"))
        action.add_argument(
            "--queue-file-bytes", metavar="N", type=number, default=0, help=_from_files("queue")
        )
        action.add_argument("--index-slots", metavar="N", type=number, default=0, help=_from_files("index"))
        action.add_argument("--index-entries", metavar="N", type=number, default=0, help=_from_files("index"))


def _from_files(kind: str) -> str:
    return f"as the broker was set; found out from the {kind} files if not given"


def _levels(text: str) -> str:
    from hotfire.store.config import delays_ms

    try:
        delays_ms(text)
    except (ValueError, KeyError, IndexError):
        raise argparse.ArgumentTypeError(f"{text!r} is no list of times like '1s 5m 2h'") from None
    return text
