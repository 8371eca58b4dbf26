"""What `hotfire offset` takes."""

from __future__ import annotations

import argparse

from hotfire.cli.options import add_json, add_namesrv, add_tls, number, queue
from hotfire.places import TIME_HELP, reset_place


def configure(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    show = actions.add_parser("show", help="what a group has committed of a topic")
    reset = actions.add_parser("reset", help="let a group go on elsewhere in every queue of a topic")
    setting = actions.add_parser("set", help="let it go on at an offset of one queue")
    skip = actions.add_parser("skip", help="let it pass over all it has not read: reset --to latest")
    for action in (show, reset, setting, skip):
        action.add_argument("group", metavar="GROUP")
        action.add_argument("topic", metavar="TOPIC")
        add_namesrv(action)
        add_tls(action)
        add_json(action)
    reset.add_argument(
        "--to", metavar="PLACE", type=reset_place, required=True,
        help=f"earliest, latest, a time, or +N or -N messages from where it is; {TIME_HELP}",
    )  # fmt: skip
    setting.add_argument("--queue", metavar="BROKER:ID", type=queue, required=True, help="such as broker-a:0")
    setting.add_argument(
        "--offset", metavar="N", type=number, required=True, help="of the next message to read"
    )
