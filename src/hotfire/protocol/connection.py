"""A stream of bytes as a stream of Commands, for one direction of one connection.

Owns the splitting of chunks into frames and the memory that takes: what is buffered is what was
received, never what was announced. Knows no socket; give it bytes as they come.
"""

from __future__ import annotations

from collections.abc import Iterator

from hotfire.errors import RemoteProtocolError
from hotfire.protocol.command import REPLY_HEADER_BYTES_MAX, Buffer, Command, decode, frame_size


class FrameReader:
    """Splits whatever chunks arrive into Commands.

    >>> from hotfire.protocol.command import Command, encode
    >>> reader, frame = FrameReader(), encode(Command(105, opaque=7))
    >>> [command.opaque for chunk in (frame[:5], frame[5:] + frame) for command in reader.receive_data(chunk)]
    [7, 7]
    """

    __slots__ = ("_broken", "_buffer")

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._broken: str | None = None

    @property
    def buffered(self) -> int:
        """Bytes received that are not yet part of a returned Command."""
        return len(self._buffer)

    def receive_data(self, data: Buffer) -> Iterator[Command]:
        """The commands that `data` completes. Iterate to the end before the next call.

        An impossible length is reported as soon as its four bytes are here, after the sound commands
        before it; from then on every call raises, since no frame boundary can be found again.
        """
        if self._broken is not None:
            raise RemoteProtocolError(self._broken)
        self._buffer += data
        return self._commands()

    def _commands(self) -> Iterator[Command]:
        buffer = self._buffer
        position = 0
        try:
            while True:
                size = frame_size(buffer, position)
                if size == 0 or len(buffer) - position < size:
                    return
                # The view is let go before we yield: a bytearray with views cannot grow.
                with memoryview(buffer) as whole, whole[position : position + size] as frame:
                    command = decode(frame, REPLY_HEADER_BYTES_MAX)  # what comes here are replies
                position += size
                yield command
        except RemoteProtocolError as error:
            self._broken = str(error)
            self._buffer = bytearray()
            raise
        finally:
            if self._broken is None:
                del buffer[:position]
