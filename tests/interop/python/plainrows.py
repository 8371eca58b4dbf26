"""Small stories with the client as it comes, nothing set that need not be: the same as PlainRows.java.

What is asked for in them is compared. Topics and what lies in them are there before.
"""

from __future__ import annotations

import asyncio

from hotfire import ConsumeFrom, Consumer, ConsumeResult, Message, Producer, PullConsumer, ReceivedMessage
from tests.interop.python.row import ANSWER_S, WAIT_S, Row

HEARTBEAT_DUE_S = 1.5
"""A client first tells who it is a second after its start."""


def _message(row: Row, index: int) -> Message:
    return Message(row.topic, f"body {index}".encode(), tag="a", keys=(f"key-{index}",))


async def send(row: Row) -> None:
    name = row.called("plain")
    async with Producer(row.namesrv, group=row.topic, instance_name=name, timeout_s=ANSWER_S) as producer:
        for index in range(row.count):
            await producer.send(_message(row, index))
        await asyncio.sleep(HEARTBEAT_DUE_S)
        await producer.send_oneway(_message(row, row.count))
        await producer.send_soon(_message(row, row.count + 1))
        await producer.send_batch(_message(row, index) for index in range(row.count))


async def _consume(row: Row, tags: str, *, orderly: bool, failing: str | None) -> None:
    left = row.count
    failed: set[str] = set()
    all_handled = asyncio.Event()

    async def handle(message: ReceivedMessage) -> ConsumeResult:
        nonlocal left
        if failing in message.keys and failing not in failed:
            failed.add(failing)
            return ConsumeResult.RETRY
        left -= 1
        if not left:
            all_handled.set()
        return ConsumeResult.DONE

    consumer = Consumer(
        row.namesrv,
        group=row.topic,
        instance_name=row.called("plain"),
        consume_from=ConsumeFrom.FIRST,
        orderly=orderly,
    )
    consumer.subscribe(row.topic, handle, tags)
    async with consumer, asyncio.timeout(WAIT_S):
        await all_handled.wait()


async def push(row: Row) -> None:
    """The first message fails once."""
    await _consume(row, "a || b", orderly=False, failing="key-0")


async def orderly(row: Row) -> None:
    await _consume(row, "*", orderly=True, failing=None)


async def lite(row: Row) -> None:
    consumer = PullConsumer(
        row.namesrv,
        group=row.topic,
        instance_name=row.called("plain"),
        consume_from=ConsumeFrom.FIRST,
        auto_commit=False,
    )
    consumer.subscribe(row.topic)
    async with consumer:
        polled = 0
        while polled < row.count:
            polled += len(await consumer.poll())
        await consumer.commit()
        for queue in await consumer.queues(row.topic):
            row.write("committed", queueId=queue.queue_id, offset=await consumer.committed(queue))


STORIES = {"plain-send": send, "plain-push": push, "plain-orderly": orderly, "plain-lite": lite}
