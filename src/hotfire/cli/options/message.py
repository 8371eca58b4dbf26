"""What `hotfire message` takes."""

from __future__ import annotations

import argparse

from hotfire.cli.options import add_json, add_namesrv, add_tls, positive
from hotfire.places import TIME_HELP, time_ms

COUNT = 32


def moment(text: str) -> int:
    """A time in ms since 1970: as other commands take it, or the very number."""
    found = int(text) if text.isascii() and text.isdigit() and len(text) < 16 else time_ms(text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no time; {TIME_HELP}, or ms since 1970")
    return found


def configure(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    show = actions.add_parser("show", help="one message by its id, and which groups have consumed it")
    show.add_argument(
        "id", metavar="ID",
        help="as `message find` shows it; with --topic, the producer's id or BROKER/QUEUE@OFFSET",
    )  # fmt: skip
    show.add_argument("--topic", metavar="TOPIC", help="look for the producer's id, or place, in this topic")
    consume = actions.add_parser("consume", help="have one consumer handle a message now, once more")
    consume.add_argument("id", metavar="ID", help="as above")
    consume.add_argument("--topic", metavar="TOPIC", help="as above")
    consume.add_argument("--group", metavar="GROUP", required=True, help="the consumer's group")
    consume.add_argument("--client", metavar="CLIENT", required=True, help="its client id: `group show`")
    find = actions.add_parser("find", help="messages of a topic by a key, or stored in a span of time")
    find.add_argument("topic", metavar="TOPIC")
    find.add_argument("--key", metavar="KEY", help="with this key; the newest if there are more than --count")
    find.add_argument(
        "--from", dest="begin", metavar="TIME", type=moment, help=f"stored then or later; {TIME_HELP}"
    )
    find.add_argument("--to", dest="end", metavar="TIME", type=moment, help="stored then or before")
    find.add_argument(
        "--count", metavar="N", type=positive, default=COUNT, help="at most so many (%(default)s)"
    )
    trace = actions.add_parser("trace", help="what producers and consumers told of a message")
    trace.add_argument(
        "id", metavar="ID", help="the producer's id of the message, or the id `message find` shows"
    )
    trace.add_argument("--topic", metavar="TOPIC", help="where traces are written (RMQ_SYS_TRACE_TOPIC)")
    for action in (show, consume, find, trace):
        add_namesrv(action)
        add_tls(action)
        add_json(action)
