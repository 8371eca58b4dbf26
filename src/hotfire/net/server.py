"""Sockets for a heart: accepts, reads into one shared buffer, writes, closes the idle and the misbehaving.

All connections of a server read into the same buffer; only the odd partial frame is copied aside, and grows
with the bytes that really came, never with a length a peer merely announced. A peer that does not read what
it asked for stops being read from (high-water mark), and one that lets too much pile up is closed.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, cast

from hotfire.errors import ConfigError, RemoteProtocolError
from hotfire.net.heart import Heart
from hotfire.protocol.record import Host

log = logging.getLogger("hotfire.net")

READ_BUFFER_BYTES = 256 << 10
WRITE_HIGH_BYTES = 4 << 20
WRITE_LOW_BYTES = 1 << 20
WRITE_BYTES_MAX = 128 << 20
IDLE_MS_MAX = 120_000
IDLE_SCAN_MS = 1_000
CLOCK_STEP_MS = 500
"""Slower changes are corrections of the rate, which deadlines may as well follow."""
TICK_S = 0.05
BACKLOG = 1024
CLOSE_TIMEOUT_S = 1.0


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000


class ServerConnection(asyncio.BufferedProtocol):
    """One accepted peer."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._transport: asyncio.Transport
        self._aside: bytearray | None = None
        self._needed = 0
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
        self._transport.set_write_buffer_limits(WRITE_HIGH_BYTES, WRITE_LOW_BYTES)
        peer = transport.get_extra_info("peername") or ("0.0.0.0", 0)  # noqa: S104  # a peer already gone
        self.peer = (peer[0].partition("%")[0], peer[1])
        host = Host.parse(*self.peer)
        self.born_host = host.address + host.port.to_bytes(4)
        self.active_ms = now_ms()
        self._server.connections.add(self)
        self._server.heart.connected(self, self.active_ms)

    def connection_lost(self, error: Exception | None) -> None:
        self.closed = True
        if self._server.forget(self):
            self._server.heart.disconnected(self, now_ms())

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._server.buffer

    def buffer_updated(self, count: int) -> None:
        self.active_ms = now = now_ms()
        fresh = self._server.buffer[:count]
        if self.closed:
            return
        try:
            if self._aside is None:
                consumed = self._server.heart.receive(self, fresh, now)
                if consumed < count:
                    self._keep(bytearray(fresh[consumed:]))
            else:
                self._aside += fresh
                if len(self._aside) >= self._needed:
                    self._serve_aside(now)
        except Exception as error:  # noqa: BLE001  # logged, and the end of this connection only
            self._failed(error)
        self._server.after_receive()

    def _failed(self, error: Exception) -> None:
        """The peer's mistake or ours: it ends this connection and no other."""
        if isinstance(error, RemoteProtocolError):
            log.warning("closing peer=%s:%d reason=%s", *self.peer, error)
        else:
            log.error("closing peer=%s:%d after an internal error", *self.peer, exc_info=error)
        self.close()

    def _serve_aside(self, now: int) -> None:
        aside, self._aside = self._aside, None
        assert aside is not None
        self._waits = False
        with memoryview(aside) as whole:
            consumed = self._server.heart.receive(self, whole, now)
        if consumed < len(aside):
            del aside[:consumed]
            self._keep(aside)

    def _keep(self, rest: bytearray) -> None:
        self._aside = rest
        # the heart has judged the length word, if it is there; without it, a few bytes more will do
        self._needed = int.from_bytes(rest[:4]) + 4 if len(rest) >= 4 else 4
        # frames left because the peer is clogged: again when it has read, or at once if it just did
        self._waits = self.is_clogged and not self.closed
        if self._waits:
            self._transport.pause_reading()
            if not self._is_paused:
                self._server.call_soon(self._serve_on)

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self._is_paused = True
        self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._is_paused = False
        self._serve_on()

    def _serve_on(self) -> None:
        """Serve what was kept aside, then read on; not while held, nor while the peer does not read."""
        if self._may_serve() and self._aside is not None:
            try:
                self._serve_aside(now_ms())
            except Exception as error:  # noqa: BLE001  # the end of this connection only; others must go on
                self._failed(error)
            self._server.after_receive()
        if self._may_serve() and not self._waits:
            self._transport.resume_reading()

    def _may_serve(self) -> bool:
        return not (self._held or self._is_paused or self.closed)

    # --- the heart's side ---

    @property
    def is_clogged(self) -> bool:
        return self._is_paused or self._transport.get_write_buffer_size() > WRITE_HIGH_BYTES

    def write(self, data: bytes) -> None:
        if self.closed or self._transport.is_closing():
            return
        self._transport.write(data)
        self.active_ms = now_ms()
        if self._transport.get_write_buffer_size() > WRITE_BYTES_MAX:
            log.warning("closing peer=%s:%d reason=%d bytes unread", *self.peer, WRITE_BYTES_MAX)
            self._transport.abort()
            self.closed = True

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._transport.close()

    def abort(self) -> None:
        self.closed = True
        self._transport.abort()

    def stop_reading(self) -> None:
        self._held = True
        if not self._transport.is_closing():
            self._transport.pause_reading()

    def hold(self) -> None:
        self._held = True
        self._transport.pause_reading()

    def release(self) -> None:
        """Serve what was kept while held, then read on."""
        self._held = False
        self._serve_on()


