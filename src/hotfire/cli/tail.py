"""hotfire tail: print the messages of a topic, and those to come."""

from __future__ import annotations

import argparse
import logging
import sys

from hotfire.cli.client import add_namesrv, message_json, message_line, run_client
from hotfire.client.reader import Start, TopicReader


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("topic", metavar="TOPIC")
    add_namesrv(parser)
    parser.add_argument(
        "--from", dest="start", metavar="PLACE", type=_place, default="latest",
        help="earliest, latest, or an offset in every queue (%(default)s)",
    )  # fmt: skip
    parser.add_argument("--tags", metavar="EXPRESSION", default="*", help="only these tags: 'a || b'")
    parser.add_argument("--max", metavar="N", type=_positive, help="stop after N messages")
    parser.add_argument(
        "--follow", action=argparse.BooleanOptionalAction, default=True, help="wait for messages to come"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object per message")


def run(args: argparse.Namespace) -> int:
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="hotfire tail: %(message)s")
    return run_client(_tail(args))


async def _tail(args: argparse.Namespace) -> int:
    show = message_json if args.json else message_line
    count = 0
    async with TopicReader(
        args.namesrv, args.topic, start=args.start, follow=args.follow, expression=args.tags
    ) as reader:
        async for message in reader:
            print(show(message), flush=True)
            count += 1
            if count == args.max:
                break
    return 0


def _place(text: str) -> Start:
    if text == "earliest":
        return "earliest"
    if text == "latest":
        return "latest"
    if text.isascii() and text.isdigit():
        return int(text)
    raise argparse.ArgumentTypeError(f"{text!r} is neither earliest, latest nor an offset")


def _positive(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of at least 1")
    return int(text)
