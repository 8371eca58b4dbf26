"""hotfire message: one message and who consumed it; messages by key or time; what was told of one."""

from __future__ import annotations

import argparse
import json
import re
import sys
from contextlib import suppress
from typing import Any

from hotfire.cli.client import message_json, message_line, run_client, tls_of
from hotfire.client.admin import Admin
from hotfire.client.adminviews import ConsumedBy
from hotfire.client.queries import END_OF_TIME_MS
from hotfire.client.queuereader import QueueReader
from hotfire.client.searching import CROWDED_MS, Found
from hotfire.errors import ConfigError
from hotfire.model import MessageQueue, ReceivedMessage
from hotfire.protocol.record import parse_offset_message_id
from hotfire.tables import as_json, table, with_times

PLACE = re.compile(r"(\S+)/([0-9]{1,9})@([0-9]{1,18})")
"""BROKER/QUEUE@OFFSET, as messages are printed."""


def run(args: argparse.Namespace) -> int:
    return run_client({"show": _show, "find": _find, "trace": _trace, "consume": _consume}[args.action](args))


# --- one ---


async def _show(args: argparse.Namespace) -> int:
    async with QueueReader(args.namesrv, tls=tls_of(args)) as reader:
        found = await _look(reader, args)
    async with Admin(args.namesrv, tls=tls_of(args)) as admin:
        groups = await admin.consumed_by(found)
    if args.json:
        print(as_json({**json.loads(message_json(found)), "consumedBy": [_consumed(one) for one in groups]}))
        return 0
    print(message_line(found))
    for name, value in sorted(found.properties.items()):
        print(f"  {name}={''.join(one if one.isprintable() else ' ' for one in value)}")
    if groups:
        print(table(["group", "fate", "committed", "online"], [_consumed(one) for one in groups]))
    else:
        print(f"no group reads topic {found.queue.topic}, or has read of it")
    return 0


async def _look(reader: QueueReader, args: argparse.Namespace) -> ReceivedMessage:
    place = PLACE.fullmatch(args.id)
    if place is not None:
        if args.topic is None:
            raise ConfigError(f"{args.id} is a place in a queue, but of which topic? add --topic TOPIC")
        broker, queue_id, offset = place.groups()
        return await _at(reader, MessageQueue(args.topic, broker, int(queue_id)), int(offset))
    if args.topic is not None:
        found = await reader.find_by_key(args.topic, args.id, unique=True)
        if not found.messages:
            # The id of a place names a host to dial; one that a producer gave, anyone's.
            raise ConfigError(
                f"topic {args.topic} has no message of which {args.id} is its producer's id; "
                "leave out --topic if it is the id of a place in the log"
            )
        return found.messages[-1]
    _check_names_a_place(args.id)
    message = await reader.message_by_id(args.id)
    if message is None:
        raise ConfigError(
            f"there is no message with the id {args.id}; if a producer gave it, add --topic TOPIC"
        )
    return message


def _check_names_a_place(message_id: str) -> None:
    try:
        host, _ = parse_offset_message_id(message_id)
    except ValueError:
        raise ConfigError(
            f"{message_id!r:.80} is no message id of 32 or 56 hexadecimal digits, as `message find` shows "
            "them; for a producer's id, or a place such as broker-a/3@0, add --topic TOPIC"
        ) from None
    if not 0 < host.port < 1 << 16:  # where a place has its port, a producer's id has its process
        raise ConfigError(
            f"{message_id} is an id that a producer gave, which does not tell where the message is; "
            "add --topic TOPIC to look for it there"
        )


async def _at(reader: QueueReader, queue: MessageQueue, offset: int) -> ReceivedMessage:
    name = f"queue {queue.broker_name}/{queue.queue_id} of topic {queue.topic}"
    if queue not in await reader.queues(queue.topic):
        raise ConfigError(f"there is no {name}; `hotfire topic stats {queue.topic}` shows which there are")
    pulled = await reader.pull(queue, offset, 1)
    if not pulled.messages or pulled.messages[0].queue_offset != offset:
        raise ConfigError(
            f"{name} has no message at {offset}; it holds {pulled.min_offset} to {pulled.max_offset}"
        )
    return pulled.messages[0]


