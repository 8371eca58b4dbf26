"""Every way to consume."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from hotfire import ConsumeFrom, MessageQueue, PullConsumer, QueueReader, ReceivedMessage
from hotfire.client.pulling import Pulled, PullStatus
from tests.interop.python import sendrows
from tests.interop.python.member import Member, Tally
from tests.interop.python.row import Row, index_of, message

QUEUES = 4
POLL_S = 1.0
IDLE_S = 43.0
STATUS = {
    PullStatus.FOUND: "FOUND",
    PullStatus.NOTHING_NEW: "NO_NEW_MSG",
    PullStatus.NOTHING_MATCHED: "NO_MATCHED_MSG",
    PullStatus.OFFSET_MOVED: "OFFSET_ILLEGAL",
}


# --- push ------------------------------------------------------------------------------------------


async def pulls(row: Row) -> None:
    await row.create_topic(1)
    await sendrows.later(row, await row.producer())
    tally = Tally(row.count)
    member = await Member(row, None, "consumer", tally, capture=True, batch_max=32).start()
    await tally.wait()
    await member.until_committed()


async def interval(row: Row) -> None:
    await row.create_topic(1)
    await sendrows.later(row, await row.producer())
    tally = Tally(row.count)
    member = await Member(row, None, "consumer", tally, capture=True, pull_interval_s=1.0).start()
    await tally.wait()
    await member.until_committed()


async def held(row: Row) -> None:
    """Idle until two pulls in a row were held to their end; then messages come one by one."""
    await row.create_topic(1)
    producer = await row.producer()
    tally = Tally(row.count)
    member = await Member(row, None, "consumer", tally, capture=True).start()
    await member.until_holding(1)
    await asyncio.sleep(IDLE_S)
    for index in range(row.count):
        row.sent(index, await producer.send(message(row.topic, index)))
        await asyncio.sleep(0.05)
    await tally.wait()


async def concurrent(row: Row) -> None:
    """Two groups of three."""
    await row.create_topic(8)
    tallies = {group: Tally(row.count) for group in ("red", "blue")}
    members = [
        await Member(row, group, f"{group}{number}", tallies[group]).start()
        for group in tallies
        for number in range(3)
    ]
    for place, member in enumerate(members):
        await member.until_holding(2 if place % 3 == 2 else 3)
    await sendrows.later(row, await row.producer())
    for tally in tallies.values():
        await tally.wait()
    for group in (members[:3], members[3:]):
        await group[0].until_committed(others=tuple(group[1:]))


async def orderly(row: Row) -> None:
    """Two members; every 97th message fails the first time and holds up what is behind it."""
    await row.create_topic(QUEUES)
    tally = Tally(row.count)
    failed: set[int] = set()

    def handling(name: str) -> Callable[[ReceivedMessage], bool]:
        def handle(message: ReceivedMessage) -> bool:
            index = index_of(message)
            done = index % 97 != 0 or index in failed
            failed.add(index)
            row.write("handled", consumer=name, index=index, queueId=message.queue.queue_id, done=done)
            return done

        return handle

    members = [
        await Member(row, None, name, tally, handle=handling(name), orderly=True).start()
        for name in ("left", "right")
    ]
    for member in members:
        await member.until_holding(QUEUES // 2)
    await sendrows.selected(row, await row.producer())
    await tally.wait()
    await members[0].until_committed(others=tuple(members[1:]))


async def broadcasting(row: Row) -> None:
    await row.create_topic(QUEUES)
    tallies = [Tally(row.count) for _ in range(3)]
    members = [
        await Member(row, None, f"c{number}", tally, broadcasting=True).start()
        for number, tally in enumerate(tallies)
    ]
    for member in members:
        await member.until_holding(QUEUES)
    await sendrows.later(row, await row.producer())
    for tally in tallies:
        await tally.wait()


# --- pull ------------------------------------------------------------------------------------------


async def pull(row: Row) -> None:
    await row.create_topic(QUEUES)
    producer = await row.producer()
    await sendrows.waited_for(row, producer)
    name = row.called("consumer")
    reader = QueueReader(row.namesrv, group=row.called(None), instance_name=name)
    await row.opened.enter_async_context(reader)

    def pulled(queue: MessageQueue, offset: int, result: Pulled) -> int:
        row.write(
            "pulled",
            queueId=queue.queue_id,
            offset=offset,
            status=STATUS[result.status],
            next=result.next_offset,
            min=result.min_offset,
            max=result.max_offset,
            count=len(result.messages),
        )
        for one in result.messages:
            row.message("consumer", one)
        return result.next_offset

    queues = await reader.queues(row.topic)
    for queue in queues:
        offset, end = await reader.min_offset(queue), await reader.max_offset(queue)
        while offset < end:
            offset = pulled(queue, offset, await reader.pull(queue, offset))
        pulled(queue, end, await reader.pull(queue, end))
        pulled(queue, end + 1000, await reader.pull(queue, end + 1000))
        await reader.commit(queue, offset)
        assert await reader.committed(queue) == end, f"commit of {queue}"
    end = await reader.max_offset(queues[0])
    held = asyncio.create_task(reader.pull(queues[0], end, wait_s=20))
    await asyncio.sleep(0.3)
    row.write("woken-by", offset=end)
    row.sent(row.count, await producer.send(message(row.topic, row.count), queue=queues[0]))
    pulled(queues[0], end, await held)


def _lite(row: Row, name: str) -> PullConsumer:
    return PullConsumer(
        row.namesrv,
        group=row.called(None),
        instance_name=row.called(name),
        auto_commit=False,
        consume_from=ConsumeFrom.FIRST,
    )


async def _poll(row: Row, consumer: PullConsumer, name: str, wanted: int) -> None:
    """Read until so many messages came; what follows later belongs to the next reader."""
    seen: set[tuple[int, int]] = set()

    async def is_enough() -> bool:
        for one in await consumer.poll(POLL_S):
            row.message(name, one)
            seen.add((one.queue.queue_id, one.queue_offset))
        return len(seen) >= wanted

    await row.until(f"{wanted} polled messages", is_enough)


async def lite_subscribe(row: Row) -> None:
    """The first reader commits what it polled and leaves; the second goes on from there."""
    await row.create_topic(QUEUES)
    await sendrows.later(row, await row.producer())
    half = row.count // 2
    async with _lite(row, "first") as first:
        first.subscribe(row.topic)
        await _poll(row, first, "first", half)
        await first.commit()
    second = await row.opened.enter_async_context(_lite(row, "second"))
    second.subscribe(row.topic)
    # The first takes whole batches, so it may have gone past the half by less than one.
    await _poll(row, second, "second", row.count - half - 10)
    empty = 0
    while empty < 2:
        rest = await second.poll(POLL_S)
        for one in rest:
            row.message("second", one)
        empty += not rest
    await second.commit()
    for queue in await second.queues(row.topic):
        row.write("commit", queueId=queue.queue_id, offset=await second.committed(queue))


async def lite_assign(row: Row) -> None:
    """Seeks come when all there was has been polled, to the middle, the begin and the end."""
    await row.create_topic(QUEUES)
    await sendrows.to_queues(row, await row.producer())
    consumer = await row.opened.enter_async_context(_lite(row, "consumer"))
    queues = await consumer.queues(row.topic)
    each = row.count // QUEUES
    consumer.assign(queues)
    await _poll(row, consumer, "all", row.count)
    await consumer.seek(queues[0], each // 2)
    await _poll(row, consumer, "half", each - each // 2)
    await consumer.seek_to_begin(queues[0])
    await _poll(row, consumer, "begin", each)
    await consumer.seek_to_end(queues[0])
    for one in await consumer.poll(POLL_S):
        row.message("end", one)
    row.write("searched", offset=await consumer.offset_for_timestamp(queues[1], 0))


STORIES = {
    "push-pulls": pulls,
    "pull-interval": interval,
    "pull-held": held,
    "push-concurrent": concurrent,
    "push-orderly": orderly,
    "broadcasting": broadcasting,
    "pull": pull,
    "lite-subscribe": lite_subscribe,
    "lite-assign": lite_assign,
}
