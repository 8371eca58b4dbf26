"""How far the timers' files surely are: `config/timercheck`.

     0  8  time in ms of the first slot that is not delivered
     8  8  position in the timer log up to which it was synced
    16  8  offset in the timer topic's queue: messages below it have their units below that position
    24  8  the same, as a slave would learn it from its master
    32 24  version: state, timestamp, counter
    64  8  magic "HOTTIME1"                          (ours from here on, unknown to the reference)
    72  4  CRC-32 of bytes 0..55

4096 bytes, of which the first sector is written in place, whole or not at all. When the reference's broker
has written since, the checksum no longer agrees, and the timer log is gone through as its own start would.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass

from hotfire.store.disk import Disk

FILE = "config/timercheck"
FILE_BYTES, SECTOR_BYTES = 4096, 512
MAGIC, MAGIC_AT = b"HOTTIME1", 64
_FIELDS = struct.Struct(">qqqqqqq")
BODY_BYTES = _FIELDS.size


@dataclass(frozen=True, slots=True)
class TimerCheck:
    read_ms: int = 0
    log_end: int = 0
    queue_offset: int = 0
    master_offset: int = 0
    state_version: int = 0
    timestamp: int = 0
    counter: int = 0
    is_ours: bool = False

    def body(self) -> bytes:
        """As slaves ask for it, and as it begins in the file."""
        return _FIELDS.pack(
            self.read_ms, self.log_end, self.queue_offset, self.master_offset,
            self.state_version, self.timestamp, self.counter,
        )  # fmt: skip

    def encode(self) -> bytes:
        body = self.body()
        out = body.ljust(MAGIC_AT, b"\0") + MAGIC + zlib.crc32(body).to_bytes(4)
        return out.ljust(SECTOR_BYTES, b"\0")

    @classmethod
    def decode(cls, data: bytes | None) -> TimerCheck | None:
        """None when there is none, or what is there cannot be one."""
        if data is None or len(data) < BODY_BYTES:
            return None
        read_ms, end, offset, master, state, timestamp, counter = found = _FIELDS.unpack_from(data)
        if min(found[:4]) < 0 or not any(found):
            return None
        mark = MAGIC + zlib.crc32(data[:BODY_BYTES]).to_bytes(4)
        is_ours = data[MAGIC_AT : MAGIC_AT + len(mark)] == mark
        return cls(read_ms, end, offset, master, state, timestamp, counter, is_ours)


class TimerCheckFile:
    """The file, made when it is first written."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._fd = -1

    def read(self) -> TimerCheck | None:
        return TimerCheck.decode(self._disk.read_whole(FILE))

    def write(self, check: TimerCheck) -> None:
        """On the disk when this returns."""
        if self._fd < 0:
            self._open()
        self._disk.write(self._fd, check.encode(), 0)
        self._disk.sync(self._fd)

    def _open(self) -> None:
        found = self._disk.read_whole(FILE)
        if found is not None and len(found) == FILE_BYTES:
            self._fd = self._disk.open(FILE)
            return
        self._disk.make_directory("config")
        self._fd = self._disk.allocate(FILE, FILE_BYTES)

    def close(self) -> None:
        if self._fd >= 0:
            self._disk.close(self._fd)
            self._fd = -1
