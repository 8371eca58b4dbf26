"""One row while it runs: its topics, groups and clients, which all carry the row's name, and its facts."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

from hotfire import Message, Producer, QueueReader, ReceivedMessage, SendResult
from hotfire.client.admin import Admin
from tests.interop.content import content
from tests.interop.python import events
from tests.interop.python.capture import watch

WAIT_S = 120.0
ANSWER_S = 30.0
SEND_TIMEOUT_S = 10.0
POLL_S = 0.05


def index_of(message: ReceivedMessage) -> int:
    return int(message.properties["index"])


def message(topic: str, index: int, **chosen: Any) -> Message:
    """Message number `index`, as the other programs send it."""
    right = content(index)
    facts: dict[str, Any] = {
        "tag": right.tags,
        "keys": tuple((right.keys or "").split()),
        "properties": right.properties,
    }
    return Message(topic, right.body, **(facts | chosen))


class Row:
    """Topics and groups are named as the row is; what was opened last is closed first, when the row ends."""

    def __init__(self, label: str, name: str, namesrv: str, count: int) -> None:
        self.label, self.name, self.namesrv, self.count = label, name, namesrv, count
        self.topic = f"{label}-{name}"
        self.opened = AsyncExitStack()
        self.admin: Admin
        self.reader: QueueReader

    def called(self, suffix: str | None) -> str:
        """A group's or a client's name."""
        return self.topic if suffix is None else f"{self.topic}-{suffix}"

    async def __aenter__(self) -> Row:
        self.admin = await self.opened.enter_async_context(Admin(self.namesrv, timeout_s=ANSWER_S))
        self.reader = await self.opened.enter_async_context(QueueReader(self.namesrv))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.opened.aclose()

    # --- facts ---------------------------------------------------------------------------------------

    def write(self, event: str, **facts: Any) -> None:
        events.write(event, row=self.name, **facts)

    def sent(self, index: int, result: SendResult, message_id: str | None = None) -> None:
        self.write(
            "sent",
            index=index,
            status=result.status.name,
            msgId=message_id or result.message_id,
            offsetMsgId=result.offset_message_id,
            queueId=result.queue.queue_id,
            queueOffset=result.queue_offset,
        )

    def failed(self, index: int, error: BaseException) -> None:
        self.write("failed", index=index, error=repr(error))

    def message(self, consumer: str, message: ReceivedMessage) -> None:
        self.write(
            "message",
            consumer=consumer,
            index=index_of(message),
            sha1=hashlib.sha1(message.body, usedforsecurity=False).hexdigest(),
            size=len(message.body),
            topic=message.topic,
            keys=" ".join(message.keys) or None,
            tags=message.tag,
            queueId=message.queue.queue_id,
            queueOffset=message.queue_offset,
            msgId=message.message_id,
            bornAt=message.born_timestamp_ms,
            storeAt=message.store_timestamp_ms,
            reconsumeTimes=message.reconsume_times,
            properties=dict(sorted(message.properties.items())),
        )

    # --- clients and topics --------------------------------------------------------------------------

    async def producer(self, suffix: str = "producer", *, capture: bool = False, **chosen: Any) -> Producer:
        if capture:
            watch(self, suffix)
        settings: dict[str, Any] = {"timeout_s": SEND_TIMEOUT_S} | chosen
        name = self.called(suffix)
        producer = Producer(self.namesrv, group=name, instance_name=name, **settings)
        return await self.opened.enter_async_context(producer)

    async def create_topic(self, queues: int) -> None:
        """Make the row's topic, or give it more queues, and wait until its route says so."""
        await self.admin.create_topic(self.topic, queues=queues)

        async def is_known() -> bool:
            return len((await self.admin.route(self.topic)).read_queues) == queues

        await self.until(f"route of {self.topic}", is_known)

    async def ends(self, topic: str | None = None) -> dict[int, int]:
        """Where the queues end, by their numbers."""
        queues = await self.reader.queues(topic or self.topic)
        return {queue.queue_id: await self.reader.max_offset(queue) for queue in queues}

    async def until_stored(self, messages: int) -> None:
        """Wait until the topic holds so many messages, and write where its queues end."""

        async def is_stored() -> bool:
            return sum((await self.ends()).values()) >= messages

        await self.until(f"{messages} messages in {self.topic}", is_stored)
        ends = await self.ends()
        self.write("ends", topic=self.topic, ends=[ends[queue] for queue in sorted(ends)])

    async def until(
        self, what: str, question: Callable[[], Awaitable[bool] | bool], wait_s: float = WAIT_S
    ) -> None:
        """Ask until the answer is yes; an exception counts as not yet, and as the reason in the end."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_s
        last: Exception | None = None
        while True:
            try:
                answer = question()
                if answer if isinstance(answer, bool) else await answer:
                    return
                last = None
            except Exception as not_yet:  # noqa: BLE001  # told in the end
                last = not_yet
            if loop.time() > deadline:
                raise TimeoutError(f"no {what} within {wait_s:g} s") from last
            await asyncio.sleep(POLL_S)
