"""hotfire send: put messages into a topic, from the command line, a file or a pipe."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import threading
from collections import Counter
from collections.abc import AsyncIterator, Coroutine, Iterator
from concurrent.futures import CancelledError
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, Any

from hotfire.cli.client import run_client, tls_of
from hotfire.client.producer import DEFAULT_GROUP, Producer, SendResult
from hotfire.errors import ConfigError, HotfireError
from hotfire.model import Message, MessageQueue

WINDOW_COUNT = 64
"""Messages under way at once."""
BATCHES_COUNT = 4
"""Or so many batches."""


def run(args: argparse.Namespace) -> int:
    if args.body is not None and args.file is not None:
        raise ConfigError("give either BODY or --file, not both")
    if args.body is None and args.file is None and sys.stdin.isatty():
        raise ConfigError("nothing to send: give BODY, --file, or pipe lines in")
    if args.count < 1:
        raise ConfigError(f"--count {args.count}: must be at least 1")
    if args.batch > 1 and args.delay_level:
        raise ConfigError(f"--batch {args.batch} with --delay-level: delayed messages travel alone; drop one")
    return run_client(_send(args))


async def _send(args: argparse.Namespace) -> int:
    lines, tally = _Lines(), _Tally()
    group = args.group or DEFAULT_GROUP
    try:
        async with Producer(args.namesrv, group=group, timeout_s=args.timeout, tls=tls_of(args)) as producer:
            await _send_all(args, producer, lines, tally)
    except asyncio.CancelledError:  # Ctrl-C: who goes on later must know from where
        unknown = f"; of {tally.under_way} more it is not known" if tally.under_way else ""
        print(f"interrupted: {_messages(tally.sent)} sent before{unknown}", file=sys.stderr)
        raise
    if tally.sent > 1 and not args.json:
        print(f"{tally.sent} messages sent", file=sys.stderr)
    if lines.empty:
        told = "1 empty line was" if lines.empty == 1 else f"{lines.empty} empty lines were"
        print(f"{told} left out: a message needs a body", file=sys.stderr)
    return 0


async def _send_all(args: argparse.Namespace, producer: Producer, lines: _Lines, tally: _Tally) -> None:
    properties = dict(_pair(text) for text in args.property)
    queue = None if args.queue is None else await _queue(producer, args.topic, *args.queue)
    async for bodies in _windows(args, lines):
        messages = [
            Message(args.topic, body, args.tag, tuple(args.key), properties, delay_level=args.delay_level)
            for body in bodies
        ]
        tally.under_way = len(messages)
        try:
            results = await _send_window(producer, messages, args.batch, queue)
        except HotfireError:
            if tally.sent:
                print(f"{tally.sent} messages were stored before this; go on from there", file=sys.stderr)
            raise
        tally.sent, tally.under_way = tally.sent + len(results), 0
        for result in () if args.quiet else results:
            print(_json(result) if args.json else _line(result), flush=True)


@dataclass(slots=True)
class _Tally:
    """Messages whose sends were answered, and those whose sends were not yet."""

    sent: int = 0
    under_way: int = 0


def _messages(count: int) -> str:
    return "1 message was" if count == 1 else f"{count} messages were"


async def _queue(producer: Producer, topic: str, broker: str, queue_id: int) -> MessageQueue:
    queues = await producer.queues(topic)
    queue = MessageQueue(topic, broker, queue_id)
    if queue not in queues:
        counts = Counter(one.broker_name for one in queues)
        there = ", ".join(f"{name}:0 to {name}:{count - 1}" for name, count in sorted(counts.items()))
        raise ConfigError(f"topic {topic} has no queue {broker}:{queue_id}; it has {there or 'none'}")
    return queue


async def _send_window(
    producer: Producer, messages: list[Message], batch: int, queue: MessageQueue | None
) -> list[SendResult]:
    sends: list[Coroutine[Any, Any, list[SendResult]]]
    if batch > 1:
        batches = [messages[at : at + batch] for at in range(0, len(messages), batch)]
        sends = [producer.send_batch(one, queue=queue) for one in batches]
    else:
        sends = [_send_one(producer, one, queue) for one in messages]
    outcomes = await asyncio.gather(*sends, return_exceptions=True)
    results = [result for outcome in outcomes if isinstance(outcome, list) for result in outcome]
    failed = next((outcome for outcome in outcomes if isinstance(outcome, BaseException)), None)
    if failed is not None:
        if len(messages) > 1:
            print(f"{len(results)} of the last {len(messages)} messages were stored", file=sys.stderr)
        raise failed
    return results


async def _send_one(producer: Producer, message: Message, queue: MessageQueue | None) -> list[SendResult]:
    return [await producer.send(message, queue=queue)]


async def _windows(args: argparse.Namespace, lines: _Lines) -> AsyncIterator[list[bytes]]:
    """Bodies to send, some at a time."""
    count = WINDOW_COUNT if args.batch == 1 else args.batch * BATCHES_COUNT
    if args.body is not None:
        bodies = iter([args.body.encode("utf-8", "surrogateescape")] * args.count)
        while window := list(islice(bodies, count)):
            yield window
    elif args.file is None or args.file == "-":
        async for window in _piped_windows(args.batch, lines):
            yield window
    else:
        with _open(args.file) as source:
            bodies = lines.bodies(source)
            while window := list(islice(bodies, count)):
                yield window


async def _piped_windows(batch: int, lines: _Lines) -> AsyncIterator[list[bytes]]:
    """Lines of standard input, each as it comes; with a batch, when it is full or the input ends.

    They are read by a thread of its own: it may wait for ever, and Ctrl-C must not.
    """
    loop = asyncio.get_running_loop()
    windows: asyncio.Queue[list[bytes]] = asyncio.Queue(WINDOW_COUNT)

    def read() -> None:
        # Not sys.stdin: the interpreter cannot end while another thread reads from that.
        # When the loop is gone or going, so are we.
        with open(0, "rb", closefd=False) as source, suppress(RuntimeError, CancelledError):
            bodies = lines.bodies(source)
            while window := list(islice(bodies, batch)):
                asyncio.run_coroutine_threadsafe(windows.put(window), loop).result()
            asyncio.run_coroutine_threadsafe(windows.put([]), loop).result()

    threading.Thread(target=read, name="stdin", daemon=True).start()
    while window := await windows.get():
        yield window


def _open(file: str) -> IO[bytes]:
    try:
        return Path(file).open("rb")
    except OSError as error:
        raise ConfigError(f"file {file}: {error.strerror}") from None


class _Lines:
    """Lines without their ends are messages; those that are empty cannot be, and are counted."""

    def __init__(self) -> None:
        self.empty = 0

    def bodies(self, source: IO[bytes]) -> Iterator[bytes]:
        for line in source:
            body = line.rstrip(b"\r\n")
            if body:
                yield body
            else:
                self.empty += 1


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
