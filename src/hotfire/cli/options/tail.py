"""What `hotfire tail` takes."""

from __future__ import annotations

import argparse

from hotfire.cli.options import add_json, add_namesrv, add_tls, positive
from hotfire.places import TIME_HELP, start_place


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("topic", metavar="TOPIC")
    add_namesrv(parser)
    add_tls(parser)
    parser.add_argument(
        "--from", dest="start", metavar="PLACE", type=start_place,
        help=f"earliest, latest (unless told otherwise), a time, or an offset in every queue; {TIME_HELP}",
    )  # fmt: skip
    parser.add_argument("--tags", metavar="EXPRESSION", default="*", help="only these tags: 'a || b'")
    parser.add_argument(
        "--sql", metavar="CONDITION",
        help="only messages whose properties fulfil this SQL92 condition: 'price > 10 AND shop IS NOT NULL'",
    )  # fmt: skip
    parser.add_argument(
        "--count", "--max", dest="max", metavar="N", type=positive, help="stop after N messages"
    )
    parser.add_argument(
        "--follow", action=argparse.BooleanOptionalAction, default=True, help="wait for messages to come"
    )
    parser.add_argument(
        "--group", metavar="GROUP", default="none",
        help="read as a consumer of this group: its share of the queues, and what was printed is committed; "
        "--from counts for a new group; none (the default) disturbs no consumer",
    )  # fmt: skip
    add_json(parser, "one JSON object per message")
