"""A network in memory: connections that take time, break, and hang, the same way for the same seed.

    network = SimNetwork(loop, random.Random(seed))
    network.partition({broker}, {name_server}); network.heal()       what was sent meanwhile comes then
    network.cut(broker, client)                                      connections between them end, now
    network.kill(broker)                                             its process died: peers are told
    network.power_off(broker); network.power_on(broker)              its machine died: nobody is told

Bytes arrive in order, late, and in pieces of any size, as over TCP. What is written to a host that is down is
lost; once it is up again it answers with a reset. Knows no frames.
"""

from __future__ import annotations

import asyncio
import contextvars
import errno
import os
import random
from collections import deque
from collections.abc import Callable, Collection
from typing import Any, cast

from hotfire.errors import ConfigError
from hotfire.testing.simloop import SimHost, SimLoop, current_host

LATENCY_S = (0.0001, 0.002)
SLOW_SHARE, SLOW_S = 0.02, 0.3
"""One piece in so many takes up to this long."""
SPLIT_SHARE = 0.15
KERNEL_BYTES = 256 << 10
HIGH_BYTES = 64 << 10
FIRST_PORT = 40_000


class SimNetwork:
    """All hosts, listeners and connections of one simulation.

    >>> sim = Simulation(seed=7)
    >>> here, there = sim.network.host("10.0.3.1"), sim.network.host("10.0.3.2")
    >>> sim.network.partition([here], [there])
    >>> sim.network.is_reachable(here, there), sim.loop.close()
    (False, None)
    """

    def __init__(self, loop: SimLoop, rng: random.Random) -> None:
        self.loop = loop
        self.rng = rng
        loop.network = self
        self.hosts: dict[str, SimHost] = {}
        self._listeners: dict[tuple[str, int], SimListener] = {}
        self._transports: dict[SimTransport, None] = {}
        self._stalled: dict[SimTransport, None] = {}
        self._apart: list[tuple[frozenset[SimHost], frozenset[SimHost]]] = []
        self._changed = asyncio.Event()
        self._next_port = FIRST_PORT
        self.on_delivery: Callable[[str, str, int], None] = lambda source, target, size: None
        """Told of all that arrives, for whoever compares runs."""

    def host(self, ip: str) -> SimHost:
        """The machine of this address, made when it is new."""
        return self.hosts.setdefault(ip, SimHost(ip))

    # --- listening and dialling ----------------------------------------------------------------------

    def bind(self, host: str, port: int) -> SimListener:
        """Stands in for `hotfire.net.server.bind`."""
        port = port or self._free_port()
        if (host, port) in self._listeners:
            raise ConfigError(f"port {port} on {host} is in use: choose another port or stop its owner")
        listener = self._listeners[host, port] = SimListener(self, host, port)
        return listener

    def bind_pair(self, host: str, port: int, *, below: int) -> tuple[SimListener, SimListener]:
        return self.bind(host, port), self.bind(host, port - below)

    async def connect(
        self, factory: Callable[[], asyncio.BaseProtocol], ip: str, port: int
    ) -> tuple[SimTransport, asyncio.BaseProtocol]:
        here, there = current_host(), self.host(ip)
        await self._travel(here, there)
        listener = self._listeners.get((ip, port))
        if listener is None or listener.factory is None:
            await self._travel(there, here)
            raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
        ends = (here.ip, self._free_port()), (ip, port)
        mine = SimTransport(self, here, there, ends[0], ends[1], contextvars.copy_context())
        theirs = SimTransport(self, there, here, ends[1], ends[0], listener.context)
        mine.peer, theirs.peer = theirs, mine
        theirs.begin(listener.context.run(listener.factory))
        try:
            await self._travel(there, here)
        except asyncio.CancelledError:
            mine.abort()
            raise
        protocol = factory()
        mine.begin(protocol)
        return mine, protocol

    async def _travel(self, source: SimHost, target: SimHost) -> None:
        await asyncio.sleep(self.latency_s())
        while not self.is_reachable(source, target):
            await self._changed.wait()
            await asyncio.sleep(self.latency_s())

    def latency_s(self) -> float:
        rng = self.rng
        return rng.uniform(*LATENCY_S) if rng.random() > SLOW_SHARE else rng.uniform(0.0, SLOW_S)

    def _free_port(self) -> int:
        self._next_port += 1
        return self._next_port

    # --- faults --------------------------------------------------------------------------------------

    def is_reachable(self, source: SimHost, target: SimHost) -> bool:
        apart = any(
            (source in these and target in those) or (source in those and target in these)
            for these, those in self._apart
        )
        return source.is_up and target.is_up and not apart

    def partition(self, these: Collection[SimHost], those: Collection[SimHost]) -> None:
        """Nothing passes between them until `heal`."""
        self._apart.append((frozenset(these), frozenset(those)))

    def heal(self) -> None:
        """No more partitions; what was on its way goes on."""
        self._apart.clear()
        self._tell()

    def cut(self, these: Collection[SimHost], those: Collection[SimHost]) -> int:
        """Reset the connections between them; how many there were."""
        found = [t for t in self._transports if t.host in these and t.there in those]
        for transport in found:
            transport.reset()
        return len(found)

    def kill(self, host: SimHost) -> None:
        """The host's process is gone: its kernel closes what it had open, some of it unsent."""
        self._forget(host)
        for transport in [t for t in self._transports if t.host is host]:
            transport.die(told=True)

    def power_off(self, host: SimHost) -> None:
        """The machine is gone; who was connected to it hears nothing."""
        host.is_up = False
        self._forget(host)
        for transport in [t for t in self._transports if t.host is host]:
            transport.die(told=False)

    def power_on(self, host: SimHost) -> None:
        """Up again, and knows of no connection: who still believes in one learns better."""
        host.is_up = True
        for transport in [t for t in self._transports if t.there is host and t.peer is None]:
            transport.reset_if_asked()
        self._tell()

    def _forget(self, host: SimHost) -> None:
        for place in [place for place in self._listeners if place[0] == host.ip]:
            del self._listeners[place]

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
        stalled, self._stalled = self._stalled, {}
        for transport in stalled:
            transport.go_on()


