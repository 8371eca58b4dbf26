"""What `hotfire send` takes."""

from __future__ import annotations

import argparse

from hotfire.cli.options import add_json, add_namesrv, add_tls, positive, queue, seconds


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("topic", metavar="TOPIC")
    parser.add_argument(
        "body",
        metavar="BODY",
        nargs="?",
        help="the message; without it, each line of input that is not empty is one",
    )
    add_namesrv(parser)
    add_tls(parser)
    parser.add_argument("--tag", metavar="TAG")
    parser.add_argument(
        "--key", metavar="KEY", action="append", default=[], help="may be given several times"
    )
    parser.add_argument("--property", metavar="NAME=VALUE", action="append", default=[], help="likewise")
    parser.add_argument("--queue", metavar="BROKER:ID", type=queue, help="to this queue, broker-a:0")
    parser.add_argument(
        "--delay-level", metavar="N", type=positive, default=0,
        help="to be delivered later: 1 is 1 s, 5 is 1 min, 18 is 2 h",
    )  # fmt: skip
    parser.add_argument("--count", metavar="N", type=int, default=1, help="send BODY this many times")
    parser.add_argument(
        "--file", metavar="FILE", help="send each line of a file that is not empty; - is standard input"
    )
    parser.add_argument(
        "--batch", metavar="N", type=positive, default=1, help="so many messages in a request (%(default)s)"
    )
    parser.add_argument("--group", help="producer group (hotfire_producer)")
    parser.add_argument(
        "--timeout", metavar="SECONDS", type=seconds, default=3.0, help="per message (%(default)s)"
    )
    add_json(parser, "one JSON object per message sent")
    parser.add_argument("-q", "--quiet", action="store_true", help="say nothing of messages that were stored")


def take_late(args: argparse.Namespace, words: list[str]) -> bool:
    """BODY after the options."""
    if args.body is not None or len(words) != 1 or words[0].startswith("-"):
        return False
    args.body = words[0]
    return True
