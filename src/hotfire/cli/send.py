"""hotfire send: put messages into a topic, from the command line, a file or a pipe."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import CancelledError
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import IO

from hotfire.cli.client import add_namesrv, run_client
from hotfire.client.producer import DEFAULT_GROUP, Producer, SendResult
from hotfire.errors import ConfigError, HotfireError
from hotfire.model import Message

WINDOW_COUNT = 64
"""Messages under way at once."""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("topic", metavar="TOPIC")
    parser.add_argument(
        "body", metavar="BODY", nargs="?", help="the message; without it, each line of input is one"
    )
    add_namesrv(parser)
    parser.add_argument("--tag", metavar="TAG")
    parser.add_argument(
        "--key", metavar="KEY", action="append", default=[], help="may be given several times"
    )
    parser.add_argument("--property", metavar="NAME=VALUE", action="append", default=[], help="likewise")
    parser.add_argument("--count", metavar="N", type=int, default=1, help="send BODY this many times")
    parser.add_argument("--file", metavar="FILE", help="send each line of a file; - is standard input")
    parser.add_argument("--group", default=DEFAULT_GROUP, help="producer group (%(default)s)")
    parser.add_argument(
        "--timeout", metavar="SECONDS", type=float, default=3.0, help="per message (%(default)s)"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object per message sent")
    parser.add_argument("-q", "--quiet", action="store_true", help="say nothing of messages that were stored")


def take_late(args: argparse.Namespace, words: list[str]) -> bool:
    """BODY after the options."""
    if args.body is not None or len(words) != 1 or words[0].startswith("-"):
        return False
    args.body = words[0]
    return True


def run(args: argparse.Namespace) -> int:
    if args.body is not None and args.file is not None:
        raise ConfigError("give either BODY or --file, not both")
    if args.body is None and args.file is None and sys.stdin.isatty():
        raise ConfigError("nothing to send: give BODY, --file, or pipe lines in")
    if args.count < 1:
        raise ConfigError(f"--count {args.count}: must be at least 1")
    return run_client(_send(args))


async def _send(args: argparse.Namespace) -> int:
    properties = dict(_pair(text) for text in args.property)
    sent = 0
    async with Producer(args.namesrv, group=args.group, timeout_s=args.timeout) as producer:
        async for bodies in _windows(args):
            messages = (Message(args.topic, body, args.tag, tuple(args.key), properties) for body in bodies)
            try:
                results = await _send_window(producer, list(messages))
            except HotfireError:
                if sent:
                    print(f"{sent} messages were stored before this; go on from there", file=sys.stderr)
                raise
            for result in results:
                sent += 1
                if not args.quiet:
                    print(_json(result) if args.json else _line(result), flush=True)
    if sent > 1 and not args.json:
        print(f"{sent} messages sent", file=sys.stderr)
    return 0


async def _send_window(producer: Producer, messages: list[Message]) -> list[SendResult]:
    outcomes = await asyncio.gather(*(producer.send(one) for one in messages), return_exceptions=True)
    failed = next((outcome for outcome in outcomes if isinstance(outcome, BaseException)), None)
    if failed is not None:
        stored = sum(isinstance(outcome, SendResult) for outcome in outcomes)
        if len(messages) > 1:
            print(f"{stored} of the last {len(messages)} messages were stored", file=sys.stderr)
        raise failed
    return [outcome for outcome in outcomes if isinstance(outcome, SendResult)]


async def _windows(args: argparse.Namespace) -> AsyncIterator[list[bytes]]:
    """Bodies to send, some at a time."""
    if args.body is not None:
        bodies = iter([args.body.encode("utf-8", "surrogateescape")] * args.count)
        while window := list(islice(bodies, WINDOW_COUNT)):
            yield window
    elif args.file is None or args.file == "-":
        async for body in _piped_bodies():
            yield [body]  # each line goes out as it comes
    else:
        with _open(args.file) as source:
            lines = _bodies(source)
            while window := list(islice(lines, WINDOW_COUNT)):
                yield window


async def _piped_bodies() -> AsyncIterator[bytes]:
    """Lines of standard input, read by a thread of its own: it may wait for ever, and Ctrl-C must not."""
    loop = asyncio.get_running_loop()
    lines: asyncio.Queue[bytes | None] = asyncio.Queue(WINDOW_COUNT)

    def read() -> None:
        # Not sys.stdin: the interpreter cannot end while another thread reads from that.
        # When the loop is gone or going, so are we.
        with open(0, "rb", closefd=False) as source, suppress(RuntimeError, CancelledError):
            for body in _bodies(source):
                asyncio.run_coroutine_threadsafe(lines.put(body), loop).result()
            asyncio.run_coroutine_threadsafe(lines.put(None), loop).result()

    threading.Thread(target=read, name="stdin", daemon=True).start()
    while (body := await lines.get()) is not None:
        yield body


def _open(file: str) -> IO[bytes]:
    try:
        return Path(file).open("rb")
    except OSError as error:
        raise ConfigError(f"file {file}: {error.strerror}") from None


def _bodies(source: IO[bytes]) -> Iterator[bytes]:
    """Lines without their ends; an empty line is no message."""
    return (body for body in (line.rstrip(b"\r\n") for line in source) if body)


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name or not value:
        raise ConfigError(f"--property {text}: expected NAME=VALUE")
    return name, value


def _line(result: SendResult) -> str:
    queue = result.queue
    place = f"{queue.broker_name}/{queue.queue_id}@{result.queue_offset}"
    return f"{result.status.name}  {place}  {result.message_id}"


def _json(result: SendResult) -> str:
    return json.dumps(
        {
            "status": result.status.name,
            "topic": result.queue.topic,
            "broker": result.queue.broker_name,
            "queueId": result.queue.queue_id,
            "queueOffset": result.queue_offset,
            "messageId": result.message_id,
            "offsetMessageId": result.offset_message_id,
        }
    )
