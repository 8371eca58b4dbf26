"""Pulls that wait for a message or for their time: no task and no thread each, only a place in three indexes.

By queue, to be found when a message arrives; by time, to be answered when it is up; by connection, to be
forgotten when the peer goes. A pull with a filter remembers how far it has looked.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count

from hotfire.core import Queue
from hotfire.net.heart import Connection


@dataclass(slots=True, eq=False)
class ParkedPull:
    """A pull to be answered later. `scanned` is the first offset it has not looked at."""

    connection: Connection
    queue: Queue
    scanned: int
    deadline_ms: int
    call: object
    wanted: object = None
    """By what it reads: its handler's."""
    gone: bool = False


@dataclass(slots=True)
class Parked:
    """All parked pulls."""

    count_max: int
    per_connection_max: int
    _by_queue: dict[Queue, dict[ParkedPull, None]] = field(default_factory=dict)
    _by_connection: dict[Connection, dict[ParkedPull, None]] = field(default_factory=dict)
    _by_time: list[tuple[int, int, ParkedPull]] = field(default_factory=list)
    _count: int = 0
    _sequence: Iterator[int] = field(default_factory=count)

    def __len__(self) -> int:
        return self._count

    def has_room(self, connection: Connection) -> bool:
        theirs = self._by_connection.get(connection, ())
        return self._count < self.count_max and len(theirs) < self.per_connection_max

    def add(self, pull: ParkedPull) -> None:
        self._by_queue.setdefault(pull.queue, {})[pull] = None
        self._by_connection.setdefault(pull.connection, {})[pull] = None
        heapq.heappush(self._by_time, (pull.deadline_ms, next(self._sequence), pull))
        pull.queue.watched = 1
        self._count += 1

    def remove(self, pull: ParkedPull) -> None:
        if pull.gone:
            return
        pull.gone = True  # its place in the heap is passed over when its time comes
        self._count -= 1
        waiting = self._by_queue[pull.queue]
        del waiting[pull]
        if not waiting:
            del self._by_queue[pull.queue]
            pull.queue.watched = 0
        theirs = self._by_connection[pull.connection]
        del theirs[pull]
        if not theirs:
            del self._by_connection[pull.connection]
        if len(self._by_time) > 64 and len(self._by_time) > 2 * self._count:
            self._by_time = [entry for entry in self._by_time if not entry[2].gone]
            heapq.heapify(self._by_time)

    def on_queue(self, queue: Queue) -> list[ParkedPull]:
        return list(self._by_queue.get(queue, ()))

    def queues(self) -> list[Queue]:
        return list(self._by_queue)

    def is_due(self, now_ms: int) -> bool:
        return bool(self._by_time) and self._by_time[0][0] <= now_ms

    def due(self, now_ms: int) -> Iterator[ParkedPull]:
        """All pulls whose time is up, no longer parked."""
        while (pull := self.next_due(now_ms)) is not None:
            yield pull

    def next_due(self, now_ms: int) -> ParkedPull | None:
        """A pull whose time is up, no longer parked."""
        while self._by_time and self._by_time[0][0] <= now_ms:
            pull = heapq.heappop(self._by_time)[2]
            if not pull.gone:
                self.remove(pull)
                return pull
        return None

    def clock_moved(self, by_ms: int) -> None:
        for _, _, pull in self._by_time:
            pull.deadline_ms += by_ms
        self._by_time = [(at + by_ms, order, pull) for at, order, pull in self._by_time]

    def disconnected(self, connection: Connection) -> None:
        for pull in list(self._by_connection.get(connection, ())):
            self.remove(pull)
