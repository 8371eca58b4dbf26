"""Consuming without order: pulled messages cut into batches, handled by so many workers at a time.

What fails goes back to the broker and comes again later, through the group's retry topic; what cannot be
given back comes again here. Offsets move on as far as everything before them is done.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from typing import Any

from hotfire.client.consumersettings import ConsumerSettings
from hotfire.client.consumestats import ConsumeStats, TopicCounts
from hotfire.client.handling import Handling, NobodyListens
from hotfire.client.listening import ConsumeContext, ConsumeResult
from hotfire.client.offsets import OffsetStore
from hotfire.client.processqueue import ProcessQueue
from hotfire.client.sendback import FIRST_LEVEL, SendBack
from hotfire.model import ReceivedMessage
from hotfire.net.clock import time_of

log = logging.getLogger("hotfire.client")

TURN_S = 0.01
"""A worker whose listener never waits lets others have the loop after this long."""
CANCELLED_S = 0.1
"""What a cancelled listener may still take."""
STUCK_MAX = 16
"""Stuck messages of a queue that are given back in one look."""

Work = tuple[ProcessQueue, TopicCounts, Sequence[ReceivedMessage]]


def was_cancelled() -> bool:
    """Whether the running task is to end."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


class ConcurrentConsumption:
    """The workers of one consumer."""

    def __init__(
        self,
        settings: ConsumerSettings,
        handling: Handling,
        offsets: OffsetStore,
        send_back: SendBack,
        stats: ConsumeStats,
    ) -> None:
        self._settings = settings
        self._handling = handling
        self._offsets = offsets
        self._send_back = send_back
        self._stats = stats
        self._loop = asyncio.get_running_loop()
        self._time = time_of(self._loop)
        self._backlog: deque[Work] = deque()
        self._idle: deque[asyncio.Future[None]] = deque()
        self._workers: list[asyncio.Task[None]] = []
        self._consuming: set[asyncio.Task[None]] = set()
        self._later: set[asyncio.TimerHandle] = set()
        self._stopping = False

    def feed(self, queue: ProcessQueue, messages: Sequence[ReceivedMessage]) -> None:
        """Hand over what was pulled and is kept in `queue`."""
        if self._stopping:
            return
        batches = self._cut(self._handling.originals(queue.queue.topic, messages))
        counts = self._stats.of(queue.queue.topic)
        self._backlog.extend([(queue, counts, batch) for batch in batches])
        for _ in batches:
            if not self._wake():
                break

    def _cut(self, messages: Sequence[ReceivedMessage]) -> list[Sequence[ReceivedMessage]]:
        """Batches of one topic each: a retry topic holds messages of several."""
        size = self._settings.batch_max
        if size == 1:
            return [(message,) for message in messages]
        batches: list[Sequence[ReceivedMessage]] = []
        start = 0
        for end in range(1, len(messages) + 1):
            is_last = end == len(messages)
            if is_last or end - start == size or messages[end].topic != messages[start].topic:
                batches.append(messages[start:end])
                start = end
        return batches

    def _wake(self) -> bool:
        """Have one more worker look at the backlog, if there may be one."""
        while self._idle:
            sleeper = self._idle.popleft()
            if not sleeper.done():
                sleeper.set_result(None)
                return True
        if len(self._workers) < self._settings.concurrency:
            name = f"hotfire-{self._settings.group}-{len(self._workers)}"  # administrators read it in stacks
            worker = self._loop.create_task(self._work(), name=name)
            self._workers.append(worker)
            worker.add_done_callback(self._workers.remove)
            return True
        return False

    # --- a worker ------------------------------------------------------------------------------------

    async def _work(self) -> None:
        loop, backlog = self._loop, self._backlog
        task = asyncio.current_task()
        assert task is not None
        turn_ends_s = self._time() + TURN_S
        while not self._stopping:
            if not backlog:
                sleeper = loop.create_future()
                self._idle.append(sleeper)
                await sleeper
                turn_ends_s = self._time() + TURN_S
                continue
            queue, counts, batch = backlog.popleft()
            if not self._handling.is_free and not queue.dropped:
                await self._handling.admit(len(batch))
            if queue.dropped:
                continue
            self._consuming.add(task)
            try:
                ended_s = await self._consume(queue, counts, batch)
            finally:
                self._consuming.discard(task)
            if ended_s > turn_ends_s:
                await asyncio.sleep(0)
                turn_ends_s = self._time() + TURN_S

    async def _consume(
        self, queue: ProcessQueue, counts: TopicCounts, batch: Sequence[ReceivedMessage]
    ) -> float:
        """One call of the listener, and what follows from it; when the listener was done."""
        context = ConsumeContext(queue.queue) if self._handling.gives_contexts else queue.untouched_context
        began_s = self._time()
        queue.started(batch, began_s)
        try:
            result, _, ended_s = await self._handling.handle(batch, context, counts, began_s)
        except asyncio.CancelledError:
            if was_cancelled():
                raise
            result = ConsumeResult.RETRY  # something the listener waited for was: its failure
            ended_s = self._time()
            log.warning(
                "group=%s topic=%s queue=%s/%d offset=%d message=%s listener was cancelled, it comes again",
                self._settings.group, batch[0].topic, queue.queue.broker_name, queue.queue.queue_id,
                batch[0].queue_offset, batch[0].message_id,
            )  # fmt: skip
        except NobodyListens as unheard:
            queue.not_started(batch)
            log.info("group=%s message=%s waits: %s", self._settings.group, batch[0].message_id, unheard)
            if not queue.dropped:
                self._feed_later(queue, batch)
            return self._time()
        if queue.dropped:
            return ended_s
        queue.consumed_at_s = ended_s
        is_done = result is not ConsumeResult.RETRY and result is not ConsumeResult.ROLLBACK
        if is_done and context.done_count is None:
            counts.done += len(batch)
            self.finish(queue, batch)
            return ended_s
        done_count = min(max(context.done_count or 0, 0), len(batch)) if is_done else 0
        counts.done += done_count
        counts.failed += len(batch) - done_count
        failed = batch[done_count:]
        kept = await self._give_back(queue, failed, context.delay_level) if failed else []
        kept_offsets = {message.queue_offset for message in kept}
        self.finish(queue, [message for message in batch if message.queue_offset not in kept_offsets])
        return ended_s

    def finish(self, queue: ProcessQueue, messages: Sequence[ReceivedMessage]) -> None:
        offset = queue.remove(messages)
        if not queue.dropped:
            self._offsets.advance(queue.queue, offset)

    async def _give_back(
        self, queue: ProcessQueue, failed: Sequence[ReceivedMessage], delay_level: int
    ) -> list[ReceivedMessage]:
        """Those that had to stay here, to be tried again soon."""
        if self._settings.broadcasting:
            for message in failed:
                log.warning(
                    "group=%s topic=%s queue=%s/%d offset=%d message=%s failed and is passed over: "
                    "broadcasting has no retries",
                    self._settings.group, message.topic, queue.queue.broker_name, queue.queue.queue_id,
                    message.queue_offset, message.message_id,
                )  # fmt: skip
            return []
        kept = []
        for message in failed:
            if message in queue and not await self._send_back.give(message, delay_level):
                kept.append(message)
        if kept:
            again = [replace(message, reconsume_times=message.reconsume_times + 1) for message in kept]
            self._feed_later(queue, again)
        return kept

    def _feed_later(self, queue: ProcessQueue, messages: Sequence[ReceivedMessage]) -> None:
        def feed() -> None:
            self._later.discard(handle)
            if not queue.dropped:
                for message in messages:
                    queue.replace(message)
                self.feed(queue, messages)

        handle = self._loop.call_later(self._settings.pace.local_retry_s, feed)
        self._later.add(handle)

    # --- messages that are stuck ---------------------------------------------------------------------

    async def give_back_stuck(self, queue: ProcessQueue) -> None:
        """The oldest messages go back whose listener has had them too long; the offset moves on."""
        for _ in range(STUCK_MAX):
            message = next(iter(queue), None)
            started_s = None if message is None else queue.started_at_s.get(message.queue_offset)
            if message is None or started_s is None or queue.dropped:
                return
            if self._loop.time() - started_s < self._settings.consume_timeout_s:
                return
            message = self._handling.original(message)
            log.warning(
                "group=%s topic=%s queue=%s/%d offset=%d message=%s stuck for %.0f s; sent back",
                self._settings.group, message.topic, queue.queue.broker_name, queue.queue.queue_id,
                message.queue_offset, message.message_id, self._loop.time() - started_s,
            )  # fmt: skip
            if not self._settings.broadcasting and not await self._send_back.give(message, FIRST_LEVEL):
                return
            if message in queue:
                self.finish(queue, [message])

    # --- the end -------------------------------------------------------------------------------------

    def taken_away(self, queue: ProcessQueue) -> Coroutine[Any, Any, None] | None:
        """Nothing to wait for: what runs is not committed any more."""
        return None

    async def close(self) -> None:
        """Start no more listeners, give those that run a moment, cancel what is left."""
        self._stopping = True
        self._backlog.clear()
        for handle in self._later:
            handle.cancel()
        for worker in self._workers:
            if worker not in self._consuming:
                worker.cancel()
        if self._consuming:
            await asyncio.wait(set(self._consuming), timeout=self._settings.pace.close_listeners_s)
        for worker in self._workers:
            worker.cancel()
        if self._workers:
            await asyncio.wait(set(self._workers), timeout=CANCELLED_S)
