"""One accepted peer: its bytes in and out, what of it is kept aside, when it is read from and when not.

The transport owns the socket. Where the heart has a compiled lane, reading and sending are done for many
peers at once by `core.Sockets`; the transport is left with what the kernel does not take, and with the end.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Any, cast

from hotfire import core
from hotfire.errors import RemoteProtocolError
from hotfire.protocol.record import Host

if TYPE_CHECKING:
    from hotfire.net.server import Server

log = logging.getLogger("hotfire.net")

WRITE_HIGH_BYTES = 512 << 10
WRITE_LOW_BYTES = 128 << 10
WRITE_BYTES_MAX = 128 << 20
UNSENT_BYTES = 256 << 10
"""Of one peer, in the kernel: memory we would not see, of the many that do not read."""
GATHERED_PART_MAX, GATHERED_BYTES_MAX = 4 << 10, 64 << 10
"""Answers of a few bytes leave together, up to so many: a call to the kernel costs more than most of them.
Larger ones are not copied.
"""
NO_LINGER = struct.pack("ii", 1, 0)


class ServerConnection(asyncio.BufferedProtocol):
    """One accepted peer."""

    def __init__(self, server: Server, *, is_fast: bool = False) -> None:
        self._server = server
        self.is_fast = is_fast
        self._transport: asyncio.Transport
        self._link: core.Link | None = None
        self._may_join = server.sockets is not None
        self._aside: bytearray | None = None
        self._gathered: bytearray | None = None
        """While the heart serves what this peer sent: what it was answered meanwhile."""
        self._needed = 0
        self._kept_ms = 0
        self._held = False
        self._is_paused = False
        self._waits = False
        self.closed = False
        self.peer = ("", 0)
        self.born_host = b""
        self.state: Any = None
        self.active_ms = 0

    # --- asyncio's side ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if self._server.is_stopping:  # accepted in the very pass that stopped us: there is no heart behind it
            self.abort()
            return
        if not self._server.has_room(self):
            self.abort()
            return
        self._transport.set_write_buffer_limits(WRITE_HIGH_BYTES, WRITE_LOW_BYTES)
        if (link := transport.get_extra_info("socket")) is not None and link.family != socket.AF_UNIX:
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)
        peer = transport.get_extra_info("peername") or ("0.0.0.0", 0)  # noqa: S104  # a peer already gone
        self.peer = (peer[0].partition("%")[0], peer[1])
        host = Host.parse(*self.peer)
        self.born_host = host.address + host.port.to_bytes(4)
        self.active_ms = self._server.now_ms()
        self._server.connections[self] = None
        self._server.heart.connected(self, self.active_ms)

    def use_transport(self, transport: asyncio.Transport) -> None:
        """From now on there is something between the socket and us."""
        self._transport = transport
        self._may_join = False

    def connection_lost(self, error: Exception | None) -> None:
        self.closed = True
        self._aside = None
        self._leave(gone=True)
        self._server.note_read(self)
        self._server.unfinished.pop(self, None)
        if self._server.forget(self):
            self._server.heart.disconnected(self, self._server.now_ms())

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._server.buffer

    def buffer_updated(self, count: int) -> None:
        began_s = monotonic()
        self.received(0, count, self._server.now_ms())
        if self._may_join:
            self._join()
        self._server.after_receive()
        self._server.note_held("receive", began_s)

    def received(self, at: int, count: int, now: int) -> None:
        """Serve the bytes from `at` to `count` of the shared buffer."""
        self.active_ms = now
        fresh = self._server.buffer[at:count]
        if self.closed:
            return
        try:
            if self._aside is None:
                consumed = self._serve(fresh, now)
                if consumed < len(fresh):
                    self._keep(bytearray(fresh[consumed:]))
            else:
                self._aside += fresh
                if len(self._aside) >= self._needed:
                    self._serve_aside(now)
        except Exception as error:  # noqa: BLE001  # logged, and the end of this connection only
            self._failed(error)

    def _failed(self, error: Exception) -> None:
        """The peer's mistake or ours: it ends this connection and no other."""
        if isinstance(error, RemoteProtocolError):
            log.warning("closing peer=%s:%d reason=%s", *self.peer, error)
        else:
            log.error("closing peer=%s:%d after an internal error", *self.peer, exc_info=error)
        self.close()

    def _serve(self, data: memoryview, now: int) -> int:
        assert self._gathered is None, self.peer
        self._gathered = bytearray()
        try:
            return self._server.heart.receive(self, data, now)
        finally:
            self._send_gathered()
            self._gathered = None

    def _serve_aside(self, now: int) -> None:
        aside, self._aside = self._aside, None
        assert aside is not None
        self._note_whole(True)
        self._waits = False
        with memoryview(aside) as whole:
            consumed = self._serve(whole, now)
        if consumed:
            self._server.unfinished.pop(self, None)
        if consumed < len(aside):
            del aside[:consumed]
            self._keep(aside)

    def _keep(self, rest: bytearray) -> None:
        if self not in self._server.unfinished:  # a new frame; the one that just grew has its time already
            self._server.unfinished[self] = None
            self._kept_ms = self.active_ms
        self._aside = rest
        self._note_whole(False)
        # the heart has judged the length word, if it is there; without it, a few bytes more will do
        self._needed = int.from_bytes(rest[:4]) + 4 if len(rest) >= 4 else 4
        # whole frames left: the peer is clogged, or had its share of this pass and others come first
        self._waits = not self._held and not self.closed and (self.is_clogged or len(rest) >= self._needed)
        if self._waits:
            self._pause_reading()
            if not self._is_paused:
                self._server.call_soon(self._serve_on)

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self._is_paused = True
        self._pause_reading()

    def resume_writing(self) -> None:
        self._is_paused = False
        self._server.note_read(self)
        self._server.note_unread(self, self.unread_bytes)
        if not (self.closed or self._server.is_stopping):
            try:
                self._server.heart.drained(self, self._server.now_ms())
            except Exception as error:  # noqa: BLE001  # logged, and the end of this connection only
                self._failed(error)
            self._server.after_receive()
        self._serve_on()

    def _serve_on(self) -> None:
        """Serve what was kept aside, then read on; not while held, nor while the peer does not read."""
        if self._may_serve() and self._aside is not None:
            try:
                self._serve_aside(self._server.now_ms())
            except Exception as error:  # noqa: BLE001  # the end of this connection only; others must go on
                self._failed(error)
            self._server.after_receive()
        if self._may_serve() and not self._waits:
            self._resume_reading()

    def _may_serve(self) -> bool:
        return not (self._held or self._is_paused or self.closed)

    # --- the set's side: reading and sending for many peers at once ---

    def _join(self) -> None:
        """Let the set read from this peer, whose first bytes were plain; the transport keeps the rest."""
        self._may_join = False
        opened = self._transport.get_extra_info("socket")  # none of a network that is simulated
        if self.closed or self._transport.is_closing() or self._server.sockets is None or opened is None:
            return
        self._transport.pause_reading()
        self._link = self._server.sockets.add(opened.fileno(), self, self.born_host)
        self._link.sends = False  # until it has asked
        self._link.whole = self._aside is None
        if self._waits or not self._may_serve():
            self._pause_reading()

    def _leave(self, *, gone: bool = False) -> None:
        """Before the descriptor is closed: it may be anybody's then."""
        if self._link is not None and self._server.sockets is not None:
            self._server.sockets.leave(self._link, gone)

    def look(self, at: int, count: int, now: int) -> None:
        """The lane has served what it could: here is the rest, the end of the stream, or something wrong."""
        if at < 0:
            self.close()
        elif count:
            self.received(at, count, now)
        elif not self.closed:  # the transport finds the same end, and knows what is left to write before it
            self._leave()
            self._link = None
            self._transport.resume_reading()

    @property
    def is_reading(self) -> bool:
        return self._transport.is_reading() if self._link is None else bool(self._link.reading)

    @property
    def is_drained(self) -> bool:
        """Whether the transport has nothing to write, so that others may."""
        is_open = not self.closed and not self._transport.is_closing()
        return is_open and not self._gathered and not self.unread_bytes

    def _note_whole(self, whole: bool) -> None:
        if self._link is not None:
            self._link.whole = whole

    def _pause_reading(self) -> None:
        if self._link is None or self._server.sockets is None:
            self._transport.pause_reading()
        else:
            self._server.sockets.pause(self._link)

    def _resume_reading(self) -> None:
        if self._link is None or self._server.sockets is None:
            self._transport.resume_reading()
        else:
            self._server.sockets.resume(self._link)

    # --- the heart's side ---

    @property
    def is_clogged(self) -> bool:
        return self._is_paused or self._transport.get_write_buffer_size() > WRITE_HIGH_BYTES

    @property
    def is_flooded(self) -> bool:
        return self._server.is_flooded

    @property
    def unread_bytes(self) -> int:
        return self._transport.get_write_buffer_size()

    @property
    def unfinished_bytes(self) -> int:
        return len(self._aside or b"")

    def is_overdue(self, now: int, ms_max: int) -> bool:
        """Whether the rest of a frame is late by its sender's fault."""
        return self._aside is not None and now - self._kept_ms > ms_max and self._may_serve()

    def idle_ms(self, now: int) -> int:
        return now - max(self.active_ms, 0 if self._link is None else self._link.active_ms)

    def clock_moved(self, by_ms: int) -> None:
        self.active_ms += by_ms
        if self._link is not None:
            self._link.active_ms += by_ms
        self._kept_ms += by_ms

    def write(self, data: bytes) -> None:
        if self.closed or self._transport.is_closing():
            return
        if self._link is not None:
            self._link.sends = False  # until the transport has written it: bytes keep their order
            self._link.bulk = len(data) >= core.BULK_BYTES
        if self._gathered is not None and len(data) <= GATHERED_PART_MAX:
            self._gathered += data
            if len(self._gathered) >= GATHERED_BYTES_MAX:
                self._send_gathered()
            return
        self._send_gathered()
        self._send(data)

    def _send_gathered(self) -> None:
        if self._gathered and not self.closed and not self._transport.is_closing():
            data, self._gathered = bytes(self._gathered), bytearray()
            self._send(data)

    def _send(self, data: bytes) -> None:
        self._transport.write(data)
        self.active_ms = self._server.now_ms()
        unread = self.unread_bytes
        self._server.note_unread(self, unread)
        if unread > WRITE_BYTES_MAX:
            log.warning("closing peer=%s:%d reason=%d bytes unread", *self.peer, WRITE_BYTES_MAX)
            self.reset()

    def close(self) -> None:
        if not self.closed:
            self._send_gathered()
            self.closed = True
            self._leave()
            self._transport.close()

    def abort(self) -> None:
        self.closed = True
        self._leave()
        self._transport.abort()

    def reset(self) -> None:
        """Hang up on one that does not read: what the kernel keeps for it goes too, and it is told."""
        if (link := self._transport.get_extra_info("socket")) is not None:
            with suppress(OSError):
                link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, NO_LINGER)
        self.abort()

    def stop_reading(self) -> None:
        self._held = True
        if not self._transport.is_closing():
            self._pause_reading()

    def hold(self) -> None:
        self._held = True
        self._pause_reading()

    def release(self) -> None:
        """Serve what was kept while held, then read on."""
        self._held = False
        self._serve_on()
