"""Queue files held against the log: every record's entry where it must be, and nothing else.

The records of a queue arrive in log order, a window at a time, and the entries they must have are compared
with the files in one piece; only a piece that differs is looked at entry by entry.
"""

from __future__ import annotations

from collections.abc import Iterator

from hotfire.store.config import ENTRY_BYTES
from hotfire.store.consumequeue import FILLER
from hotfire.store.dump import ENTRY, EXT_ADDRESS_MAX, EXT_BASE, READ_ENTRIES, ext_unit
from hotfire.store.findings import Findings
from hotfire.store.layout import Layout, QueueFiles

_ZERO = bytes(ENTRY_BYTES)
_pack = ENTRY.pack


class QueueCheck:
    """One queue. `delay_ms` is given for the delay topic's, whose entries hold the delivery time."""

    def __init__(
        self, layout: Layout, findings: Findings, files: QueueFiles, *, exists: bool, delay_ms: int | None
    ) -> None:
        self.layout = layout
        self.findings = findings
        self.files = files
        self.exists = exists
        self.delay_ms = delay_ms
        self.next = -1
        """Index of the next record's entry; negative before the first record."""
        self.pending: list[tuple[int, int, int]] = []
        self.times: list[int] = []
        self.addresses: set[int] = set()
        """Ext units that entries lead to."""
        self._missing_from: tuple[int, int] | None = None
        self._missing = 0

    @property
    def name(self) -> str:
        return f"{self.files.topic}/{self.files.queue_id}"

    # --- records ---

    def jump(self, physical: int, queue_offset: int) -> bool:
        """A record that is not the next of its queue comes; whether it may have an entry at all."""
        self.flush()
        if self.next < 0:
            self._check_others(min(self.files.files, default=0) // ENTRY_BYTES, queue_offset)
        elif queue_offset > self.next:
            self._check_others(self.next, queue_offset)
        else:
            self.findings.log_damage(
                physical,
                f"record at {physical} has queue offset {queue_offset} in {self.name}, "
                f"where {self.next} comes next",
            )
            return False
        self.next = queue_offset
        return True

    def flush(self) -> None:
        """Compare the entries of the records that came since the last time."""
        pending = self.pending
        if not pending:
            return
        first = self.next - len(pending)
        expected = b"".join([_pack(*entry) for entry in pending])
        actual = self._read(first, len(pending))
        self.findings.entries += len(pending)
        if actual != expected:
            self._compare(first, actual)
        elif self._missing:
            self._end_run()
        pending.clear()
        self.times.clear()

    def _compare(self, first: int, actual: bytes) -> None:
        for n, wanted in enumerate(self.pending):
            raw = actual[n * ENTRY_BYTES : (n + 1) * ENTRY_BYTES]
            if raw in (_ZERO, b""):
                self._miss(first + n, wanted[0])
                continue
            self._end_run()
            found = ENTRY.unpack(raw.ljust(ENTRY_BYTES, b"\0"))
            if found == wanted:
                continue
            if found[:2] == wanted[:2] and found[2] <= EXT_ADDRESS_MAX and self._ext_fits(n, found[2]):
                self.addresses.add(found[2] - EXT_BASE)
                continue
            self.findings.derived_damage(
                wanted[0],
                *self.place(first + n),
                f"entry {first + n} of {self.name} {_differs(found, wanted)}",
            )

    def _ext_fits(self, n: int, tags: int) -> bool:
        unit = ext_unit(self.layout, self.files.topic, self.files.queue_id, tags - EXT_BASE)
        if unit is None:
            return False
        return (unit["tagsCode"], unit["storeTimestamp"]) == (self.pending[n][2], self.times[n])

    # --- entries that are not there ---

    def _miss(self, index: int, physical: int) -> None:
        if self.findings.is_remade(physical):
            self.findings.undispatched += 1
            return
        if self._missing_from is None:
            self._missing_from = index, physical
        self._missing += 1

    def _end_run(self) -> None:
        if self._missing_from is None:
            return
        index, physical = self._missing_from
        what = "is missing" if self._missing == 1 else f"and the {self._missing - 1} behind it are missing"
        if not self.exists:
            what += ", there is no such queue"
        self.findings.damage(
            *self.place(index), f"entry {index} of {self.name} {what}; its record lies at {physical}"
        )
        self._missing_from, self._missing = None, 0

    # --- entries without a record ---

    def _check_others(self, low: int, high: int) -> None:
        """Entries [low, high), for which no record came: their records are gone, or a place was only kept."""
        if low < high and not self.exists:
            return
        for index, found in self._entries(low, high):
            offset, size, _ = found
            if size == FILLER[1] and self.next >= 0:
                self.findings.note(f"entry {index} of {self.name} keeps the place of a message that is lost")
                continue
            is_kept_place = found == FILLER and self.next < 0
            is_old = size > 0 and offset < self.layout.log_start
            if not (is_kept_place or is_old or self.findings.in_hole(offset)):
                self.findings.derived_damage(
                    offset,
                    *self.place(index),
                    f"entry {index} of {self.name} points at {offset}, where no record of this queue lies",
                )

    def finish(self) -> None:
        """Behind the last record's entry there must be nothing but zeros."""
        self.flush()
        self._end_run()
        if self.next < 0:
            self.next = self._skip_old()
        file_bytes = self.layout.queue_file_bytes
        for start, size in self.files.files.items():
            if size != file_bytes and not (size == 0 and self.findings.layout.was_unclean):
                self.findings.damage(
                    self.files.file(start), size, f"queue file has {size} bytes, others have {file_bytes}"
                )
            self._check_zeros(start, size)

    def _skip_old(self) -> int:
        """The index behind the entries of a queue none of whose records is in the log any more."""
        low = min(self.files.files, default=0) // ENTRY_BYTES
        limit = sum(self.files.files.values()) // ENTRY_BYTES
        high = next((n for n, entry in self._entries(low, low + limit) if entry[1] <= 0), low + limit)
        self._check_others(low, high)
        return high

    def _check_zeros(self, start: int, size: int) -> None:
        disk, file = self.layout.disk, self.files.file(start)
        begin = self.next * ENTRY_BYTES - start
        if begin >= size:
            return
        fd = disk.open_to_read(file)
        try:
            for at, step in disk.written_ranges(fd, max(0, begin), size):
                data = disk.read(fd, step, at)
                rest = data.lstrip(b"\0")
                if not rest:
                    continue
                position = at + len(data) - len(rest)
                position -= position % ENTRY_BYTES
                raw = disk.read(fd, ENTRY_BYTES, position).ljust(ENTRY_BYTES, b"\0")
                offset = ENTRY.unpack(raw)[0]
                if not self.findings.in_hole(offset):
                    index = (start + position) // ENTRY_BYTES
                    problem = f"entry {index} of {self.name} lies behind its end and points at {offset}"
                    self.findings.derived_damage(offset, file, position, problem)
                    return
        finally:
            disk.close(fd)

    # --- files ---

    def place(self, index: int) -> tuple[str, int]:
        """File and byte of an entry."""
        at = index * ENTRY_BYTES
        start = at - at % (self.layout.queue_file_bytes or ENTRY_BYTES)
        return self.files.file(start), at - start

    def _entries(self, low: int, high: int) -> Iterator[tuple[int, tuple[int, int, int]]]:
        for first in range(low, high, READ_ENTRIES):
            data = self._read(first, min(READ_ENTRIES, high - first))
            whole = len(data) - len(data) % ENTRY_BYTES
            yield from enumerate(ENTRY.iter_unpack(data[:whole]), first)

    def _read(self, index: int, count: int) -> bytes:
        """Entries from `index` on; fewer where a file ends early or is not there."""
        if not self.exists:
            return b""
        parts, file_bytes = [], self.layout.queue_file_bytes
        while count > 0:
            file, at = self.place(index)
            here = min(count, (file_bytes - at) // ENTRY_BYTES)
            part = self.layout.disk.read_part(file, here * ENTRY_BYTES, at)
            parts.append(part)
            if len(part) < here * ENTRY_BYTES:
                parts.append(bytes(here * ENTRY_BYTES - len(part)) if count > here else b"")
            index, count = index + here, count - here
        return b"".join(parts)


def _differs(found: tuple[int, int, int], wanted: tuple[int, int, int]) -> str:
    names = ("points at", "has size", "has tags code")
    wrong = [
        f"{name} {there}, not {should}"
        for name, there, should in zip(names, found, wanted, strict=True)
        if there != should
    ]
    return " and ".join(wrong) + f" (record at {wanted[0]})"
