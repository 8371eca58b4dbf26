"""Messages that come later: because their sender asked for it, or because their consumer failed."""

from __future__ import annotations

import asyncio

from hotfire import ReceivedMessage
from hotfire.model import dlq_topic, retry_topic
from tests.interop.python import sendrows
from tests.interop.python.events import broker
from tests.interop.python.member import Member, Tally
from tests.interop.python.row import WAIT_S, Row, index_of, message

LEVELS = (1, 2, 99)
"""Asked for in turn; the last is above the ladder's end."""


async def delay(row: Row) -> None:
    await row.create_topic(4)
    tally = Tally(row.count)
    member = await Member(row, None, "consumer", tally).start()
    await member.until_holding(4)
    producer = await row.producer()
    for index in range(row.count):
        delayed = message(row.topic, index, delay_level=LEVELS[index % len(LEVELS)])
        row.sent(index, await producer.send(delayed))
    await tally.wait()
    await member.until_committed()


async def retry(row: Row) -> None:
    """Each message fails once."""
    await row.create_topic(4)
    await sendrows.later(row, await row.producer())
    tally = Tally(row.count)
    failed: set[int] = set()

    def handle(message: ReceivedMessage) -> bool:
        is_second = index_of(message) in failed
        failed.add(index_of(message))
        return is_second

    member = await Member(row, None, "consumer", tally, handle=handle).start()
    await tally.wait()
    await member.until_committed()
    await member.until_committed(retry_topic(member.group))


async def dead_letter(row: Row) -> None:
    """Each message fails until it is dead, is read as a dead letter, and sent again to be handled at last."""
    await row.create_topic(4)
    producer = await row.producer()
    await sendrows.waited_for(row, producer)
    tally = Tally(row.count)
    driven: set[int] = set()
    member = Member(row, None, "consumer", tally, handle=lambda message: index_of(message) in driven)
    await member.start()
    dead = dlq_topic(member.group)

    async def is_there() -> bool:
        queues = (await row.admin.route(dead)).data.queues[0]
        row.write("dead-route", read=queues.read_queues, write=queues.write_queues, perm=queues.perm)
        return True

    await row.until(f"route of {dead}", is_there)
    buried = Tally(row.count)
    await Member(row, "undertaker", "undertaker", buried, topic=dead).start()
    await buried.wait()
    row.write("driving")
    for index in range(row.count):
        driven.add(index)
        row.sent(index, await producer.send(message(row.topic, index)))
    await tally.wait()
    await member.until_committed()


async def cut(row: Row) -> None:
    """The broker is gone when messages fail: nobody takes them back, so they are handled here once more."""
    await row.create_topic(1)
    await sendrows.waited_for(row, await row.producer())
    tally = Tally(row.count)
    failed: set[int] = set()
    handed, gone = asyncio.Event(), asyncio.Event()

    async def handle(message: ReceivedMessage) -> bool:
        if index_of(message) in failed:
            return True
        failed.add(index_of(message))
        if len(failed) == row.count:
            handed.set()
        await gone.wait()
        return False

    member = await Member(row, None, "consumer", tally, handle=handle, concurrency=row.count).start()
    async with asyncio.timeout(WAIT_S):
        await handed.wait()
    await broker(row.name, "down", WAIT_S)
    row.write("down")
    gone.set()
    await tally.wait()
    row.write("again")
    await broker(row.name, "up", WAIT_S)
    await member.until_committed()


STORIES = {"delay": delay, "retry": retry, "dead-letter": dead_letter, "retry-cut": cut}
