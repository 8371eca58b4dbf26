"""A dialled connection that carries bytes and nothing else: for a wire without frames of ours."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import cast

from hotfire.errors import ConnectError
from hotfire.net.peer import split_address


class Stream(asyncio.Protocol):
    """Tells what arrives, and when it is over. Use it from the loop that dialled it."""

    def __init__(self, on_data: Callable[[bytes], None]) -> None:
        """Not for callers: use `connect`."""
        self._on_data = on_data
        self._transport: asyncio.Transport | None = None
        self._closed: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    @classmethod
    async def connect(cls, address: str, on_data: Callable[[bytes], None], *, timeout_s: float) -> Stream:
        """Dial `host:port`; ConnectError when it cannot be reached in time."""
        host, port = split_address(address)
        stream = cls(on_data)
        try:
            async with asyncio.timeout(timeout_s):
                made = await asyncio.get_running_loop().create_connection(lambda: stream, host, port)
        except TimeoutError:
            raise ConnectError(f"{address}: no connection within {timeout_s:.3g} s") from None
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno else str(error)
            raise ConnectError(f"{address}: {reason}") from None
        stream._transport = made[0]  # a simulated one tells the protocol a moment later
        return stream

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if not self._closed.done():
            self._on_data(data)

    def connection_lost(self, error: Exception | None) -> None:
        self._end("the other side closed the connection" if error is None else str(error))

    def write(self, data: bytes) -> None:
        if self._transport is not None and not self._closed.done():
            self._transport.write(data)

    def pause(self) -> None:
        """Take nothing more from the other side until `resume`."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def abort(self, reason: str) -> None:
        """Hang up at once."""
        self._end(reason)
        if self._transport is not None:
            self._transport.abort()

    def _end(self, reason: str) -> None:
        if not self._closed.done():
            self._closed.set_result(reason)

    async def wait_closed(self) -> str:
        """Why it is over, once it is."""
        return await asyncio.shield(self._closed)
