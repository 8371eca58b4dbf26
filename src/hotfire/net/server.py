"""Sockets for a heart: accepts, reads into one shared buffer, writes, closes the idle and the misbehaving.

All connections of a server read into the same buffer; only the odd partial frame is copied aside, and grows
with the bytes that really came, never with a length a peer merely announced, and must end in time. A peer
that does not read what it asked for stops being read from (high-water mark). What peers leave unread, and
what they leave unfinished, is bounded over all of them: beyond that the one that kept us longest is closed.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from typing import Any, cast

from hotfire import core
from hotfire.net.clock import clocks_of
from hotfire.net.connection import ServerConnection
from hotfire.net.heart import Heart
from hotfire.net.lag import HELD_S_MAX
from hotfire.net.quiet import AtMost
from hotfire.net.tls import Door, Tls
from hotfire.net.tls_settings import TlsServerConfig

log = logging.getLogger("hotfire.net")
log.addFilter(AtMost())

READ_BUFFER_BYTES = 256 << 10
UNREAD_BYTES_MAX = 96 << 20
"""Of all peers together that read too slowly, each one's share beyond the kernel's own buffers."""
UNREAD_BYTES_COUNTED = 16 << 10
"""What one peer leaves unread counts from here."""
UNREAD_GROWTH_MAX = UNREAD_BYTES_MAX // 3
"""Of that, what may come between two ticks before hearts are asked for nothing large until the next."""
UNFINISHED_BYTES_MAX = 96 << 20
"""Of all frames together whose end has not come."""
IDLE_MS_MAX = 120_000
IDLE_SCAN_MS = 1_000
IDLE_LOOKS_MAX = 128
"""Connections looked at in one tick."""
CLOCK_STEP_MS = 500
"""Slower changes are corrections of the rate, which deadlines may as well follow."""
TICK_S = 0.05
BACKLOG = 1024
CLOSE_TIMEOUT_S = 1.0
CONNECTIONS_MAX = 60_000
FAST_SHARE = 8
"""One place in so many is kept for the fast port: it is there for when the other one is full."""
FILES_RESERVED_MIN = 256
REFUSAL_LOG_MS = 10_000


class Server:
    """Listens on one or more ports for one heart."""

    def __init__(
        self,
        heart: Heart,
        *,
        idle_ms_max: int = IDLE_MS_MAX,
        connections_max: int = CONNECTIONS_MAX,
        tls: Tls | None = None,
    ) -> None:
        self.heart = heart
        self._tls = tls or Tls(TlsServerConfig())
        self.connections_max = connections_max
        self._idle_ms_max = idle_ms_max
        self._refused_count = 0
        self._refusal_told_ms = 0
        self.buffer = memoryview(bytearray(READ_BUFFER_BYTES))
        is_system_time = not hasattr(asyncio.get_running_loop(), "now_ms")
        self.sockets = core.Sockets(self.buffer, clock=is_system_time) if heart.has_lane else None
        self.connections: dict[ServerConnection, None] = {}
        self._behind: dict[ServerConnection, int] = {}
        """Peers that have not read all that was written to them, and how much it was when we last looked.
        First those that have read nothing for longest."""
        self._unread_bytes = self._unread_bytes_before = 0
        """Of all of them, now and at the last tick."""
        self.unfinished: dict[ServerConnection, None] = {}
        """Peers whose frame has no end yet, longest first."""
        self._loop = asyncio.get_running_loop()
        self.now_ms, self._monotonic_ms = clocks_of(self._loop)
        self._listeners: list[asyncio.Server] = []
        self._turn_due = False
        self._idle_scan_ms = 0
        self._to_look_at: list[ServerConnection] = []
        self._looks_at_unfinished = False
        self._ahead_ms = self.now_ms() - self._monotonic_ms()
        self.is_stopping = False
        self.ticker: asyncio.TimerHandle | None = None
        self._empty: asyncio.Event | None = None

    async def listen(self, listener: socket.socket, *, is_fast: bool = False) -> None:
        """Accept peers on a socket from `bind`; peers of the fast port get in where others no longer do."""
        self._listeners.append(
            await self._loop.create_server(
                lambda: Door(ServerConnection(self, is_fast=is_fast), self._tls),
                sock=listener,
                backlog=BACKLOG,
            )
        )

    def has_room(self, connection: ServerConnection) -> bool:
        """Whether one more peer may stay; of those turned away only some are told of in the log."""
        limit = self.connections_max
        if not connection.is_fast:
            limit -= limit // FAST_SHARE
        if len(self.connections) < limit:
            return True
        self._refused_count += 1
        now = self._monotonic_ms()
        if now - self._refusal_told_ms >= REFUSAL_LOG_MS or self._refused_count == 1:
            self._refusal_told_ms = now
            log.warning(
                "turned away connections=%d: %d are open and the limit is %d; raise connectionsMax or the "
                "limit of open files",
                self._refused_count, len(self.connections), limit,
            )  # fmt: skip
        return False

    def note_unread(self, connection: ServerConnection, unread_bytes: int) -> None:
        """So much of what was written to the peer waits for it."""
        if unread_bytes > UNREAD_BYTES_COUNTED:
            self._unread_bytes += unread_bytes - self._behind.get(connection, 0)
            self._behind[connection] = unread_bytes

    def note_read(self, connection: ServerConnection) -> None:
        """The peer has read, or is gone."""
        self._unread_bytes -= self._behind.pop(connection, 0)

    @property
    def is_flooded(self) -> bool:
        return self._unread_bytes - self._unread_bytes_before >= UNREAD_GROWTH_MAX

    def start(self) -> None:
        """Watch the heart's descriptors and give it its ticks."""
        for fd, callback in self.heart.watches():
            self._loop.add_reader(fd, self._timed, callback.__name__.strip("_"), self._ring, callback)
        if self.sockets is not None:
            self._loop.add_reader(self.sockets.fileno(), self._receive, self.sockets)
        self.ticker = self._loop.call_later(TICK_S, self._timed, "tick", self._tick)

    def forget(self, connection: ServerConnection) -> bool:
        """Whether the connection was one the heart knew."""
        known = connection in self.connections
        self.connections.pop(connection, None)
        if not self.connections and self._empty is not None:
            self._empty.set()
        return known

    def call_soon(self, callback: Callable[[], None]) -> None:
        self._loop.call_soon(callback)

    def _receive(self, sockets: core.Sockets) -> None:
        """One pass over those who sent something: the lane serves what is ordinary, connections the rest."""
        began_s, now, again = monotonic(), self.now_ms(), False
        while True:
            replies, pulls, connection, at, count = sockets.receive(self.heart.lane(now), now, again)
            self.heart.served(replies, pulls, now)
            if connection is None:
                break
            # it may have been sent while another was served: what arrived now is not dated before that
            cast(ServerConnection, connection).look(at, count, self.now_ms())
            again = True
        if self.heart.wants_turn:
            self._turn()
        self.note_held("receive", began_s)

    def _ring(self, callback: Any) -> None:
        try:
            callback(self.now_ms())
        finally:  # whatever went wrong, those who wait for this turn must go on
            self._release_held()
            self.after_receive()

    def _timed(self, what: str, call: Callable[..., None], *arguments: Any) -> None:
        began_s, self.heart.doing = monotonic(), None
        try:
            call(*arguments)
        finally:
            self.note_held(what, began_s)

    def note_held(self, what: str, began_s: float) -> None:
        """Say so if a call that began then held the loop too long; the heart knows what it did."""
        if (ended_s := monotonic()) - began_s > HELD_S_MAX:
            self.heart.lag.note(what, self.heart.doing, began_s, ended_s)

    def after_receive(self) -> None:
        if self.heart.wants_turn and not self._turn_due:
            self._turn_due = True
            self._loop.call_soon(self._timed, "turn", self._turn)

    def _turn(self) -> None:
        self._turn_due = False
        self.heart.turn(self.now_ms())
        self.after_receive()  # a heart with more to do than is good for one pass wants another

    def _tick(self) -> None:
        now = self.now_ms()
        self.ticker = self._loop.call_later(
            TICK_S, self._timed, "tick", self._tick
        )  # whatever goes wrong in this one
        self._notice_clock(now)
        self.heart.lag.sample()
        self._bound_peers()
        self.heart.tick(now)
        self._hasten_tick(now)
        self.after_receive()
        self._close_idle(now)
        if now - self._idle_scan_ms < IDLE_SCAN_MS:
            return
        self._idle_scan_ms = now
        self._tls.refresh()
        if not self._to_look_at:
            self._to_look_at = list(self.connections)
        for connection in [c for c in self.unfinished if c.is_overdue(now, self._idle_ms_max)]:
            log.warning(
                "closing peer=%s:%d reason=frame not finished in %d ms", *connection.peer, self._idle_ms_max
            )
            connection.reset()

    def _bound_peers(self) -> None:
        """What we make grows by megabytes between two ticks; what peers send only as fast as they do."""
        still: dict[ServerConnection, int] = {}
        moving: dict[ServerConnection, int] = {}
        for connection, before in self._behind.items():
            if (unread := connection.unread_bytes) > UNREAD_BYTES_COUNTED:
                (still if unread >= before else moving)[connection] = unread
        behind = self._behind = still | moving
        bound(behind, UNREAD_BYTES_MAX, "left unread by all")
        self._unread_bytes = self._unread_bytes_before = sum(behind.values())
        self._looks_at_unfinished = not self._looks_at_unfinished
        if self._looks_at_unfinished:
            unfinished = {connection: connection.unfinished_bytes for connection in self.unfinished}
            bound(unfinished, UNFINISHED_BYTES_MAX, "of unfinished frames")

    def _hasten_tick(self, now: int) -> None:
        """What falls due before the next tick has one of its own, to the millisecond."""
        due = self.heart.due_ms()
        if due is not None and due - now < TICK_S * 1000 and self.ticker is not None:
            self.ticker.cancel()
            self.ticker = self._loop.call_later(max(1, due - now) / 1000, self._tick)

    def _close_idle(self, now: int) -> None:
        """Some at a time: ten thousand looked at in one go would be felt by those who send."""
        looked_at, self._to_look_at = self._to_look_at[:IDLE_LOOKS_MAX], self._to_look_at[IDLE_LOOKS_MAX:]
        for connection in [c for c in looked_at if c.idle_ms(now) > self._idle_ms_max]:
            if connection not in self.connections:
                continue
            if connection.closed:  # and still here a second later: it does not read what is left for it
                connection.reset()
                continue
            log.info("closing peer=%s:%d reason=idle for %d ms", *connection.peer, self._idle_ms_max)
            connection.close()

    def _notice_clock(self, now: int) -> None:
        """A wall clock that was set takes every deadline along: nothing falls due early or hours late."""
        ahead_ms = now - self._monotonic_ms()
        moved_ms, self._ahead_ms = ahead_ms - self._ahead_ms, ahead_ms
        if abs(moved_ms) < CLOCK_STEP_MS:
            return
        log.warning("the clock was set by_ms=%d", moved_ms)
        for connection in self.connections:
            connection.clock_moved(moved_ms)
        self._idle_scan_ms += moved_ms
        self.heart.clock_moved(moved_ms)

    def _release_held(self) -> None:
        held, self.heart.held[:] = list(self.heart.held), []
        for connection in held:
            cast(ServerConnection, connection).release()

    def stop(self) -> None:
        """Accept and read no more, end ticks and watches; what is written to peers still goes out."""
        self.is_stopping = True
        for listener in self._listeners:
            listener.close()
        if self.ticker is not None:
            self.ticker.cancel()
            for fd, _ in self.heart.watches():
                self._loop.remove_reader(fd)
            if self.sockets is not None:
                self._loop.remove_reader(self.sockets.fileno())
            self.ticker = None
        for connection in self.connections:
            connection.stop_reading()

    async def close(self) -> None:
        """Stop, then hang up on every peer once it has what was written to it, or after a moment."""
        self.stop()
        for connection in list(self.connections):
            connection.close()
        if self.connections:
            self._empty = asyncio.Event()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._empty.wait(), CLOSE_TIMEOUT_S)
        self.abort()

    def abort(self) -> None:
        """Stop, and hang up on every peer at once."""
        self.stop()
        for connection in list(self.connections):
            connection.abort()
        if self.sockets is not None:
            self.sockets.close()


def bound(shares: dict[ServerConnection, int], bytes_max: int, what: str) -> None:
    """Close the first peers until the others' shares fit."""
    total = sum(shares.values())
    for connection in list(shares):
        if total <= bytes_max:
            return
        mine = shares.pop(connection)
        log.warning("closing peer=%s:%d reason=%d bytes of %d %s", *connection.peer, mine, total, what)
        total -= mine
        connection.reset()


def connections_limit(wanted: int, descriptors: int) -> int:
    """How many peers there may be at once: what was asked for, and never so many that files cannot be opened.

    >>> connections_limit(60_000, 1 << 20), connections_limit(60_000, 1024)
    (60000, 768)
    """
    return max(FAST_SHARE, min(wanted, descriptors - max(FILES_RESERVED_MIN, descriptors // 4)))
