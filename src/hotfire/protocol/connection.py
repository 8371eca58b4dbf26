"""A stream of bytes as a stream of Commands, for one direction of one connection.

Owns the splitting of chunks into frames and the memory that takes. What is buffered is what was received,
never what was announced: of a frame longer than GATHERED_BYTES so much is gathered first, and then memory is
taken for TAKEN_PER_BYTE bytes of its body at most for each that came. Knows no socket; give it bytes as they
come. While a long body is on its way they may as well be received where it will stay: `room` says where that
is, and `add` how many are there now.
"""

from __future__ import annotations

from collections.abc import Iterator
from io import BytesIO

from hotfire.errors import RemoteProtocolError
from hotfire.protocol.command import (
    FRAME_BYTES_MIN,
    REPLY_HEADER_BYTES_MAX,
    Buffer,
    Command,
    decode,
    decode_head,
    frame_size,
)

GATHERED_BYTES = 256 * 1024
"""Shorter frames are gathered whole. One read of a socket may give as much."""

TAKEN_PER_BYTE = 16
"""So that one full read is enough to take the memory of the longest answer to a bulk pull."""


class _Body:
    """`size` bytes, of which none is here, and which are received where they stay.

    `come` is what came of the frame before them. A BytesIO gives its memory away as bytes without a copy. It
    fills it with zeros before: a hundredth of the time that reading in bulk takes.
    """

    def __init__(self, size: int, come: int) -> None:
        self._size, self._come, self._taken = size, come, 0
        self._bytes = BytesIO()
        self.filled = 0

    def room(self) -> memoryview:
        if self.filled == self._taken:
            self._taken = min(self._size, self._come * TAKEN_PER_BYTE)
            self._bytes.seek(self._taken - 1)
            self._bytes.write(b"\0")
        return self._bytes.getbuffer()[self.filled :]

    def add(self, count: int) -> bytes | None:
        self.filled += count
        self._come += count
        assert self.filled <= self._taken, "no more than there was room for"
        return self._bytes.getvalue() if self.filled == self._size else None


class FrameReader:
    """Splits whatever chunks arrive into Commands.

    >>> from hotfire.protocol.command import Command, encode
    >>> reader, frame = FrameReader(), encode(Command(105, opaque=7))
    >>> [command.opaque for chunk in (frame[:5], frame[5:] + frame) for command in reader.receive_data(chunk)]
    [7, 7]
    """

    __slots__ = ("_body", "_broken", "_buffer", "_head", "_head_bytes")

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._head: Command | None = None  # there while its body, a long one, is on its way
        self._head_bytes = 0
        self._body: _Body | None = None
        self._broken: str | None = None

    @property
    def buffered(self) -> int:
        """Bytes received that are not yet part of a returned Command."""
        if self._body is None:
            return len(self._buffer)
        return self._head_bytes + self._body.filled

    def room(self) -> memoryview | None:
        """Where the next bytes belong while a long body is on its way; let go of it before `add`."""
        return None if self._body is None else self._body.room()

    def add(self, count: int) -> Command | None:
        """So many bytes are in `room` now: the command that they complete."""
        assert self._body is not None, "nobody asked for its room"
        body = self._body.add(count)
        if body is None:
            return None
        command, self._head, self._body = self._head, None, None
        assert command is not None
        command.body = body
        return command

    def receive_data(self, data: Buffer) -> Iterator[Command]:
        """The commands that `data` completes. Iterate at once, to the end; then what is left of it is kept.

        An impossible length is reported as soon as its four bytes are here, after the sound commands
        before it; from then on every call raises, since no frame boundary can be found again.
        """
        if self._broken is not None:
            raise RemoteProtocolError(self._broken)
        return self._commands(memoryview(data))

    def _commands(self, data: memoryview) -> Iterator[Command]:
        at, end = 0, len(data)
        try:
            while True:
                if self._body is not None:
                    if at == end:
                        return
                    with self._body.room() as room:
                        count = min(len(room), end - at)
                        room[:count] = data[at : at + count]
                    at += count
                    command = self.add(count)
                    if command is not None:
                        yield command
                elif self._buffer:
                    missing = _wanted(self._buffer, 0) - len(self._buffer)
                    if missing <= 0:
                        command = self._take_kept()
                        if command is not None:
                            yield command
                    elif at < end:
                        piece = data[at : at + missing]
                        self._buffer += piece
                        at += len(piece)
                    else:
                        return
                else:
                    size = frame_size(data, at)
                    if 0 < size <= end - at:
                        command = decode(data[at : at + size], REPLY_HEADER_BYTES_MAX)  # replies come here
                        at += size
                        yield command
                    elif end - at >= _wanted(data, at):
                        self._begin(data[at:])
                        at = end
                    else:
                        return
        except RemoteProtocolError as error:
            self._broken = str(error)
            self._buffer, self._head, self._body = bytearray(), None, None
            raise
        finally:
            if self._broken is None:
                self._buffer += data[at:]

    def _take_kept(self) -> Command | None:
        """The frame that was kept, if it is whole now; of a long one the body begins."""
        size, command = frame_size(self._buffer), None
        # The views are let go before anybody goes on: a bytearray with views cannot grow.
        with memoryview(self._buffer) as kept:
            if size <= len(kept):
                with kept[:size] as frame:
                    command = decode(frame, REPLY_HEADER_BYTES_MAX)
            else:
                self._begin(kept)
        del self._buffer[:size]
        return command

    def _begin(self, frame: memoryview) -> None:
        """A long frame, not whole, of which as much is here as is wanted."""
        self._head, self._head_bytes = decode_head(frame, REPLY_HEADER_BYTES_MAX)
        self._body = _Body(frame_size(frame) - self._head_bytes, len(frame))
        with frame[self._head_bytes :] as come:
            if come:
                with self._body.room() as room:
                    room[: len(come)] = come
                self._body.add(len(come))


def _wanted(source: Buffer, at: int) -> int:
    """How much of the frame at `at` is to be here before anything is done about it."""
    size = frame_size(source, at)
    if len(source) - at < FRAME_BYTES_MIN:
        return FRAME_BYTES_MIN
    if size <= GATHERED_BYTES:
        return size
    header_bytes = int.from_bytes(source[at + 5 : at + 8], "big")
    return min(size, max(GATHERED_BYTES, FRAME_BYTES_MIN + min(header_bytes, REPLY_HEADER_BYTES_MAX)))
