"""Consuming in order: one listener call per queue at a time, the next messages only after these are done.

Three locks keep order. The broker's lease says which client may have the queue; a task of its own per queue
calls the listener, one batch after the other; and `ProcessQueue.consuming` is held during the call, so that a
queue that goes to another client is given up only when the listener is done with it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from typing import Any

from hotfire.client.concurrent import CANCELLED_S, TURN_S, was_cancelled
from hotfire.client.consumersettings import ConsumerSettings
from hotfire.client.consumestats import ConsumeStats
from hotfire.client.handling import Handling, NobodyListens
from hotfire.client.listening import ConsumeContext, ConsumeResult
from hotfire.client.offsets import OffsetStore
from hotfire.client.processqueue import ProcessQueue
from hotfire.client.queuelocks import QueueLocks
from hotfire.client.sendback import SendBack
from hotfire.model import ReceivedMessage

log = logging.getLogger("hotfire.client")

SUSPEND_MS_MIN, SUSPEND_MS_MAX = 10, 30_000


class OrderlyConsumption:
    """A task per queue that has messages; so many listeners at a time over all queues."""

    def __init__(
        self,
        settings: ConsumerSettings,
        handling: Handling,
        offsets: OffsetStore,
        send_back: SendBack,
        stats: ConsumeStats,
        locks: QueueLocks,
    ) -> None:
        self._settings = settings
        self._handling = handling
        self._offsets = offsets
        self._send_back = send_back
        self._stats = stats
        self._locks = locks
        self._loop = asyncio.get_running_loop()
        self._slots = asyncio.Semaphore(settings.concurrency)
        self._tasks: dict[ProcessQueue, asyncio.Task[None]] = {}
        self._stopping = False

    def feed(self, queue: ProcessQueue, messages: Sequence[ReceivedMessage]) -> None:
        """Hand over what was pulled and is kept in `queue`."""
        for message in messages:
            restored = self._handling.original(message)
            if restored is not message:
                queue.replace(restored)
        if not self._stopping and queue not in self._tasks:
            place = "{}-{}-{}".format(*queue.queue)
            name = f"hotfire-{self._settings.group}-{place}"  # administrators read it in stacks
            self._tasks[queue] = self._loop.create_task(self._consume_all(queue), name=name)

    # --- one queue -----------------------------------------------------------------------------------

    async def _consume_all(self, queue: ProcessQueue) -> None:
        """Until there is nothing more to do. It is forgotten in the same step: what is fed a moment later,
        when a callback would still have to run, starts another."""
        try:
            while self._goes_on(queue) and queue.next_batch(1):
                rest_s = await self._turn(queue)
                await asyncio.sleep(rest_s)
        finally:
            self._tasks.pop(queue, None)

    def _goes_on(self, queue: ProcessQueue) -> bool:
        return not queue.dropped and not self._stopping

    async def _turn(self, queue: ProcessQueue) -> float:
        """Consume for a while, in one of the slots; how long to rest then."""
        pace = self._settings.pace
        async with self._slots:
            began_s = yielded_s = self._loop.time()
            while self._goes_on(queue):
                now_s = self._loop.time()
                if not queue.is_locked(now_s, pace.lock_lease_s):
                    return await self._lock_again(queue)
                if now_s - began_s > pace.turn_max_s:
                    return pace.relock_s
                batch = self._next_batch(queue)
                if not batch:
                    return 0.0
                if not self._handling.is_free:
                    await self._handling.admit(len(batch))
                rest_s = await self._consume(queue, batch)
                if rest_s is not None:
                    return rest_s
                if self._loop.time() - yielded_s > TURN_S:
                    await asyncio.sleep(0)
                    yielded_s = self._loop.time()
        return 0.0

    def _next_batch(self, queue: ProcessQueue) -> Sequence[ReceivedMessage]:
        """Messages of one topic: a retry topic holds those of several."""
        batch = queue.next_batch(self._settings.batch_max)
        for end, message in enumerate(batch):
            if message.topic != batch[0].topic:
                return batch[:end]
        return batch

    async def _lock_again(self, queue: ProcessQueue) -> float:
        pace = self._settings.pace
        if await self._locks.lock(queue.queue):
            queue.locked_at_s = self._loop.time()
            return pace.relock_s
        queue.locked_at_s = None
        return pace.relock_failed_s

    async def _consume(self, queue: ProcessQueue, batch: Sequence[ReceivedMessage]) -> float | None:
        """One call of the listener; how long the queue rests, None to go on at once."""
        async with queue.consuming:
            if not self._goes_on(queue):
                return 0.0
            context = ConsumeContext(queue.queue)
            began_s = self._loop.time()
            queue.started(batch, began_s)
            try:
                result, *_ = await self._handling.handle(
                    batch, context, self._stats.of(queue.queue.topic), began_s
                )
            except asyncio.CancelledError:
                if was_cancelled():
                    raise
                result = ConsumeResult.RETRY  # something the listener waited for was: its failure
            except NobodyListens as unheard:
                queue.not_started(batch)
                log.info("group=%s queue rests: %s", self._settings.group, unheard)
                return self._settings.pace.local_retry_s
            queue.consumed_at_s = self._loop.time()
            # Still within the lock: even if the queue is about to go, what was done is committed first.
            return await self._settle(queue, batch, context, result)

    async def _settle(
        self,
        queue: ProcessQueue,
        batch: Sequence[ReceivedMessage],
        context: ConsumeContext,
        result: ConsumeResult,
    ) -> float | None:
        counts = self._stats.of(queue.queue.topic)
        if result is ConsumeResult.RETRY:
            counts.failed += len(batch)
            if await self._must_wait(queue, batch):
                return self._suspend_s(context)
            result = ConsumeResult.DONE
        else:
            counts.done += len(batch)
        if context.auto_commit or result is ConsumeResult.COMMIT:
            self._offsets.set(queue.queue, queue.commit(len(batch)))
        elif result is ConsumeResult.ROLLBACK:
            queue.taken_count = 0
            return self._suspend_s(context)
        else:
            queue.take(len(batch))
        return None

    async def _must_wait(self, queue: ProcessQueue, batch: Sequence[ReceivedMessage]) -> bool:
        """Whether the batch comes again. Messages that failed too often are laid aside; then it may go on."""
        retries_max = self._settings.retries_max
        must_wait = False
        for message in batch:
            is_last = retries_max is not None and 0 <= retries_max <= message.reconsume_times
            if is_last and await self._send_back.send(message):
                continue
            must_wait = True
            queue.replace(replace(message, reconsume_times=message.reconsume_times + 1))
        return must_wait

    def _suspend_s(self, context: ConsumeContext) -> float:
        chosen = self._settings.suspend_ms if context.suspend_ms is None else context.suspend_ms
        return min(max(chosen, SUSPEND_MS_MIN), SUSPEND_MS_MAX) / 1000

    # --- the end -------------------------------------------------------------------------------------

    def taken_away(self, queue: ProcessQueue) -> Coroutine[Any, Any, None] | None:
        """What to wait for before the queue is given up."""
        return self._until_free(queue) if queue.consuming.locked() else None

    async def _until_free(self, queue: ProcessQueue) -> None:
        async with queue.consuming:
            return

    async def give_back_stuck(self, queue: ProcessQueue) -> None:
        """In order there is nothing to give back: the next messages may not pass this one."""

    async def close(self) -> None:
        """Start no more listeners, give those that run a moment, cancel what is left."""
        self._stopping = True
        tasks = list(self._tasks.values())
        busy = [task for queue, task in self._tasks.items() if queue.consuming.locked()]
        for task in tasks:
            if task not in busy:
                task.cancel()
        if busy:
            await asyncio.wait(busy, timeout=self._settings.pace.close_listeners_s)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=CANCELLED_S)
        self._tasks.clear()  # one that was cancelled before it began knew nothing of it
