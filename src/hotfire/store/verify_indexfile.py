"""One key index file, and beside it in memory what it must be, made by the index itself of the log's keys.

Knows how to compare the two and where they differ; which keys belong into the file is `verify_index`'s work.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from hotfire import core
from hotfire.store.config import ENTRY_BYTES
from hotfire.store.disk import Mapped
from hotfire.store.findings import Findings
from hotfire.store.keyindex import HEADER_BYTES, SLOT_BYTES
from hotfire.store.keyindex import ROOT as INDEX_ROOT
from hotfire.store.layout import INDEX_ENTRY, INDEX_HEADER, Layout

Key = tuple[int, int, int]
"""Hash, physical offset, store time."""

HEADER_FIELDS = ("begin time", "end time", "begin offset", "end offset", "used slots", "next entry")
HEADER_AT = (0, 8, 16, 24, 32, 36)
ENTRY_FIELDS = ("key hash", "offset", "seconds", "previous entry")
ENTRY_FIELDS_AT = (0, 4, 12, 16)
COMPARE_BYTES = 64 << 10
ZERO_ENTRY = bytes(ENTRY_BYTES)


def index_base(layout: Layout) -> int:
    assert layout.index_shape is not None
    return HEADER_BYTES + layout.index_shape[0] * SLOT_BYTES


class IndexFile:
    """One file, and beside it in memory what it must be."""

    def __init__(self, layout: Layout, findings: Findings, name: str) -> None:
        assert layout.index_shape is not None
        self._layout, self._findings = layout, findings
        self._slots, self._entries = layout.index_shape
        self._base = index_base(layout)
        self.file = f"{INDEX_ROOT}/{name}"
        self._actual = layout.disk.map_to_read(self.file)
        self._view = memoryview(self._actual)
        self._memory: Mapped = layout.disk.scratch(len(self._actual))
        self._model = core.KeyIndex(self._memory, self._slots, self._entries, self._entries)
        self._blamed: set[int] = set()
        self._is_time_known = True

    @property
    def next(self) -> int:
        return self._model.next

    @property
    def room(self) -> int:
        return self._entries - self._model.next

    def place(self, number: int) -> tuple[str, int]:
        return self.file, self._base + number * ENTRY_BYTES

    def raw(self, number: int) -> bytes:
        at = self._base + number * ENTRY_BYTES
        return bytes(self._view[at : at + ENTRY_BYTES])

    def matches(self, keys: list[Key]) -> bool:
        at = self._base + self.next * ENTRY_BYTES
        found = INDEX_ENTRY.iter_unpack(self._view[at : at + len(keys) * ENTRY_BYTES])
        return [entry[:2] for entry in found] == [key[:2] for key in keys]

    def leads_on(self, keys: list[Key], at: int) -> bool:
        """Whether the entry behind this one is that of the key behind this one."""
        if at + 1 >= len(keys) or self.room < 2:
            return False
        return INDEX_ENTRY.unpack(self.raw(self.next + 1))[:2] == keys[at + 1][:2]

    # --- what it must be ---

    def put_all(self, keys: list[Key]) -> None:
        put = self._model.put
        for hash_, physical, timestamp in keys:
            put(hash_, physical, timestamp)
        self._is_time_known = True
        self._findings.keys += len(keys)

    def put(self, key: Key) -> None:
        self.put_all([key])

    def put_found(self, found: tuple[int, int, int, int]) -> None:
        """Take an entry as it is: its record cannot be asked."""
        begin = INDEX_HEADER.unpack_from(self._view)[0]
        self.put((found[0], found[1], begin + found[2] * 1000))
        self._is_time_known = False

    def skip_older(self, log_start: int) -> None:
        """Take the entries of records that are no longer in the log as they are."""
        while self.room and log_start:
            raw = self.raw(self.next)
            found = INDEX_ENTRY.unpack(raw)
            if raw == ZERO_ENTRY or found[1] >= log_start:
                return
            self.put_found(found)

    def blame(self, number: int, found: tuple[int, int, int, int], wanted: Key) -> None:
        self._blamed.add(number)
        is_hash = found[0] != wanted[0]
        name, there, should = (
            ("key hash", found[0], wanted[0]) if is_hash else ("offset", found[1], wanted[1])
        )
        file, at = self.place(number)
        self._findings.derived_damage(
            wanted[1], file, at + (0 if is_hash else 4), f"entry {number} has {name} {there}, not {should}"
        )

    # --- comparing ---

    def finish(self, time_before: int | None) -> int:
        """Compare all of it; `time_before` is the end time of the file before, and this one's is returned."""
        _, end_time, *_ = INDEX_HEADER.unpack_from(self._memory)
        self._compare_header()
        self._compare_slots()
        self._compare_entries(time_before)
        self._check_zeros()
        self._view.release()
        self._actual.close()
        self._model.close()
        self._memory.close()
        return int(end_time)

    def _tell(self, position: int, problem: str) -> None:
        self._findings.derived_damage(self._model.end_offset, self.file, position, problem)

    def _compare_header(self) -> None:
        found, wanted = INDEX_HEADER.unpack_from(self._view), INDEX_HEADER.unpack_from(self._memory)
        last = INDEX_ENTRY.unpack(self.raw(self.next - 1))
        coarse = wanted[0] + last[2] * 1000  # all a repair can know of the last entry's time
        is_empty = self.next <= 1
        for name, at, there, should in zip(HEADER_FIELDS, HEADER_AT, found, wanted, strict=True):
            if there == should or (name == "end time" and there == coarse):
                continue
            if name == "end time" and not self._is_time_known and 0 <= there - coarse < 1000:
                continue
            if is_empty and name != "used slots" and not (name == "next entry" and there > 1):
                continue
            self._tell(at, f"header has {name} {there}, its entries make it {should}")

    def _differing(self, low: int, high: int, unit: int) -> Iterator[int]:
        """Positions in [low, high) of units that are not what they must be."""
        model = memoryview(self._memory)
        step = COMPARE_BYTES - COMPARE_BYTES % unit
        try:
            for at in range(low, high, step):
                end = min(at + step, high)
                if self._view[at:end] != model[at:end]:
                    yield from (
                        n for n in range(at, end, unit) if self._view[n : n + unit] != model[n : n + unit]
                    )
        finally:
            model.release()

    def _compare_slots(self) -> None:
        for at in self._differing(HEADER_BYTES, self._base, SLOT_BYTES):
            (there,) = struct.unpack_from(">i", self._view, at)
            (should,) = struct.unpack_from(">i", self._memory, at)
            slot = (at - HEADER_BYTES) // SLOT_BYTES
            self._tell(at, f"slot {slot} leads to entry {there}, its newest is {should}")

    def _compare_entries(self, time_before: int | None) -> None:
        first, end = self._base + ENTRY_BYTES, self._base + self.next * ENTRY_BYTES
        for at in self._differing(first, end, ENTRY_BYTES):
            number = (at - self._base) // ENTRY_BYTES
            found, wanted = INDEX_ENTRY.unpack_from(self._view, at), INDEX_ENTRY.unpack_from(self._memory, at)
            if number == 1 and self._is_counted_from(time_before, found, wanted):
                continue
            fields = zip(ENTRY_FIELDS, ENTRY_FIELDS_AT, found, wanted, strict=True)
            for name, field_at, there, should in list(fields)[2 if number in self._blamed else 0 :]:
                if there != should:
                    problem = f"entry {number} has {name} {there}, not {should}"
                    self._findings.derived_damage(wanted[1], self.file, at + field_at, problem)

    def _is_counted_from(
        self,
        time_before: int | None,
        found: tuple[int, int, int, int],
        wanted: tuple[int, int, int, int],
    ) -> bool:
        """Apache counts a file's first entry from the last time of the file before, which may be gone."""
        if (*found[:2], found[3]) != (*wanted[:2], wanted[3]):
            return False
        if time_before is None:
            return self._layout.log_start > 0 and found[2] >= 0
        begin: int = INDEX_HEADER.unpack_from(self._memory)[0]
        return found[2] == (begin - time_before) // 1000

    def _check_zeros(self) -> None:
        disk, position = self._layout.disk, None
        fd = disk.open_to_read(self.file)
        try:
            if any(self._view[self._base : self._base + ENTRY_BYTES]):
                self._tell(self._base, "entry 0, which is never used, is not empty")
            for at, step in disk.written_ranges(fd, self._base + self.next * ENTRY_BYTES, len(self._view)):
                data = disk.read(fd, step, at)
                rest = data.lstrip(b"\0")
                if rest:
                    position = at + len(data) - len(rest)
                    break
        finally:
            disk.close(fd)
        if position is not None:
            self._tell(position, f"bytes behind the last entry, {self.next - 1}, are not zero")
