"""Messages looked for: at their place in the log, by their producer's id, by a key within a span of time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from hotfire import Producer, ReceivedMessage, SendResult
from hotfire.client.queries import END_OF_TIME_MS, messages_by_key
from tests.interop.python.row import Row, message

QUEUES = 4
VIEWED = (0, 50, 998, 999)
"""The first, one with a compressed body, the last but one, and the last, which has no keys."""
ONE = "key-55"
MANY = "键-42"
"""Of nine messages, three in each part."""
ELSEWHERE = (42, 55, 236)
MANY_MAX = 64
FAR_BEHIND = f"{(1 << 44) - 1:016X}"
BETWEEN_S = 1.1


async def query(row: Row) -> None:
    await row.create_topic(QUEUES)
    other = f"{row.topic}-other"
    await row.admin.create_topic(other, queues=1)
    producer = await row.producer()
    sent = await _send(row, producer, range(400))
    first = await _between()
    for index in ELSEWHERE:
        await producer.send(message(other, index))
    sent += await _send(row, producer, range(400, 700))
    second = await _between()
    sent += await _send(row, producer, range(700, row.count))

    async def by_id(message_id: str) -> Sequence[ReceivedMessage]:
        return (await row.reader.find_by_key(row.topic, message_id, unique=True)).messages

    async def is_indexed() -> bool:
        return bool(await by_id(sent[-1].message_id))

    # What was stored last is the last to come into the index.
    await row.until("the last message in the index", is_indexed)
    for index in VIEWED:
        place = sent[index].offset_message_id
        found = await row.reader.message_by_id(place, row.topic)
        _found(row, f"place-{index}", [] if found is None else [found])
        _found(row, f"id-{index}", await by_id(sent[index].message_id))
    nowhere = sent[0].offset_message_id[: -len(FAR_BEHIND)] + FAR_BEHIND
    found = await row.reader.message_by_id(nowhere, row.topic)
    _found(row, "no-place", [] if found is None else [found])
    await _by_key(row, "key", ONE)
    await _by_key(row, "no-key", "nobody's")
    await _by_key(row, "all", MANY)
    await _by_key(row, "to-first", MANY, end_ms=first)
    await _by_key(row, "first-to-second", MANY, begin_ms=first, end_ms=second)
    await _by_key(row, "from-second", MANY, begin_ms=second)
    await _by_key(row, "before", MANY, end_ms=1)
    await _by_key(row, "newest", MANY, count_max=4)
    await _by_key(row, "newest-to-second", MANY, end_ms=second, count_max=2)


async def _send(row: Row, producer: Producer, indexes: range) -> list[SendResult]:
    queues = await producer.queues(row.topic)
    sent = []
    for index in indexes:
        sent.append(await producer.send(message(row.topic, index), queue=queues[index % QUEUES]))
        row.sent(index, sent[-1])
    return sent


async def _between() -> int:
    """A moment more than a second away from all that was stored: an index knows times to the second."""
    await asyncio.sleep(BETWEEN_S)
    moment = time.time_ns() // 1_000_000
    await asyncio.sleep(BETWEEN_S)
    return moment


async def _by_key(
    row: Row,
    name: str,
    key: str,
    *,
    begin_ms: int = 0,
    end_ms: int = END_OF_TIME_MS,
    count_max: int = MANY_MAX,
) -> None:
    """What is found page by page, and what one question with this number finds, are the same."""
    span = {"begin_ms": begin_ms, "end_ms": end_ms, "count_max": count_max}
    found = await row.reader.find_by_key(row.topic, key, **span)
    at_once = await messages_by_key(row.reader._instance, row.topic, key, **span)
    assert not found.failures, found.failures
    assert [one.message_id for one in at_once] == [one.message_id for one in found.messages], name
    _found(row, name, found.messages)


def _found(row: Row, name: str, messages: Sequence[ReceivedMessage]) -> None:
    row.write("found", by=name, count=len(messages))
    for one in messages:
        row.message(name, one)


STORIES = {"query": query}
