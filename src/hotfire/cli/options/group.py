"""What `hotfire group` takes."""

from __future__ import annotations

import argparse

from hotfire.cli.options import add_json, add_namesrv, add_tls, add_where, number


def configure(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    listing = actions.add_parser("list", help="every group that a broker knows")
    listing.add_argument("--all", action="store_true", help="the system's own groups too")
    show = actions.add_parser("show", help="its consumers, what they subscribe to, and how far it is")
    lag = actions.add_parser("lag", help="how far it is with each queue")
    failing = actions.add_parser(
        "failing", help="which groups fail at messages, how often, and how far behind"
    )
    status = actions.add_parser("status", help="what its consumers tell of themselves: queues, and stacks")
    create = actions.add_parser("create", help="make a group, or change it")
    delete = actions.add_parser("delete", help="delete a group on every broker")
    for action in (show, lag, status, create, delete):
        action.add_argument("group", metavar="GROUP")
    lag.add_argument("--topic", metavar="TOPIC", help="of this topic only")
    status.add_argument("--client", metavar="ID", help="this one only")
    status.add_argument("--stacks", action="store_true", help="where each of its threads and tasks is")
    add_where(create)
    create.add_argument(
        "--retries", metavar="N", type=number, default=16,
        help="how often a message comes again before it is a dead letter (%(default)s)",
    )  # fmt: skip
    create.add_argument("--disable", action="store_true", help="let it consume nothing until it is changed")
    delete.add_argument("--offsets", action="store_true", help="how far it was is forgotten too")
    delete.add_argument("--cluster", metavar="NAME", help="on the brokers of this cluster only")
    delete.add_argument("--yes", action="store_true", help="really; without it, what would go is told")
    for action in (listing, show, lag, failing, status, create, delete):
        add_namesrv(action)
        add_tls(action)
        add_json(action)
