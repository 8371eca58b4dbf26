"""A consumer that runs: its parts, tied together, and the timers that keep them going.

Owns the order of things: routes, then a heartbeat, then our share of each topic's queues. Nothing a broker or
name server does ends it; what fails is tried again at the next look.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import Any

from hotfire.allocation import Strategy
from hotfire.client.concurrent import ConcurrentConsumption
from hotfire.client.consumersettings import ConsumerSettings
from hotfire.client.consumestats import ConsumeStats
from hotfire.client.handling import ConsumeHook, Handling
from hotfire.client.instance import CALL_TIMEOUT_S, ClientInstance
from hotfire.client.listening import Calling
from hotfire.client.offsets import OffsetStore
from hotfire.client.orderly import OrderlyConsumption
from hotfire.client.processqueue import ProcessQueue
from hotfire.client.pulling import SUBSCRIPTION, Puller
from hotfire.client.pullloop import PullLoop
from hotfire.client.queuelocks import QueueLocks
from hotfire.client.queuetable import QueueTable
from hotfire.client.rebalance import Share, Shares, StrategyFailed
from hotfire.client.replier import Replier
from hotfire.client.results import SendResult
from hotfire.client.sendback import SendBack
from hotfire.client.served import check_served
from hotfire.client.subscriptions import Subscriptions
from hotfire.errors import ConfigError, HotfireError, NoRoute, SystemFailed
from hotfire.model import MessageQueue, ReceivedMessage, Subscription, retry_topic
from hotfire.net.clock import now_ms

log = logging.getLogger("hotfire.client")

RETRIES_MAX_CONCURRENT, RETRIES_MAX_ORDERLY = 16, 2**31 - 1
BEGIN_BEFORE_MS = 30 * 60 * 1000
"""Where consuming by time begins unless a time is given: half an hour before the start."""
YOUNG_S = 30.0
"""So long after a subscription a topic that is not there is looked for every second."""
ROUTE_ASKED_S = 5.0
"""A topic whose broker does not answer is looked up again this often at most."""


class RunningConsumer:
    """From start to close."""

    def __init__(
        self,
        instance: ClientInstance,
        settings: ConsumerSettings,
        subscriptions: Subscriptions,
        offsets: OffsetStore,
        allocation: Strategy,
        hooks: Sequence[ConsumeHook],
    ) -> None:
        self.instance = instance
        self.settings = settings
        self.subscriptions = subscriptions
        self.offsets = offsets
        self._loop = asyncio.get_running_loop()
        self.stats = ConsumeStats(self._loop.time())
        self.handling = Handling(settings, hooks)
        self.started_ms = now_ms()
        if settings.orderly:  # Java's members share by themselves then, whatever they were told
            allocation = replace(allocation, asks_broker=False)
        self._shares = Shares(
            instance, settings.group, strategy=allocation, broadcasting=settings.broadcasting
        )
        self._puller = Puller(
            instance,
            settings.group,
            count_max=settings.pull_batch,
            bytes_max=settings.pull_batch_bytes,
            flags=SUBSCRIPTION if settings.send_expressions else 0,
            passes_damaged=True,
        )
        self._locks = (
            QueueLocks(instance, settings.group, settings.pace.lock_timeout_s) if settings.orderly else None
        )
        self.consumption = self._make_consumption()
        self._pull_loop = PullLoop(
            settings,
            self._puller,
            subscriptions,
            offsets,
            self.consumption,
            self.stats,
            self.handling.may_start,
            moved=lambda queue, offset: self.table.move(queue, offset),
            failed=self._pull_failed,
            position=lambda queue: self.table.position(queue),
        )
        before_ms = self.started_ms - BEGIN_BEFORE_MS
        self.table = QueueTable(
            instance,
            settings,
            offsets,
            self._puller,
            self._locks,
            consumption=self.consumption,
            pull=lambda queue, after_s: self._pull_loop.run(queue, after_s=after_s),
            timestamp_ms=before_ms
            if settings.consume_timestamp_ms is None
            else settings.consume_timestamp_ms,
        )
        self._rebalancing = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._changes: set[asyncio.Task[None]] = set()
        self._read_queues: dict[str, tuple[MessageQueue, ...]] = {}
        self._route_asked_s: dict[str, float] = {}
        self._changed_s = self._loop.time()
        self._troubled: dict[str, str] = {}
        """Topics whose queues are not known, and why."""
        self._claimed: set[str] = set()
        self._replier: Replier | None = None
        self._closed = False

    @property
    def damaged_count(self) -> int:
        return self._puller.damaged_count

    @property
    def retries_max(self) -> int:
        """How often a message is tried again; brokers lay it aside then."""
        if self.settings.retries_max is not None and self.settings.retries_max >= 0:
            return self.settings.retries_max
        return RETRIES_MAX_ORDERLY if self.settings.orderly else RETRIES_MAX_CONCURRENT

    def _make_consumption(self) -> ConcurrentConsumption | OrderlyConsumption:
        send_back = SendBack(
            self.instance,
            self.settings.group,
            retries_max=self.retries_max,
            timeout_s=self.settings.pace.send_back_timeout_s,
        )
        if self._locks is None:
            return ConcurrentConsumption(self.settings, self.handling, self.offsets, send_back, self.stats)
        return OrderlyConsumption(
            self.settings, self.handling, self.offsets, send_back, self.stats, self._locks
        )

    # --- start -----------------------------------------------------------------------------------------

    async def start(self) -> None:
        pace = self.settings.pace
        self._spawn(
            self._every(
                self.settings.consume_timeout_s, self.settings.consume_timeout_s, self._look_for_stuck
            )
        )
        if self._locks is not None:
            self._spawn(self._every(pace.lock_first_s, pace.lock_interval_s, self._renew_locks))
        try:
            async with asyncio.timeout(pace.start_s):
                await self._announce(self.subscriptions.all())
                if not await self.rebalance():
                    self.instance.rebalance_soon()
        except TimeoutError:
            log.warning("group=%s starts without an answer of its brokers yet", self.settings.group)
            self.instance.rebalance_soon()

    async def _announce(self, wanted: Sequence[Subscription]) -> None:
        """Let brokers know what we subscribe to; ConfigError when one cannot serve it."""
        for one in wanted:
            try:
                await self.instance.routes.to_read(one.topic, CALL_TIMEOUT_S)
                await check_served(self.instance, self.settings.group, one)
            except HotfireError as error:
                if isinstance(error, ConfigError):
                    raise
                self._in_trouble(one.topic, error)
        await self._greet()

    async def _greet(self) -> None:
        told = self.subscriptions.all()
        await self.instance.greet_brokers()
        self.subscriptions.told(told)

    async def reply(
        self, request: ReceivedMessage, body: bytes, properties: Mapping[str, str] | None
    ) -> SendResult:
        if self._replier is None:
            self._replier = Replier(self.instance)
        return await self._replier.send(request, body, properties)

    # --- subscriptions change --------------------------------------------------------------------------

    def subscribed(self, topic: str, listener: Calling) -> None:
        self.handling.listen(topic, listener)
        self.subscriptions.renew(topic, now_ms())
        self._change(self._take_up(topic))

    async def _take_up(self, topic: str) -> None:
        wanted = [one for one in self.subscriptions.all() if one.topic == topic]
        try:
            await self._announce(wanted)
        except ConfigError as error:
            log.error("%s; nothing of it is read", error)  # its place is of no use to anyone
            self.subscriptions.remove(topic)
            return
        self.table.pull_again(topic)
        if not await self.rebalance():
            self.instance.rebalance_soon()

    def unsubscribed(self, topic: str) -> None:
        self.handling.ignore(topic)
        self._change(self._let_go())

    async def _let_go(self) -> None:
        await self._greet()
        await self.rebalance()

    def _change(self, work: Coroutine[Any, Any, None]) -> None:
        self._changed_s = self._loop.time()
        task = self._spawn(work)
        self._changes.add(task)
        task.add_done_callback(self._changes.discard)

    async def ready(self) -> None:
        while self._changes:
            await asyncio.wait(set(self._changes))
        while not await self.rebalance():  # noqa: ASYNC110  # what brokers and name servers do has no event
            await asyncio.sleep(self.settings.pace.after_error_s)

    # --- which queues ----------------------------------------------------------------------------------

    async def rebalance(self) -> bool:
        """Have the queues that are ours by now; False when not everything could be settled."""
        async with self._rebalancing:
            if self._closed:
                return True
            settled = changed = False
            results = await asyncio.gather(*map(self._rebalance_topic, self.subscriptions.topics()))
            for one in self.table.held():
                if one.queue.topic not in self.subscriptions:
                    await self.table.give_up(one)
                    changed = True
            changed = changed or any(result[0] for result in results)
            settled = all(result[1] for result in results)
            if changed:
                await self._greet()
            return settled

    async def _rebalance_topic(self, topic: str) -> tuple[bool, bool]:
        try:
            share = await self._share(topic)
            if self._locks is not None and self.instance.is_named and topic not in self._claimed:
                self._claimed.add(topic)
                self._locks.claim(await self._shares.queues(topic))
        except HotfireError as error:
            self._in_trouble(topic, error)
            # A topic that nobody made is asked for often at first only; then it may take a while.
            is_young = self._loop.time() - self._changed_s < YOUNG_S
            return False, isinstance(error, NoRoute) and not is_young
        self._troubled.pop(topic, None)
        changed, settled = await self.table.assign(topic, share.queues, alone=not share.others)
        if changed and topic in self.subscriptions:
            # Brokers go by the newest edition they heard of; who reads these queues now says what it wants.
            self.subscriptions.renew(topic, now_ms())
        return changed, settled

    async def _share(self, topic: str) -> Share:
        try:
            return await self._shares.mine(topic)
        except SystemFailed:  # a broker that we have only now learnt of has not heard of this group yet
            await self._greet()
            return await self._shares.mine(topic)

    def _in_trouble(self, topic: str, error: HotfireError) -> None:
        """Nothing new is read of the topic for now: told once for each cause, and not of retries, which need
        not exist."""
        cause = type(error).__name__
        is_news = self._troubled.get(topic) != cause and topic != retry_topic(self.settings.group)
        self._troubled[topic] = cause
        log.log(
            logging.WARNING if is_news else logging.DEBUG,
            "group=%s topic=%s has no new queues for now, and is looked at again: %s",
            self.settings.group, topic, error,
            exc_info=error if isinstance(error, StrategyFailed) else None,
        )  # fmt: skip

    def routes_changed(self) -> None:
        queues = {
            route.topic: route.read_queues
            for route in self.instance.routes.known()
            if route.topic in self.subscriptions
        }
        if queues != self._read_queues:
            self._read_queues = queues
            self.instance.rebalance_soon()

    async def _pull_failed(self, queue: ProcessQueue, error: HotfireError) -> None:
        """Perhaps its broker is elsewhere by now."""
        topic, now_s = queue.queue.topic, self._loop.time()
        if not error.refresh_route or now_s - self._route_asked_s.get(topic, -ROUTE_ASKED_S) < ROUTE_ASKED_S:
            return
        self._route_asked_s[topic] = now_s
        try:
            await self.instance.routes.refresh(topic, CALL_TIMEOUT_S)
        except HotfireError as error:
            log.info("topic=%s route kept as it was: %s", topic, error)
        self.routes_changed()

    # --- timers ----------------------------------------------------------------------------------------

    async def persist(self) -> None:
        self.stats.sample(self._loop.time())
        await self.offsets.persist([one.queue for one in self.table.held()])

    async def _renew_locks(self) -> None:
        assert self._locks is not None
        await self._locks.renew(self.table.held())

    async def _look_for_stuck(self) -> None:
        for one in self.table.held():
            await self.consumption.give_back_stuck(one)

    async def _every(self, first_s: float, interval_s: float, work: Callable[[], Awaitable[None]]) -> None:
        await asyncio.sleep(first_s)
        while True:
            await work()
            await asyncio.sleep(interval_s)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # --- offsets set from outside ------------------------------------------------------------------------

    async def reset(self, topic: str, offsets: Mapping[MessageQueue, int]) -> None:
        """Go on elsewhere, as a broker says that does not keep this to itself."""
        if self.settings.broadcasting:
            log.warning(
                "group=%s topic=%s is not reset: with broadcasting each member keeps its own offsets",
                self.settings.group, topic,
            )  # fmt: skip
            return
        was_running = self.handling.may_start.is_set()
        self.handling.suspend()
        try:
            moving = [one for one in self.table.held() if one.queue in offsets]
            for one in moving:
                one.dropped = True  # nothing of what is here is committed any more
            await asyncio.sleep(self.settings.pace.reset_wait_s if any(len(one) for one in moving) else 0)
            for one in moving:
                one.dropped = False
                await self.table.move(one, offsets[one.queue])
        finally:
            if was_running:
                self.handling.resume()

    # --- the end -----------------------------------------------------------------------------------------

    async def close(self) -> None:
        self._closed = True
        for task in tuple(self._tasks):
            task.cancel()
        await self.table.stop_pulling()
        await self.consumption.close()
        await self.table.close()
        self.handling.close()
