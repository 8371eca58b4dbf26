"""A consumer at work is asked through its broker how it is, where it is, and to handle messages once more.

It has the last message in hand meanwhile. Asked and asking are ours, or one of them is Java's, old and new.
"""

from __future__ import annotations

import asyncio

from hotfire import ReceivedMessage
from hotfire.client.admin import Admin
from hotfire.errors import BrokerRefused
from hotfire.protocol.bodies import decode_body
from hotfire.protocol.members import ConsumerStatus
from hotfire.protocol.requests import GetConsumerStatus
from tests.interop.python import sendrows
from tests.interop.python.child import Child, java
from tests.interop.python.member import Member, Tally
from tests.interop.python.row import ANSWER_S, Row, index_of

QUEUES = 4
DONE, LATER, FAILING = 50, 51, 52
"""Handled a second time, one succeeds, one is to come later, one fails; the first has a compressed body."""
VERSIONS = {"java498": "4.9.8", "java550": "5.5.0"}


async def _prepared(row: Row) -> None:
    await row.create_topic(QUEUES)
    await sendrows.to_queues(row, await row.producer())


async def _member(row: Row, tally: Tally, release: asyncio.Event) -> Member:
    seen: set[int] = set()

    async def handle(message: ReceivedMessage) -> bool:
        index = index_of(message)
        again = index in seen
        seen.add(index)
        if index == row.count - 1:
            await release.wait()
        if again and index == FAILING:
            raise ValueError("no luck")
        return not (again and index == LATER)

    return await Member(row, None, "consumer", tally, handle=handle).start()


async def both(row: Row) -> None:
    await _prepared(row)
    release, tally = asyncio.Event(), Tally(row.count)
    member = await _member(row, tally, release)
    await _last_in_hand(row, member.group)
    await _ask(row, "admin", member.group, member.name)
    release.set()
    await tally.wait()
    await member.until_committed()


async def java_asked(row: Row) -> None:
    await _prepared(row)
    for name, version in VERSIONS.items():
        child = await Child(row, name, java(version)).start()
        await _last_in_hand(row, row.called(name))
        await _ask(row, "admin", row.called(name), name)
        await child.kill()


async def asked_by_java(row: Row) -> None:
    await _prepared(row)
    release, tally = asyncio.Event(), Tally(row.count)
    member = await _member(row, tally, release)
    await _last_in_hand(row, member.group)
    for name, version in VERSIONS.items():
        child = await Child(row, name, java(version)).start()
        await row.until(
            f"the end of {name}'s questions",
            lambda child=child: child.wrote('"event":"over"'),  # type: ignore[misc]
        )
        await child.kill()
    release.set()
    await tally.wait()
    await member.until_committed()


# --- an administrator of ours --------------------------------------------------------------------------


async def _last_in_hand(row: Row, group: str) -> None:
    async def is_so() -> bool:
        (client,) = (await row.admin.connections(group)).clients
        info = await row.admin.running_info(group, client.client_id)
        done = (one.commit_offset for queue, one in info.queues.items() if queue.topic == row.topic)
        return sum(done) == row.count - 1

    await row.until(f"{group} with the last message in hand", is_so)


async def _ask(row: Row, asker: str, group: str, member: str) -> None:
    admin, who = row.admin, {"asker": asker, "member": member}
    (there,) = (await admin.connections(group)).clients
    client = there.client_id
    info = await admin.running_info(group, client, stacks=True)
    queues = [
        (
            queue.queue_id, one.commit_offset, one.cached_count, one.cached_min_offset,
            one.cached_max_offset, one.dropped,
        )
        for queue, one in sorted(info.queues.items())
        if queue.topic == row.topic
    ]  # fmt: skip
    stacks = [block for block in (info.stacks or "").split("\n\n") if "askedrows" in block.lower()]
    row.write(
        "running", **who, clientId=client, queues=queues, properties=dict(info.properties), stacks=stacks,
        subscriptions={one.topic: one.expression for one in info.subscriptions},
    )  # fmt: skip
    for client_id, offsets in (await _status(row, admin, group, client)).clients.items():
        row.write(
            "status", **who, clientId=client_id, offsets=[offset for _, offset in sorted(offsets.items())]
        )
    for index in (DONE, LATER, FAILING):
        await _directly(row, admin, group, client, who, index)
    row.write("absent", **who, code=await _code_of(admin, group, f"{client}-gone"))


async def _status(row: Row, admin: Admin, group: str, client: str) -> ConsumerStatus:
    """No door of ours asks for it, and Java's tools do."""
    (master,) = await admin.masters()
    request = GetConsumerStatus(topic=row.topic, group=group, client_addr=client)
    return decode_body(ConsumerStatus, (await admin._ask_broker(master, request, ANSWER_S)).body)


async def _directly(row: Row, admin: Admin, group: str, client: str, who: dict[str, str], index: int) -> None:
    async def is_found() -> bool:
        return bool((await row.reader.find_by_key(row.topic, f"key-{index}")).messages)

    await row.until(f"message with the key of {index}", is_found)
    (found,) = (await row.reader.find_by_key(row.topic, f"key-{index}")).messages
    told = await admin.consume_directly(group, client, found)
    row.write(
        "direct", **who, index=index, result=told.result, order=told.order, autoCommit=told.auto_commit,
        remark=told.remark,
    )  # fmt: skip


async def _code_of(admin: Admin, group: str, client: str) -> int:
    """What the broker says when there is no such client."""
    try:
        await admin.running_info(group, client)
    except BrokerRefused as refused:
        return int(refused.code)
    return 0


STORIES = {"asked": both, "asked-java": java_asked, "asked-by-java": asked_by_java}
