"""One push consumer of a row: writes each message it gets and each change of the queues it holds."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from hotfire import ConsumeContext, ConsumeFrom, Consumer, ConsumeResult, ReceivedMessage
from tests.interop.python.capture import watch
from tests.interop.python.row import WAIT_S, Row, index_of

QUEUE_TABLE_POLL_S = 0.01
SUSPEND_MS = 10

Handle = Callable[[ReceivedMessage], Awaitable[bool] | bool]
"""What the application does with a message: true when it succeeded."""


class Tally:
    """Which numbered messages have been dealt with, and the moment when all expected ones were."""

    def __init__(self, expected: float) -> None:
        self.expected = expected
        self.seen: set[int] = set()
        self.total = 0
        self._complete = asyncio.Event()

    def count(self, message: ReceivedMessage) -> None:
        self.total += 1
        self.seen.add(index_of(message))
        if len(self.seen) >= self.expected:
            self._complete.set()

    async def wait(self) -> None:
        try:
            async with asyncio.timeout(WAIT_S):
                await self._complete.wait()
        except TimeoutError:
            raise TimeoutError(
                f"{len(self.seen)} of {self.expected} messages within {WAIT_S:g} s, {self.total} in all"
            ) from None


class Member:
    """Begins at the first message, with four listeners at a time."""

    def __init__(
        self,
        row: Row,
        group: str | None,
        name: str,
        tally: Tally,
        *,
        handle: Handle = lambda message: True,
        topic: str | None = None,
        tags: str = "*",
        sql: str | None = None,
        capture: bool = False,
        deaf: bool = False,
        **chosen: Any,
    ) -> None:
        self.row, self.name, self.tally = row, name, tally
        self.group = row.called(group)
        self.topic = topic or row.topic
        self._handle = handle
        if capture or deaf:
            watch(row, name, deaf=deaf)
        settings: dict[str, Any] = {"consume_from": ConsumeFrom.FIRST, "concurrency": 4} | chosen
        self.consumer = Consumer(
            row.namesrv,
            group=self.group,
            instance_name=row.called(name),
            offsets_directory=Path.cwd() / "offsets",
            **settings,
        )
        is_batch = self.consumer.settings.batch_max > 1
        self.consumer.subscribe(self.topic, self._heard_batch if is_batch else self._heard, tags, sql=sql)
        self._watcher: asyncio.Task[None] | None = None

    # --- listening -----------------------------------------------------------------------------------

    async def _heard(self, message: ReceivedMessage, context: ConsumeContext) -> ConsumeResult:
        if self.consumer.settings.orderly:
            context.suspend_ms = SUSPEND_MS
        return ConsumeResult.DONE if await self._handled(message) else ConsumeResult.RETRY

    async def _heard_batch(self, messages: list[ReceivedMessage]) -> bool:
        self.row.write("batch", consumer=self.name, count=len(messages))
        return all([await self._handled(message) for message in messages])

    async def _handled(self, message: ReceivedMessage) -> bool:
        self.row.message(self.name, message)
        try:
            answer = self._handle(message)
            done = answer if isinstance(answer, bool) else await answer
        except BaseException as error:
            place = {"queueId": message.queue.queue_id, "queueOffset": message.queue_offset}
            self.row.write("error", consumer=self.name, **place, error=repr(error))
            raise
        if done:
            self.tally.count(message)
        return done

    # --- life ----------------------------------------------------------------------------------------

    async def start(self) -> Member:
        self.row.write("starting", consumer=self.name)
        await self.consumer.start()
        self.row.write("started", consumer=self.name, clientId=self.consumer._running.instance.client_id)
        self.row.opened.push_async_callback(self.close)
        self._watcher = asyncio.create_task(self._watch_queues())
        return self

    async def close(self) -> None:
        watcher, self._watcher = self._watcher, None
        if watcher is not None:
            watcher.cancel()
            await self.consumer.close()

    def held(self) -> list[int]:
        """The queues it holds of its topic."""
        if self._watcher is None:
            return []
        return sorted(queue.queue_id for queue in self.consumer.queues if queue.topic == self.topic)

    async def _watch_queues(self) -> None:
        known: list[int] | None = None
        while True:
            if (held := self.held()) != known:
                known = held
                self.row.write("queues", consumer=self.name, queues=held)
            await asyncio.sleep(QUEUE_TABLE_POLL_S)

    async def until_holding(self, queues: int) -> None:
        await self.row.until(f"{self.name} holding {queues} queues", lambda: len(self.held()) == queues)

    # --- offsets -------------------------------------------------------------------------------------

    async def committed(self, topic: str | None = None) -> dict[int, int]:
        """The broker's word, not the consumer's own memory of it."""
        offsets = await self.row.admin.offsets(self.group, topic or self.topic)
        return {queue.queue_id: offset or 0 for queue, offset in offsets.items()}

    async def until_committed(self, topic: str | None = None, others: tuple[Member, ...] = ()) -> None:
        """Once everything is committed no second copy can be on its way."""
        topic = topic or self.topic
        ends = await self.row.ends(topic)

        async def is_committed() -> bool:
            for member in (self, *others):  # the client's timer first rings after 10 s
                await member.consumer.persist_offsets()
            return await self.committed(topic) == ends

        await self.row.until(f"commit of {topic} at {ends}", is_committed)
        self.row.write("committed", group=self.group, topic=topic, offsets=ends)
