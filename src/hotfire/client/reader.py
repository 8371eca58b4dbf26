"""Reading a topic without a group: every queue from a chosen place, as an asynchronous iterator.

Keeps its own offsets and commits none, so it disturbs no consumer. Each queue has a task that pulls; what
they get waits in one bounded buffer. Order is kept within a queue only.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from typing import Any, Literal

from hotfire.client.instance import CALL_TIMEOUT_S, ClientInstance
from hotfire.client.messages import received_messages
from hotfire.client.routes import TopicRoute
from hotfire.errors import BrokerRefused, HotfireError, NoRoute, NotRunning
from hotfire.model import MessageQueue, ReceivedMessage
from hotfire.protocol.codes import ResponseCode
from hotfire.protocol.command import Command
from hotfire.protocol.filters import tag_subscription
from hotfire.protocol.request import Request
from hotfire.protocol.requests import GetMaxOffset, GetMinOffset, OffsetReply, PullMessage, PullReply

log = logging.getLogger("hotfire.client")

READER_GROUP = "TOOLS_CONSUMER"
"""Exists on every broker, also where groups are not made on first use."""

BUFFERED_MAX = 1024
BATCH_COUNT = 32
SUSPEND_MS = 15_000
PULL_TIMEOUT_S = 30.0
NEW_QUEUES_INTERVAL_S = 30.0
RETRY_S = 1.0

_SUSPEND = 0x2
_SUBSCRIPTION = 0x4

Start = Literal["earliest", "latest"] | int


class TopicReader:
    """The messages of a topic, from `start` on.

    >>> async def example() -> None:
    ...     async with TopicReader("127.0.0.1:9876", "orders", start="earliest", follow=False) as reader:
    ...         async for message in reader:
    ...             print(message.queue_offset, message.body)

    With `follow` the iteration waits for messages to come and outlives restarts of brokers; without it,
    it ends at what was there when it began, and any failure is raised.
    """

    def __init__(
        self,
        name_servers: str | Sequence[str],
        topic: str,
        *,
        start: Start = "latest",
        follow: bool = True,
        expression: str = "*",
        group: str = READER_GROUP,
    ) -> None:
        self.topic = topic
        self._start = start
        self._follow = follow
        self._group = group
        self._subscription = tag_subscription(topic, expression, 0)
        self._instance = ClientInstance(name_servers)
        self._buffer: asyncio.Queue[ReceivedMessage | None] = asyncio.Queue(BUFFERED_MAX)
        self._tasks: dict[MessageQueue, asyncio.Task[None]] = {}
        self._watch: asyncio.Task[None] | None = None
        self._failure: BaseException | None = None

    async def __aenter__(self) -> TopicReader:
        await self._instance.start()
        try:
            route = await self._instance.routes.to_read(self.topic, CALL_TIMEOUT_S)
            # Where reading begins is settled before we return: what is sent from now on is not missed.
            places = await asyncio.gather(*(self._place(queue, self._start) for queue in route.read_queues))
        except BaseException:
            await self._instance.close()
            raise
        for queue, (offset, end) in zip(route.read_queues, places, strict=True):
            self._tasks[queue] = self._spawn(self._read(queue, offset, end))
        self._watch = self._spawn(self._watch_queues())
        return self

    async def __aexit__(self, *_: object) -> None:
        tasks = [*self._tasks.values(), *([self._watch] if self._watch else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._instance.close()

    def __aiter__(self) -> TopicReader:
        if self._watch is None:
            raise NotRunning("the reader is not running; use `async with` before iterating")
        return self

    async def __anext__(self) -> ReceivedMessage:
        if self._failure is not None and self._buffer.empty():
            raise self._failure
        message = await self._buffer.get()
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
            route = await self._instance.routes.to_read(self.topic, CALL_TIMEOUT_S)
        except HotfireError as error:
            log.warning("topic=%s has no route just now: %s", self.topic, error)
            return
        for queue in route.read_queues:
            if queue not in self._tasks:
                self._tasks[queue] = self._spawn(self._read(queue, 0, None))

    async def _place(self, queue: MessageQueue, start: Start) -> tuple[int, int | None]:
        """Where to begin in a queue, and where to end if we do not follow."""
        lowest = await self._offset(queue, GetMinOffset(topic=queue.topic, queue_id=queue.queue_id))
        end = await self._offset(queue, GetMaxOffset(topic=queue.topic, queue_id=queue.queue_id))
        if start == "earliest":
            offset = lowest
        elif start == "latest":
            offset = end
        else:
            offset = min(max(start, lowest), end)
        return offset, None if self._follow else end

    async def _offset(self, queue: MessageQueue, request: Request) -> int:
        reply = await self._call(queue, request, CALL_TIMEOUT_S)
        if reply.code != ResponseCode.SUCCESS:
            raise BrokerRefused(reply.code, reply.remark or "")
        return OffsetReply.from_command(reply).offset

    # --- one queue ---------------------------------------------------------------------------------

    async def _read(self, queue: MessageQueue, offset: int, end: int | None) -> None:
        while end is None or offset < end:
            try:
                offset = await self._pull(queue, offset, end)
            except HotfireError as error:
                if not self._follow or not error.retriable:
                    raise
                log.warning("queue=%s/%d goes on shortly: %s", queue.broker_name, queue.queue_id, error)
                await asyncio.sleep(RETRY_S)
                await self._refresh()

    async def _refresh(self) -> None:
        try:
            await self._instance.routes.refresh(self.topic, CALL_TIMEOUT_S)
        except HotfireError as error:
            log.warning("topic=%s route kept as it was: %s", self.topic, error)

    async def _pull(self, queue: MessageQueue, offset: int, end: int | None) -> int:
        """Put the next messages into the buffer; the offset to go on from."""
        request = PullMessage(
            consumer_group=self._group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            queue_offset=offset,
            max_msg_nums=BATCH_COUNT,
            sys_flag=_SUBSCRIPTION | (_SUSPEND if self._follow else 0),
            commit_offset=0,
            suspend_timeout_millis=SUSPEND_MS if self._follow else 0,
            subscription=self._subscription.expression,
            sub_version=self._subscription.version,
            expression_type=self._subscription.kind,
            broker_name=queue.broker_name,
        )
        reply = await self._call(queue, request, PULL_TIMEOUT_S)
        code = reply.code
        if code == ResponseCode.PULL_OFFSET_MOVED:
            moved = PullReply.from_command(reply).next_begin_offset
            log.warning(
                "queue=%s/%d offset %d is gone, going on at %d",
                queue.broker_name, queue.queue_id, offset, moved,
            )  # fmt: skip
            return moved
        if code == ResponseCode.SUCCESS:
            for message in received_messages(reply.body, queue.broker_name):
                if end is not None and message.queue_offset >= end:
                    return end
                if self._wants(message):
                    await self._buffer.put(message)
        elif code not in (ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY):
            raise BrokerRefused(code, reply.remark or "")
        following = PullReply.from_command(reply).next_begin_offset
        if end is not None and following == offset and code == ResponseCode.PULL_NOT_FOUND:
            return end  # nothing there, though there was: it was deleted meanwhile
        return following

    def _wants(self, message: ReceivedMessage) -> bool:
        # The broker compares hashes of tags only.
        return not self._subscription.tags or message.tag in self._subscription.tags

    async def _call(self, queue: MessageQueue, request: Request, timeout_s: float) -> Command:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        route = await self._instance.routes.to_read(queue.topic, timeout_s)
        return await self._instance.invoke(_address(route, queue), request, deadline)


def _address(route: TopicRoute, queue: MessageQueue) -> str:
    address = route.any_address(queue.broker_name)
    if address is None:
        raise NoRoute(f"topic {queue.topic}: broker {queue.broker_name} does not exist any more")
    return address
