"""A man in the middle: stands before a name server and a broker and keeps every frame that passes.

Frames go on as they came, byte for byte, but for replies that tell a broker's address: there the address
becomes the proxy's own, so that whoever asked dials it and not the broker. Runs in a thread of its own,
because the programs that talk through it are waited for by blocking calls. Owns sockets and frames; what they
mean is for `transcripts` to say.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Literal, Self

from hotfire.errors import RemoteProtocolError
from hotfire.protocol.command import FRAME_BYTES_MAX, Command, decode

Side = Literal["namesrv", "broker"]
START_TIMEOUT_S = 10.0
READ_BYTES = 1 << 18
TELLS_ADDRESSES = (b'"brokerAddr', b'"brokerMemberGroup"')
"""What bodies with addresses in them have in common: routes, cluster tables, member groups."""


@dataclass(frozen=True)
class Frame:
    """One frame that passed: on which connection, to which server, and whether it came from the client."""

    connection: int
    side: Side
    from_client: bool
    data: bytes

    def command(self) -> Command:
        return decode(self.data)


class RecordingProxy:
    """Addresses to give to clients instead of a cluster's own.

    >>> with RecordingProxy(server.namesrv, server.broker) as proxy:           # doctest: +SKIP
    ...     run_rows("java550", proxy.namesrv, rows, out)
    ...     proxy.frames()
    """

    def __init__(self, namesrv: str, broker: str) -> None:
        self._behind: Mapping[Side, str] = {"namesrv": namesrv, "broker": broker}
        self.namesrv = self.broker = ""
        self._frames: list[Frame] = []
        self._connections = 0
        self._loop = asyncio.new_event_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._run, name="recording-proxy", daemon=True)
        self._ready = threading.Event()
        self._failure: BaseException | None = None

    def frames(self) -> list[Frame]:
        """Everything so far, in the order in which it passed."""
        return list(self._frames)

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(START_TIMEOUT_S), "the proxy did not start"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(START_TIMEOUT_S)
        if self._failure is not None and error is None:
            raise self._failure

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            servers = [self._loop.run_until_complete(self._listen(side)) for side in self._behind]
            self._ready.set()
            self._loop.run_forever()
            for server in servers:
                server.close()
            for task in self._tasks:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*self._tasks, return_exceptions=True))
        finally:
            self._loop.close()

    async def _listen(self, side: Side) -> asyncio.Server:
        server = await asyncio.start_server(
            lambda reader, writer: self._own(self._serve(side, reader, writer)),
            "127.0.0.1",
            0,
            limit=READ_BYTES,
        )
        setattr(self, side, f"127.0.0.1:{server.sockets[0].getsockname()[1]}")
        return server

    def _own(self, work: object) -> None:
        task = self._loop.create_task(work)  # type: ignore[arg-type]
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._failure = task.exception()

    async def _serve(self, side: Side, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections += 1
        number = self._connections
        host, _, port = self._behind[side].rpartition(":")
        try:
            above_reader, above_writer = await asyncio.open_connection(host, int(port), limit=READ_BYTES)
        except OSError:
            writer.close()  # as a client would see it without us
            return
        up = self._pass_on(number, side, True, reader, above_writer)
        down = self._pass_on(number, side, False, above_reader, writer)
        await asyncio.gather(up, down)

    async def _pass_on(
        self,
        number: int,
        side: Side,
        from_client: bool,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while True:
                head = await reader.readexactly(4)
                (length,) = struct.unpack(">i", head)
                if not 4 <= length <= FRAME_BYTES_MAX:
                    raise RemoteProtocolError(f"connection {number} to the {side}: a frame of {length} bytes")
                data = head + await reader.readexactly(length)
                self._frames.append(Frame(number, side, from_client, data))
                writer.write(data if from_client else self._readdressed(data))
                await writer.drain()
        with contextlib.suppress(OSError):
            writer.close()

    def _readdressed(self, data: bytes) -> bytes:
        (mark,) = struct.unpack_from(">I", data, 4)
        body_at = 8 + (mark & 0xFFFFFF)
        body = data[body_at:]
        if not any(words in body for words in TELLS_ADDRESSES):
            return data
        body = body.replace(self._behind["broker"].encode(), self.broker.encode())
        return struct.pack(">i", body_at - 4 + len(body)) + data[4:body_at] + body
