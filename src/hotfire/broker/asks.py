"""Questions the broker asks its clients, and the answers: paired by connection and number, with a deadline.

Whoever asks is called back once: with the answer, or with None when the client went or its time was up.
"""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Callable
from itertools import count

from hotfire.errors import BrokerRefused
from hotfire.net.heart import Connection
from hotfire.protocol.codes import ResponseCode
from hotfire.protocol.command import Command, encode

ASKED_MAX = 10_000
"""Questions under way: replies that clients pass to each other, and what administrators ask. Whoever asks
keeps names and no bodies until the answer comes (`handlers.beside.without_body`): some 30 MB of so many.
"""

Then = Callable[[Command | None], None]


class Asks:
    """Questions under way."""

    def __init__(self) -> None:
        self._opaque = 0
        self._asked: dict[Connection, dict[int, Then]] = {}
        self._deadlines: list[tuple[int, int, Connection, int]] = []
        self._count = 0
        self._order = count()

    def __len__(self) -> int:
        return self._count

    def number(self) -> int:
        """The next number of a command of ours; clients answer with the same."""
        self._opaque = (self._opaque + 1) & 0x7FFFFFFF
        return self._opaque

    def ask(self, connection: Connection, request: Command, then: Then, deadline_ms: int) -> None:
        """Send `request`; `then` gets the answer, or None if there is none by `deadline_ms`."""
        if self._count >= ASKED_MAX:
            raise BrokerRefused(
                ResponseCode.SYSTEM_BUSY, f"{ASKED_MAX} questions to clients are under way; try again later"
            )
        opaque = self.number()
        self._asked.setdefault(connection, {})[opaque] = then
        self._count += 1
        heapq.heappush(self._deadlines, (deadline_ms, next(self._order), connection, opaque))
        connection.write(encode(dataclasses.replace(request, opaque=opaque)))

    def answered(self, connection: Connection, answer: Command) -> None:
        """A client's answer. One that nobody waits for any more is dropped."""
        then = self._take(connection, answer.opaque)
        if then is not None:
            then(answer)

    def expire(self, now_ms: int) -> None:
        while self._deadlines and self._deadlines[0][0] <= now_ms:
            _, _, connection, opaque = heapq.heappop(self._deadlines)
            then = self._take(connection, opaque)
            if then is not None:
                then(None)

    def disconnected(self, connection: Connection) -> None:
        for opaque in list(self._asked.get(connection, ())):
            then = self._take(connection, opaque)
            assert then is not None
            then(None)

    def clock_moved(self, by_ms: int) -> None:
        self._deadlines = [(at + by_ms, order, to, opaque) for at, order, to, opaque in self._deadlines]

    def _take(self, connection: Connection, opaque: int) -> Then | None:
        asked = self._asked.get(connection, {})
        then = asked.pop(opaque, None)
        if then is None:
            return None
        self._count -= 1
        if not asked:
            del self._asked[connection]
        if len(self._deadlines) > 64 and len(self._deadlines) > 2 * self._count:
            self._deadlines = [at for at in self._deadlines if at[3] in self._asked.get(at[2], ())]
            heapq.heapify(self._deadlines)
        return then
