"""One dialled connection: requests out, replies matched by opaque, and whatever the server asks us.

Owns the response table, deadlines and back-pressure of a single connection. Does not dial again, does
not retry and does not know what a topic is: that is the client's business.

    invoke          waits for the reply, the loss of the connection, or the deadline; whichever is first
    invoke_oneway   writes and forgets; nothing is registered, so nothing can come back
    ask             invoke, with every code but success raised as BrokerRefused

A reply nobody waits for (it came late, or twice) is dropped.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from ssl import SSLCertVerificationError, SSLContext
from typing import Any, Protocol, cast
from weakref import WeakKeyDictionary

from hotfire.errors import (
    BrokerRefused,
    ConfigError,
    ConnectError,
    ConnectionLost,
    HotfireError,
    LocalProtocolError,
    RemoteProtocolError,
    Timeout,
)
from hotfire.protocol.codes import ResponseCode, Serialization
from hotfire.protocol.command import ONEWAY_FLAG, RESPONSE_FLAG, Buffer, Command, encode
from hotfire.protocol.connection import GATHERED_BYTES, FrameReader
from hotfire.protocol.requests import Request

WRITE_HIGH_WATER_BYTES = 1024 * 1024
"""Above this much unsent data callers wait before they write: a few of the largest usual messages."""
WRITE_PIECE_BYTES = 128 * 1024
"""So much is given to the transport at a time: it copies what the kernel does not take at once, twice."""

IN_FLIGHT_MAX = 65_535
"""Requests waiting for a reply on one connection; the number of permits a Java client has."""

CLOSE_TIMEOUT_S = 1.0
RIDER_OPAQUE_FIRST = 0x4000_0000

_buffers: WeakKeyDictionary[asyncio.AbstractEventLoop, memoryview] = WeakKeyDictionary()

OnRequest = Callable[[Command], "Command | Coroutine[Any, Any, Command | None] | None"]
"""What to do with a request of the server. None answers nothing, now or ever; a coroutine answers later."""


def split_address(address: str) -> tuple[str, int]:
    """
    >>> split_address("127.0.0.1:9876"), split_address("[::1]:9876")
    (('127.0.0.1', 9876), ('::1', 9876))
    """
    host, colon, port = address.strip().rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        raise ConfigError(f"address {address!r:.100} is not host:port with a port of 1 to 65535")
    return host, int(port)


def _buffer_of(loop: asyncio.AbstractEventLoop) -> memoryview:
    """Where all connections of the loop receive, one after the other."""
    buffer = _buffers.get(loop)
    if buffer is None:
        buffer = _buffers[loop] = memoryview(bytearray(GATHERED_BYTES))
    return buffer


def _reason(error: OSError) -> str:
    if isinstance(error, SSLCertVerificationError):
        return (
            f"certificate verify failed: {error.verify_message}; trust those that vouch for it, by tls=FILE, "
            "--tls-trust FILE or tls.client.trustCertPath"
        )
    # For a refused connection asyncio's own text has the address again, and not the reason.
    if isinstance(error, ConnectionError) and error.errno:
        return os.strerror(error.errno)
    return error.strerror or str(error) or "it hung up on our TLS; does it take any?"


def _who_answers(data: bytes) -> str | None:
    """Who says this, if it is somebody often found at an address that was meant to be another's."""
    if data.startswith(b"HTTP/"):
        return "an HTTP server answers there, no name server and no broker"
    if data.startswith(b"\x15\x03"):  # an alert
        return "who answers there takes TLS connections only"
    return None


class Rider(Protocol):
    """Somebody who sends many requests over a peer's connection and reads their answers by himself.

    His opaques are those from RIDER_OPAQUE_FIRST on.
    """

    def receive(self, data: Buffer) -> bytes:
        """What came, less what was his. `data` holds still until this returns."""

    def answered(self, reply: Command) -> None:
        """A reply nobody else waits for."""

    def has_room(self) -> None:
        """The connection takes data again."""

    def lost(self, error: HotfireError) -> None:
        """The connection is gone."""


