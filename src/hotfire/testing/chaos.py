"""A proxy between clients and a server that does to connections what networks do on a bad day.

    async with ChaosProxy("127.0.0.1:9876") as proxy:          clients dial proxy.address
        proxy.cut()                                            every connection, now
        proxy.refuse(); proxy.accept()                         new ones
        proxy.hold("replies"); proxy.flow()                    half open: requests arrive, answers do not
        proxy.delay(0.2); proxy.throttle(10_000)               slow lines
        proxy.drop("replies", RequestCode.SEND_MESSAGE_V2)     stored, and nobody hears of it
        proxy.cut_within("replies", times=1)                   half a frame, and then the end
        proxy.clear()                                          a good day again

Frames pass whole and in order, so that faults fall between them or, where asked for, within one. A reply is
known by the code of the request it answers. Bytes that are no frames pass as they come. With
`Cluster(proxied=True)` there is a proxy before each node. Faults may be asked for from any thread.
"""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal, Self, get_args

from hotfire.errors import RemoteProtocolError
from hotfire.net.addresses import bind
from hotfire.net.peer import split_address
from hotfire.protocol.command import Command, decode, frame_size
from hotfire.testing.ports import free_port

Way = Literal["requests", "replies"]
"""To the server, or from it."""

LOOPBACK = "127.0.0.1"
BACKLOG = 1024
READ_BYTES = 1 << 18
QUEUED_FRAMES_MAX = 1000
HEADER_BYTES_MAX = 1 << 24
PIECES_PER_S = 20
NO_CODE = -1


@dataclass
class _Rule:
    way: Way
    codes: frozenset[int]
    cuts: bool
    left: int | None


class _Conditions:
    """How one way is just now."""

    def __init__(self) -> None:
        self.delay_s = 0.0
        self.bytes_per_s: float | None = None
        self.flowing = asyncio.Event()
        self.flowing.set()


