"""The checkpoint file: how far the log and what is derived from it were surely on disk.

    at  size  field
     0     8  store time of the last record synced            (the reference's three, then two of 5.x)
     8     8  store time of the last queue entry synced
    16     8  store time of the last index entry synced
    24     8  offset flushed on the master
    32     8  confirmed offset
    64     8  magic "HOTFIRE1"                                (ours, in bytes the reference keeps and ignores)
    72     8  log offset up to which queue entries are synced
    80     8  log offset synced when this was written
    88     8  queue entries that point below the offset at 72
    96     8  log offset from which on every record ends in its checksum
   104     8  key index entries of records below the offset at 72
   112     8  bytes of the largest turn that was written at once
   120     4  CRC-32 of bytes 0..39 and 64..119
   512     8  magic "HOTMARK1"                                (ours too: after every sync of the log)
   520     8  log offset synced
   528     4  CRC-32 of bytes 512..527

4096 bytes in all, written in place: each of the two parts lies within one sector, which a disk writes as a
whole or not at all. The mark lags behind by seconds when the power fails, and by nothing when only the
process does; that it is behind the truth is no harm, and it is never ahead. The checksum covers the
reference's fields too: when its broker has written to the store since, they differ, and our marks no longer
say anything about the log. Then, or when the file is damaged, recovery goes without them.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass, replace

from hotfire.store.disk import Disk
from hotfire.store.scan import NEVER

FILE = "checkpoint"
CHECKPOINT_BYTES = 4096
MAGIC = b"HOTFIRE1"
_TIMES = struct.Struct(">qqqqq")
_OURS = struct.Struct(">8sqqqqqq")
_CRC = struct.Struct(">I")
MAGIC_AT = _OURS_AT = 64
SECTOR_BYTES = 512
MARK_AT, MARK_MAGIC = 512, b"HOTMARK1"
_MARK = struct.Struct(">8sqI")
MARK_BYTES = _MARK.size


@dataclass(frozen=True, slots=True)
class Checkpoint:
    log_timestamp: int = 0
    queue_timestamp: int = 0
    index_timestamp: int = 0
    master_flushed: int = 0
    confirmed: int = 0
    derived: int = 0
    durable: int = 0
    entries: int = 0
    summed_from: int = NEVER
    keys: int = 0
    turn_bytes: int = 0
    is_ours: bool = False
    """Our marks are there and speak of the log as it is."""

    def encode(self) -> bytes:
        """The first sector of the file."""
        out = bytearray(SECTOR_BYTES)
        _TIMES.pack_into(
            out,
            0,
            self.log_timestamp,
            self.queue_timestamp,
            self.index_timestamp,
            self.master_flushed,
            self.confirmed,
        )
        ours = _OURS.pack(
            MAGIC, self.derived, self.durable, self.entries, self.summed_from, self.keys, self.turn_bytes
        )
        out[_OURS_AT : _OURS_AT + len(ours)] = ours
        _CRC.pack_into(out, _OURS_AT + len(ours), zlib.crc32(ours, zlib.crc32(out[: _TIMES.size])))
        return bytes(out)

    @classmethod
    def decode(cls, data: bytes | None) -> Checkpoint:
        if data is None or len(data) < _OURS_AT + _OURS.size + _CRC.size:
            return cls()
        log_at, queue_at, index_at, flushed, confirmed = _TIMES.unpack_from(data)
        reference = cls(log_at, queue_at, index_at, flushed, confirmed)
        magic, derived, durable, entries, summed_from, keys, turn_bytes = _OURS.unpack_from(data, _OURS_AT)
        ours = data[_OURS_AT : _OURS_AT + _OURS.size]
        (crc,) = _CRC.unpack_from(data, _OURS_AT + _OURS.size)
        if magic != MAGIC or crc != zlib.crc32(ours, zlib.crc32(data[: _TIMES.size])):
            return reference
        return replace(
            reference,
            is_ours=True,
            derived=derived,
            durable=max(durable, decode_mark(data)),
            entries=entries,
            summed_from=summed_from,
            keys=keys,
            turn_bytes=turn_bytes,
        )

    def without_marks(self) -> Checkpoint:
        """Only what the reference's broker says: it had the store last."""
        times = self.log_timestamp, self.queue_timestamp, self.index_timestamp
        return Checkpoint(*times, self.master_flushed, self.confirmed)


def encode_mark(durable: int) -> bytes:
    head = _MARK.pack(MARK_MAGIC, durable, 0)[:-4]
    return head + zlib.crc32(head).to_bytes(4)


def decode_mark(data: bytes) -> int:
    """The offset the mark says was synced, 0 without a sound one."""
    if len(data) < MARK_AT + _MARK.size:
        return 0
    magic, durable, crc = _MARK.unpack_from(data, MARK_AT)
    head = data[MARK_AT : MARK_AT + _MARK.size - 4]
    return int(durable) if magic == MARK_MAGIC and crc == zlib.crc32(head) else 0


class CheckpointFile:
    """The file, open for as long as the store is."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self.fd = -1

    def open(self) -> Checkpoint:
        """What it says; made, or brought to its size, when it is not there or not whole."""
        found = self._disk.read_whole(FILE)
        if found is None or len(found) != CHECKPOINT_BYTES:
            self.fd = self._disk.allocate(FILE, CHECKPOINT_BYTES)
            if found:
                self._disk.write(self.fd, found[:CHECKPOINT_BYTES], 0)
        else:
            self.fd = self._disk.open(FILE)
        return Checkpoint.decode(found)

    def write(self, checkpoint: Checkpoint) -> None:
        """On the disk when this returns."""
        self._disk.write(self.fd, checkpoint.encode(), 0)
        self._disk.sync(self.fd)

    def mark(self, durable: int) -> None:
        """The log is synced up to `durable`."""
        self._disk.write(self.fd, encode_mark(durable), MARK_AT)

    def close(self) -> None:
        if self.fd >= 0:
            self._disk.close(self.fd)
            self.fd = -1
