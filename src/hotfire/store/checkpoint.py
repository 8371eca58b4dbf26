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
   112     4  CRC-32 of bytes 0..39 and 64..111

4096 bytes in all. The checksum covers the reference's fields too: when its broker has written to the store
since, they differ, and our marks no longer say anything about the log. Then, or when the file is damaged,
recovery goes without them.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass, replace

from hotfire.store.scan import NEVER

FILE = "checkpoint"
CHECKPOINT_BYTES = 4096
MAGIC = b"HOTFIRE1"
_TIMES = struct.Struct(">qqqqq")
_OURS = struct.Struct(">8sqqqqq")
_CRC = struct.Struct(">I")
MAGIC_AT = _OURS_AT = 64


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
    is_ours: bool = False
    """Our marks are there and speak of the log as it is."""

    def encode(self) -> bytes:
        out = bytearray(CHECKPOINT_BYTES)
        _TIMES.pack_into(
            out,
            0,
            self.log_timestamp,
            self.queue_timestamp,
            self.index_timestamp,
            self.master_flushed,
            self.confirmed,
        )
        ours = _OURS.pack(MAGIC, self.derived, self.durable, self.entries, self.summed_from, self.keys)
        out[_OURS_AT : _OURS_AT + len(ours)] = ours
        _CRC.pack_into(out, _OURS_AT + len(ours), zlib.crc32(ours, zlib.crc32(out[: _TIMES.size])))
        return bytes(out)

    @classmethod
    def decode(cls, data: bytes | None) -> Checkpoint:
        if data is None or len(data) < _OURS_AT + _OURS.size + _CRC.size:
            return cls()
        log_at, queue_at, index_at, flushed, confirmed = _TIMES.unpack_from(data)
        reference = cls(log_at, queue_at, index_at, flushed, confirmed)
        magic, derived, durable, entries, summed_from, keys = _OURS.unpack_from(data, _OURS_AT)
        ours = data[_OURS_AT : _OURS_AT + _OURS.size]
        (crc,) = _CRC.unpack_from(data, _OURS_AT + _OURS.size)
        if magic != MAGIC or crc != zlib.crc32(ours, zlib.crc32(data[: _TIMES.size])):
            return reference
        return replace(
            reference,
            is_ours=True,
            derived=derived,
            durable=durable,
            entries=entries,
            summed_from=summed_from,
            keys=keys,
        )
