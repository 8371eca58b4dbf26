"""How far a group has come, who says so, and how it is put back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from hotfire import ReceivedMessage
from hotfire.errors import HotfireError
from tests.interop.python import sendrows
from tests.interop.python.child import Child
from tests.interop.python.events import broker
from tests.interop.python.member import Member, Tally
from tests.interop.python.row import WAIT_S, Row, message

FIRST, AFTER = 1001, 10
PERSISTED_S = 1.5
"""Two rounds of keeping offsets, after which one that must not move has not moved."""


async def _stuck(
    row: Row, name: str, tally: Tally, release: asyncio.Event, holds: Callable[[int], bool]
) -> Member:
    """A member that does not come to an end with some messages until the event."""

    async def handle(message: ReceivedMessage) -> bool:
        if holds(message.queue_offset):
            await release.wait()
        return True

    return await Member(row, name, name, tally, handle=handle, concurrency=AFTER + 2).start()


async def _committed(row: Row, member: Member, offset: int) -> None:
    async def is_there() -> bool:
        await member.consumer.persist_offsets()
        return (await member.committed())[0] == offset

    await row.until(f"{member.name} committed at {offset}", is_there)
    await asyncio.sleep(PERSISTED_S)
    await is_there()
    row.write("commit", consumer=member.name, wanted=offset, offset=(await member.committed())[0])


async def progress(row: Row) -> None:
    """One queue; the last ten messages have offsets 1001 to 1010."""
    await row.create_topic(1)
    await sendrows.waited_for(row, await row.producer())
    release, never = asyncio.Event(), asyncio.Event()
    everything, rest = Tally(row.count), Tally(row.count - 1)
    done = await _stuck(row, "done", everything, never, lambda offset: False)
    eight = await _stuck(row, "eight", Tally(row.count - 2), never, lambda offset: offset > FIRST + 7)
    first = await _stuck(row, "first", rest, release, lambda offset: offset == FIRST)
    await everything.wait()
    await _committed(row, done, FIRST + AFTER)
    await _committed(row, eight, FIRST + 8)
    await rest.wait()
    await _committed(row, first, FIRST)
    for index in (FIRST - 1, FIRST + 1, FIRST + 9):
        await _tracks(row, index, (done, eight, first))
    release.set()
    await _committed(row, first, FIRST + AFTER)
    never.set()


async def _tracks(row: Row, index: int, members: tuple[Member, ...]) -> None:
    """A message is looked for by topic and key, and of each group it is asked whether it has consumed it."""

    async def is_found() -> bool:
        return bool(await row.reader.messages_by_key(row.topic, f"key-{index}"))

    await row.until(f"message with the key of {index}", is_found)
    for found in await row.reader.messages_by_key(row.topic, f"key-{index}"):
        groups = {}
        for member in members:
            is_done = found.queue_offset < (await member.committed())[0]
            groups[member.group] = "CONSUMED" if is_done else "NOT_CONSUME_YET"
        row.write("tracks", index=index, queueOffset=found.queue_offset, groups=groups)


async def kill(row: Row) -> None:
    """The stuck member is killed; its successor gets what no commit covered, and nothing else."""
    await row.create_topic(1)
    await sendrows.waited_for(row, await row.producer())
    victim = await Child(row, "victim").start()
    tally = Tally(AFTER)
    reader = Member(row, None, "successor", tally)

    async def is_committed() -> bool:
        return (await reader.committed())[0] == FIRST

    await row.until(f"commit of the victim at {FIRST}", is_committed)
    await asyncio.sleep(PERSISTED_S)  # the ten behind it were handed over with it; no timer moves anything
    await victim.kill()
    row.write("killed")
    await reader.start()
    await tally.wait()
    await reader.until_committed()


async def _victim(row: Row) -> None:
    async def handle(message: ReceivedMessage) -> bool:
        if message.queue_offset == FIRST:
            await asyncio.Event().wait()
        return True

    member = Member(row, None, "victim", Tally(row.count), handle=handle, concurrency=AFTER + 2)
    await member.start()
    await asyncio.Event().wait()


async def file(row: Row) -> None:
    """With the client's own timer, which first rings after 10 s."""
    await row.create_topic(4)
    tally = Tally(row.count)
    member = await Member(row, None, "consumer", tally, capture=True).start()
    await asyncio.sleep(10.5)
    await sendrows.waited_for(row, await row.producer())
    await tally.wait()
    await broker(row.name, "written", WAIT_S, topic=row.topic, group=member.group, sum=row.count)
    row.write("written")


async def reset_by_time(row: Row) -> None:
    """A running group is put back to a moment between two halves."""
    await row.create_topic(4)
    producer = await row.producer()
    half = row.count // 2
    await sendrows.later(row, producer, 0, half)
    await asyncio.sleep(1.1)
    moment = time.time_ns() // 1_000_000
    await asyncio.sleep(1.1)
    await sendrows.later(row, producer, half, row.count - half)
    tally = Tally(row.count)
    member = await Member(row, None, "consumer", tally).start()
    await tally.wait()
    await member.until_committed()
    before = tally.total
    row.write("resetting", moment=moment)
    for queue, offset in (await row.admin.reset_offsets(member.group, row.topic, moment)).items():
        row.write("reset", queueId=queue.queue_id, offset=offset)
    await row.until("second half again", lambda: tally.total - before >= row.count - half)
    await member.until_committed()


async def reset_by_hand(row: Row) -> None:
    """One queue of a group that nobody is in is set by hand; the next member reads on from there."""
    await row.create_topic(4)
    await sendrows.to_queues(row, await row.producer())
    tally = Tally(row.count)
    first = await Member(row, None, "before", tally).start()
    await tally.wait()
    await first.until_committed()
    queues = await row.reader.queues(row.topic)
    await first.close()
    each = row.count // len(queues)
    await row.admin.set_offset(first.group, queues[1], each // 2)
    row.write("set", queueId=1, offset=each // 2)
    again = Tally(each - each // 2)
    second = await Member(row, None, "after", again).start()
    await again.wait()
    await second.until_committed()


async def order_restarts(row: Row) -> None:
    """One queue, one sender, one reader; the broker dies in between."""
    await row.create_topic(1)
    producer = await row.producer(retries=0, timeout_s=3.0)
    tally = Tally(row.count)
    member = await Member(row, None, "consumer", tally, orderly=True, concurrency=1).start()
    restarts: list[asyncio.Task[None]] = []

    async def restart() -> None:
        await broker(row.name, "down", WAIT_S)
        await broker(row.name, "up", WAIT_S)

    for index in range(row.count):
        if index in (row.count // 3, row.count * 2 // 3):
            restarts.append(asyncio.create_task(restart()))
        while True:
            try:
                row.sent(index, await producer.send(message(row.topic, index)))
                break
            except HotfireError as unknown:
                row.write("unknown", index=index, error=repr(unknown))
                await asyncio.sleep(0.1)
    await asyncio.gather(*restarts)
    await tally.wait()
    await member.until_committed()


STORIES = {
    "offset-progress": progress,
    "offset-kill": kill,
    "offset-kill/victim": _victim,
    "offset-file": file,
    "reset-by-time": reset_by_time,
    "reset-by-hand": reset_by_hand,
    "order-restarts": order_restarts,
}