class Peer:
    """A connection to a broker or name server. Use it from the loop that dialled it.

    >>> from hotfire.protocol.requests import GetRouteInfoByTopic
    >>> async def route(address: str) -> bytes:
    ...     async with await Peer.connect(address) as peer:
    ...         return (await peer.ask(GetRouteInfoByTopic(topic="orders"), timeout_s=3.0)).body
    """

    def __init__(self, address: str, on_request: OnRequest | None, serialization: Serialization) -> None:
        """Not for callers: use `connect`."""
        self.address = address
        self._serialization = serialization
        self._on_request = on_request
        self._loop = asyncio.get_running_loop()
        self._link = _Link(self)
        self._waiting: dict[int, asyncio.Future[Command]] = {}
        self._opaque = 0
        self._unsent: deque[bytes | memoryview] = deque()
        self._unsent_bytes = 0
        self._will_flush = False
        self._closed = self._loop.create_future()
        self._lost: HotfireError | None = None
        self._answering: set[asyncio.Task[None]] = set()
        self._hung_up = False
        self.rider: Rider | None = None

    @classmethod
    async def connect(
        cls,
        address: str,
        *,
        timeout_s: float = 3.0,
        on_request: OnRequest | None = None,
        serialization: Serialization = Serialization.JSON,
        tls: SSLContext | None = None,
    ) -> Peer:
        """Dial `host:port`, with TLS if told how; ConnectError when it cannot be reached in time."""
        host, port = split_address(address)
        peer = cls(address, on_request, serialization)
        try:
            async with asyncio.timeout(timeout_s):
                await peer._loop.create_connection(lambda: peer._link, host, port, ssl=tls)
        except TimeoutError:
            raise ConnectError(f"{address}: no connection within {timeout_s:.3g} s") from None
        except OSError as error:
            raise ConnectError(f"{address}: {_reason(error)}") from None
        return peer

    async def __aenter__(self) -> Peer:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def closed(self) -> bool:
        return self._lost is not None

    @property
    def in_flight_count(self) -> int:
        """Requests that wait for their reply."""
        return len(self._waiting)

    async def wait_closed(self) -> None:
        """Return once the connection is gone, whoever ended it."""
        await asyncio.shield(self._closed)

    async def invoke(self, request: Request | Command, timeout_s: float) -> Command:
        """The reply, whatever its code. The deadline covers waiting for room to write as well."""
        deadline = self._loop.time() + timeout_s
        await self._room(deadline, timeout_s)
        if len(self._waiting) >= IN_FLIGHT_MAX:
            raise LocalProtocolError(f"{self.address}: {IN_FLIGHT_MAX} requests wait for a reply; slow down")
        command = self._prepare(request, 0)
        reply: asyncio.Future[Command] = self._loop.create_future()
        frame = encode(command)
        self._waiting[command.opaque] = reply
        alarm = self._loop.call_at(deadline, self._expire, reply, command.code, timeout_s)
        try:
            self._write(frame)
            return await reply
        finally:
            alarm.cancel()
            self._waiting.pop(command.opaque, None)

    async def ask(self, request: Request | Command, timeout_s: float) -> Command:
        """The reply, or BrokerRefused when its code is not success."""
        reply = await self.invoke(request, timeout_s)
        if reply.code != ResponseCode.SUCCESS:
            raise BrokerRefused(reply.code, reply.remark or "")
        return reply

    async def invoke_oneway(self, request: Request | Command, timeout_s: float = 3.0) -> None:
        """Write the request; there is no reply, and no telling whether it arrived."""
        await self._room(self._loop.time() + timeout_s, timeout_s)
        self._write(encode(self._prepare(request, ONEWAY_FLAG)))

    async def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Send what is written, hang up, and give up on a peer that does not take it in time."""
        self._flush_all()
        self._fail(ConnectionLost(f"{self.address}: we closed the connection"))
        transport = self._link.transport
        if transport is None:
            return
        self._hung_up = True
        transport.close()
        _, unfinished = await asyncio.wait({self._closed}, timeout=timeout_s)
        if unfinished:
            transport.abort()

    def abort(self) -> None:
        """Hang up at once; what is written and not sent is lost."""
        self._fail(ConnectionLost(f"{self.address}: we closed the connection"))
        if self._link.transport is not None:
            self._link.transport.abort()

    async def finish(self, timeout_s: float) -> None:
        """Say that nothing more comes, and wait for the other side to hang up; see `heard_out`."""
        self._flush_all()
        self._fail(ConnectionLost(f"{self.address}: we closed the connection"))
        transport = self._link.transport
        if transport is None:
            return
        if not transport.is_closing():
            if not transport.can_write_eof():
                await self.close()
                return
            with suppress(OSError):  # then it is gone already
                transport.write_eof()
        try:
            await asyncio.wait({self._closed}, timeout=timeout_s)
        finally:
            if not self._closed.done():
                self._hung_up = True
                transport.abort()

    @property
    def heard_out(self) -> bool:
        """Whether the other side ended the connection: what we wrote it has read, or never will.

        Bytes and the end of a stream arrive in order, so a server that hangs up because we did has taken
        everything before. This is not so where something between us breaks connections by itself.
        """
        return self._closed.done() and not self._hung_up

    # --- writing -----------------------------------------------------------------------------------

    def _prepare(self, request: Request | Command, flag: int) -> Command:
        opaque = self._opaque
        while opaque in self._waiting:  # only after 2^30 requests can an old one still wait here
            opaque = (opaque + 1) % RIDER_OPAQUE_FIRST
        self._opaque = (opaque + 1) % RIDER_OPAQUE_FIRST
        if isinstance(request, Command):
            return dataclasses.replace(request, opaque=opaque, flag=flag)
        return request.to_command(
            opaque=opaque, oneway=flag == ONEWAY_FLAG, serialization=self._serialization
        )

    async def _room(self, deadline: float, timeout_s: float) -> None:
        """Wait until there is room to write; raise at once when the connection is gone."""
        while self._lost is None and self._link.room is not None:
            try:
                async with asyncio.timeout_at(deadline):
                    await asyncio.shield(self._link.room)
            except TimeoutError:
                raise Timeout(
                    f"{self.address}: took no data for {timeout_s:g} s; the request was not sent"
                ) from None
        if self._lost is not None:
            raise type(self._lost)(*self._lost.args)

    def write_for_rider(self, take: Callable[[], bytes]) -> None:
        """Write what `take` gives, unless there is no room; the rider hears when there is, before others."""
        if self._lost is None and self._link.room is None and self._link.transport is not None:
            self._write(take())
            self._flush()

    def _write(self, frame: bytes) -> None:
        # Callers woken by one read write in one turn of the loop: a single system call takes them all.
        if not self._will_flush:
            self._will_flush = True
            self._loop.call_soon(self._flush)
        self._unsent.append(frame)
        self._unsent_bytes += len(frame)

    def _flush(self) -> None:
        """As much as the kernel takes; the transport says when it takes more."""
        self._will_flush = False
        transport = self._link.transport
        while self._unsent and self._lost is None and transport is not None and not self._link.is_full:
            transport.write(self._next_piece())
        if self._unsent_bytes > WRITE_HIGH_WATER_BYTES:
            self._link.close_room()
        else:
            self._link.open_room()

    def _flush_all(self) -> None:
        """To the transport, which sends what it has before it hangs up."""
        self._flush()
        if self._unsent and self._lost is None and self._link.transport is not None:
            self._link.transport.write(b"".join(self._unsent))
            self._unsent.clear()

    def _next_piece(self) -> bytes | memoryview:
        """Small frames together, a large one in pieces."""
        first = self._unsent.popleft()
        if len(first) > WRITE_PIECE_BYTES:
            whole = memoryview(first)
            self._unsent.appendleft(whole[WRITE_PIECE_BYTES:])
            self._unsent_bytes -= WRITE_PIECE_BYTES
            return whole[:WRITE_PIECE_BYTES]
        frames, size = [first], len(first)
        while self._unsent and size + len(self._unsent[0]) <= WRITE_PIECE_BYTES:
            frames.append(self._unsent.popleft())
            size += len(frames[-1])
        self._unsent_bytes -= size
        return first if len(frames) == 1 else b"".join(frames)

    # --- reading -----------------------------------------------------------------------------------

    def _receive(self, command: Command) -> None:
        if command.is_response:
            reply = self._waiting.pop(command.opaque, None)
            if reply is not None and not reply.done():
                reply.set_result(command)
            elif reply is None and self.rider is not None:
                self.rider.answered(command)
            return
        answer = self._answer(command)
        if asyncio.iscoroutine(answer):
            task = self._loop.create_task(self._answer_later(command, answer))
            self._answering.add(task)
            task.add_done_callback(self._answering.discard)
        else:
            self._reply(command, answer)

    async def _answer_later(self, command: Command, answer: Coroutine[Any, Any, Command | None]) -> None:
        try:
            self._reply(command, await answer)
        except HotfireError as error:
            self._reply(command, Command(ResponseCode.SYSTEM_ERROR, remark=str(error)))

    def _reply(self, command: Command, answer: Command | None) -> None:
        if answer is not None and not command.is_oneway and self._lost is None:
            answer = dataclasses.replace(answer, opaque=command.opaque, flag=RESPONSE_FLAG)
            self._write(encode(answer))

    def _answer(self, command: Command) -> Command | Coroutine[Any, Any, Command | None] | None:
        if self._on_request is None:
            remark = f" request type {command.code} not supported"
            return Command(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=remark)
        try:
            return self._on_request(command)
        except HotfireError as error:
            return Command(ResponseCode.SYSTEM_ERROR, remark=str(error))

    # --- endings -----------------------------------------------------------------------------------

    def _expire(self, reply: asyncio.Future[Command], code: int, timeout_s: float) -> None:
        if not reply.done():
            reply.set_exception(
                Timeout(f"{self.address}: no reply to request {code} within {timeout_s * 1000:g} ms")
            )

    def _fail(self, error: HotfireError) -> None:
        """From here on the connection is gone; everyone who waits is told why."""
        if self._lost is None:
            self._lost = error
        waiting, self._waiting = self._waiting, {}
        for reply in waiting.values():
            if not reply.done():
                reply.set_exception(type(error)(*error.args))
        for task in tuple(self._answering):
            task.cancel()
        if self.rider is not None:
            self.rider.lost(self._lost)
        self._unsent.clear()
        self._unsent_bytes = 0
        self._link.open_room()

    def _gone(self, cause: Exception | None) -> None:
        why = f": {cause}" if cause is not None else ""
        self._fail(ConnectionLost(f"{self.address}: the connection closed{why}"))
        if not self._closed.done():
            self._closed.set_result(None)


class _Link(asyncio.BufferedProtocol):
    """What the event loop calls; keeps these callbacks out of Peer's public face.

    What comes is received into a buffer that all connections of the loop share, since each read is dealt with
    before the next; but the rest of a long body where it stays.
    """

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self._reader = FrameReader()
        self._shared = _buffer_of(peer._loop)
        self._in_place: memoryview | None = None  # where the loop receives a part of a long body now
        self.transport: asyncio.Transport | None = None
        self.is_full = False  # the transport has what the kernel did not take
        self.room: asyncio.Future[None] | None = None  # there while too much is unsent

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(high=1)  # 0 would mean always, with TLS

    def get_buffer(self, sizehint: int) -> memoryview:
        self._in_place = None if self._peer.closed else self._reader.room()
        return self._shared if self._in_place is None else self._in_place

    def buffer_updated(self, nbytes: int) -> None:
        place, self._in_place = self._in_place, None
        if place is None:
            self._receive(self._shared[:nbytes])
            return
        with suppress(BufferError):  # uvloop keeps it until we return, and the body is copied then
            place.release()  # from here on nobody writes there
        command = self._reader.add(nbytes)
        if command is not None:
            self._peer._receive(command)

    def _receive(self, data: Buffer) -> None:
        if self._peer.closed:
            return
        try:
            # A frame that began before the rider came is not his, nor is what comes with its end.
            if self._peer.rider is not None and not self._reader.buffered:
                data = self._peer.rider.receive(data)
            for command in self._reader.receive_data(data):
                self._peer._receive(command)
        except RemoteProtocolError as error:
            who = _who_answers(bytes(data[:8]))
            self._peer._fail(RemoteProtocolError(f"{self._peer.address}: {who or error}"))
            if self.transport is not None:
                self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._peer._gone(exc)

    def pause_writing(self) -> None:
        self.is_full = True

    def resume_writing(self) -> None:
        self.is_full = False
        self._peer._flush()

    def close_room(self) -> None:
        if self.room is None:
            self.room = asyncio.get_running_loop().create_future()

    def open_room(self) -> None:
        room, self.room = self.room, None
        if room is not None and not room.done():
            room.set_result(None)  # who waits is woken in the next turn of the loop
        if room is not None and self._peer.rider is not None:
            self._peer.rider.has_room()
