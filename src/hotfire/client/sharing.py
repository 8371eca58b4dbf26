"""Which queues a polled consumer reads: its share of the topics it subscribes to, or those named by hand.

Owns the change from one share to the next: what is let go is stopped, told and committed before it is given
up; what is new is told before anything of it is pulled. A change that cannot be known now changes nothing.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import replace
from typing import Any

from hotfire.client.consumersettings import Pace
from hotfire.client.fetching import Fetched, Fetching
from hotfire.client.instance import CALL_TIMEOUT_S, ClientInstance
from hotfire.client.rebalance import Shares, StrategyFailed
from hotfire.client.served import check_served
from hotfire.client.subscriptions import Subscriptions, subscription
from hotfire.errors import ConfigError, HotfireError, NotAssigned
from hotfire.model import MessageQueue, Subscription

log = logging.getLogger("hotfire.client")

FIRST_PULL_S = Pace().first_pull_s
"""After queues were shared anew, for those who had them to commit what they did."""
GIVE_UP_S = 0.5

QueuesChanged = Callable[[Sequence[MessageQueue]], Awaitable[None] | None]
GiveUp = Callable[[Sequence[Fetched]], Coroutine[Any, Any, None]]
"""Commits what is done with of queues that are not ours any more."""


class Sharing:
    """The choice of one consumer; made before it starts or while it runs."""

    def __init__(
        self, group: str, on_assigned: QueuesChanged | None, on_revoked: QueuesChanged | None
    ) -> None:
        self.subscriptions = Subscriptions()
        self._group = group
        self._on_assigned = on_assigned
        self._on_revoked = on_revoked
        self._by_hand: dict[MessageQueue, Subscription] | None = None
        self._instance: ClientInstance | None = None
        self._is_told = False
        self._troubles: dict[str, str] = {}
        self._changing = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._shares: Shares
        self._fetching: Fetching
        self._give_up: GiveUp

    async def begin(
        self, instance: ClientInstance, shares: Shares, fetching: Fetching, give_up: GiveUp
    ) -> None:
        self._instance, self._shares, self._fetching, self._give_up = instance, shares, fetching, give_up
        if self._by_hand is not None:
            self._take_by_hand(self._by_hand)
        await self.rebalance()

    async def close(self) -> None:
        """Change nothing from now on."""
        self._instance = None
        if self._tasks:  # the last offsets of queues given up just now
            _, unfinished = await asyncio.wait(self._tasks, timeout=GIVE_UP_S)
            for task in unfinished:
                task.cancel()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # --- the choice ----------------------------------------------------------------------------------

    def subscribe(self, wanted: Subscription) -> None:
        if self._by_hand is not None:
            raise ConfigError(
                f"group {self._group}: queues were assigned by hand; use another consumer to subscribe"
            )
        self.subscriptions.put(wanted)
        self.look_again()

    def unsubscribe(self, topic: str) -> None:
        self.subscriptions.remove(topic)
        self.look_again()

    def assign(
        self, queues: Iterable[MessageQueue], tags: str | Sequence[str], *, sql: str | None = None
    ) -> None:
        if self.subscriptions.topics():
            raise ConfigError(
                f"group {self._group}: it subscribes to topics; use another consumer to assign queues"
            )
        self._by_hand = {queue: subscription(queue.topic, tags, sql=sql) for queue in queues}
        if self._instance is not None:
            self._take_by_hand(self._by_hand)
            self.look_again()

    def look_again(self) -> None:
        """Tell brokers of us and share the queues anew, as soon as possible."""
        self._is_told = False
        if self._instance is not None:
            self._instance.rebalance_soon()

    def _take_by_hand(self, chosen: dict[MessageQueue, Subscription]) -> None:
        gone = [one for one in self._fetching.all() if one.queue not in chosen]
        fresh = [queue for queue in chosen if queue not in self._fetching]
        self._fetching.drop([one.queue for one in gone])
        if gone:
            self._spawn(self._give_up(gone))
        for queue in fresh:
            self._fetching.add(queue, chosen[queue])
        self._fetching.begin(fresh)

    # --- sharing -------------------------------------------------------------------------------------

    async def rebalance(self) -> bool:
        """Take the queues that are ours now, let go of those that are not; whether all is settled."""
        async with self._changing:
            if self._instance is None:
                return True
            if not self._is_told:
                self._is_told = True  # what is said from now on is told next time
                self._is_told = await self._tell(self._instance) and self._is_told
            if self._by_hand is not None:
                return self._is_told
            wanted = self.subscriptions.topics()
            settled = self._is_told
            for topic in dict.fromkeys([*wanted, *(one.queue.topic for one in self._fetching.all())]):
                settled = await self._share_anew(topic, is_wanted=topic in wanted) and settled
            return settled

    async def _share_anew(self, topic: str, *, is_wanted: bool) -> bool:
        instance = self._instance
        if instance is None:  # closed meanwhile
            return True
        try:
            mine, others = await self._share(instance, topic) if is_wanted else ([], False)
        except HotfireError as error:
            self._in_trouble(topic, error)
            return False
        self._troubles.pop(topic, None)
        await self._adopt(topic, mine, first_pull_s=FIRST_PULL_S if others else 0.0)
        return True

    async def _tell(self, instance: ClientInstance) -> bool:
        """Learn the routes of our topics and tell their brokers who we are and what we want."""
        is_whole = True
        self._fetching.forgive()
        wanted = self.subscriptions.all()
        by_hand = {queue.topic: one for queue, one in (self._by_hand or {}).items()}
        for one in (*wanted, *by_hand.values()):
            try:
                await instance.routes.to_read(one.topic, CALL_TIMEOUT_S)
                await check_served(instance, self._group, one)
            except ConfigError as error:
                self._fetching.fail(error)
            except HotfireError as error:
                self._in_trouble(one.topic, error)
                is_whole = False
        await instance.greet_brokers()
        self.subscriptions.told(wanted)
        return is_whole

    async def _share(self, instance: ClientInstance, topic: str) -> tuple[list[MessageQueue], bool]:
        """Our queues of the topic, whether others have the rest. HotfireError when that is unknown now."""
        share = await self._shares.mine(topic)
        if not share.is_member:
            # The broker has forgotten us: to go by its list would be to leave the group.
            await instance.greet_brokers()
            share = await self._shares.mine(topic)
        if not share.is_member:
            raise NotAssigned(
                f"topic {topic}: its broker does not list this client among the group's members"
            )
        return share.queues, share.others

    async def _adopt(self, topic: str, mine: Sequence[MessageQueue], *, first_pull_s: float) -> None:
        ours = {one.queue: one for one in self._fetching.all() if one.queue.topic == topic}
        gone = [queue for queue in ours if queue not in mine]
        fresh = [queue for queue in mine if queue not in ours]
        if gone:
            self._fetching.stop(gone)
            await self._call(self._on_revoked, gone)
            await self._give_up([ours[queue] for queue in gone])
            self._fetching.drop(gone)
        wanted = self.subscriptions.to_pull(topic)
        if wanted is None or self._instance is None:
            return
        if wanted.kind == "TAG":
            wanted = replace(wanted, version=0)  # each pull carries the tags: no edition to compare
        for queue, one in ours.items():
            if queue not in gone and one.wanted != wanted:
                self._fetching.move(queue, one.position, wanted)
        for queue in fresh:
            self._fetching.add(queue, wanted)
        if fresh:
            await self._call(self._on_assigned, fresh)
            self._fetching.begin(fresh, after_s=first_pull_s)

    async def _call(self, callback: QueuesChanged | None, queues: Sequence[MessageQueue]) -> None:
        if callback is not None:
            await guarded(self._group, callback, sorted(queues))

    # --- trouble -------------------------------------------------------------------------------------

    def _in_trouble(self, topic: str, error: HotfireError) -> None:
        """It stays as it is, and is tried again soon; told once for each kind of trouble."""
        kind = type(error).__name__
        if self._troubles.get(topic) != kind:
            log.warning(
                "group=%s topic=%s keeps its queues for now: %s", self._group, topic, error,
                exc_info=error if isinstance(error, StrategyFailed) else None,
            )  # fmt: skip
        self._troubles[topic] = kind


async def guarded(group: str, callback: Callable[..., Any], *arguments: Any) -> None:
    """Call the application; its mistakes are told and do not keep the group from going on."""
    try:
        answer = callback(*arguments)
        if inspect.isawaitable(answer):
            await answer
    except Exception:
        log.exception("group=%s: %s failed", group, getattr(callback, "__qualname__", callback))
