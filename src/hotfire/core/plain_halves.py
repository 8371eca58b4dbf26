"""Places of the half queue that are dealt with: the specification of the compiled `Halves`.

    next    the first place not passed over: all before it are dealt with, and nobody asks about them
    ended   how many from there on are dealt with: an op names them, or is owed

The lane stores halves and ends transactions there too. Knows numbers, and how many places its queue has; not
what a half is.
"""

from __future__ import annotations

from typing import Protocol

NEVER = (1 << 63) - 1


class Places(Protocol):
    """What is to be known of the queue."""

    @property
    def next(self) -> int: ...


class Halves:
    """What is dealt with, and what of it no op in the log names yet."""

    def __init__(self, queue: Places) -> None:
        self._queue = queue
        self.next = 0
        self._ended: set[int] = set()
        self._owed: list[int] = []
        self.serves_from = NEVER
        """From this place on the lane ends transactions; here there is none."""
        self.promised = 0
        self.committed = self.rolled_back = 0

    @property
    def ended(self) -> int:
        return len(self._ended)

    @property
    def owes(self) -> int:
        return len(self._owed)

    def is_ended(self, place: int) -> bool:
        return place in self._ended

    def is_open(self, place: int) -> bool:
        return self.next <= place < self._queue.next and place not in self._ended

    def mark(self, place: int) -> None:
        """An op in the log names it."""
        _check(place)
        if place >= self.next:
            self._ended.add(place)

    def end(self, place: int) -> None:
        """It is dealt with in this turn; its op is owed."""
        _check(place)
        if not self.is_open(place):
            raise ValueError(f"half {place} is not open")
        self._ended.add(place)
        self._owed.append(place)

    def owed(self, bytes_max: int) -> tuple[int, int, bytes]:
        """The first places owed, as many as fit into a body: how many, the highest, the body."""
        body, count = b"", 0
        while count < len(self._owed) and len(body) < bytes_max:
            body += b"%d," % self._owed[count]
            count += 1
        return count, max(self._owed[:count], default=-1), body

    def paid(self, count: int) -> None:
        """The first places owed are named by an op."""
        if not 0 <= count <= len(self._owed):
            raise ValueError(f"{count} of {len(self._owed)} owed")
        del self._owed[:count]

    def pass_over(self, until: int) -> None:
        """Move on to the first place that is not dealt with."""
        while self.next < until and self.next in self._ended:
            self._ended.discard(self.next)
            self.next += 1

    def move_to(self, place: int) -> None:
        """What lies before it counts no more."""
        _check(place)
        if place < self.next and self._ended:
            raise ValueError(f"places before half {self.next} are passed over")
        self._ended = {ended for ended in self._ended if ended >= place}
        self.next = place

    def take_stored(self) -> int:
        """The first place the lane gave to a half since the last time: there is no lane."""
        return -1


def _check(place: int) -> None:
    if place < 0:
        raise ValueError(f"place {place}")
