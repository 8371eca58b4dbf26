"""Requests of one task on their way: so many bytes at a time, each acknowledged or an error, none forgotten.

The task's own thread fills it; the client's loop, on a thread of its own, sends. A request that must go to a
certain queue waits for the one before it there, so that rows keep their order. What fails is tried again, on
another queue where any will do, until its time is over. When an attempt has no answer the request may be
stored: where rows are to come once it is looked for before it is sent again; where it may be there twice, it
is counted.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field

from hotfire.client.bridge import Bridge
from hotfire.client.confirm import Stored
from hotfire.client.messages import Outgoing
from hotfire.client.prepared import PreparedProducer
from hotfire.client.results import SendStatus
from hotfire.errors import HotfireError, ServiceNotAvailable, SystemBusy, SystemFailed, Unreachable
from hotfire.model import MessageQueue
from hotfire.spark.points import reached
from hotfire.spark.sinkoptions import SinkOptions

log = logging.getLogger("hotfire.spark")

TRIES_MAX = 3
"""For refusals that another broker may not share: a busy or lost broker is tried for longer."""
PAUSE_S, PAUSE_S_MAX = 0.1, 2.0
CONFIRM_S = 10.0
WARN_EVERY_S = 1.0
_MAY_PASS = (Unreachable, SystemBusy, SystemFailed, ServiceNotAvailable)


class NotAllSent(HotfireError):
    """Some rows of a task could not be sent. Those that were stay sent."""


@dataclass(slots=True)
class Counts:
    """What became of rows."""

    sent: int = 0
    skipped: int = 0
    """Found stored by an earlier attempt."""
    size: int = 0
    requests: int = 0
    repeated: int = 0
    """Sent again though an earlier attempt may be stored."""
    reserved: int = 0
    """Stored, and not yet as safely as the broker is set to store."""


@dataclass(slots=True)
class _Line:
    """Requests to one queue, one after the other; none follows one that failed."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    broken: bool = False


