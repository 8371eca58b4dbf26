"""A master whose messages are on a slave too before anybody is told that they are safe (SYNC_MASTER).

Replies wait twice: until the log is safe here, then until enough slaves have acknowledged it. With no slave
near enough there is nothing to wait for, and with one that takes too long no end to it: both are said by the
reply's code, and the message is kept. Everything else is the ordinary broker's.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from hotfire import core
from hotfire.broker.broker import Broker
from hotfire.broker.config import BrokerConfig
from hotfire.broker.copies import Copies
from hotfire.broker.waiting import One, Waiting
from hotfire.net.heart import Connection
from hotfire.protocol.codes import ResponseCode
from hotfire.protocol.command import with_code
from hotfire.protocol.record import Host
from hotfire.store.store import Store


class CopyWaiting(Waiting):
    """Replies until the log is safe here, then until it is safe elsewhere."""

    def __init__(self, took: Callable[[int, int], None], copies: Copies) -> None:
        super().__init__(took)
        self._copies = copies
        self._copying: deque[tuple[int, One | core.Replies, int, int]] = deque()
        """With when each was placed, and when it was safe here."""
        self.unavailable = 0

    def __len__(self) -> int:
        return super().__len__() + sum(len(replies) for _, replies, _, _ in self._copying)

    def release(self, safe: int, now_ms: int) -> None:
        """What waits for a place at or before `safe` is safe here: now for its copies."""
        waiting = self._replies
        while waiting and waiting[0][0] <= safe:
            end, replies, since_ms = waiting.popleft()
            self.safe_here(end, replies, since_ms, now_ms)

    def safe_here(self, end: int, replies: One | core.Replies, since_ms: int, now_ms: int) -> None:
        if end <= self._copies.end:
            self._send(replies, since_ms, now_ms)
        elif self._copies.is_available:
            self._copying.append((end, replies, since_ms, now_ms))
        else:
            self.unavailable += _send_as(replies, ResponseCode.SLAVE_NOT_AVAILABLE)

    def copied(self, now_ms: int) -> None:
        """Slaves have more of the log than before."""
        copying, end = self._copying, self._copies.end
        while copying and copying[0][0] <= end:
            _, replies, since_ms, _ = copying.popleft()
            self._send(replies, since_ms, now_ms)

    def _send(self, replies: One | core.Replies, since_ms: int, now_ms: int) -> None:
        self._took(now_ms - since_ms, len(replies))
        replies.send(now_ms)

    def give_up(self, late_ms: int) -> int:
        """Tell those whose record is safe here since then or longer that no copy is known of; how many."""
        copying, count = self._copying, 0
        while copying and copying[0][3] <= late_ms:
            count += _send_as(copying.popleft()[1], ResponseCode.FLUSH_SLAVE_TIMEOUT)
        return count

    def drop(self) -> Iterator[Connection]:
        yield from super().drop()
        while self._copying:
            for connection, _ in self._copying.popleft()[1].pairs():
                yield connection

    def clock_moved(self, by_ms: int) -> None:
        super().clock_moved(by_ms)
        self._copying = deque(
            (end, replies, since + by_ms, safe + by_ms) for end, replies, since, safe in self._copying
        )


def _send_as(replies: One | core.Replies, code: ResponseCode) -> int:
    pairs = replies.pairs()
    for connection, data in pairs:
        connection.write(with_code(data, code))
    return len(pairs)


class Master(Broker):
    """A broker that waits for its slaves."""

    def __init__(self, config: BrokerConfig, store: Store, advertised: Host, now_ms: int) -> None:
        super().__init__(config, store, advertised, now_ms)
        self.copies = Copies(store, config)
        self.waiting = self.copy_waiting = CopyWaiting(self.statistics.took, self.copies)
        self.copies.on_copied = self.copy_waiting.copied
        self.slave_timeouts = 0

    def tick(self, now_ms: int) -> None:
        if self.store.flushed_end < self.store.readable_end:
            self.store.hurry()  # ASYNC_FLUSH: those who wait for a slave wait for our disk first
        super().tick(now_ms)
        self.slave_timeouts += self.copy_waiting.give_up(now_ms - self.config.slave_timeout)

    def close(self, now_ms: int) -> None:
        super().close(now_ms)
        if self.store.fault is None:  # stored here, and nobody can say any more whether elsewhere
            self.copy_waiting.give_up(now_ms)

    def _turn_done(self, now_ms: int) -> None:
        super()._turn_done(now_ms)
        self.copies.pump(now_ms)

    def wait(self, end: int, replies: One | core.Replies, now_ms: int) -> None:
        if end > self.store.acknowledged_end:
            self.waiting.add(end, replies, now_ms)
        elif end:
            self.copy_waiting.safe_here(end, replies, now_ms, now_ms)
        else:  # WAIT=false
            replies.send(now_ms)
