"""Pulling ahead of an application that polls: what was pulled of each queue and not handed out yet.

One task per queue pulls as long as there is room. What it brings is handed out queue by queue, in turn. Owns
where each queue is; knows nothing of groups, of who shares the queues or of where offsets are kept.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass

from hotfire.client.pulling import Pulled, Puller, PullStatus
from hotfire.errors import BrokerRefused, ConfigError, HotfireError
from hotfire.model import MessageQueue, ReceivedMessage, Subscription
from hotfire.protocol.codes import ResponseCode

log = logging.getLogger("hotfire.client")

START_RETRY_S = 3.0
PULL_RETRY_S = 1.0
FLOW_CONTROL_RETRY_S = 0.02


@dataclass(slots=True, frozen=True)
class FetchLimits:
    """How much is pulled ahead; the defaults are the Java client's."""

    all_count_max: int = 10_000
    queue_count_max: int = 1000
    queue_bytes_max: int = 100 << 20
    span_max: int = 2000
    """Between the offsets of the first and the last message of a queue that wait here."""


class Fetched:
    """One queue: messages that wait to be handed out, and where we are in it."""

    def __init__(self, queue: MessageQueue, wanted: Subscription) -> None:
        self.queue = queue
        self.wanted = wanted
        self.messages: deque[ReceivedMessage] = deque()
        self.bytes = 0
        self.next_offset: int | None = None
        """Where the next pull begins; None until it is known where the group is."""
        self.in_hand_from: int | None = None
        """The first offset the application has and may still work on."""
        self.is_paused = False
        self.is_stopped = False
        self.task: asyncio.Task[None] | None = None
        self.room = asyncio.Event()
        self.trouble = ""

    @property
    def position(self) -> int | None:
        """The offset that is handed out next."""
        return self.messages[0].queue_offset if self.messages else self.next_offset

    @property
    def done_offset(self) -> int | None:
        """All before it is handed out and done with."""
        return self.position if self.in_hand_from is None else self.in_hand_from

    @property
    def span(self) -> int:
        return self.messages[-1].queue_offset - self.messages[0].queue_offset if self.messages else 0

    def take(self, count_max: int) -> list[ReceivedMessage]:
        if count_max == 1:
            taken = [self.messages.popleft()]
            self.bytes -= len(taken[0].body)
        else:
            taken = [self.messages.popleft() for _ in range(min(count_max, len(self.messages)))]
            self.bytes -= sum([len(message.body) for message in taken])
        if self.in_hand_from is None:
            self.in_hand_from = taken[0].queue_offset
        return taken

    def move(self, offset: int | None) -> None:
        """Forget what was pulled and go on at `offset`."""
        self.messages.clear()
        self.bytes = 0
        self.next_offset = offset
        self.in_hand_from = None


