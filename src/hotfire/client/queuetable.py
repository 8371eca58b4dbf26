"""The queues that are ours: taken up where the group left off, pulled while we have them, given up in order.

Told which queues of a topic we should have, it makes it so. A queue we keep is not touched.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Protocol

from hotfire.client.concurrent import CANCELLED_S
from hotfire.client.consumersettings import ConsumeFrom, ConsumerSettings
from hotfire.client.instance import ClientInstance
from hotfire.client.offsets import OffsetStore, max_offset, offset_at
from hotfire.client.processqueue import ProcessQueue
from hotfire.client.pulling import Puller
from hotfire.client.queuelocks import QueueLocks
from hotfire.errors import HotfireError
from hotfire.model import RETRY_PREFIX, MessageQueue

log = logging.getLogger("hotfire.client")


class Consumption(Protocol):
    def taken_away(self, queue: ProcessQueue) -> Coroutine[Any, Any, None] | None: ...


async def start_offset(
    instance: ClientInstance,
    queue: MessageQueue,
    consume_from: ConsumeFrom,
    timestamp_ms: int,
) -> int:
    """Where a group begins that never read of the queue. Its own retries it reads in any case."""
    is_retry = queue.topic.startswith(RETRY_PREFIX)
    if consume_from is ConsumeFrom.FIRST:
        return 0
    if consume_from is ConsumeFrom.LAST:
        return 0 if is_retry else await max_offset(instance, queue)
    return await max_offset(instance, queue) if is_retry else await offset_at(instance, queue, timestamp_ms)


class QueueTable:
    """Process queues by queue, each with the task that pulls it."""

    def __init__(
        self,
        instance: ClientInstance,
        settings: ConsumerSettings,
        offsets: OffsetStore,
        puller: Puller,
        locks: QueueLocks | None,
        *,
        consumption: Consumption,
        pull: Callable[[ProcessQueue, float], Coroutine[Any, Any, None]],
        timestamp_ms: int,
    ) -> None:
        self._instance = instance
        self._settings = settings
        self._offsets = offsets
        self._puller = puller
        self._locks = locks
        self._consumption = consumption
        self._pull = pull
        self._timestamp_ms = timestamp_ms
        self._loop = asyncio.get_running_loop()
        self._pulls: dict[MessageQueue, asyncio.Task[None]] = {}
        self._leaving: set[asyncio.Task[None]] = set()
        self._closed = False
        self.queues: dict[MessageQueue, ProcessQueue] = {}

    def held(self) -> list[ProcessQueue]:
        return [queue for queue in self.queues.values() if not queue.dropped]

    async def assign(self, topic: str, mine: Iterable[MessageQueue], *, alone: bool) -> tuple[bool, bool]:
        """Have just these queues of the topic; whether anything changed, and whether all is settled.

        `alone` says that nobody else is in the group, so nobody gives anything up to us.
        """
        wanted = dict.fromkeys(mine)
        lost = [one for one in self.queues.values() if one.queue.topic == topic and self._goes(one, wanted)]
        for one in lost:
            await self.give_up(one)
        if self._locks is not None:  # a lease whose answer was lost, or that came to nothing here
            claims = self._locks.claims(topic)
            await self._locks.unlock(one for one in claims if one not in wanted and one not in self.queues)
        new = [] if self._closed else [queue for queue in wanted if queue not in self.queues]
        # A lease says that whoever had the queue is done; without one there is only time to tell.
        after_s = 0.0 if alone or self._locks is not None else self._settings.pace.first_pull_s
        taken = await asyncio.gather(*(self._take_up(queue, after_s) for queue in new))
        self._share_limits(topic)
        leaving = any(queue in self.queues and self.queues[queue].dropped for queue in wanted)
        return bool(lost) or any(taken), all(taken) and not leaving

    def _goes(self, one: ProcessQueue, wanted: dict[MessageQueue, None]) -> bool:
        if one.dropped:
            return False
        if one.queue not in wanted:
            return True
        silent_s = self._loop.time() - one.pulled_at_s
        if silent_s <= self._settings.pace.pull_expired_s:
            return False
        log.error(
            "group=%s queue=%s was not pulled for %.0f s; taken up anew",
            self._settings.group,
            one.queue,
            silent_s,
        )
        return True

    def _share_limits(self, topic: str) -> None:
        held = [one for one in self.held() if one.queue.topic == topic]
        for one in held:
            one.count_max = self._settings.count_max(len(held))
            one.bytes_max = self._settings.bytes_max(len(held))

    # --- taking up -----------------------------------------------------------------------------------

    async def _take_up(self, queue: MessageQueue, after_s: float) -> bool:
        if self._locks is not None and not await self._locks.lock(queue):
            return False
        locked_at_s = self._loop.time()
        self._offsets.forget(queue)
        try:
            offset = await self._begin(queue, is_final=not after_s)
        except HotfireError as error:
            log.warning("group=%s queue=%s has no place to begin yet: %s", self._settings.group, queue, error)
            return False
        if self._closed:
            if self._locks is not None:
                await self._locks.unlock([queue])
            return False
        if queue in self.queues:
            return True
        one = ProcessQueue(queue, offset, self._loop.time())
        one.count_max, one.bytes_max = self._settings.queue_count_max, self._settings.queue_bytes_max
        if self._locks is not None:
            one.locked_at_s = locked_at_s
        self.queues[queue] = one
        self._pulls[queue] = self._loop.create_task(self._pull(one, after_s))
        log.info("group=%s takes up %s at %d", self._settings.group, queue, offset)
        return True

    def pull_again(self, topic: str) -> None:
        """Start pulling anew: a pull that a broker holds goes by what was subscribed to when it was sent."""
        for one in self.held():
            if one.queue.topic == topic and (task := self._pulls.get(one.queue)) is not None:
                task.cancel()
                self._pulls[one.queue] = self._loop.create_task(self._pull(one, 0.0))

    async def _begin(self, queue: MessageQueue, *, is_final: bool) -> int:
        """Where to begin. It is not ours to commit while who had the queue before may still do so."""
        kept = await self._offsets.read(queue)
        if kept is not None:
            if is_final:
                self._offsets.set(queue, kept)
            return kept
        return await start_offset(self._instance, queue, self._settings.consume_from, self._timestamp_ms)

    async def position(self, one: ProcessQueue) -> int:
        """Where to begin, asked again: who had the queue before us may have committed meanwhile. What we did
        before a lease ran out is told every few seconds only, and is not done again; unless the queue ends
        before it: a broker that came back with less than it had gives those places to new messages."""
        kept, done = await self._offsets.read(one.queue), self._offsets.get(one.queue)
        if kept is None:
            return one.next_offset
        if done is not None and done > kept and done <= await max_offset(self._instance, one.queue):
            kept = done
        self._offsets.set(one.queue, kept)
        return kept

    # --- giving up -----------------------------------------------------------------------------------

    async def move(self, one: ProcessQueue, offset: int) -> None:
        """The group goes on at `offset`, whatever it did with this queue before."""
        if one.dropped:
            return
        self._offsets.set(one.queue, offset)
        if not len(one):
            one.go_to(offset)
            await self._offsets.persist([one.queue])
            return
        self._offsets.set(one.queue, offset, freeze=True)
        await self.give_up(one)
        self._instance.rebalance_soon()

    async def give_up(self, one: ProcessQueue) -> None:
        """Pull no more, commit, unlock; when its listener is done if it consumes in order."""
        one.dropped = True
        log.info("group=%s gives up %s", self._settings.group, one.queue)
        task = self._pulls.pop(one.queue, None)
        if task is not None and task is not asyncio.current_task():
            task.cancel()
        waiting = self._consumption.taken_away(one)
        if waiting is None:
            await self._leave(one)
            return
        leaving = self._loop.create_task(self._leave_after(one, waiting))
        self._leaving.add(leaving)
        leaving.add_done_callback(self._leaving.discard)

    async def _leave_after(self, one: ProcessQueue, waiting: Coroutine[Any, Any, None]) -> None:
        left_s = (one.locked_at_s or 0.0) + self._settings.pace.unlock_forced_s - self._loop.time()
        try:
            async with asyncio.timeout(max(left_s, 0.0)):
                await waiting
        except TimeoutError:
            log.warning(
                "group=%s %s: its listener does not end; given up all the same",
                self._settings.group,
                one.queue,
            )
        await self._leave(one)
        self._instance.rebalance_soon()

    async def _leave(self, one: ProcessQueue) -> None:
        await self._offsets.persist([one.queue])
        self._offsets.forget(one.queue)
        self._puller.forget(one.queue)
        if self._locks is not None and one.queue in self._locks.claims():
            await self._locks.unlock([one.queue])
        if self.queues.get(one.queue) is one:
            del self.queues[one.queue]

    async def stop_pulling(self) -> None:
        """For good. What is here may still be consumed and committed."""
        self._closed = True
        tasks = list(self._pulls.values())
        self._pulls.clear()
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=CANCELLED_S)

    async def close(self) -> None:
        """Commit and unlock everything."""
        for task in tuple(self._leaving):
            task.cancel()
        for one in self.queues.values():
            one.dropped = True
        try:
            async with asyncio.timeout(self._settings.pace.close_offsets_s):
                await self._offsets.persist(self.queues)
                if self._locks is not None:
                    await self._locks.unlock(self._locks.claims())
        except TimeoutError:
            log.warning(
                "group=%s not every offset was kept: its broker does not answer", self._settings.group
            )
        self.queues.clear()
