"""Requests and replies: a consumer answers each message with its body, turned round; Java's or ours."""

from __future__ import annotations

import asyncio
import hashlib
import math

from hotfire import ReceivedMessage
from hotfire.errors import RequestTimeout
from tests.interop.python.child import Child, java
from tests.interop.python.member import Member, Tally
from tests.interop.python.row import Row, message

TIMEOUT_S = 60.0
UNHEARD_S = 2.0


async def prepared(row: Row) -> None:
    await row.create_topic(4)
    await row.admin.create_topic(f"{row.topic}-unheard", queues=1)


async def replier(row: Row) -> None:
    async def reply(request: ReceivedMessage) -> bool:
        await member.consumer.reply(request, request.body[::-1])
        return True

    member = Member(row, None, "consumer", Tally(math.inf), handle=reply)
    await member.start()


async def ask(row: Row) -> None:
    producer = await row.producer()
    for index in range(row.count):
        reply = await producer.request(message(row.topic, index), timeout_s=TIMEOUT_S)
        row.write(
            "replied",
            index=index,
            sha1=hashlib.sha1(reply.body[::-1], usedforsecurity=False).hexdigest(),
            topic=reply.topic,
            type=reply.properties["MSG_TYPE"],
            pushed="PUSH_REPLY_TIME" in reply.properties,
            arrived="ARRIVE_TIME" in reply.properties,
            stored=reply.store_timestamp_ms > 0,
        )
    try:
        await producer.request(message(f"{row.topic}-unheard", row.count), timeout_s=UNHEARD_S)
        row.write("unheard", error="none")
    except RequestTimeout:
        row.write("unheard", error="timeout")


async def both(row: Row) -> None:
    await prepared(row)
    await replier(row)
    await ask(row)


async def java_asks(row: Row) -> None:
    await prepared(row)
    await replier(row)
    child = await Child(row, "java", java()).start()
    await row.until("the end of Java's requests", lambda: child.wrote('"event":"unheard"'))


async def java_replies(row: Row) -> None:
    await prepared(row)
    child = await Child(row, "java", java()).start()
    await row.until("Java's consumer", lambda: child.wrote('"event":"started"'))
    await asyncio.wait_for(ask(row), 2 * TIMEOUT_S)


STORIES = {"request-reply": both, "request-java": java_asks, "reply-java": java_replies}
