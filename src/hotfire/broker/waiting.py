"""Replies that promise a record, kept until the log is safe past it.

They leave in the order they came: one reply of a handler, or all that the lane made in one pass over the
sockets. If the disk takes too long their peers are told so; if it fails they are told nothing and hung up on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from hotfire import core
from hotfire.net.heart import Connection
from hotfire.protocol.codes import ResponseCode
from hotfire.protocol.command import with_code


class One:
    """Replies to one peer, with the methods of `core.Replies`."""

    __slots__ = ("_connection", "_data")

    def __init__(self, connection: Connection, data: bytes) -> None:
        self._connection = connection
        self._data = data

    def __len__(self) -> int:
        return 1

    def send(self, now_ms: int) -> None:
        self._connection.write(self._data)

    def pairs(self) -> list[tuple[Connection, bytes]]:
        return [(self._connection, self._data)]


def _send(gathered: dict[Connection, list[bytes]]) -> None:
    for connection, parts in gathered.items():
        connection.write(parts[0] if len(parts) == 1 else b"".join(parts))
    gathered.clear()


class Waiting:
    """Replies by the end of the log they wait for, and since when."""

    def __init__(self, took: Callable[[int, int], None]) -> None:
        """`took(ms, count)` is told how long so many of them waited."""
        self._took = took
        self._replies: deque[tuple[int, One | core.Replies, int]] = deque()

    def __len__(self) -> int:
        return sum(len(replies) for _, replies, _ in self._replies)

    def add(self, end: int, replies: One | core.Replies, now_ms: int) -> None:
        self._replies.append((end, replies, now_ms))

    def longest_ms(self, now_ms: int) -> int:
        """How long the oldest one has been waiting."""
        return now_ms - self._replies[0][2] if self._replies else 0

    def release(self, safe: int, now_ms: int) -> None:
        """Send what waits for a place at or before `safe`."""
        waiting = self._replies
        gathered: dict[Connection, list[bytes]] = {}  # of handlers, by peer: theirs leave together, in order
        while waiting and waiting[0][0] <= safe:
            _, replies, since_ms = waiting.popleft()
            self._took(now_ms - since_ms, len(replies))
            if isinstance(replies, One):
                for connection, data in replies.pairs():
                    gathered.setdefault(connection, []).append(data)
            else:
                _send(gathered)
                replies.send(now_ms)
        _send(gathered)

    def time_out(self, late_ms: int) -> int:
        """Tell those who wait since then or longer that the disk takes too long; how many there were."""
        waiting, count = self._replies, 0
        while waiting and waiting[0][2] <= late_ms:
            for connection, data in waiting.popleft()[1].pairs():
                connection.write(with_code(data, ResponseCode.FLUSH_DISK_TIMEOUT))
                count += 1
        return count

    def take(self) -> Iterator[tuple[One | core.Replies, int]]:
        """All of them, and since when each waits: for another place than the one they were given."""
        while self._replies:
            _, replies, since_ms = self._replies.popleft()
            yield replies, since_ms

    def drop(self) -> Iterator[Connection]:
        """Forget all of them; those who waited."""
        while self._replies:
            for connection, _ in self._replies.popleft()[1].pairs():
                yield connection

    def clock_moved(self, by_ms: int) -> None:
        self._replies = deque((end, replies, since + by_ms) for end, replies, since in self._replies)
