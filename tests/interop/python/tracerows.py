"""Clients tell of their messages, and clients read it: ours and Java's, old and new, and each the other's."""

from __future__ import annotations

import json
from collections.abc import Mapping

from hotfire import SendResult
from hotfire.model import TRACE_TOPIC
from tests.interop.python.askedrows import VERSIONS
from tests.interop.python.child import Child, java
from tests.interop.python.member import Member, Tally
from tests.interop.python.row import Row, message

ENTRIES = 3


async def both(row: Row) -> None:
    """In a topic of its own."""
    await row.create_topic(2)
    told = f"{row.topic}-told"
    await row.admin.create_topic(told, queues=1)
    sent = await _traced(row, told)
    await _read(row, "self", {index: result.message_id for index, result in sent.items()}, told)


async def traced_by_java(row: Row) -> None:
    await row.create_topic(2)
    for part, version in VERSIONS.items():
        child = await Child(row, part, java(version)).start()
        await _over(row, child)
        sent = [event for event in map(json.loads, child.lines) if event["event"] == "sent"]
        await _read(row, part, {event["index"]: event["msgId"] for event in sent})
        await child.kill()


async def read_by_java(row: Row) -> None:
    await row.create_topic(2)
    sent = await _traced(row)
    await _told(row, sent[row.count - 1].message_id)
    for part, version in VERSIONS.items():
        child = await Child(row, part, java(version)).start()
        await _over(row, child)
        await child.kill()


async def _over(row: Row, child: Child) -> None:
    await row.until("the end of Java's part", lambda: child.wrote('"event":"over"'))


async def _traced(row: Row, topic: str = TRACE_TOPIC) -> dict[int, SendResult]:
    """By the numbers of the messages."""
    producer = await row.producer(trace=topic)
    sent = {}
    for index in range(row.count):
        sent[index] = await producer.send(message(row.topic, index))
        row.sent(index, sent[index])
    tally = Tally(row.count)
    await Member(row, "consumer", "consumer", tally, trace=topic).start()
    await tally.wait()
    return sent


async def _told(row: Row, message_id: str, topic: str = TRACE_TOPIC) -> None:
    async def is_told() -> bool:
        return len(await row.reader.trace(message_id, topic=topic)) >= ENTRIES

    await row.until(f"trace of {message_id}", is_told)


async def _read(row: Row, part: str, ids: Mapping[int, str], topic: str = TRACE_TOPIC) -> None:
    for index, message_id in ids.items():
        await _told(row, message_id, topic)
        for entry in await row.reader.trace(message_id, topic=topic):
            row.write("told", part=part, index=index, **entry._asdict())


STORIES = {"trace": both, "trace-java": traced_by_java, "trace-python": read_by_java}
