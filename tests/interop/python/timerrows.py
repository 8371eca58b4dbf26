"""Messages with a time of their own: delivered then, or taken back."""

from __future__ import annotations

from hotfire.net.clock import now_ms
from tests.interop.python.member import Member, Tally
from tests.interop.python.row import Row, message

DELAYS_MS = (700, 1500, 3250)
"""How long messages are to wait, in turn."""
RECALLED_MS, LAST_MS = 6000, 10_000


async def timer(row: Row) -> None:
    """By a delay and by a time of day, in turn."""
    await row.create_topic(4)
    tally = Tally(row.count)
    member = await Member(row, None, "consumer", tally).start()
    await member.until_holding(4)
    producer = await row.producer()
    for index in range(row.count):
        delay = DELAYS_MS[index % len(DELAYS_MS)]
        when = {"deliver_at": now_ms() + delay} if index % 2 else {"delay_ms": delay}
        row.sent(index, await producer.send(message(row.topic, index, **when)))
    await tally.wait()
    await member.until_committed()


async def recall(row: Row) -> None:
    """Every second message is taken back; one comes after all of them."""
    await row.create_topic(1)
    tally = Tally(row.count // 2 + 1)
    member = await Member(row, None, "consumer", tally).start()
    await member.until_holding(1)
    producer = await row.producer()
    for index in range(row.count):
        result = await producer.send(message(row.topic, index, delay_ms=RECALLED_MS))
        row.sent(index, result)
        if index % 2 == 0:
            row.write("recalled", index=index, msgId=await producer.recall(result))
    row.sent(row.count, await producer.send(message(row.topic, row.count, delay_ms=LAST_MS)))
    await tally.wait()
    await member.until_committed()


STORIES = {"timer": timer, "recall": recall}
