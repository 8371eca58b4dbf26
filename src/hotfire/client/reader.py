"""Reading a topic without a group: every queue from a chosen place, as an asynchronous iterator.

Keeps its own offsets and commits none, so it disturbs no consumer. Each queue has a task that pulls; what
they get waits in one bounded buffer. Order is kept within a queue only.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, Literal

from hotfire.client.dialling import TlsChoice
from hotfire.client.pulling import PullStatus
from hotfire.client.queuereader import READER_GROUP, QueueReader
from hotfire.client.subscriptions import subscription
from hotfire.errors import HotfireError, MessageDamaged, NotRunning
from hotfire.model import MessageQueue, ReceivedMessage

log = logging.getLogger("hotfire.client")

BUFFERED_MAX = 1024
WAIT_S = 15.0
NEW_QUEUES_INTERVAL_S = 30.0
RETRY_S = 1.0

Start = Literal["earliest", "latest"] | int | datetime
"""An end, an offset in every queue, or the first message stored at a time or later."""


class TopicReader:
    """The messages of a topic, from `start` on.

    >>> async def example() -> None:
    ...     async with TopicReader("127.0.0.1:9876", "orders", start="earliest", follow=False) as reader:
    ...         async for message in reader:
    ...             print(message.queue_offset, message.body)

    With `follow` the iteration waits for messages to come and outlives restarts of brokers; without it,
    it ends at what was there when it began, and any failure is raised. A message that comes damaged twice is
    raised in its place as MessageDamaged; iterating again goes on behind it.
    """

    def __init__(
        self,
        name_servers: str | Sequence[str],
        topic: str,
        *,
        start: Start = "latest",
        follow: bool = True,
        expression: str = "*",
        sql: str | None = None,
        group: str = READER_GROUP,
        tls: TlsChoice = False,
        rng: random.Random | None = None,
    ) -> None:
        self.topic = topic
        self._start = start
        self._follow = follow
        subscription(topic, expression, sql=sql)  # says now what is wrong with it
        self._tags, self._sql = expression, sql
        self._reader = QueueReader(name_servers, group=group, tls=tls, rng=rng)
        self._buffer: asyncio.Queue[ReceivedMessage | MessageDamaged | None] = asyncio.Queue(BUFFERED_MAX)
        self._tasks: dict[MessageQueue, asyncio.Task[None]] = {}
        self._watch: asyncio.Task[None] | None = None
        self._failure: BaseException | None = None

    async def __aenter__(self) -> TopicReader:
        await self._reader.start()
        try:
            queues = await self._reader.queues(self.topic)
            # Where reading begins is settled before we return: what is sent from now on is not missed.
            places = await asyncio.gather(*(self._place(queue, self._start) for queue in queues))
        except BaseException:
            await self._reader.close()
            raise
        for queue, (offset, end) in zip(queues, places, strict=True):
            self._tasks[queue] = self._spawn(self._read(queue, offset, end))
        self._watch = self._spawn(self._watch_queues())
        return self

    async def __aexit__(self, *_: object) -> None:
        tasks = [*self._tasks.values(), *([self._watch] if self._watch else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._reader.close()

    def __aiter__(self) -> TopicReader:
        if self._watch is None:
            raise NotRunning("the reader is not running; use `async with` before iterating")
        return self

    async def __anext__(self) -> ReceivedMessage:
        if self._failure is not None and self._buffer.empty():
            raise self._failure
        message = await self._buffer.get()
        if isinstance(message, MessageDamaged):
            raise message
        if message is not None:
            return message
        if self._failure is not None:
            raise self._failure
        raise StopAsyncIteration

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        if task.cancelled() or task.exception() is None:
            return
        self._failure = self._failure or task.exception()
        if self._buffer.empty():  # else the iteration finds the failure behind what is buffered
            self._buffer.put_nowait(None)

    # --- which queues ------------------------------------------------------------------------------

    async def _watch_queues(self) -> None:
        """End the iteration when every queue is read out; while following take up queues that appear."""
        if not self._follow:
            await asyncio.gather(*self._tasks.values())
            await self._buffer.put(None)
        while self._follow:
            await asyncio.sleep(NEW_QUEUES_INTERVAL_S)
            await self._take_up_new_queues()

    async def _take_up_new_queues(self) -> None:
        try:
            queues = await self._reader.queues(self.topic)
        except HotfireError as error:
            log.warning("topic=%s has no route just now: %s", self.topic, error)
            return
        for queue in queues:
            if queue not in self._tasks:
                self._tasks[queue] = self._spawn(self._read(queue, 0, None))

    async def _place(self, queue: MessageQueue, start: Start) -> tuple[int, int | None]:
        """Where to begin in a queue, and where to end if we do not follow."""
        lowest = await self._reader.min_offset(queue)
        end = await self._reader.max_offset(queue)
        if start == "earliest":
            offset = lowest
        elif start == "latest":
            offset = end
        elif isinstance(start, datetime):
            offset = await self._reader.search(queue, int(start.timestamp() * 1000))
        else:
            offset = min(max(start, lowest), end)
        return offset, None if self._follow else end

    # --- one queue ---------------------------------------------------------------------------------

    async def _read(self, queue: MessageQueue, offset: int, end: int | None) -> None:
        is_told, suspect = False, -1
        while end is None or offset < end:
            try:
                offset = await self._pull(queue, offset, end)
                is_told = False
            except MessageDamaged as error:
                if error.queue_offset == suspect:  # else it may have been harmed on its way
                    await self._buffer.put(error)
                    offset = error.next_offset
                suspect = error.queue_offset
            except HotfireError as error:
                if not self._follow or not error.retriable:
                    raise
                if not is_told:  # an outage is told once, however long it is
                    log.warning("queue=%s/%d goes on shortly: %s", queue.broker_name, queue.queue_id, error)
                is_told = True
                await asyncio.sleep(RETRY_S)
                with suppress(HotfireError):  # without a newer route the old one serves
                    await self._reader.queues(self.topic)

    async def _pull(self, queue: MessageQueue, offset: int, end: int | None) -> int:
        """Put the next messages into the buffer; the offset to go on from."""
        wait_s = WAIT_S if self._follow else 0.0
        result = await self._reader.pull(queue, offset, tags=self._tags, sql=self._sql, wait_s=wait_s)
        if result.status is PullStatus.OFFSET_MOVED:
            log.warning(
                "queue=%s/%d offset %d is gone, going on at %d",
                queue.broker_name, queue.queue_id, offset, result.next_offset,
            )  # fmt: skip
        for message in result.messages:
            if end is not None and message.queue_offset >= end:
                return end
            await self._buffer.put(message)
        if end is not None and result.next_offset == offset and result.status is PullStatus.NOTHING_NEW:
            return end  # nothing there, though there was: it was deleted meanwhile
        return result.next_offset
