"""What the driver asks of a cluster: which queues there are, where they begin and end, where a group is.

One client per process and set of addresses, on the synchronous client's own loop: Spark calls the driver's
side of a source again and again in one process, and the executors' side in workers that it uses again.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import ClassVar, TypeVar

from hotfire.client.bridge import Bridge
from hotfire.client.queuereader import QueueReader
from hotfire.errors import ConfigError, GroupNotExist, HotfireError
from hotfire.model import MessageQueue
from hotfire.spark.offsets import Offsets
from hotfire.spark.sourceoptions import SourceOptions

log = logging.getLogger("hotfire.spark")

T = TypeVar("T")

ASKED_AT_ONCE_MAX = 256
"""Questions about queues under way at a time: a topic may have thousands."""
SAMPLE_COUNT = 32


class Cluster:
    """A client of this process, and the questions asked with it."""

    _kept: ClassVar[dict[tuple[int, str | None, str, bool], Cluster]] = {}

    def __init__(self, name_servers: str | None, group: str, tls: bool) -> None:
        self.bridge = Bridge.shared()
        self._name_servers = name_servers
        self._tls = tls
        self.reader: QueueReader = self.bridge.call(QueueReader, name_servers, group=group, tls=tls)
        self.bridge.run(self.reader.start())

    @classmethod
    def of(cls, options: SourceOptions) -> Cluster:
        key = (os.getpid(), options["nameServers"], options.group, options["tls"])
        kept = cls._kept.get(key)
        if kept is None:
            kept = cls._kept[key] = cls(key[1], key[2], key[3])
        return kept

    # --- which queues ------------------------------------------------------------------------------

    def queues(self, options: SourceOptions) -> tuple[MessageQueue, ...]:
        """The queues that the options choose, as the cluster has them now."""
        return self._patiently(options, lambda: self._queues(options))

    async def _queues(self, options: SourceOptions) -> tuple[MessageQueue, ...]:
        if options.has("assign"):
            return await self._assigned(options["assign"])
        topics = options["subscribe"]
        if topics is None:
            topics = await self._matching(options)
        found = await asyncio.gather(*(self.reader.queues(topic) for topic in dict.fromkeys(topics)))
        return tuple(sorted(queue for queues in found for queue in queues))

    async def _matching(self, options: SourceOptions) -> tuple[str, ...]:
        from hotfire.client.admin import Admin  # loads much, and few ask by patterns

        async with Admin(self._name_servers, tls=self._tls) as admin:
            topics = await admin.topics()
        return tuple(topic for topic in topics if options["subscribePattern"].fullmatch(topic))

    async def _assigned(self, assign: Mapping[str, object]) -> tuple[MessageQueue, ...]:
        """Exactly those named; one that does not exist is a mistake."""
        queues = []
        for topic, brokers in assign.items():
            there = set(await self.reader.queues(topic))
            if isinstance(brokers, list):  # on every broker of the topic
                brokers = {name: brokers for name in {queue.broker_name for queue in there}}
            if not isinstance(brokers, dict):
                raise ConfigError(f'assign: at {topic} {{"broker": [0, 1]}} is wanted, not {brokers!r}')
            for broker, ids in brokers.items():
                named = [MessageQueue(topic, broker, queue_id) for queue_id in ids]
                missing = [queue.queue_id for queue in named if queue not in there]
                if missing:
                    has = sorted(queue.queue_id for queue in there if queue.broker_name == broker)
                    raise ConfigError(f"assign: topic {topic} on {broker} has queues {has}, not {missing}")
                queues += named
        return tuple(sorted(queues))

    # --- places in them ----------------------------------------------------------------------------

    def ends(self, options: SourceOptions, queues: Iterable[MessageQueue]) -> Offsets:
        """Of the next message to come, in each."""
        return self._of_each(options, queues, self.reader.max_offset)

    def begins(self, options: SourceOptions, queues: Iterable[MessageQueue]) -> Offsets:
        """Of the first message there is, in each."""
        return self._of_each(options, queues, self.reader.min_offset)

    def at_times(self, options: SourceOptions, times_ms: Mapping[MessageQueue, int]) -> Offsets:
        """Of the first message stored at a time or later, in each; the end where there is none."""
        return self._of_each(options, times_ms, lambda queue: self._at_time(queue, times_ms[queue]))

    async def _at_time(self, queue: MessageQueue, time_ms: int) -> int:
        """Brokers give any of the messages of a millisecond, or one that is near: so what is before the time
        is asked for, and passed over. Behind the last message they give that one's offset.
        """
        offset = await self.reader.search(queue, max(time_ms - 1, 0))
        while messages := (await self.reader.pull(queue, offset, SAMPLE_COUNT)).messages:
            for message in messages:
                if message.store_timestamp_ms >= time_ms:
                    return message.queue_offset
            offset = messages[-1].queue_offset + 1
        return offset

    def committed(self, options: SourceOptions, queues: Iterable[MessageQueue]) -> Offsets:
        """Where the group is, in those queues of which it has said so."""
        asked: Callable[[MessageQueue], Awaitable[int | None]] = self.reader.committed
        found = self._of_each(options, queues, asked)
        return {queue: offset for queue, offset in found.items() if offset is not None}

    def publish(self, options: SourceOptions, offsets: Offsets, *, is_last: bool = False) -> bool:
        """Say how far the group is, and whether brokers have heard. The truth is Spark's checkpoint, so that
        a failure is only logged; one that nobody says again is tried for longer.
        """

        async def say(queue: MessageQueue) -> None:
            await self.reader.commit(queue, offsets[queue])

        async def say_all() -> None:
            try:
                await _each(offsets, say)
            except (
                GroupNotExist
            ):  # brokers make groups for who subscribes, not for who only says how far he is
                from hotfire.client.admin import Admin

                async with Admin(self._name_servers, tls=self._tls) as admin:
                    await admin.create_group(options.group)
                await _each(offsets, say)

        try:
            if is_last:
                self._patiently(options, say_all)
            else:
                self.bridge.run(say_all())
        except HotfireError as error:
            again = "" if is_last else ", said again with the next batch"
            log.warning("group=%s progress not published%s: %s", options.group, again, error)
            return False
        return True

    def mean_bytes(self, options: SourceOptions, at: Offsets) -> dict[MessageQueue, float]:
        """Of a message, judged by the first ones from these offsets on."""

        async def sample(queue: MessageQueue) -> float | None:
            found = await self.reader.pull(queue, at[queue], SAMPLE_COUNT)
            return found.bytes / len(found.messages) if found.messages else None

        found = self._of_each(options, at, sample)
        return {queue: mean for queue, mean in found.items() if mean is not None}

    # --- asking ------------------------------------------------------------------------------------

    def _of_each(
        self,
        options: SourceOptions,
        queues: Iterable[MessageQueue],
        ask: Callable[[MessageQueue], Awaitable[T]],
    ) -> dict[MessageQueue, T]:
        listed = tuple(queues)
        return self._patiently(options, lambda: _each(listed, ask))

    def _patiently(self, options: SourceOptions, work: Callable[[], Awaitable[T]]) -> T:
        """The outcome of `work`; what another attempt may mend is tried again."""

        async def once() -> T:
            return await work()

        for left in range(options["fetchOffset.numRetries"], -1, -1):
            try:
                return self.bridge.run(once())
            except HotfireError as error:
                if not left or not error.retriable:
                    raise
                log.warning("asked again in %d ms: %s", options["fetchOffset.retryIntervalMs"], error)
                time.sleep(options["fetchOffset.retryIntervalMs"] / 1000)
        raise AssertionError("the last attempt raises")


async def _each(
    queues: Iterable[MessageQueue], ask: Callable[[MessageQueue], Awaitable[T]]
) -> dict[MessageQueue, T]:
    gate = asyncio.Semaphore(ASKED_AT_ONCE_MAX)

    async def one(queue: MessageQueue) -> T:
        async with gate:
            return await ask(queue)

    listed = tuple(queues)
    return dict(zip(listed, await asyncio.gather(*(one(queue) for queue in listed)), strict=True))