class Fetching:
    """All queues of one consumer."""

    def __init__(
        self,
        puller: Puller,
        *,
        start_offset: Callable[[MessageQueue], Awaitable[int]],
        refresh_route: Callable[[str], Awaitable[object]],
        limits: FetchLimits,
    ) -> None:
        self._puller = puller
        self._start_offset = start_offset
        self._refresh_route = refresh_route
        self._limits = limits
        self._queues: dict[MessageQueue, Fetched] = {}
        self._ready: dict[Fetched, None] = {}  # those with messages to hand out, whose turn it is first
        self._in_hand: list[Fetched] = []
        self._held: dict[Fetched, None] = {}  # those whose pulls wait for room
        self._count = 0
        self._waiters: list[asyncio.Future[None]] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self.failure: BaseException | None = None

    # --- which queues --------------------------------------------------------------------------------

    def __contains__(self, queue: MessageQueue) -> bool:
        return queue in self._queues

    def __getitem__(self, queue: MessageQueue) -> Fetched:
        return self._queues[queue]

    def all(self) -> list[Fetched]:
        return list(self._queues.values())

    def add(self, queue: MessageQueue, wanted: Subscription) -> None:
        """The queue is ours. It is pulled from `begin` on."""
        assert queue not in self._queues, queue
        self._queues[queue] = Fetched(queue, wanted)

    def begin(self, queues: Iterable[MessageQueue], *, after_s: float = 0.0) -> None:
        for queue in queues:
            fetched = self._queues.get(queue)
            if fetched is not None and fetched.task is None and not fetched.is_stopped:
                self._start(fetched, 0.0 if fetched.next_offset is not None else after_s)

    def stop(self, queues: Iterable[MessageQueue]) -> None:
        """Pull and hand out no more of these; where they are stays known until they are dropped."""
        for queue in queues:
            fetched = self._queues[queue]
            fetched.is_stopped = True
            self._end(fetched)
            self._ready.pop(fetched, None)

    def drop(self, queues: Iterable[MessageQueue]) -> None:
        """The queues are not ours any more."""
        for queue in queues:
            if queue in self._queues:
                self.stop([queue])
                fetched = self._queues.pop(queue)
                self._count -= len(fetched.messages)
                if fetched in self._in_hand:
                    self._in_hand.remove(fetched)
                self._puller.forget(queue)
        self._wake_those_held()

    def move(self, queue: MessageQueue, offset: int | None, wanted: Subscription | None = None) -> None:
        """Go on at `offset`, with no message of before: a pull under way is given up."""
        fetched = self._queues[queue]
        is_begun = fetched.task is not None
        self._end(fetched)
        self._forget(fetched, offset)
        fetched.wanted = wanted or fetched.wanted
        if is_begun and not fetched.is_stopped:
            self._start(fetched)

    def pause(self, queue: MessageQueue) -> None:
        """Pull and hand out nothing of the queue; what is here stays here."""
        fetched = self._queues[queue]
        fetched.is_paused = True
        self._ready.pop(fetched, None)

    def resume(self, queue: MessageQueue) -> None:
        fetched = self._queues[queue]
        fetched.is_paused = False
        fetched.room.set()
        self._offer(fetched)

    async def close(self) -> None:
        self.stop(self._queues)
        self._wake_pollers()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _start(self, fetched: Fetched, after_s: float = 0.0) -> None:
        fetched.task = asyncio.create_task(self._run(fetched, after_s))
        fetched.task.add_done_callback(self._ended)
        self._tasks.add(fetched.task)

    def _end(self, fetched: Fetched) -> None:
        task, fetched.task = fetched.task, None
        if task is not None:
            task.cancel()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (failure := task.exception()) is not None:
            self.fail(failure)  # our own mistake

    def forgive(self) -> None:
        """What was refused is not wanted any more, or is asked for anew."""
        if isinstance(self.failure, ConfigError):
            self.failure = None

    def fail(self, failure: BaseException) -> None:
        """Whoever polls is told."""
        self.failure = self.failure or failure
        self._wake_pollers()

    # --- handing out ---------------------------------------------------------------------------------

    def settle(self) -> None:
        """What was handed out is done with."""
        for fetched in self._in_hand:
            fetched.in_hand_from = None
        self._in_hand.clear()

    def take(self, count_max: int) -> list[ReceivedMessage]:
        """Messages of the queue whose turn it is; none when none is there."""
        fetched = next(iter(self._ready), None)
        if fetched is None:
            return []
        del self._ready[fetched]
        taken = fetched.take(count_max)
        self._count -= len(taken)
        if fetched not in self._in_hand:
            self._in_hand.append(fetched)
        self._offer(fetched)
        self._wake_those_held()
        return taken

    async def wait(self, deadline: float | None) -> None:
        """Return when there may be something to take, or at the deadline, in the loop's time."""
        loop = asyncio.get_running_loop()
        waiter = loop.create_future()
        self._waiters.append(waiter)
        alarm = None if deadline is None else loop.call_at(deadline, _wake, waiter)
        try:
            await waiter
        finally:
            if alarm is not None:
                alarm.cancel()
            if waiter in self._waiters:
                self._waiters.remove(waiter)

    def _offer(self, fetched: Fetched) -> None:
        if fetched.messages and not fetched.is_paused and not fetched.is_stopped:
            self._ready[fetched] = None
            self._wake_pollers()

    def _wake_pollers(self) -> None:
        if self._waiters:
            waiters, self._waiters = self._waiters, []
            for waiter in waiters:
                _wake(waiter)

    def _forget(self, fetched: Fetched, offset: int | None) -> None:
        self._count -= len(fetched.messages)
        self._ready.pop(fetched, None)
        if fetched in self._in_hand:
            self._in_hand.remove(fetched)
        fetched.move(offset)
        self._wake_those_held()

    # --- pulling -------------------------------------------------------------------------------------

    async def _run(self, fetched: Fetched, after_s: float) -> None:
        await asyncio.sleep(after_s)
        while True:
            while fetched.is_paused or self._is_full(fetched):
                self._held[fetched] = None
                fetched.room.clear()
                await fetched.room.wait()
            try:
                if fetched.next_offset is None:
                    fetched.next_offset = await self._start_offset(fetched.queue)
            except HotfireError as error:
                await self._in_trouble(fetched, error, START_RETRY_S)
                continue
            try:
                pulled = await self._puller.pull(fetched.queue, fetched.next_offset, fetched.wanted)
            except HotfireError as error:
                await self._in_trouble(fetched, error, _retry_s(error))
                continue
            if fetched.trouble:
                log.info("queue=%s goes on", _name(fetched.queue))
                fetched.trouble = ""
            self._put(fetched, pulled)

    def _put(self, fetched: Fetched, pulled: Pulled) -> None:
        if pulled.status is PullStatus.OFFSET_MOVED:
            before = fetched.position if pulled.is_reset else fetched.next_offset
            if pulled.next_offset != before:  # a group may be sent to where it is
                log.warning(
                    "queue=%s offset %s is not there, or the group was moved: going on at %d",
                    _name(fetched.queue), before, pulled.next_offset,
                )  # fmt: skip
            if pulled.is_reset:  # what waits here is of before
                self._forget(fetched, pulled.next_offset)
        fetched.next_offset = pulled.next_offset
        fetched.messages.extend(pulled.messages)
        fetched.bytes += sum([len(message.body) for message in pulled.messages])
        self._count += len(pulled.messages)
        self._offer(fetched)

    def _is_full(self, fetched: Fetched) -> bool:
        limits = self._limits
        return (
            len(fetched.messages) >= limits.queue_count_max
            or fetched.bytes >= limits.queue_bytes_max
            or fetched.span >= limits.span_max
            # one that has nothing here may go on: those who fill the rest may be paused
            or (self._count >= limits.all_count_max and bool(fetched.messages))
        )

    def _wake_those_held(self) -> None:
        if self._held:
            held, self._held = self._held, {}
            for fetched in held:
                fetched.room.set()

    async def _in_trouble(self, fetched: Fetched, error: HotfireError, retry_s: float) -> None:
        kind = type(error).__name__
        if fetched.trouble != kind:  # an outage is told once, however long it is
            log.warning("queue=%s is tried again until it works: %s", _name(fetched.queue), error)
        fetched.trouble = kind
        await asyncio.sleep(retry_s)
        if error.refresh_route:
            with suppress(HotfireError):  # without a newer route the old one serves
                await self._refresh_route(fetched.queue.topic)


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


def _retry_s(error: HotfireError) -> float:
    is_flow_control = isinstance(error, BrokerRefused) and error.code == ResponseCode.FLOW_CONTROL
    return FLOW_CONTROL_RETRY_S if is_flow_control else PULL_RETRY_S


def _name(queue: MessageQueue) -> str:
    return f"{queue.topic}/{queue.broker_name}/{queue.queue_id}"
