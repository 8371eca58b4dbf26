"""The master's side of copying its log: who follows, up to where each one has it, and what to send next.

A heart of its own on the port of haListenPort. Only bytes that are on the master's disk leave: a slave must
never have what a power cut may take from its master. A slave says first where to begin, which proves nothing:
its log may be another's. From its second word on it says up to where it has ours; it can neither have more
than it was sent, nor take any of it back. Bytes in memory are sent at
once, others are read beside the loop; nothing is read for a slave that does not take what was written to it.

Knows the log as bytes. Who waits for an acknowledgement is told by `on_copied`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field

from hotfire.broker.call import Task
from hotfire.broker.config import BrokerConfig
from hotfire.errors import RemoteProtocolError
from hotfire.net.heart import Connection, Heart
from hotfire.protocol.ha import ReportReader, encode_header
from hotfire.store.store import Store

log = logging.getLogger("hotfire.broker")

FOLLOWERS_MAX = 16
PUMPED_BYTES_MAX = 1 << 20
"""Sent to one slave before others have their turn."""
COLD_BYTES = 1 << 20
"""Read at once where it is not in memory."""


@dataclass(slots=True, eq=False)
class Follower:
    """One slave that is connected."""

    heard_ms: int
    sent_ms: int
    reports: ReportReader = field(default_factory=ReportReader)
    begun: int = -1
    """Where it began, its first word; -1 before that."""
    acked: int = -1
    """Up to where it says that it has the log; -1 before its second word."""
    next: int = 0
    """First offset that was not sent to it."""
    is_reading: bool = False


class Copies(Heart):
    """Slaves of one master."""

    def __init__(self, store: Store, config: BrokerConfig) -> None:
        super().__init__()
        self._store = store
        self._config = config
        self._followers: dict[Connection, Follower] = {}
        self.on_copied: Callable[[int], None] = lambda now_ms: None
        """Called with the time when a slave has more of the log than before."""

    # --- how far it is copied ---

    @property
    def needed(self) -> int:
        """Slaves that have to have a record before it counts as copied."""
        return max(1, self._config.in_sync_replicas - 1)

    @property
    def end(self) -> int:
        """Up to where enough slaves have the log; -1 when there are not so many."""
        acked = sorted((follower.acked for follower in self._followers.values()), reverse=True)
        return acked[self.needed - 1] if len(acked) >= self.needed else -1

    @property
    def is_available(self) -> bool:
        """Whether enough slaves are there, and near enough, to wait for them."""
        low = self._store.end - self._config.ha_max_gap_not_in_sync
        near = sum(max(f.begun, f.acked) >= max(low, 0) for f in self._followers.values())
        return near >= self.needed

    # --- what the server calls ---

    def connected(self, connection: Connection, now_ms: int) -> None:
        self._followers[connection] = Follower(now_ms, now_ms)
        log.info("slave connected peer=%s:%d", *connection.peer)

    def disconnected(self, connection: Connection, now_ms: int) -> None:
        if (follower := self._followers.pop(connection, None)) is not None:
            log.info("slave gone peer=%s:%d acknowledged=%d", *connection.peer, follower.acked)

    def receive(self, connection: Connection, data: memoryview, now_ms: int) -> int:
        follower = self._followers.get(connection)
        if follower is None:
            return len(data)
        follower.heard_ms = now_ms
        before = follower.acked
        for offset in follower.reports.receive(data):
            if follower.begun < 0:
                self._begin(follower, offset)
                continue
            low = max(follower.begun, follower.acked)
            if not low <= offset <= follower.next:
                raise RemoteProtocolError(
                    f"a slave acknowledges {offset}: it has acknowledged {low} and was sent the "
                    f"log up to {follower.next}; this master's ends at {self._store.end}"
                )
            follower.acked = offset
        if follower.acked > before:
            self.on_copied(now_ms)
        self._pump(connection, follower, now_ms)
        return len(data)

    def _begin(self, follower: Follower, offset: int) -> None:
        """The slave's first word: where its log ends, or a little before that."""
        low, high = self._store.min_offset, self._store.flushed_end
        if offset == 0:  # Apache's begins with the last segment; what is before it would be on no slave
            follower.begun, follower.next = 0, low
            return
        if offset > high:
            raise RemoteProtocolError(
                f"a slave has the log up to {offset} and this master's ends at {high}: they have diverged; "
                "find out which of the two holds what is to be kept, and begin the other with a copy of it"
            )
        if offset < low:
            raise RemoteProtocolError(
                f"a slave wants the log from {offset} and this master's begins at {low}: begin that slave "
                "with a copy of this master's store, see `hotfire store snapshot`"
            )
        follower.begun = follower.next = offset

    def drained(self, connection: Connection, now_ms: int) -> None:
        if (follower := self._followers.get(connection)) is not None:
            self._pump(connection, follower, now_ms)

    def tick(self, now_ms: int) -> None:
        silence_ms_max = self._config.ha_housekeeping_interval
        for connection, follower in list(self._followers.items()):
            if now_ms - follower.heard_ms > silence_ms_max:
                log.warning(
                    "closing slave peer=%s:%d reason=nothing heard for %d ms",
                    *connection.peer,
                    silence_ms_max,
                )
                connection.close()
                continue
            self._pump(connection, follower, now_ms)
            is_due = now_ms - follower.sent_ms >= self._config.ha_send_heartbeat_interval
            # an empty word before all was sent would tell the slave that our log ends there
            is_all_sent = follower.next >= self._store.flushed_end
            if is_due and follower.begun >= 0 and is_all_sent:
                self._send(connection, follower, b"", now_ms)

    def clock_moved(self, by_ms: int) -> None:
        for follower in self._followers.values():
            follower.heard_ms += by_ms
            follower.sent_ms += by_ms

    # --- sending ---

    def pump(self, now_ms: int) -> None:
        """There is more of the log on the disk."""
        for connection, follower in list(self._followers.items()):
            self._pump(connection, follower, now_ms)

    def _pump(self, connection: Connection, follower: Follower, now_ms: int) -> None:
        sent = 0
        while sent < PUMPED_BYTES_MAX and (size := self._ready(connection, follower)):
            if follower.next < self._store.min_offset:
                log.warning(
                    "closing slave peer=%s:%d reason=it is at %d and the log begins at %d: begin it with a "
                    "copy of this store", *connection.peer, follower.next, self._store.min_offset,
                )  # fmt: skip
                connection.close()
                return
            size = min(size, self._config.ha_transfer_batch_size)
            data = self._store.journal.fetch([(follower.next, size, 0)])
            if data is None:
                self._read_beside(connection, follower)
                return
            self._send(connection, follower, data, now_ms)
            sent += size

    def _ready(self, connection: Connection, follower: Follower) -> int:
        """Bytes of one segment that may be sent to this slave now."""
        if follower.begun < 0 or follower.is_reading or connection.closed or connection.is_clogged:
            return 0
        segment_bytes = self._config.mapped_file_size_commit_log
        left = segment_bytes - follower.next % segment_bytes
        return max(0, min(left, self._store.flushed_end - follower.next))

    def _read_beside(self, connection: Connection, follower: Follower) -> None:
        offset, size = follower.next, min(COLD_BYTES, self._ready(connection, follower))
        follower.is_reading = True

        def then(done: Future[bytes]) -> None:
            follower.is_reading = False
            if self._followers.get(connection) is not follower or connection.closed:
                return
            try:
                data = done.result()
            except OSError as error:
                log.error("log cannot be read for a slave offset=%d reason=%s", offset, error)
                return  # the next tick tries again
            batch = self._config.ha_transfer_batch_size
            for at in range(0, len(data), batch):
                self._send(connection, follower, data[at : at + batch], follower.sent_ms)

        self._store.queries.look(lambda look: look.stretch(offset, size), Task(then), own=True)

    def _send(self, connection: Connection, follower: Follower, data: bytes, now_ms: int) -> None:
        connection.write(encode_header(follower.next, len(data)) + data)
        follower.next += len(data)
        follower.sent_ms = now_ms
