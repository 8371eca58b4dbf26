"""Plain-Python twin of the compiled key index: one file of header, hash slots and chained entries."""

from __future__ import annotations

import struct
from typing import Any

HEADER = struct.Struct(">qqqqii")  # begin time, end time, begin offset, end offset, used slots, next entry
SLOT = struct.Struct(">i")
ENTRY = struct.Struct(">Iqii")  # key hash, physical offset, seconds since begin, entry before it in the slot
INT32_MAX = 0x7FFFFFFF


class KeyIndex:
    """Entry 0 is never used; a slot holds the number of its newest entry, and each entry the one before."""

    def __init__(self, buffer: Any, slots: int, entries: int, reserved: int) -> None:
        self._view = memoryview(buffer)
        if len(self._view) < HEADER.size + slots * SLOT.size + entries * ENTRY.size:
            raise ValueError("index buffer is smaller than its slots and entries")
        self._slots, self._entries = slots, entries
        self.reserved = reserved
        _, self.end_timestamp, _, self.end_offset, _, following = HEADER.unpack_from(self._view)
        self.next = following if 1 <= following <= entries else 1

    def close(self) -> None:
        self._view.release()

    def begin(self, timestamp: int, offset: int) -> None:
        HEADER.pack_into(self._view, 0, timestamp, timestamp, offset, offset, 0, 1)
        self.next, self.end_offset, self.end_timestamp = 1, offset, timestamp

    @property
    def is_full(self) -> bool:
        return self.next >= self._entries or self.next >= self.reserved

    def _slot_at(self, hash_: int) -> int:
        return HEADER.size + hash_ % self._slots * SLOT.size

    def _entry_at(self, number: int) -> int:
        return HEADER.size + self._slots * SLOT.size + number * ENTRY.size

    def put(self, hash_: int, physical: int, timestamp: int) -> bool:
        if self.is_full:
            return False
        begin, _, begin_offset, _, used, _ = HEADER.unpack_from(self._view)
        (before,) = SLOT.unpack_from(self._view, self._slot_at(hash_))
        if not 0 < before <= self.next:
            before = 0
        seconds = min(max((timestamp - begin) // 1000, 0), INT32_MAX) if begin > 0 else 0
        ENTRY.pack_into(self._view, self._entry_at(self.next), hash_, physical, seconds, before)
        SLOT.pack_into(self._view, self._slot_at(hash_), self.next)
        if self.next <= 1:
            begin, begin_offset = timestamp, physical
        self.next += 1
        HEADER.pack_into(
            self._view, 0, begin, timestamp, begin_offset, physical, used + (not before), self.next
        )
        self.end_offset, self.end_timestamp = physical, timestamp
        return True

    def query(self, hash_: int, count_max: int, begin_ms: int, end_ms: int) -> list[int]:
        found: list[int] = []
        (base, *_) = HEADER.unpack_from(self._view)
        (number,) = SLOT.unpack_from(self._view, self._slot_at(hash_))
        while 0 < number < self.next and len(found) < count_max:
            key, physical, seconds, before = ENTRY.unpack_from(self._view, self._entry_at(number))
            if seconds < 0:
                break
            at = base + seconds * 1000
            if key == hash_ and begin_ms <= at <= end_ms:
                found.append(physical)
            if not 0 < before < number or at < begin_ms:  # chains only lead back
                break
            number = before
        return found

    def repair(self, below: int) -> int:
        """Keep the entries of records before `below` and make slots and header of them; how many."""
        low, high = 1, self._entries
        while low < high:
            middle = (low + high) // 2
            key, physical, seconds, _ = ENTRY.unpack_from(self._view, self._entry_at(middle))
            if (physical > 0 or key or seconds) and 0 <= physical < below:
                low = middle + 1
            else:
                high = middle
        slots_end = HEADER.size + self._slots * SLOT.size
        self._view[HEADER.size : slots_end] = bytes(slots_end - HEADER.size)
        begin, end, begin_offset, end_offset, _, _ = HEADER.unpack_from(self._view)
        header_end, header_offset, used = end, end_offset, 0
        for number in range(1, low):
            key, physical, seconds, _ = ENTRY.unpack_from(self._view, self._entry_at(number))
            (before,) = SLOT.unpack_from(self._view, self._slot_at(key))
            ENTRY.pack_into(self._view, self._entry_at(number), key, physical, seconds, before)
            SLOT.pack_into(self._view, self._slot_at(key), number)
            used += not before
            end, end_offset = begin + seconds * 1000, physical
        if header_offset == end_offset and header_end // 1000 >= end // 1000:
            end = header_end  # to the millisecond
        HEADER.pack_into(self._view, 0, begin, end, begin_offset, end_offset, used, low)
        self.next, self.end_offset, self.end_timestamp = low, end_offset, end
        return low - 1
