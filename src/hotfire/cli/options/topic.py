"""What `hotfire topic` takes."""

from __future__ import annotations

import argparse

from hotfire.cli.options import add_json, add_namesrv, add_tls, add_where, positive

QUEUES = 8


def configure(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    listing = actions.add_parser("list", help="every topic the name server knows")
    listing.add_argument(
        "--all", action="store_true", help="the system's own topics, and those of retries, too"
    )
    route = actions.add_parser("route", help="brokers and queues of a topic")
    stats = actions.add_parser("stats", help="where each queue begins and ends, and when it was last written")
    create = actions.add_parser("create", help="make a topic, or change its number of queues")
    delete = actions.add_parser("delete", help="delete a topic and its messages, everywhere")
    for action in (route, stats, create, delete):
        action.add_argument("topic", metavar="TOPIC")
    add_where(create)
    create.add_argument(
        "--queues", metavar="N", type=positive, default=QUEUES,
        help="queues on each broker, to read and to write (%(default)s)",
    )  # fmt: skip
    create.add_argument(
        "--shrink", action="store_true",
        help="also when it has more queues now, whose messages can then no longer be read",
    )  # fmt: skip
    delete.add_argument("--cluster", metavar="NAME", help="on the brokers of this cluster only")
    delete.add_argument("--yes", action="store_true", help="really; without it, what would go is told")
    for action in (listing, route, stats, create, delete):
        add_namesrv(action)
        add_tls(action)
        add_json(action)
