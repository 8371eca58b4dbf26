"""Pulls whose bytes are being read from the disk: so many at once for each connection, the others in line.

A read in flight pins its bytes until they are written to the peer, so one peer has few; those in line pin
next to nothing and are run anew when their turn comes. Whoever has left loses his place.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from hotfire.net.heart import Connection

READS_PER_CONNECTION_MAX = 32
"""At 64 to 256 KiB each, or 4 MiB for who asks for so much. More would not make one disk faster."""
LINE_PER_CONNECTION_MAX = 4096
"""A client has one pull per queue under way; the largest topic has so many."""


class ColdReads:
    """Counts reads by connection and keeps those that wait for one of the same connection to end."""

    def __init__(self) -> None:
        self._reading: dict[Connection, int] = {}
        self._line: dict[Connection, deque[Callable[[], None]]] = {}

    def has_room(self, connection: Connection) -> bool:
        return self._reading.get(connection, 0) < READS_PER_CONNECTION_MAX

    def began(self, connection: Connection) -> None:
        self._reading[connection] = self._reading.get(connection, 0) + 1

    def stand_in_line(self, connection: Connection, again: Callable[[], None]) -> bool:
        """Call `again` when there is room; False when the line is full."""
        line = self._line.setdefault(connection, deque())
        if len(line) >= LINE_PER_CONNECTION_MAX:
            return False
        line.append(again)
        return True

    def ended(self, connection: Connection) -> None:
        """A read is over: the next in line."""
        left = self._reading.pop(connection) - 1
        if left:
            self._reading[connection] = left
        line = self._line.get(connection)
        while line and self.has_room(connection):
            line.popleft()()
        if line is not None and not line:
            self._line.pop(connection, None)

    def disconnected(self, connection: Connection) -> None:
        self._line.pop(connection, None)