class SimListener:
    """What stands for a bound socket, and for the server that listens on it."""

    def __init__(self, network: SimNetwork, host: str, port: int) -> None:
        self._network = network
        self._place = host, port
        self.factory: Callable[[], asyncio.BaseProtocol] | None = None
        self.context = contextvars.copy_context()

    def getsockname(self) -> tuple[str, int]:
        return self._place

    def serve(self, factory: Callable[[], asyncio.BaseProtocol]) -> None:
        self.factory, self.context = factory, contextvars.copy_context()

    def close(self) -> None:
        if self._network._listeners.get(self._place) is self:
            del self._network._listeners[self._place]


class SimTransport(asyncio.Transport):
    """One end of a connection. `_sent` is what is on its way to the other."""

    def __init__(
        self,
        network: SimNetwork,
        host: SimHost,
        there: SimHost,
        own: tuple[str, int],
        other: tuple[str, int],
        context: contextvars.Context,
    ) -> None:
        super().__init__({"sockname": own, "peername": other})
        self._network = network
        self._loop = network.loop
        self.host, self.there = host, there
        self._context = context
        self.peer: SimTransport | None = None
        """None once the other end is gone."""
        self._protocol: Any = None
        self._sent: deque[bytes | None] = deque()
        self._sent_bytes = 0
        self._arrived: deque[bytes | None] = deque()
        self._last_s = 0.0
        self._high = HIGH_BYTES
        self._is_reading, self._is_paused = True, False
        self._is_closing = self._is_lost = self._has_asked = False
        network._transports[self] = None

    def begin(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol
        self._call(protocol.connection_made, self)
        if self._is_lost:  # before anyone could be told
            self._call(protocol.connection_lost, None)
        self._call(self._read)

    def _call(self, work: Callable[..., Any], *args: Any) -> None:
        """Soon, on this end's host."""
        self._loop.call_soon(work, *args, context=self._context)

    # --- asyncio's face ------------------------------------------------------------------------------

    def write(self, data: Any) -> None:
        if self._is_closing or self._is_lost or not data:
            return
        self._has_asked = True
        if self.peer is None:
            if self.there.is_up:
                self.reset_if_asked()
            return
        whole = bytes(data)
        rng = self._network.rng
        pieces = [whole]
        if len(whole) > 1 and rng.random() < SPLIT_SHARE:
            at = rng.randrange(1, len(whole))
            pieces = [whole[:at], whole[at:]]
        for piece in pieces:
            self._send(piece)
        self._sent_bytes += len(whole)
        if not self._is_paused and self.get_write_buffer_size() > self._high:
            self._is_paused = True
            self._protocol.pause_writing()

    def close(self) -> None:
        """What was written arrives, then the end; this one has ended when the kernel has taken it all."""
        if not self._is_closing:
            self._is_closing = True
            self._send(None)
            if not self.get_write_buffer_size():
                self._call(self._lose, None)

    def abort(self) -> None:
        self._is_closing = True
        if not self._is_lost:
            peer, self.peer = self.peer, None
            if peer is not None:
                peer.peer = None
                peer.break_off(self._network.latency_s())
            self._call(self._lose, None)

    def is_closing(self) -> bool:
        return self._is_closing or self._is_lost

    def pause_reading(self) -> None:
        self._is_reading = False

    def resume_reading(self) -> None:
        self._is_reading = True
        self._call(self._read)

    def is_reading(self) -> bool:
        return self._is_reading

    def get_write_buffer_size(self) -> int:
        return max(0, self._sent_bytes - KERNEL_BYTES)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = HIGH_BYTES if high is None else high

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        if not (self._is_closing or self._is_lost):
            self._send(None)

    def get_protocol(self) -> asyncio.BaseProtocol:
        return cast(asyncio.BaseProtocol, self._protocol)

    # --- on the way ----------------------------------------------------------------------------------

    def _send(self, piece: bytes | None) -> None:
        self._sent.append(piece)
        self._last_s = max(self._last_s, self._loop.time() + self._network.latency_s())
        self._loop.call_at(self._last_s, self._deliver)

    def _deliver(self) -> None:
        """The next piece is there, unless the way is barred: then it waits, and all behind it."""
        if not self._sent or self.peer is None:
            return
        if not self._network.is_reachable(self.host, self.there):
            self._network._stalled[self] = None
            return
        piece = self._sent.popleft()
        self.peer._arrived.append(piece)
        self._network.on_delivery(self.host.ip, self.there.ip, 0 if piece is None else len(piece))
        self.peer._call(self.peer._read)

    def go_on(self) -> None:
        """The way is free again."""
        for _ in range(len(self._sent)):
            self._last_s = max(self._last_s, self._loop.time() + self._network.latency_s())
            self._loop.call_at(self._last_s, self._deliver)

    def _read(self) -> None:
        while self._arrived and self._is_reading and self._protocol is not None and not self.is_closing():
            piece = self._arrived.popleft()
            if piece is None:
                if not self._protocol.eof_received():
                    self.close()
                return
            if isinstance(self._protocol, asyncio.BufferedProtocol):
                buffer = cast(memoryview, self._protocol.get_buffer(-1))
                size = min(len(buffer), len(piece))
                buffer[:size] = piece[:size]
                if size < len(piece):
                    self._arrived.appendleft(piece[size:])
                self._taken(size)
                self._protocol.buffer_updated(size)
            else:
                self._taken(len(piece))
                self._protocol.data_received(piece)

    def _taken(self, size: int) -> None:
        """The other end may write more."""
        if (peer := self.peer) is not None:
            peer._sent_bytes -= size
            if peer._is_closing and not peer.get_write_buffer_size():
                peer._call(peer._lose, None)
            if peer._is_paused and peer.get_write_buffer_size() <= peer._high // 4:
                peer._is_paused = False
                peer._call(peer._protocol.resume_writing)

    # --- endings -------------------------------------------------------------------------------------

    def reset(self) -> None:
        """The connection breaks at both ends, with what was on its way."""
        peer, self.peer = self.peer, None
        self.break_off(self._network.latency_s())
        if peer is not None:
            peer.peer = None
            peer.break_off(self._network.latency_s())

    def break_off(self, after_s: float) -> None:
        """This end learns, a little later, that there is no other."""
        error = ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))
        self._loop.call_later(after_s, self._lose, error, context=self._context)

    def reset_if_asked(self) -> None:
        """A machine that does not know the connection answers what was sent on it with a reset."""
        if self._has_asked:
            self.break_off(self._network.latency_s())

    def die(self, *, told: bool) -> None:
        """Whoever held this end is gone, without another call to it."""
        self._is_lost = self._is_closing = True
        self._network._transports.pop(self, None)
        peer, self.peer = self.peer, None
        if peer is None:
            return
        peer.peer, peer._has_asked = None, bool(peer._sent)
        if told:
            while self._sent and self._network.rng.random() < 0.7:  # what the kernel had sent already
                peer._arrived.append(self._sent.popleft())
            peer._call(peer._read)
            peer.break_off(self._network.latency_s())

    def _lose(self, error: Exception | None) -> None:
        if self._is_lost:
            return
        self._is_lost = self._is_closing = True
        self._network._transports.pop(self, None)
        if self._protocol is not None:
            self._protocol.connection_lost(error)
