"""hotfire tail: print the messages of a topic, and those to come."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import AsyncIterable
from contextlib import suppress
from datetime import UTC, datetime

from hotfire.cli.client import message_json, message_line, run_client, tls_of
from hotfire.client.consumersettings import ConsumeFrom
from hotfire.client.pullconsumer import PullConsumer
from hotfire.client.reader import Start, TopicReader
from hotfire.errors import ConfigError, HotfireError, MessageDamaged
from hotfire.model import ReceivedMessage
from hotfire.places import Place

NO_GROUP = "none"


def run(args: argparse.Namespace) -> int:
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="hotfire tail: %(message)s")
    if args.group != NO_GROUP and not args.follow:
        raise ConfigError(f"--no-follow with --group {args.group}: a consumer waits for messages; drop one")
    is_told = args.start is not None
    args.start = args.start or Place("latest")
    if args.group != NO_GROUP and args.start.kind == "offset":
        raise ConfigError(
            f"--from {args.start.value} with --group {args.group}: give earliest, latest or a time; "
            "`hotfire offset set` lets a group go on at an offset"
        )
    return run_client(_tail(args) if args.group == NO_GROUP else _tail_as_member(args, is_told=is_told))


async def _tail(args: argparse.Namespace) -> int:
    async with TopicReader(
        args.namesrv,
        args.topic,
        start=_start(args.start),
        follow=args.follow,
        expression=args.tags,
        sql=args.sql,
        tls=tls_of(args),
    ) as reader:
        return await _print(reader, args)


async def _tail_as_member(args: argparse.Namespace, *, is_told: bool) -> int:
    """PLACE counts where the group has read nothing yet; what was printed is committed in the end."""
    begin = {"earliest": ConsumeFrom.FIRST, "latest": ConsumeFrom.LAST, "time": ConsumeFrom.TIMESTAMP}
    async with PullConsumer(
        args.namesrv,
        group=args.group,
        consume_from=begin[args.start.kind],
        consume_timestamp_ms=args.start.value or None,
        tls=tls_of(args),
    ) as consumer:
        if is_told and await _has_committed(consumer, args.topic):
            print(
                f"hotfire tail: group {args.group} goes on at its offsets; --from counts for a new group "
                f"(`hotfire offset reset {args.group} {args.topic} --to PLACE` moves this one)",
                file=sys.stderr,
            )
        consumer.subscribe(args.topic, args.tags, sql=args.sql)
        return await _print(consumer, args)


async def _has_committed(consumer: PullConsumer, topic: str) -> bool:
    with suppress(HotfireError):  # who reads is told what is wrong
        for queue in await consumer.queues(topic):
            if await consumer.committed(queue) is not None:
                return True
    return False


async def _print(messages: AsyncIterable[ReceivedMessage], args: argparse.Namespace) -> int:
    show = message_json if args.json else message_line
    count = 0
    while True:
        try:
            async for message in messages:
                print(show(message), flush=True)
                count += 1
                if count == args.max:
                    break
        except MessageDamaged as error:
            print(f"hotfire tail: {error}", file=sys.stderr)
        else:
            return 0


def _start(place: Place) -> Start:
    if place.kind == "earliest":
        return "earliest"
    if place.kind == "offset":
        return place.value
    if place.kind == "time":
        return datetime.fromtimestamp(place.value / 1000, UTC)
    return "latest"
