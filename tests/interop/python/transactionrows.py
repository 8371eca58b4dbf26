"""Messages that are seen when a local transaction has succeeded."""

from __future__ import annotations

import hashlib
from collections import Counter
from typing import Any

from hotfire import Message, ReceivedMessage, TransactionProducer, TransactionState
from tests.interop.python.member import Member, Tally
from tests.interop.python.row import SEND_TIMEOUT_S, Row, index_of, message

STATES = (TransactionState.COMMIT, TransactionState.ROLLBACK, TransactionState.UNKNOWN)
NAMES = dict(zip(STATES, ("COMMIT_MESSAGE", "ROLLBACK_MESSAGE", "UNKNOW"), strict=True))


def producer(row: Row, name: str, commit_at: int) -> TransactionProducer:
    """Ends as told: at once by the argument, when asked by how often it was asked about this message."""
    asked: Counter[int] = Counter()

    async def execute(sent: Message, state: TransactionState) -> TransactionState:
        has_id = "__transactionId__" in sent.properties
        row.write("executed", producer=name, index=int(sent.properties["index"]), hasId=has_id)
        return state

    def check(half: ReceivedMessage) -> TransactionState:
        index = index_of(half)
        asked[index] += 1
        sha1 = hashlib.sha1(half.body, usedforsecurity=False).hexdigest()
        row.write("checked", producer=name, index=index, times=asked[index], topic=half.topic, sha1=sha1)
        return TransactionState.COMMIT if asked[index] >= commit_at else TransactionState.UNKNOWN

    settings: dict[str, Any] = {"timeout_s": SEND_TIMEOUT_S, "instance_name": row.called(name)}
    return TransactionProducer(
        row.namesrv, group=row.called("producers"), execute=execute, check=check, **settings
    )


async def send(row: Row, transactions: TransactionProducer, index: int, state: TransactionState) -> None:
    result = await transactions.send_in_transaction(message(row.topic, index), state)
    row.sent(index, result.sent)
    row.write("state", index=index, state=NAMES[result.state])


async def outcomes(row: Row) -> None:
    await row.create_topic(4)
    tally = Tally(row.count - (row.count + 1) // 3)
    member = await Member(row, None, "consumer", tally).start()
    transactions = await row.opened.enter_async_context(producer(row, "producer", 2))
    for index in range(row.count):
        await send(row, transactions, index, STATES[index % 3])
    await tally.wait()
    await member.until_committed()


async def orphans(row: Row) -> None:
    """Who sent the halves goes; another of its group, which never sends, is asked."""
    await row.create_topic(4)
    tally = Tally(row.count)
    member = await Member(row, None, "consumer", tally).start()
    async with producer(row, "dying", 99) as dying:
        for index in range(row.count):
            await send(row, dying, index, TransactionState.UNKNOWN)
    await row.opened.enter_async_context(producer(row, "living", 1))
    await tally.wait()
    await member.until_committed()


STORIES = {"transaction": outcomes, "transaction-orphan": orphans}
