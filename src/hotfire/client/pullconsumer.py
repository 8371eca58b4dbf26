"""A consumer that is polled: the application takes messages when it wants them.

Its queues are its share of the topics it subscribes to, shared anew when members of the group come and go; or
those it is assigned by hand, which nobody shares. Messages are pulled ahead (`fetching`). With `auto_commit`
what was polled counts as done when the application polls again, and is committed every 5 seconds, when a
queue is given away, and on close.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Self, cast

from hotfire.allocation import Strategy
from hotfire.client import offsets as queue_offsets
from hotfire.client import pullasked
from hotfire.client.addresses import AddressSource
from hotfire.client.checks import (
    check_callable,
    check_group,
    check_number,
    check_offset,
    check_queue,
    check_text,
    check_topic,
)
from hotfire.client.consumersettings import ConsumeFrom, check_consume_from
from hotfire.client.dialling import TlsChoice, tls_context
from hotfire.client.fetching import Fetched, Fetching, FetchLimits
from hotfire.client.instance import CALL_TIMEOUT_S, CLOSE_TIMEOUT_S, ClientInstance, Member
from hotfire.client.offsets import Boundary, LocalOffsets, OffsetStore, RemoteOffsets
from hotfire.client.pulling import LITE, SUBSCRIPTION, Puller
from hotfire.client.queries import commit_offset, committed_offset
from hotfire.client.queuetable import start_offset
from hotfire.client.rebalance import Shares, strategy_of
from hotfire.client.running import BEGIN_BEFORE_MS
from hotfire.client.sharing import QueuesChanged, Sharing
from hotfire.client.subscriptions import subscription
from hotfire.client.topicwatch import TopicChanged, TopicWatch
from hotfire.errors import ConfigError, NotAssigned, NotRunning
from hotfire.model import ConsumerData, MessageQueue, ReceivedMessage
from hotfire.net.clock import now_ms
from hotfire.protocol.command import Command
from hotfire.protocol.request import Request
from hotfire.protocol.requests import LitePullMessage

log = logging.getLogger("hotfire.client")

POLL_TIMEOUT_S = 5.0
BATCH_COUNT = 10
SUSPEND_MS = 20_000
PULL_BYTES_MAX = (1 << 31) - 1
"""The broker's own bound counts; how much waits here is bounded by FetchLimits."""
PULL_TIMEOUT_S = 30.0
FAREWELL_S = 1.0
"""For the last offsets; goodbyes and hanging up have what is left then of 3 seconds."""