class Server:
    """Listens on one or more ports for one heart."""

    def __init__(self, heart: Heart) -> None:
        self.heart = heart
        self.buffer = memoryview(bytearray(READ_BUFFER_BYTES))
        self.connections: set[ServerConnection] = set()
        self._loop = asyncio.get_running_loop()
        self._listeners: list[asyncio.Server] = []
        self._turn_due = False
        self._idle_scan_ms = 0
        self._ahead_ms = now_ms() - monotonic_ms()
        self.is_stopping = False
        self._ticker: asyncio.TimerHandle | None = None
        self._empty: asyncio.Event | None = None

    async def listen(self, listener: socket.socket) -> None:
        """Accept peers on a socket from `bind`."""
        self._listeners.append(
            await self._loop.create_server(lambda: ServerConnection(self), sock=listener, backlog=BACKLOG)
        )

    def start(self) -> None:
        """Watch the heart's descriptors and give it its ticks."""
        for fd, callback in self.heart.watches():
            self._loop.add_reader(fd, self._ring, callback)
        self._ticker = self._loop.call_later(TICK_S, self._tick)

    def forget(self, connection: ServerConnection) -> bool:
        """Whether the connection was one the heart knew."""
        known = connection in self.connections
        self.connections.discard(connection)
        if not self.connections and self._empty is not None:
            self._empty.set()
        return known

    def call_soon(self, callback: Callable[[], None]) -> None:
        self._loop.call_soon(callback)

    def _ring(self, callback: Any) -> None:
        try:
            callback(now_ms())
        finally:  # whatever went wrong, those who wait for this turn must go on
            self._release_held()
            self.after_receive()

    def after_receive(self) -> None:
        if self.heart.wants_turn and not self._turn_due:
            self._turn_due = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._turn_due = False
        self.heart.turn(now_ms())

    def _tick(self) -> None:
        now = now_ms()
        self._ticker = self._loop.call_later(TICK_S, self._tick)
        self._notice_clock(now)
        self.heart.tick(now)
        self.after_receive()
        if now - self._idle_scan_ms < IDLE_SCAN_MS:
            return
        self._idle_scan_ms = now
        for connection in [c for c in self.connections if now - c.active_ms > IDLE_MS_MAX]:
            if connection.closed:  # and still here a second later: it does not read what is left for it
                connection.abort()
                continue
            log.info("closing peer=%s:%d reason=idle for %d ms", *connection.peer, IDLE_MS_MAX)
            connection.close()

    def _notice_clock(self, now: int) -> None:
        """A wall clock that was set takes every deadline along: nothing falls due early or hours late."""
        ahead_ms = now - monotonic_ms()
        moved_ms, self._ahead_ms = ahead_ms - self._ahead_ms, ahead_ms
        if abs(moved_ms) < CLOCK_STEP_MS:
            return
        log.warning("the clock was set by_ms=%d", moved_ms)
        for connection in self.connections:
            connection.active_ms += moved_ms
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
        if self._ticker is not None:
            self._ticker.cancel()
            for fd, _ in self.heart.watches():
                self._loop.remove_reader(fd)
            self._ticker = None
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
        for connection in list(self.connections):
            connection.abort()


def bind(host: str, port: int) -> socket.socket:
    """A socket for `Server.listen`, its port known at once; port 0 picks a free one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OverflowError:
        listener.close()
        raise ConfigError(f"port {port}: must be 0 to 65535") from None
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise ConfigError(
                f"port {port} on {host} is in use: choose another port or stop its owner"
            ) from None
        raise ConfigError(f"cannot listen on {host}:{port}: {error.strerror or error}") from None
    listener.setblocking(False)
    return listener


def resolve(host: str) -> str:
    """The numeric address of `host`."""
    try:
        return str(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])
    except OSError as error:
        raise ConfigError(f"address {host!r} cannot be resolved: {error.strerror or error}") from None


def local_address() -> str:
    """The address other machines would reach this one by; loopback when it has no other."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(
                ("192.0.2.1", 9)
            )  # a documentation address: nothing is sent by connecting a datagram socket
            address: str = probe.getsockname()[0]
        except OSError:
            return "127.0.0.1"
    return address
