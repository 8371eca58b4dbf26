"""Reading queues by hand: the application says from which queue and offset, and keeps both itself.

Nothing is committed unless it asks for that; no heartbeat tells of it, so it takes no queue from a group's
consumers. `reader` builds on this where one wants a whole topic and not to think of queues.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Self

from hotfire.client import offsets, queries, searching
from hotfire.client.addresses import AddressSource
from hotfire.client.checks import check_group, check_number, check_offset, check_text, check_topic
from hotfire.client.dialling import TlsChoice, tls_context
from hotfire.client.instance import CALL_TIMEOUT_S, ClientInstance, Member
from hotfire.client.offsets import Boundary
from hotfire.client.pulling import BATCH_COUNT, SUBSCRIPTION, Fetched, Pulled, Puller
from hotfire.client.searching import Found
from hotfire.client.subscriptions import subscription
from hotfire.errors import NotRunning
from hotfire.model import MessageQueue, ReceivedMessage
from hotfire.protocol.trace import TraceEntry

READER_GROUP = "TOOLS_CONSUMER"
"""Exists on every broker, also where groups are not made on first use."""

WAIT_S_MAX = 30.0
BULK_COUNT_MAX = 4096
BULK_BYTES_MAX = 4 << 20
"""What brokers that know bulk pulls put into one answer; others give less, and the next goes on there."""
ANSWER_S = 10.0
"""An answer may take this long besides the time it was asked to wait for a message."""


class QueueReader(Member):
    """Pulls from queues at offsets of the application's choice.

    >>> async def example() -> None:
    ...     async with QueueReader("127.0.0.1:9876") as reader:
    ...         for queue in await reader.queues("orders"):
    ...             result = await reader.pull(queue, await reader.min_offset(queue))
    ...             print(result.status, result.next_offset, [message.body for message in result.messages])

    `group` is the one that `committed` and `commit` are about, and that the broker counts pulls for.
    """

    def __init__(
        self,
        name_servers: str | Sequence[str] | None = None,
        *,
        group: str = READER_GROUP,
        instance_name: str | None = None,
        tls: TlsChoice = False,
        rng: random.Random | None = None,
    ) -> None:
        check_group(group)
        check_text("instance_name", instance_name)
        self.group = group
        AddressSource(name_servers)  # a mistake is told now
        tls_context(tls)
        self._tls = tls
        self._name_servers = name_servers
        self._instance_name = instance_name
        self._rng = rng
        self._joined: ClientInstance | None = None
        self._puller: Puller

    async def start(self) -> None:
        self._joined = await ClientInstance.join(
            self, self._name_servers, instance_name=self._instance_name, rng=self._rng, tls=self._tls
        )
        self._puller = Puller(self._joined, self.group, flags=SUBSCRIPTION)

    async def close(self) -> None:
        joined, self._joined = self._joined, None
        if joined is not None:
            await joined.leave(self)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def _instance(self) -> ClientInstance:
        if self._joined is None:
            raise NotRunning(f"the reader is not running; use {self.begun_by} or start() before using it")
        self._joined.check_usable("reader")
        return self._joined

    # --- queues and their offsets --------------------------------------------------------------------

    async def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """The queues to read, as the name server knows them now."""
        check_topic(topic)
        routes = self._instance.routes
        await routes.refresh(topic, CALL_TIMEOUT_S)
        return (await routes.to_read(topic, CALL_TIMEOUT_S)).read_queues

    async def min_offset(self, queue: MessageQueue) -> int:
        """Of the first message there is."""
        return await offsets.min_offset(self._instance, queue)

    async def max_offset(self, queue: MessageQueue) -> int:
        """Of the next message to come."""
        return await offsets.max_offset(self._instance, queue)

    async def search(self, queue: MessageQueue, timestamp_ms: int, boundary: Boundary = "lower") -> int:
        """Of the first message stored at this time or later; with `upper`, the last not later."""
        return await offsets.offset_at(self._instance, queue, timestamp_ms, boundary)

    async def earliest_store_time_ms(self, queue: MessageQueue) -> int | None:
        """When the first message there is was stored; None for an empty queue."""
        return await queries.earliest_store_time_ms(self._instance, queue)

    async def committed(self, queue: MessageQueue) -> int | None:
        """Where the group goes on; None when it has committed nothing."""
        return await queries.committed_offset(self._instance, self.group, queue)

    async def commit(self, queue: MessageQueue, offset: int) -> None:
        """Let the group go on at `offset`; the broker has it when this returns."""
        await queries.commit_offset(self._instance, self.group, queue, offset)

    # --- messages ------------------------------------------------------------------------------------

    async def pull(
        self,
        queue: MessageQueue,
        offset: int,
        count: int = BATCH_COUNT,
        tags: str | Sequence[str] = "*",
        *,
        sql: str | None = None,
        wait_s: float = 0.0,
        bytes_max: int | None = None,
    ) -> Pulled:
        """Up to `count` messages from `offset` on; with `wait_s`, up to 30, one is waited for.

        With `bytes_max` above 256 KiB brokers that know bulk pulls give up to 4096 messages and 4 MiB at
        once; otherwise an answer holds 32 messages and 256 KiB at most, whatever was asked for.
        """
        check_offset(queue, offset)
        check_number("count", count)
        check_number("wait_s", wait_s)
        check_number("bytes_max", bytes_max, may_be_none=True)
        wait_s = min(max(wait_s, 0.0), WAIT_S_MAX)
        self._instance.check_usable("reader")
        return await self._puller.pull(
            queue,
            offset,
            subscription(queue.topic, tags, sql=sql),
            suspend=wait_s > 0,
            suspend_ms=int(wait_s * 1000),
            count_max=count,
            bytes_max=bytes_max,
            timeout_s=wait_s + ANSWER_S,
        )

    async def fetch(
        self,
        queue: MessageQueue,
        offset: int,
        tags: str | Sequence[str] = "*",
        *,
        count: int = BULK_COUNT_MAX,
        bytes_max: int = BULK_BYTES_MAX,
        timeout_s: float = ANSWER_S,
    ) -> Fetched:
        """Records from `offset` on as the broker keeps them, none taken apart: for reading in bulk."""
        self._instance.check_usable("reader")
        wanted = subscription(queue.topic, tags)
        return await self._puller.fetch(
            queue, offset, wanted, count_max=count, bytes_max=bytes_max, timeout_s=timeout_s
        )

    async def message_by_id(self, message_id: str, topic: str | None = None) -> ReceivedMessage | None:
        """The message at the place its `offset_message_id` names; None when it is there no more."""
        return await queries.message_by_id(self._instance, message_id, topic=topic)

    async def messages_by_key(self, topic: str, key: str, count_max: int = 64) -> list[ReceivedMessage]:
        return await queries.messages_by_key(self._instance, topic, key, count_max=count_max)

    async def find_by_key(
        self,
        topic: str,
        key: str,
        *,
        begin_ms: int = 0,
        end_ms: int = queries.END_OF_TIME_MS,
        count_max: int = searching.PAGE,
        unique: bool = False,
    ) -> Found:
        """Messages with the key stored in the span, the newest if there are more; and whether there are."""
        check_topic(topic)
        return await searching.find_by_key(
            self._instance,
            topic,
            key,
            begin_ms=begin_ms,
            end_ms=end_ms,
            count_max=count_max,
            unique=unique,
        )

    async def find_by_time(
        self, topic: str, begin_ms: int, end_ms: int, *, count_max: int = searching.PAGE, tags: str = "*"
    ) -> Found:
        """What all queues got in the span, the oldest if there is more; and whether there is."""
        check_topic(topic)
        return await searching.find_by_time(
            self._instance,
            self._puller,
            topic,
            begin_ms=begin_ms,
            end_ms=end_ms,
            count_max=count_max,
            tags=tags,
        )

    async def trace(self, message_id: str, *, topic: str | None = None) -> list[TraceEntry]:
        """What producers and consumers with tracing on told of the message, in order of time."""
        return await searching.message_trace(self._instance, message_id, topic=topic)