async def _consume(args: argparse.Namespace) -> int:
    """One consumer handles the message now; nobody else hears of it, and no offset moves."""
    async with QueueReader(args.namesrv, tls=tls_of(args)) as reader:
        found = await _look(reader, args)
    async with Admin(args.namesrv, tls=tls_of(args)) as admin:
        told = await admin.consume_directly(args.group, args.client, found)
    row = {"result": told.result, "took": f"{told.spent_ms} ms", "remark": told.remark or "-"}
    print(as_json(row) if args.json else table(["result", "took", "remark"], [row]))
    return 0 if told.result in ("CR_SUCCESS", "CR_COMMIT") else 1


def _consumed(one: ConsumedBy) -> dict[str, Any]:
    return {
        "group": one.group,
        "fate": one.fate.value,
        "committed": "-" if one.committed is None else one.committed,
        "online": one.is_online,
    }


# --- several ---


async def _find(args: argparse.Namespace) -> int:
    if args.key is None and args.begin is None:
        raise ConfigError("by what? give --key KEY, or a span with --from TIME and perhaps --to TIME")
    begin, end = args.begin or 0, END_OF_TIME_MS if args.end is None else args.end
    async with QueueReader(args.namesrv, tls=tls_of(args)) as reader:
        if args.key is None:
            found = await reader.find_by_time(args.topic, begin, end, count_max=args.count)
        else:
            found = await reader.find_by_key(
                args.topic, args.key, begin_ms=begin, end_ms=end, count_max=args.count
            )
    for message in found.messages:
        print(message_json(message) if args.json else message_line(message, with_id=True))
    if not found.messages and not found.failures and not found.is_more:
        by = "stored in that span" if args.key is None else f"with the key {args.key}"
        print(f"no message of topic {args.topic} was found {by}", file=sys.stderr)
    for line in _missing(found, by_time=args.key is None):
        print(line, file=sys.stderr)
    return 1 if found.failures else 0


def _missing(found: Found, *, by_time: bool) -> list[str]:
    """What the messages shown are not all of."""
    lines = [f"broker {name} could not be asked: {error}" for name, error in found.failures.items()]
    if found.crowded_ms is not None:
        before_ms = found.crowded_ms - CROWDED_MS
        lines.append(
            f"there may be more: {len(found.messages)} shown, and a key finds no others of the second up to "
            f"{found.crowded_ms}; --from {before_ms} --to {found.crowded_ms} without --key shows all of that "
            f"second, and --to {before_ms} goes on before it"
        )
    elif found.is_more and found.messages:
        option, at = ("--from", -1) if by_time else ("--to", 0)
        lines.append(
            f"there is more: {len(found.messages)} shown, go on with {option} "
            f"{found.messages[at].store_timestamp_ms}, or ask for more with --count"
        )
    return lines


# --- what was told ---


async def _trace(args: argparse.Namespace) -> int:
    async with QueueReader(args.namesrv, tls=tls_of(args)) as reader:
        told_of, entries = args.id, await reader.trace(args.id, topic=args.topic)
        if not entries and (told_of := await _producers_id(reader, args.id)) != args.id:
            entries = await reader.trace(told_of, topic=args.topic)
    rows = [
        {
            "what": one.kind,
            "at": one.time_ms,
            "group": one.group or "-",
            "took": "-" if one.cost_ms is None else f"{one.cost_ms} ms",
            "outcome": one.state
            or ("-" if one.is_success is None else "success" if one.is_success else "failed"),
            "retries": "-" if one.retries is None else one.retries,
            "where": one.store_host or "-",
        }
        for one in entries
    ]
    if not rows:
        print(
            f"nothing was told of message {told_of}: producers and consumers trace with trace=True, "
            "and an entry comes up to 5 s late",
            file=sys.stderr,
        )
    if args.json:
        print(as_json([entry._asdict() for entry in entries]))
    elif rows:
        columns = ["what", "at", "group", "took", "outcome", "retries", "where"]
        print(table(columns, with_times(rows, "at")))
    return 0


async def _producers_id(reader: QueueReader, message_id: str) -> str:
    """By which traces go: that of the message at the place that the id names; else the id as it is."""
    with suppress(ConfigError):
        found = await reader.message_by_id(message_id)
        return message_id if found is None else found.message_id
    return message_id
