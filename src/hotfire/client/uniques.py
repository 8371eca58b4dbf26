"""Which of many messages are stored, by their unique ids: after a program that sent them died.

Two ways. All messages stored since a time are read, which is quick where little else was stored; or brokers
are asked for each id, which they do slowly while messages are being sent, but no slower for a busy topic.

What a broker has taken and not yet shown, on the disk or in its index, is waited for first. What is still on
its way to the broker when this is asked is not seen: who asks waits first for as long as that may take.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from itertools import product
from typing import TypeVar

from hotfire.client import offsets
from hotfire.client.instance import CALL_TIMEOUT_S, ClientInstance
from hotfire.client.messages import received_messages
from hotfire.client.pulling import SUBSCRIPTION, Pulled, Puller
from hotfire.client.queries import END_OF_TIME_MS, ask_queue
from hotfire.client.queuereader import ANSWER_S, BULK_BYTES_MAX, BULK_COUNT_MAX, READER_GROUP
from hotfire.client.spans import AGAIN_S, pull_below
from hotfire.client.subscriptions import subscription
from hotfire.errors import HotfireError, QueryNotFound, Timeout, TopicNotExist
from hotfire.model import MessageQueue
from hotfire.protocol.requests import GetMaxOffset, GetRouteInfoByTopic, OffsetReply, QueryMessage

T = TypeVar("T")
K = TypeVar("K")

ASKED_AT_ONCE_MAX = 64
"""Ids: one broker lets a thousand questions wait, and we are not the only ones who ask."""
QUEUES_AT_ONCE_MAX = 8
FOUND_MAX = 32


class Uniques:
    """Questions about the messages of one topic, each asked again for so long."""

    def __init__(self, instance: ClientInstance, topic: str, patience_s: float) -> None:
        self._instance = instance
        self._topic = topic
        self._patience_s = patience_s

    async def all_shown(self) -> dict[MessageQueue, int]:
        """Where each queue ends, once everything that its broker has taken by now can be read and found."""
        queues = await self._queues()
        ends = await _each(queues, self._shown_end, QUEUES_AT_ONCE_MAX)
        return dict(zip(queues, ends, strict=True))

    async def spans_since(self, since_ms: int, ends: dict[MessageQueue, int]) -> dict[MessageQueue, range]:
        """The offsets of what was stored at this time or later."""

        async def span(queue: MessageQueue) -> range:
            begin = await self._patiently(
                queue.broker_name, lambda: offsets.offset_at(self._instance, queue, since_ms)
            )
            return range(max(begin, 0), ends[queue])

        return dict(zip(ends, await _each(ends, span, QUEUES_AT_ONCE_MAX), strict=True))

    async def read(self, spans: dict[MessageQueue, range], is_wanted: Callable[[str], bool]) -> set[str]:
        """The wanted ones among the ids of all messages there; what retention has deleted has none.

        Raises Timeout when a queue cannot be read to its end, be it that there is less than there was.
        """
        found: set[str] = set()
        puller = Puller(self._instance, READER_GROUP, flags=SUBSCRIPTION)
        everything = subscription(self._topic, "*")

        async def pull(queue: MessageQueue, offset: int) -> Pulled:
            return await puller.pull(
                queue,
                offset,
                everything,
                suspend=False,
                suspend_ms=0,
                count_max=BULK_COUNT_MAX,
                bytes_max=BULK_BYTES_MAX,
                timeout_s=ANSWER_S,
            )

        async def read_one(queue: MessageQueue) -> None:
            offset, end = spans[queue].start, spans[queue].stop
            while offset < end:
                ask = partial(self._patiently, queue.broker_name, partial(pull, queue, offset))
                pulled = await pull_below(end, queue, offset, ask, patience_s=self._patience_s)
                found.update(one.message_id for one in pulled.messages if is_wanted(one.message_id))
                offset = pulled.next_offset

        await _each(spans, read_one, QUEUES_AT_ONCE_MAX)
        return found

    async def find(self, ids: Iterable[str], since_ms: int, topics: Sequence[str] = ()) -> set[str]:
        """Those of the ids that a broker of the topic has a message of, in the topic or one of `topics`."""
        names = sorted({queue.broker_name for queue in await self._queues()})

        async def is_there(message_id: str) -> bool:
            for name, topic in product(names, (self._topic, *topics)):
                if await self._patiently(name, partial(self._ask, name, topic, message_id, since_ms)):
                    return True
            return False

        listed = list(ids)
        answers = await _each(listed, is_there, ASKED_AT_ONCE_MAX)
        return {message_id for message_id, there in zip(listed, answers, strict=True) if there}

    async def _ask(self, broker: str, topic: str, message_id: str, since_ms: int) -> bool:
        request = QueryMessage(
            topic=topic,
            key=message_id,
            max_num=FOUND_MAX,
            begin_timestamp=since_ms,
            end_timestamp=END_OF_TIME_MS,
            unique=True,
            broker_name=broker,
        )
        try:
            reply = await ask_queue(self._instance, MessageQueue(self._topic, broker, 0), request)
        except QueryNotFound:
            return False
        return any(one.message_id == message_id for one in received_messages(reply.body, broker))

    # --- asking ------------------------------------------------------------------------------------

    async def _queues(self) -> Sequence[MessageQueue]:
        return await self._patiently("any", self._known_queues)

    async def _known_queues(self) -> Sequence[MessageQueue]:
        """None of a topic that nobody has made yet, and that a producer would be given a template for."""
        try:
            await self._instance.name_servers.ask(GetRouteInfoByTopic(topic=self._topic), CALL_TIMEOUT_S)
        except TopicNotExist:
            return ()
        route = await self._instance.routes.refresh(self._topic, CALL_TIMEOUT_S)
        return tuple(dict.fromkeys((*route.read_queues, *route.write_queues)))

    async def _shown_end(self, queue: MessageQueue) -> int:
        taken = await self._end(queue, committed=False)
        deadline = _now() + self._patience_s
        while await self._end(queue, committed=True) < taken:
            if _now() >= deadline:
                raise Timeout(
                    f"topic {queue.topic} broker {queue.broker_name} queue {queue.queue_id}: messages below "
                    f"{taken} are taken, and after {self._patience_s:g} s not all of them can be read"
                )
            await asyncio.sleep(AGAIN_S)
        return taken

    async def _end(self, queue: MessageQueue, *, committed: bool) -> int:
        request = GetMaxOffset(
            topic=queue.topic, queue_id=queue.queue_id, committed=committed, broker_name=queue.broker_name
        )
        reply = await self._patiently(queue.broker_name, lambda: ask_queue(self._instance, queue, request))
        return OffsetReply.from_command(reply).offset

    async def _patiently(self, broker: str, ask: Callable[[], Awaitable[T]]) -> T:
        """An answer; a broker that stays silent is an error, since what it has may be what is looked for."""
        try:
            return await patiently(ask, self._patience_s)
        except HotfireError as error:
            error.add_note(f"topic {self._topic}: broker {broker} did not say what it has stored")
            raise


async def patiently(ask: Callable[[], Awaitable[T]], patience_s: float) -> T:
    """An answer: what another attempt may mend is tried again, for so long."""
    deadline = _now() + patience_s
    while True:
        try:
            return await ask()
        except HotfireError as error:
            if not error.retriable or _now() >= deadline:
                raise
        await asyncio.sleep(AGAIN_S)


def _now() -> float:
    return asyncio.get_running_loop().time()


async def _each(items: Iterable[K], ask: Callable[[K], Awaitable[T]], at_once: int) -> list[T]:
    gate = asyncio.Semaphore(at_once)

    async def one(item: K) -> T:
        async with gate:
            return await ask(item)

    return list(await asyncio.gather(*(one(item) for item in items)))
