"""Pulls whose bytes are being read beside the loop: so many bytes at once, the others in line.

A read under way pins its bytes until the peer has taken them. So one peer has few of them and begins none
while it does not read, and all peers together have some tens of megabytes. What they leave unread is net's
affair, which says when that is too much: then bulk pulls of what is in memory stand in line too. Those in
line pin next to nothing and are run anew when their turn comes, one of each connection after the other.
Whoever has left loses his place.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from hotfire.net.heart import Connection

READS_PER_CONNECTION_MAX = 32
"""At 64 to 256 KiB each. More would not make one disk faster."""
BYTES_PER_CONNECTION_MAX = 8 << 20
"""A read begins below this, so it is this and one read at most: all of the above, or three of 4 MiB."""
BYTES_MAX = 32 << 20
"""Likewise of all connections: what the disk has to do for a while, however many want something of it."""
LINE_PER_CONNECTION_MAX = 4096
"""A client has one pull per queue under way; the largest topic has so many."""
LINE_MAX = 65_536
"""Of all connections, at a kilobyte each."""
BEGUN_PER_PASS_MAX = 32
"""Reads begun before others of the loop have their turn: some 3 ms."""


class ColdReads:
    """Counts reads by connection and keeps those that wait for one to end, or for their peer to read."""

    def __init__(self) -> None:
        self._reading: dict[Connection, tuple[int, int]] = {}
        """Reads under way and their bytes."""
        self._bytes = 0
        self._line: dict[Connection, deque[Callable[[], None]]] = {}
        self._in_line = 0
        self._ready: dict[Connection, None] = {}
        """Connections in line that wait for others only, longest first."""

    def has_room(self, connection: Connection) -> bool:
        return self._has_room_for_all(connection) and self._may_begin(connection)

    def must_wait(self, connection: Connection) -> bool:
        """Whether a pull of much has others of its connection before it, or a flood to wait out."""
        return connection in self._line or connection.is_flooded

    def _has_room_for_all(self, connection: Connection) -> bool:
        return self._bytes < BYTES_MAX and not connection.is_flooded

    def _may_begin(self, connection: Connection) -> bool:
        count, size = self._reading.get(connection, (0, 0))
        is_below = count < READS_PER_CONNECTION_MAX and size < BYTES_PER_CONNECTION_MAX
        return is_below and not connection.is_clogged

    def began(self, connection: Connection, size: int) -> None:
        reads, theirs = self._reading.get(connection, (0, 0))
        self._reading[connection] = reads + 1, theirs + size
        self._bytes += size

    def ended(self, connection: Connection, size: int) -> None:
        """A read is over: its bytes are written to the peer, or to nobody."""
        reads, theirs = self._reading.pop(connection)
        if reads > 1:
            self._reading[connection] = reads - 1, theirs - size
        self._bytes -= size
        self._look(connection)

    def drained(self, connection: Connection) -> None:
        """The peer has read what it was answered."""
        self._look(connection)

    def disconnected(self, connection: Connection) -> None:
        self._in_line -= len(self._line.pop(connection, ()))
        self._ready.pop(connection, None)

    def stand_in_line(self, connection: Connection, again: Callable[[], None]) -> bool:
        """Have `again` called when there is room; False when the line is full."""
        line = self._line.get(connection, ())
        if len(line) >= LINE_PER_CONNECTION_MAX or self._in_line >= LINE_MAX:
            return False
        self._line.setdefault(connection, deque()).append(again)
        self._in_line += 1
        self._look(connection)
        return True

    def _look(self, connection: Connection) -> None:
        if connection in self._line and self._may_begin(connection):
            self._ready.setdefault(connection)

    def go_on(self) -> bool:
        """Call those in line there is room for; True when there may be more for a next pass."""
        for _ in range(BEGUN_PER_PASS_MAX):
            connection = next(iter(self._ready), None)
            if connection is None or not self._has_room_for_all(connection):
                return False
            del self._ready[connection]
            if connection.closed:
                self.disconnected(connection)
            elif self._may_begin(connection):  # else the end of a read or its peer brings it here again
                before = self._bytes
                self._next_of(connection)()
                self._look(connection)
                if self._bytes == before:  # answered at once, and that may have been megabytes
                    break
        return bool(self._ready)

    def _next_of(self, connection: Connection) -> Callable[[], None]:
        line = self._line[connection]
        again = line.popleft()
        self._in_line -= 1
        if not line:
            del self._line[connection]
        return again