class PullConsumer(Member):
    """Messages of a group's share of some topics, or of queues named by hand.

    >>> async def example() -> None:
    ...     async with PullConsumer("127.0.0.1:9876", group="billing") as consumer:
    ...         consumer.subscribe("orders", tags="pay || refund")
    ...         async for message in consumer:
    ...             print(message.body)

    One task polls or iterates at a time: polling again is what says that the messages before are done with.
    Who wants to say so himself switches `auto_commit` off and calls `commit`.
    """

    def __init__(
        self,
        name_servers: str | Sequence[str] | None = None,
        *,
        group: str,
        auto_commit: bool = True,
        consume_from: ConsumeFrom = ConsumeFrom.LAST,
        consume_timestamp_ms: int | None = None,
        broadcasting: bool = False,
        allocation: str | Strategy = "AVG",
        batch_count: int = BATCH_COUNT,
        limits: FetchLimits | None = None,
        on_assigned: QueuesChanged | None = None,
        on_revoked: QueuesChanged | None = None,
        instance_name: str | None = None,
        tls: TlsChoice = False,
        rng: random.Random | None = None,
    ) -> None:
        """`on_assigned` may seek: nothing of the new queues is pulled before it returns. `on_revoked` may
        commit. Either may be a coroutine function."""
        check_group(group)
        check_number("consume_timestamp_ms", consume_timestamp_ms, may_be_none=True)
        check_number("batch_count", batch_count)
        if batch_count < 1:
            raise ConfigError(f"group {group}: batch_count={batch_count}: a pull asks for 1 message at least")
        if limits is not None and not isinstance(limits, FetchLimits):
            raise ConfigError(
                f"group {group}: limits={limits!r:.60} are no FetchLimits; give FetchLimits(...)"
            )
        check_callable("on_assigned", on_assigned)
        check_callable("on_revoked", on_revoked)
        check_text("instance_name", instance_name)
        check_consume_from(group, consume_from)
        self.group = group
        self.auto_commit = auto_commit
        AddressSource(name_servers)  # a mistake is told now
        tls_context(tls)
        self._tls = tls
        self._name_servers = name_servers
        self._consume_from = consume_from
        self._consume_timestamp_ms = consume_timestamp_ms or now_ms() - BEGIN_BEFORE_MS
        self._broadcasting = broadcasting
        self._allocation = strategy_of(allocation)
        self._batch_count = batch_count
        self._limits = limits or FetchLimits()
        self._instance_name = instance_name or ("DEFAULT" if broadcasting else None)
        self._rng = rng
        self._joined: ClientInstance | None = None
        self._sharing = Sharing(group, on_assigned, on_revoked)
        self._watch = TopicWatch(group)
        self._watching: asyncio.Task[None] | None = None
        self._puller: Puller
        self._fetching: Fetching
        self._store: OffsetStore
        self._shares: Shares

    # --- life ----------------------------------------------------------------------------------------

    async def start(self) -> None:
        if self._joined is not None:
            raise NotRunning(f"the consumer of group {self.group} is already started")
        instance = await ClientInstance.join(
            self, self._name_servers, instance_name=self._instance_name, rng=self._rng, tls=self._tls
        )
        puller = self._puller = Puller(
            instance,
            self.group,
            request=LitePullMessage,
            count_max=self._batch_count,
            bytes_max=PULL_BYTES_MAX,
            suspend_ms=SUSPEND_MS,
            timeout_s=PULL_TIMEOUT_S,
            flags=SUBSCRIPTION | LITE,
            passes_damaged=True,
        )
        self._store = (
            LocalOffsets(instance.client_id, self.group)
            if self._broadcasting
            else RemoteOffsets(instance, self.group)
        )
        self._shares = Shares(
            instance, self.group, strategy=self._allocation, broadcasting=self._broadcasting
        )
        self._fetching = Fetching(
            puller,
            start_offset=self._start_offset,
            refresh_route=lambda topic: instance.routes.refresh(topic, CALL_TIMEOUT_S),
            limits=self._limits,
        )
        self._joined = instance
        try:
            await self._store.load()
            self._watching = asyncio.create_task(self._watch.run(instance))
            await self._sharing.begin(instance, self._shares, self._fetching, self._give_up)
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Commit what was polled, with `auto_commit`, and leave the group. Takes 3 seconds at most."""
        await self._close(is_in_hand_done=True)

    async def _close(self, *, is_in_hand_done: bool) -> None:
        if self._joined is None:
            return
        self._joined.check_usable("consumer")  # in a child, offsets and goodbyes would be the parent's
        loop = asyncio.get_running_loop()
        deadline = loop.time() + CLOSE_TIMEOUT_S
        instance, self._joined = self._joined, None
        await self._sharing.close()
        if self._watching is not None and self._watching is not asyncio.current_task():
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        if is_in_hand_done:
            self._fetching.settle()
        await self._fetching.close()
        try:
            async with asyncio.timeout(FAREWELL_S):
                await self._keep(self._fetching.all())
        except TimeoutError:
            log.warning("group=%s closed before its last offsets were kept: some come again", self.group)
        await instance.leave(self, max(deadline - loop.time(), 0.0))

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, failure: object, *_: object) -> None:
        # A message whose handling failed is not done with: it comes again.
        await self._close(is_in_hand_done=failure is None)

    @property
    def _instance(self) -> ClientInstance:
        if self._joined is None:
            raise NotRunning(
                f"the consumer of group {self.group} is not running; use {self.begun_by} or start() first"
            )
        self._joined.check_usable("consumer")
        return self._joined

    # --- what to read --------------------------------------------------------------------------------

    def subscribe(self, topic: str, tags: str | Sequence[str] = "*", *, sql: str | None = None) -> None:
        """Read our share of the topic; before the start or while running. Again: otherwise filtered."""
        self._sharing.subscribe(subscription(topic, tags, sql=sql, version=now_ms()))

    def unsubscribe(self, topic: str) -> None:
        """Let go of the topic's queues, soon."""
        self._sharing.unsubscribe(topic)

    def assign(
        self, queues: Iterable[MessageQueue], tags: str | Sequence[str] = "*", *, sql: str | None = None
    ) -> None:
        """Read exactly these queues, whoever else does; those assigned before and not named are let go."""
        self._sharing.assign(_several(queues), tags, sql=sql)

    def assignment(self) -> tuple[MessageQueue, ...]:
        """The queues that are ours now."""
        self._instance.check_usable("consumer")
        return tuple(sorted(one.queue for one in self._fetching.all() if not one.is_stopped))

    @property
    def damaged_count(self) -> int:
        """Messages passed over since the start because they came damaged, twice; the log says which."""
        self._instance.check_usable("consumer")
        return self._puller.damaged_count

    async def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """All queues of the topic that may be read."""
        check_topic(topic)
        await self._instance.routes.refresh(topic, CALL_TIMEOUT_S)
        return tuple(await self._shares.queues(topic))

    def watch(self, topic: str, changed: TopicChanged) -> None:
        """Call `changed(topic, queues)` when the topic has other queues than before; looked at every 30 s."""
        self._watch.watch(topic, changed)

    # --- messages ------------------------------------------------------------------------------------

    async def poll(
        self, timeout_s: float | None = POLL_TIMEOUT_S, *, count_max: int | None = None
    ) -> list[ReceivedMessage]:
        """The next messages of one queue; none when there is none in time. None waits for one."""
        check_number("timeout_s", timeout_s, may_be_none=True)
        check_number("count_max", count_max, may_be_none=True)
        if count_max is not None and count_max < 1:
            raise ConfigError(f"count_max={count_max}: a poll asks for 1 message at least")
        deadline = None if timeout_s is None else asyncio.get_running_loop().time() + timeout_s
        count_max = self._batch_count if count_max is None else count_max
        fetching = self._running_fetching()
        fetching.settle()
        while not (taken := fetching.take(count_max)):
            if deadline is not None and asyncio.get_running_loop().time() >= deadline:
                break
            await fetching.wait(deadline)
            self._running_fetching()
        return taken

    def _running_fetching(self) -> Fetching:
        self._instance  # noqa: B018  # raises unless we run
        if self._fetching.failure is not None:
            raise self._fetching.failure
        return self._fetching

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ReceivedMessage:
        fetching = self._running_fetching()
        fetching.settle()
        if taken := fetching.take(1):
            return taken[0]
        try:
            return (await self.poll(None, count_max=1))[0]
        except NotRunning:  # closed while we waited
            raise StopAsyncIteration from None

    # --- where we are --------------------------------------------------------------------------------

    def _ours(self, queue: MessageQueue) -> Fetched:
        self._instance.check_usable("consumer")
        check_queue(queue)
        if queue not in self._fetching:
            raise NotAssigned(
                f"topic {queue.topic} broker {queue.broker_name} queue {queue.queue_id} is not assigned to "
                f"this consumer of group {self.group}; assignment() tells which are"
            )
        return self._fetching[queue]

    def position(self, queue: MessageQueue) -> int | None:
        """The offset polled next; None as long as the group's is being asked for."""
        return self._ours(queue).position

    async def seek(self, queue: MessageQueue, offset: int) -> None:
        """Poll from `offset` on: nothing of the old place comes after this, not even what is on its way."""
        self._ours(queue)
        check_offset(queue, offset)
        low, high = await asyncio.gather(self.min_offset(queue), self.max_offset(queue))
        if not low <= offset <= high:
            raise ConfigError(
                f"topic {queue.topic} broker {queue.broker_name} queue {queue.queue_id}: offset {offset} is "
                f"not within {low} to {high}"
            )
        self._move(queue, offset)

    async def seek_to_begin(self, queue: MessageQueue) -> None:
        self._ours(queue)
        self._move(queue, await self.min_offset(queue))

    async def seek_to_end(self, queue: MessageQueue) -> None:
        self._ours(queue)
        self._move(queue, await self.max_offset(queue))

    def _move(self, queue: MessageQueue, offset: int) -> None:
        self._ours(queue)  # it may have been taken away while its ends were asked for
        self._fetching.move(queue, offset)

    async def min_offset(self, queue: MessageQueue) -> int:
        return await queue_offsets.min_offset(self._instance, queue)

    async def max_offset(self, queue: MessageQueue) -> int:
        return await queue_offsets.max_offset(self._instance, queue)

    async def offset_for_timestamp(
        self, queue: MessageQueue, timestamp_ms: int, boundary: Boundary = "lower"
    ) -> int:
        """Of the first message stored at this time or later; `upper`: the last one not later."""
        return await queue_offsets.offset_at(self._instance, queue, timestamp_ms, boundary)

    def pause(self, queues: Iterable[MessageQueue]) -> None:
        """Pull and poll nothing of these queues until they are resumed; they stay ours."""
        for queue in _several(queues):
            self._ours(queue)
            self._fetching.pause(queue)

    def resume(self, queues: Iterable[MessageQueue]) -> None:
        for queue in _several(queues):
            self._ours(queue)
            self._fetching.resume(queue)

    # --- offsets -------------------------------------------------------------------------------------

    async def commit(
        self, offsets: Mapping[MessageQueue, int] | None = None, *, persist: bool = True
    ) -> None:
        """Let the group go on behind everything polled so far, or at the offsets given.

        The brokers have it when this returns; without `persist` they get it within 5 seconds.
        """
        instance = self._instance
        if offsets is None:
            places = ((one.queue, one.position) for one in self._fetching.all())
            offsets = {queue: position for queue, position in places if position is not None}
        for queue, offset in offsets.items():
            self._ours(queue)
            check_offset(queue, offset)
        for queue, offset in offsets.items():
            self._store.set(queue, offset)
        if persist and self._broadcasting:
            await self._store.persist(offsets)
        elif persist:
            told = (commit_offset(instance, self.group, queue, offset) for queue, offset in offsets.items())
            await asyncio.gather(*told)

    async def committed(self, queue: MessageQueue) -> int | None:
        """Where the group goes on should this consumer end; None when nothing was committed."""
        if self._broadcasting:
            return await self._store.read(queue)
        return await committed_offset(self._instance, self.group, queue)

    async def _keep(self, queues: Sequence[Fetched]) -> None:
        """Commit what is done with of these, if that is our task, and tell what was committed."""
        if self.auto_commit:
            for one in queues:
                if one.done_offset is not None:
                    self._store.set(one.queue, one.done_offset)
        await self._store.persist([one.queue for one in queues])

    async def _give_up(self, queues: Sequence[Fetched]) -> None:
        await self._keep(queues)
        for one in queues:
            self._store.forget(one.queue)

    async def _start_offset(self, queue: MessageQueue) -> int:
        kept = await self._store.read(queue)
        if kept is not None:
            return kept
        return await start_offset(self._instance, queue, self._consume_from, self._consume_timestamp_ms)

    # --- as a member ---------------------------------------------------------------------------------

    def consumer_data(self) -> ConsumerData:
        return ConsumerData(
            self.group,
            consume_type="CONSUME_ACTIVELY",
            message_model="BROADCASTING" if self._broadcasting else "CLUSTERING",
            consume_from_where=self._consume_from.value,
            subscriptions=self._sharing.subscriptions.all(),
        )

    def topics(self) -> tuple[str, ...]:
        return self._sharing.subscriptions.topics()

    async def persist_offsets(self) -> None:
        if self._joined is not None:
            await self._keep(self._fetching.all())

    async def rebalance(self) -> bool:
        return self._joined is None or await self._sharing.rebalance()

    def asked(self, request: Request) -> Command | None:
        if self._joined is None:
            return None
        return pullasked.answer(self._joined, self.consumer_data(), self._fetching, self._store, request)


def _several(queues: object) -> Iterable[MessageQueue]:
    """A queue is a tuple itself, so that who gives a single one is understood rather than misunderstood."""
    return (queues,) if isinstance(queues, MessageQueue) else cast(Iterable[MessageQueue], queues)