class Outbox:
    """Use from one thread."""

    def __init__(
        self, bridge: Bridge, producer: PreparedProducer, options: SinkOptions, *, confirms: bool
    ) -> None:
        self.counts = Counts()
        self.half_at = 1
        """So many rows sent are half of what there is; for tests that stop us there."""
        self._bridge = bridge
        self._producer = producer
        self._bytes_max: int = options["inFlightBytes"]
        self._request_s: float = options["requestTimeoutMs"] / 1000
        self._delivery_s: float = options["deliveryTimeoutMs"] / 1000
        self._confirms = confirms
        self._under_way: deque[tuple[Future[None], int, int]] = deque()
        self._bytes = 0
        self._lines: dict[MessageQueue, _Line] = {}
        self._failed: HotfireError | None = None
        self._rows_failed = 0
        self._warned_s = -WARN_EVERY_S

    def send(self, outgoing: Outgoing, rows: int, queue: MessageQueue | None) -> None:
        """Begin to send so many rows; waits while too much is under way. NotAllSent when something failed."""
        size = len(outgoing.body)
        while self._under_way and (self._bytes + size > self._bytes_max or self._under_way[0][0].done()):
            self._take_oldest()
        if self._failed is not None:
            self.finish()
        future = self._bridge.submit(self._deliver(outgoing, rows, queue))
        self._under_way.append((future, rows, size))
        self._bytes += size

    def finish(self) -> None:
        """Wait for everything; NotAllSent when something failed."""
        while self._under_way:
            self._take_oldest()
        if self._failed is not None:
            raise NotAllSent(
                f"{self._failed}. Of this task's rows {self.counts.sent} were sent and stay sent, "
                f"{self._rows_failed} failed, others were not tried; run it again once the cause is mended"
            ) from self._failed

    def abandon(self) -> None:
        """Begin nothing more, and wait for nothing."""
        while self._under_way:
            self._under_way.popleft()[0].cancel()

    def _take_oldest(self) -> None:
        future, rows, size = self._under_way.popleft()
        self._bytes -= size
        try:
            future.result()
        except HotfireError as error:
            self._failed = self._failed or error
            self._rows_failed += rows

    # --- on the client's loop ------------------------------------------------------------------------

    async def _deliver(self, outgoing: Outgoing, rows: int, queue: MessageQueue | None) -> None:
        if queue is None:
            await self._try_on(outgoing, rows, None)
            return
        line = self._lines.setdefault(queue, _Line())
        async with line.lock:
            if line.broken:
                raise NotAllSent(f"topic {queue.topic} queue {queue.queue_id}: rows before these failed")
            try:
                await self._try_on(outgoing, rows, queue)
            except BaseException:
                line.broken = True
                raise

    async def _try_on(self, outgoing: Outgoing, rows: int, only: MessageQueue | None) -> None:
        deadline = _now() + self._delivery_s
        queue = only
        tries, pause_s = 0, PAUSE_S
        while True:
            tries += 1
            timeout_s = max(min(self._request_s, deadline - _now()), 0.001)
            try:
                queue = only or await self._next_queue(outgoing.topic, queue, timeout_s)
                result = await self._producer.send_prepared(outgoing, queue, timeout_s=timeout_s)
            except HotfireError as error:
                failed = error
            else:
                self._stored(rows, len(outgoing.body), result.status is not SendStatus.SEND_OK)
                return
            if failed.outcome_unknown and self._confirms and await self._is_stored(failed, deadline):
                self._stored(rows, len(outgoing.body), False)
                return
            patient = isinstance(failed, _MAY_PASS) or tries < TRIES_MAX
            if not failed.retriable or not patient or _now() + pause_s >= deadline:
                raise self._told(outgoing, rows, queue, tries, failed)
            if failed.outcome_unknown:
                self.counts.repeated += rows
            if _now() >= self._warned_s + WARN_EVERY_S:
                self._warned_s = _now()
                log.warning("topic=%s rows=%d tried again: %s", outgoing.topic, rows, failed)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, PAUSE_S_MAX)
            with suppress(HotfireError):  # then the route we have must do
                await self._producer.refresh(outgoing.topic, timeout_s)

    async def _next_queue(self, topic: str, failed: MessageQueue | None, timeout_s: float) -> MessageQueue:
        avoid = None if failed is None else failed.broker_name
        return await self._producer.next_queue(topic, avoid=avoid, timeout_s=timeout_s)

    async def _is_stored(self, failed: HotfireError, deadline: float) -> bool:
        """Whether it was; a batch is stored as a whole, so its first message tells. False: nobody knows."""
        left_s = min(CONFIRM_S, deadline - _now())
        try:
            found = await self._producer.confirm(failed, timeout_s=max(left_s, 0.0))
        except HotfireError as error:
            log.warning("%s", error)
            return False
        failed.outcome_unknown = False
        return isinstance(found, Stored)

    def _stored(self, rows: int, size: int, is_reserved: bool) -> None:
        counts = self.counts
        counts.requests += 1
        counts.sent += rows
        counts.size += size
        counts.reserved += rows if is_reserved else 0
        if counts.requests == 1:
            reached("sink.first-chunk-sent")
        if counts.sent - rows < self.half_at <= counts.sent:
            reached("sink.half-sent")

    def _told(
        self, outgoing: Outgoing, rows: int, queue: MessageQueue | None, tries: int, failed: HotfireError
    ) -> NotAllSent:
        where = "no queue known" if queue is None else f"broker {queue.broker_name} queue {queue.queue_id}"
        unknown = "; they may be stored or not" if failed.outcome_unknown else ""
        error = NotAllSent(
            f"topic {outgoing.topic}, {where}: {rows} rows were not acknowledged after {tries} "
            f"{'try' if tries == 1 else 'tries'}{unknown}: {failed}"
        )
        error.__cause__ = failed
        return error


def _now() -> float:
    return asyncio.get_running_loop().time()
