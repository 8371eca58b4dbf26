"""Reading a stretch of the log record by record, as recovery needs it: what is there, and where it stops.

`scan_records` is the compiled scanner where there is one; `scan_records_plain` is its specification.
"""

from __future__ import annotations

import struct
import sys
from typing import NamedTuple

from hotfire import core
from hotfire.errors import RecordInvalid
from hotfire.protocol.record import (
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    RECORD_BYTES_MIN,
    Buffer,
    decode_record,
    key_hash,
    keys_of,
    parse_properties,
    record_checksum_ok,
    tags_code,
)

_SIZE_AND_MAGIC = struct.Struct(">II")
NEVER = (1 << 63) - 1
"""Log offset behind every record: none needs to end in its checksum."""
COUNT_ALL = sys.maxsize


class Scanned(NamedTuple):
    """What a queue entry and the recovery story need of one record."""

    physical: int
    size: int
    topic: bytes
    queue_id: int
    queue_offset: int
    tags: int
    store_timestamp: int
    sys_flag: int
    key_hashes: tuple[int, ...]


def scan_records(
    buffer: Buffer, base: int, verify: bool, summed_from: int = NEVER, count_max: int = COUNT_ALL
) -> tuple[list[Scanned], int, str]:
    """Records from the start of `buffer`, which lies at log offset `base`; bytes they take; why it stopped.

    Records at or behind log offset `summed_from` are known to have been written with a checksum over all of
    them: one that lacks it was torn. The reason: "partial" (the buffer ends), "blank" (rest of the segment
    unused), "end" (zeros), "enough" (`count_max` of them) or the fault.
    """
    if not core.COMPILED:
        return scan_records_plain(buffer, base, verify, summed_from, count_max)
    entries, consumed, reason = core.scan_records(buffer, base, verify, summed_from, count_max)
    return [Scanned._make(entry) for entry in entries], consumed, reason


def scan_records_plain(
    buffer: Buffer, base: int, verify: bool, summed_from: int = NEVER, count_max: int = COUNT_ALL
) -> tuple[list[Scanned], int, str]:
    view = memoryview(buffer)
    entries: list[Scanned] = []
    at = 0
    while True:
        if len(entries) >= count_max:
            return entries, at, "enough"
        if len(view) - at < _SIZE_AND_MAGIC.size:
            return entries, at, "partial"
        size, magic = _SIZE_AND_MAGIC.unpack_from(view, at)
        if magic == MAGIC_BLANK:
            return entries, at, "blank" if size >= _SIZE_AND_MAGIC.size else "blank size"
        if magic not in (MAGIC_V1, MAGIC_V2):
            return entries, at, "end" if magic == size == 0 else "magic"
        if size < RECORD_BYTES_MIN or size > 0x7FFFFFFF:
            return entries, at, "size"
        if len(view) - at < size:
            return entries, at, "partial"
        raw = view[at : at + size]
        try:
            record = decode_record(raw, check_crc=False)
        except RecordInvalid:
            return entries, at, "layout"
        if verify and not record_checksum_ok(raw, require_crc=base + at >= summed_from):
            return entries, at, "checksum"
        if record.physical_offset != base + at:
            return entries, at, "physical offset"
        properties = parse_properties(record.properties)
        entries.append(
            Scanned(
                record.physical_offset,
                size,
                record.topic.encode(),
                record.queue_id,
                record.queue_offset,
                tags_code(properties),
                record.store_timestamp,
                record.sys_flag,
                tuple(key_hash(record.topic, key) for key in keys_of(properties)),
            )
        )
        at += size