class ChaosProxy:
    """One listening port, and everything that passes through it to `upstream`.

    >>> async def example() -> None:
    ...     async with ChaosProxy("127.0.0.1:9876") as proxy, Producer(proxy.address) as producer:
    ...         proxy.delay(0.01, "replies")
    ...         await producer.send(Message("orders", b"paid"))
    """

    def __init__(self, upstream: str, *, port: int = 0) -> None:
        self.upstream = upstream
        """Where new connections go on to; may be changed."""
        self._port = port or free_port()
        self.passed: Counter[tuple[Way, int]] = Counter()
        """Frames handed on, by way and code."""
        self._loop: asyncio.AbstractEventLoop
        self._listener: socket.socket | None = None
        self._ways: dict[Way, _Conditions] = {}
        self._rules: list[_Rule] = []
        self._lines: dict[_Line, asyncio.Task[None]] = {}

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._ways = {way: _Conditions() for way in get_args(Way)}
        self._listen()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._hang_up()
        tasks = list(self._lines.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def address(self) -> str:
        """What clients dial instead."""
        return f"{LOOPBACK}:{self._port}"

    @property
    def connection_count(self) -> int:
        return len(self._lines)

    # --- faults ------------------------------------------------------------------------------------

    def cut(self) -> None:
        """End every connection at both ends, with whatever was on its way."""

        def cut() -> None:
            for line in list(self._lines):
                line.cut()

        self._here(cut)

    def refuse(self) -> None:
        """Turn new connections away, as a machine does on whose port nobody listens."""
        self._here(self._hang_up)

    def accept(self) -> None:
        """Take new connections again."""
        self._here(self._listen)

    def hold(self, *ways: Way) -> None:
        """Hand nothing on that way, or on both, and keep it; connections stay."""
        self._set(ways, lambda way: way.flowing.clear())

    def flow(self, *ways: Way) -> None:
        """Go on after `hold` with all that was kept."""
        self._set(ways, lambda way: way.flowing.set())

    def delay(self, seconds: float, *ways: Way) -> None:
        """Each frame arrives so much later."""
        self._set(ways, lambda way: setattr(way, "delay_s", seconds))

    def throttle(self, bytes_per_s: float | None, *ways: Way) -> None:
        """No more bytes a second than these on a connection; None for as many as come."""
        self._set(ways, lambda way: setattr(way, "bytes_per_s", bytes_per_s))

    def drop(self, way: Way, *codes: int, times: int | None = None) -> None:
        """Lose frames of these request codes, or of any; so many, or all from now on."""
        self._here(lambda: self._rules.append(_Rule(way, frozenset(codes), False, times)))

    def cut_within(self, way: Way, *codes: int, times: int | None = 1) -> None:
        """Hand on half of such a frame, then cut its connection."""
        self._here(lambda: self._rules.append(_Rule(way, frozenset(codes), True, times)))

    def clear(self) -> None:
        """No more faults. What was dropped or cut stays so."""
        self.delay(0.0)
        self.throttle(None)
        self.flow()
        self._here(self._rules.clear)
        self.accept()

    # --- inside ------------------------------------------------------------------------------------

    def _here(self, work: Callable[[], object]) -> None:
        """Do it on the proxy's own loop, whoever asks."""

        async def do() -> None:
            work()

        if asyncio._get_running_loop() is self._loop:
            work()
        else:
            asyncio.run_coroutine_threadsafe(do(), self._loop).result()

    def _set(self, ways: tuple[Way, ...], change: Callable[[_Conditions], object]) -> None:
        for way in ways or get_args(Way):
            self._here(lambda way=way: change(self._ways[way]))  # type: ignore[misc]

    def _listen(self) -> None:
        if self._listener is None:
            self._listener = bind(LOOPBACK, self._port)
            self._listener.listen(BACKLOG)
            self._loop.add_reader(self._listener, self._take)

    def _hang_up(self) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            self._loop.remove_reader(listener)
            listener.close()

    def _take(self) -> None:
        assert self._listener is not None
        with suppress(BlockingIOError, ConnectionError):
            client, _ = self._listener.accept()
            client.setblocking(False)
            line = _Line(self)
            task = self._lines[line] = self._loop.create_task(line.serve(client))
            task.add_done_callback(lambda _: self._lines.pop(line, None))

    def _judge(self, way: Way, code: int) -> _Rule | None:
        for rule in self._rules:
            if rule.way == way and (not rule.codes or code in rule.codes) and rule.left != 0:
                rule.left = None if rule.left is None else rule.left - 1
                return rule
        return None


class _Line:
    """One client's connection and the one to the server that belongs to it."""

    def __init__(self, proxy: ChaosProxy) -> None:
        self._proxy = proxy
        self._asked: dict[int, int] = {}
        """Codes of requests by their opaque."""
        self._writers: list[asyncio.StreamWriter] = []

    async def serve(self, client: socket.socket) -> None:
        reader, writer = await asyncio.open_connection(sock=client)
        self._writers.append(writer)
        try:
            with suppress(OSError):
                upstream = await asyncio.open_connection(*split_address(self._proxy.upstream))
                self._writers.append(upstream[1])
                async with asyncio.TaskGroup() as both:
                    both.create_task(self._pass("requests", reader, upstream[1]))
                    both.create_task(self._pass("replies", upstream[0], writer))
        except* OSError:
            pass  # either end hung up, which is then true of both
        finally:
            self.cut()

    def cut(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    async def _pass(self, way: Way, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        loop, conditions = asyncio.get_running_loop(), self._proxy._ways[way]
        waiting: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(QUEUED_FRAMES_MAX)

        async def read() -> None:
            async for frame in _frames(reader):
                await waiting.put((loop.time() + conditions.delay_s, frame))
            await waiting.put((loop.time() + conditions.delay_s, b""))

        async def hand_on() -> None:
            while True:
                due_s, frame = await waiting.get()
                await asyncio.sleep(due_s - loop.time())
                await conditions.flowing.wait()
                if not frame:
                    writer.write_eof()
                    return
                code = self._code(way, frame)
                rule = self._proxy._judge(way, code)
                if rule is None:
                    self._proxy.passed[way, code] += 1
                    await _write(writer, frame, conditions.bytes_per_s)
                elif rule.cuts:
                    await _write(writer, frame[: len(frame) // 2], conditions.bytes_per_s)
                    writer.close()
                    await writer.wait_closed()
                    raise ConnectionAbortedError("cut within a frame")

        async with asyncio.TaskGroup() as both:
            both.create_task(read())
            both.create_task(hand_on())

    def _code(self, way: Way, frame: bytes) -> int:
        """The request's code, be this the request or its reply."""
        try:
            command: Command = decode(frame, HEADER_BYTES_MAX)
        except RemoteProtocolError:
            return NO_CODE
        if way == "replies" and command.is_response:
            return self._asked.pop(command.opaque, NO_CODE)
        if way == "requests" and not (command.is_response or command.is_oneway):
            self._asked[command.opaque] = command.code
        return command.code


async def _frames(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """Whole frames as they come; what is none, and what a connection ends with, as it is."""
    buffer, is_framed = bytearray(), True
    while data := await reader.read(READ_BYTES):
        buffer += data
        while is_framed:
            try:
                size = frame_size(buffer)
            except RemoteProtocolError:
                is_framed = False
                break
            if not size or len(buffer) < size:
                break
            yield bytes(buffer[:size])
            del buffer[:size]
        if not is_framed:
            yield bytes(buffer)
            buffer.clear()
    if buffer:
        yield bytes(buffer)


async def _write(writer: asyncio.StreamWriter, data: bytes, bytes_per_s: float | None) -> None:
    step = len(data) if bytes_per_s is None else max(1, int(bytes_per_s / PIECES_PER_S))
    for at in range(0, len(data), step):
        piece = data[at : at + step]
        writer.write(piece)
        await writer.drain()
        if bytes_per_s is not None:
            await asyncio.sleep(len(piece) / bytes_per_s)
