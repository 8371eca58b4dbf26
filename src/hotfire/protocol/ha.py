"""The stream between a master and a slave that copies its log: bytes in, events out, every length bounded.

    slave -> master     int64 offset                                   up to where the slave has the log
    master -> slave     int64 offset, int32 size, then `size` bytes    log bytes at `offset`; 0 is a heartbeat

No negotiation, no serialisation: this is what Apache's brokers speak. Knows no sockets, no log and no time.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from hotfire.errors import RemoteProtocolError

_REPORT = struct.Struct(">q")
_HEADER = struct.Struct(">qi")
REPORT_BYTES, HEADER_BYTES = _REPORT.size, _HEADER.size
BATCH_BYTES_MAX = 4 << 20
"""Of one batch, whatever the master is set to: the usual is 32 KiB."""


class Batch(NamedTuple):
    """Log bytes that lie at `offset` in the master's log; none of them is a heartbeat."""

    offset: int
    data: bytes


def encode_report(offset: int) -> bytes:
    return _REPORT.pack(offset)


def encode_header(offset: int, size: int) -> bytes:
    """
    >>> encode_header(1234567, 0).hex()
    '000000000012d68700000000'
    """
    return _HEADER.pack(offset, size)


class ReportReader:
    """What a master reads of one slave."""

    def __init__(self) -> None:
        self._rest = b""

    def receive(self, data: bytes | memoryview) -> list[int]:
        """The offsets reported, oldest first."""
        data = self._rest + bytes(data)
        whole = len(data) - len(data) % REPORT_BYTES
        self._rest = data[whole:]
        reports = [offset for (offset,) in _REPORT.iter_unpack(data[:whole])]
        if reports and min(reports) < 0:
            raise RemoteProtocolError(f"a slave reports offset {min(reports)}: no log has one below 0")
        return reports


class BatchReader:
    """What a slave reads of its master. Grows with what came, never with what was announced."""

    def __init__(self) -> None:
        self._data = bytearray()

    def receive(self, data: bytes | memoryview) -> list[Batch]:
        """The batches that are whole, in order."""
        self._data += data
        batches, at = [], 0
        while len(self._data) - at >= HEADER_BYTES:
            offset, size = _HEADER.unpack_from(self._data, at)
            if offset < 0 or not 0 <= size <= BATCH_BYTES_MAX:
                raise RemoteProtocolError(
                    f"the master announces {size} bytes at offset {offset}: a batch has 0 to "
                    f"{BATCH_BYTES_MAX} bytes; is that its haListenPort?"
                )
            end = at + HEADER_BYTES + size
            if len(self._data) < end:
                break
            batches.append(Batch(offset, bytes(self._data[at + HEADER_BYTES : end])))
            at = end
        del self._data[:at]
        return batches
