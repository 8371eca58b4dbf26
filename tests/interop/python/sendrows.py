"""Every way to send, each read back by a push consumer that starts afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

from hotfire import Producer, SendResult, by_key_hash
from tests.interop.python.member import Member, Tally
from tests.interop.python.row import Row, message

WINDOW = 64
BATCH = 10
QUEUES = 8
ORDERS = 100

Sending = Callable[[Row, Producer], Awaitable[None]]


async def waited_for(row: Row, producer: Producer) -> None:
    for index in range(row.count):
        row.sent(index, await producer.send(message(row.topic, index)))


async def later(row: Row, producer: Producer, first: int = 0, count: int | None = None) -> None:
    """With so many under way at a time."""
    room = asyncio.Semaphore(WINDOW)

    def done(index: int, future: asyncio.Future[SendResult]) -> None:
        room.release()
        if (error := future.exception()) is not None:
            row.failed(index, error)
        else:
            row.sent(index, future.result())

    for index in range(first, first + (row.count if count is None else count)):
        await room.acquire()
        producer.send_soon(message(row.topic, index), on_done=partial(done, index))
    for _ in range(WINDOW):
        await room.acquire()


async def oneway(row: Row, producer: Producer) -> None:
    for index in range(row.count):
        await producer.send_oneway(message(row.topic, index))


async def to_queues(row: Row, producer: Producer) -> None:
    queues = await producer.queues(row.topic)
    for index in range(row.count):
        chosen = queues[index % len(queues)]
        row.sent(index, await producer.send(message(row.topic, index), queue=chosen))


async def selected(row: Row, producer: Producer) -> None:
    for index in range(row.count):
        order = f"order-{index % ORDERS}"
        row.sent(index, await producer.send(message(row.topic, index), selector=by_key_hash, arg=order))


async def batches(row: Row, producer: Producer) -> None:
    for first in range(0, row.count, BATCH):
        results = await producer.send_batch(message(row.topic, first + step) for step in range(BATCH))
        row.sent(first, results[0], ",".join(result.message_id for result in results))


async def _sent(row: Row, sending: Sending, queues: int = 0) -> None:
    if queues:
        await row.create_topic(queues)
    producer = await row.producer(capture=row.name in ("send-oneway", "send-batch"))
    await sending(row, producer)
    # A oneway message may still be on its way: closing the connection would throw it away.
    await row.until_stored(row.count)
    tally = Tally(row.count)
    member = await Member(row, None, "consumer", tally).start()
    await tally.wait()
    await member.until_committed()


STORIES = {
    "send-sync": partial(_sent, sending=waited_for),
    "send-async": partial(_sent, sending=later),
    "send-oneway": partial(_sent, sending=oneway),
    "send-queue": partial(_sent, sending=to_queues, queues=QUEUES),
    "send-selector": partial(_sent, sending=selected, queues=QUEUES),
    "send-batch": partial(_sent, sending=batches, queues=QUEUES),
}
