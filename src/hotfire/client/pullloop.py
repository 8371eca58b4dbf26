"""Pulling one queue for as long as it is ours: when to pull next, and what to do about each answer."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from hotfire.client.consumersettings import ConsumerSettings
from hotfire.client.consumestats import ConsumeStats
from hotfire.client.offsets import OffsetStore
from hotfire.client.processqueue import ProcessQueue
from hotfire.client.pulling import Pulled, Puller, PullStatus
from hotfire.client.subscriptions import Subscriptions
from hotfire.errors import BrokerRefused, HotfireError
from hotfire.model import ReceivedMessage
from hotfire.protocol.codes import ResponseCode

log = logging.getLogger("hotfire.client")


class Consumption(Protocol):
    def feed(self, queue: ProcessQueue, messages: Sequence[ReceivedMessage]) -> None: ...


class PullLoop:
    """The rules are the same for all queues of a consumer; `run` pulls one."""

    def __init__(
        self,
        settings: ConsumerSettings,
        puller: Puller,
        subscriptions: Subscriptions,
        offsets: OffsetStore,
        consumption: Consumption,
        stats: ConsumeStats,
        may_start: asyncio.Event,
        *,
        moved: Callable[[ProcessQueue, int], Awaitable[None]],
        failed: Callable[[ProcessQueue, HotfireError], Awaitable[None]],
        position: Callable[[ProcessQueue], Awaitable[int]],
    ) -> None:
        """`moved` takes a queue away whose offset is not there; `position` is where it begins once locked."""
        self._settings = settings
        self._puller = puller
        self._subscriptions = subscriptions
        self._offsets = offsets
        self._consumption = consumption
        self._stats = stats
        self._may_start = may_start
        self._moved = moved
        self._failed = failed
        self._position = position
        self._loop = asyncio.get_running_loop()
        self._troubled: dict[str, str] = {}
        """Brokers whose pulls fail, and how."""

    async def run(self, queue: ProcessQueue, *, after_s: float) -> None:
        """Ends when the queue is dropped; errors of brokers only make it wait."""
        if after_s:
            await asyncio.sleep(after_s)
        is_placed = not after_s and not self._settings.orderly
        while not queue.dropped:
            queue.pulled_at_s = self._loop.time()
            try:
                if not self._may_start.is_set():
                    await self._resumed()
                elif queue.is_full(None if self._settings.orderly else self._settings.span_max):
                    await queue.wait_room(self._settings.pace.look_again_s)
                elif self._settings.orderly and not self._is_locked(queue):
                    is_placed = False
                    await asyncio.sleep(self._settings.pace.after_error_s)
                elif not is_placed:
                    await self._place(queue)
                    is_placed = True
                else:
                    pause_s = await self._pull(queue)
                    if pause_s:
                        await asyncio.sleep(pause_s)
            except HotfireError as error:
                await asyncio.sleep(await self._delay(queue, error))

    async def _resumed(self) -> None:
        try:
            async with asyncio.timeout(self._settings.pace.look_again_s):
                await self._may_start.wait()
        except TimeoutError:
            return

    def _is_locked(self, queue: ProcessQueue) -> bool:
        return queue.is_locked(self._loop.time(), self._settings.pace.lock_lease_s)

    async def _place(self, queue: ProcessQueue) -> None:
        """Who had the queue before us may have committed meanwhile. Nothing is skipped that we began with."""
        if len(queue):
            return
        queue.go_to(await self._position(queue))

    async def _pull(self, queue: ProcessQueue) -> float:
        """One pull; how long to wait before the next."""
        wanted = self._subscriptions.to_pull(queue.queue.topic)
        if wanted is None:
            return self._settings.pace.after_error_s
        commit = None if self._settings.broadcasting else self._offsets.get(queue.queue)
        began_s = self._loop.time()
        pulled = await self._puller.pull(
            queue.queue, queue.next_offset, wanted, commit_offset=commit if commit else None
        )
        if self._troubled and self._troubled.pop(queue.queue.broker_name, ""):
            log.info("group=%s broker=%s answers pulls again", self._settings.group, queue.queue.broker_name)
        if queue.dropped:
            return 0.0
        if pulled.status is PullStatus.OFFSET_MOVED:
            return await self._offset_moved(queue, pulled)
        queue.next_offset = pulled.next_offset
        if pulled.messages:
            counts = self._stats.of(queue.queue.topic)
            counts.pulls += 1
            counts.pulled += len(pulled.messages)
            counts.pull_s += self._loop.time() - began_s
            self._consumption.feed(queue, queue.put(pulled.messages))
        self._pass_over(queue, pulled.next_offset)
        return self._settings.pull_interval_s

    def _pass_over(self, queue: ProcessQueue, offset: int) -> None:
        """What the broker left out is done with as soon as everything before it is."""
        queue.passed_over(offset)
        if not len(queue):
            self._offsets.advance(queue.queue, offset)

    async def _offset_moved(self, queue: ProcessQueue, pulled: Pulled) -> float:
        name = f"{queue.queue.topic} {queue.queue.broker_name}/{queue.queue.queue_id}"
        if pulled.is_reset and self._settings.broadcasting:
            log.warning(
                "group=%s queue=%s is not moved to %d: with broadcasting each member keeps its own offsets, "
                "which nobody else sets; goes on at %d",
                self._settings.group, name, pulled.next_offset, queue.next_offset,
            )  # fmt: skip
            return self._settings.pace.after_error_s
        offset = await self._where_to_go_on(queue, pulled)
        if len(queue) or offset != queue.next_offset:  # a group may be sent to where it is
            log.warning(
                "group=%s queue=%s offset %d %s, goes on at %d",
                self._settings.group, name, queue.next_offset,
                "was set from outside" if pulled.is_reset else "is not there", offset,
            )  # fmt: skip
        await self._moved(queue, offset)
        return 0.0

    async def _where_to_go_on(self, queue: ProcessQueue, pulled: Pulled) -> int:
        """A queue that ends before us has lost messages, and may have new ones at places we were at: of those
        the broker says the end only. How far it knows the group to be is behind none of them."""
        if pulled.is_reset or pulled.next_offset >= queue.next_offset:
            return pulled.next_offset
        kept = await self._offsets.read(queue.queue)
        return pulled.next_offset if kept is None else min(kept, pulled.next_offset)

    async def _delay(self, queue: ProcessQueue, error: HotfireError) -> float:
        """How long to wait after a failure."""
        if isinstance(error, BrokerRefused) and error.code == ResponseCode.FLOW_CONTROL:
            return self._settings.pace.after_flow_control_s
        broker, cause = queue.queue.broker_name, type(error).__name__
        is_news = self._troubled.get(broker) != cause  # an outage is told once, whatever its length and width
        self._troubled[broker] = cause
        log.log(
            logging.WARNING if is_news else logging.DEBUG,
            "group=%s topic=%s queue=%s/%d is pulled again until it works: %s",
            self._settings.group, queue.queue.topic, broker, queue.queue.queue_id, error,
        )  # fmt: skip
        await self._failed(queue, error)
        return self._settings.pace.after_error_s
