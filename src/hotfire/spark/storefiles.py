"""The files of a store, for readers that own nothing of it: log and queues by plain reads.

Nothing is mapped, locked or written. A broker may be at work in the same files: it may add to them while they
are read, and delete the oldest ones, which is told apart from damage. Knows places and sizes; what a record
means is known elsewhere.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from hotfire.protocol.record import Buffer
from hotfire.store.commitlog import ROOT as LOG_ROOT
from hotfire.store.config import ENTRY_BYTES
from hotfire.store.dump import BATCH_ENTRY
from hotfire.store.layout import BATCH_ENTRY_BYTES
from hotfire.store.logwalk import MAGIC_AT, MAGIC_REACH_BYTES, PHYSICAL_AT
from hotfire.store.scan import Scanned, scan_records

WINDOW_BYTES = 1 << 20
"""Read at once: stays in the processor's cache while it is taken apart."""
SEARCH_BYTES = 64 << 10
FILES_OPEN_MAX = 8
FILLER_SIZE = 0x7FFFFFFF
_ENTRY = struct.Struct(">qiq")
_ZEROS = bytes(SEARCH_BYTES + MAGIC_REACH_BYTES)
_MAGIC = re.compile(rb"\xda\xa3\x20[\xa7\xab]")


class Gone(Exception):
    """A file that was there when the query was planned is not there any more."""

    def __init__(self, file: str) -> None:
        super().__init__(file)
        self.file = file


class Files:
    """Files below a store's root that are open to be read; few of them at a time."""

    def __init__(self, root: str) -> None:
        self._root = Path(root)
        self._open: dict[str, int] = {}

    def descriptor(self, name: str) -> int:
        fd = self._open.pop(name, -1)
        if fd < 0:
            if len(self._open) >= FILES_OPEN_MAX:
                os.close(self._open.pop(next(iter(self._open))))
            try:
                fd = os.open(self._root / name, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                raise Gone(name) from None
        self._open[name] = fd  # the last to be closed
        return fd

    def close(self) -> None:
        for fd in self._open.values():
            os.close(fd)
        self._open.clear()


class Log:
    """The log by its offsets."""

    def __init__(self, files: Files, segment_bytes: int) -> None:
        self._files = files
        self.segment_bytes = segment_bytes
        self._room = bytearray(WINDOW_BYTES)

    def segment_end(self, offset: int) -> int:
        return offset - offset % self.segment_bytes + self.segment_bytes

    def place(self, offset: int) -> str:
        """File and byte, for people."""
        start = offset - offset % self.segment_bytes
        return f"{LOG_ROOT}/{start:020d} at byte {offset - start}"

    def read(self, offset: int, size: int) -> memoryview:
        """Up to `size` bytes from `offset`, none of the next segment; good until the next call."""
        size = min(size, self.segment_end(offset) - offset)
        if size > len(self._room):
            self._room = bytearray(size)
        view = memoryview(self._room)[:size]
        start = offset - offset % self.segment_bytes
        fd, done = self._files.descriptor(f"{LOG_ROOT}/{start:020d}"), 0
        while done < size:
            got = os.preadv(fd, [view[done:]], offset - start + done)
            if not got:
                break
            done += got
        return view[:done]

    def bytes_at(self, offset: int, size: int) -> bytes:
        """The same for a look beside: what `read` gave stays as it is."""
        start = offset - offset % self.segment_bytes
        size = min(size, self.segment_bytes - (offset - start))
        return os.pread(self._files.descriptor(f"{LOG_ROOT}/{start:020d}"), size, offset - start)

    def record_at(self, offset: int) -> Scanned | None:
        """The record that begins there and says so itself; its checksums are not looked at."""
        head = self.bytes_at(offset, MAGIC_REACH_BYTES)
        if len(head) < MAGIC_REACH_BYTES or head[PHYSICAL_AT:] != offset.to_bytes(8):
            return None
        size = int.from_bytes(head[:4])
        if not MAGIC_REACH_BYTES < size <= self.segment_bytes:
            return None
        records = scan_records(self.bytes_at(offset, size), offset, False, count_max=1)[0]
        return records[0] if records else None

    def next_record(self, offset: int, until: int) -> Scanned | None:
        """The first record that begins in [offset, until) and says so itself."""
        while offset < until:
            stop = min(self.segment_end(offset), until)
            with suppress(Gone):
                found = self._next_in_segment(offset, stop)
                if found is not None:
                    return found
            offset = stop
        return None

    def _next_in_segment(self, offset: int, stop: int) -> Scanned | None:
        for begin, end in self._written(offset, stop):
            for at in range(begin, end, SEARCH_BYTES):
                data = self.bytes_at(at, SEARCH_BYTES + MAGIC_REACH_BYTES)
                if data == _ZEROS:
                    continue
                for match in _MAGIC.finditer(data):
                    place = at + match.start() - MAGIC_AT
                    if at <= place < min(at + SEARCH_BYTES, end) and (found := self.record_at(place)):
                        return found
        return None

    def _written(self, offset: int, stop: int) -> list[tuple[int, int]]:
        """Where [offset, stop) of one segment is no hole.

        Found before anything is read: what was read, be it zeros, counts as written from then on.
        """
        start, found = offset - offset % self.segment_bytes, []
        fd = self._files.descriptor(f"{LOG_ROOT}/{start:020d}")
        with suppress(OSError):  # nothing but a hole up to the end of the file, or the file ends before
            while offset < stop:
                begin = start + os.lseek(fd, offset - start, os.SEEK_DATA)
                offset = start + os.lseek(fd, begin - start, os.SEEK_HOLE)
                if begin < stop:
                    found.append((begin, min(offset, stop)))
        return found

    def written_end(self, offset: int) -> int:
        """About where the segment that begins at `offset` is no longer written to."""
        return max((end for _, end in self._written(offset, self.segment_end(offset))), default=offset)

    def around_time(self, stored_ms: int, low: int, high: int) -> tuple[int, int]:
        """Records in [low, high) before the first place were stored earlier, those from the second on later.

        As far as store times only grow. Both are places where records begin, if `low` and `high` are.
        """
        end = high
        while high - low > SEARCH_BYTES:
            middle = (low + high) // 2
            found = self.next_record(middle, high)
            if found is None or found.store_timestamp >= stored_ms:
                high = middle
            else:
                low = found.physical
        found = self.next_record(high, end) if high < end else None
        return low, end if found is None else found.physical


class Queue:
    """The entries of one queue by their numbers; of batches each is one, however many messages it has."""

    def __init__(self, files: Files, directory: str, file_bytes: int, *, of_batches: bool) -> None:
        self._files = files
        self._directory = directory
        self.unit = BATCH_ENTRY_BYTES if of_batches else ENTRY_BYTES
        self._layout = BATCH_ENTRY if of_batches else _ENTRY
        self._per_file = file_bytes // self.unit

    def read(self, first: int, count: int) -> bytes:
        """Entries from `first` on, as stored: at most `count`, and none of the next file."""
        number, at = divmod(first, self._per_file)
        count = min(count, self._per_file - at)
        name = f"{self._directory}/{number * self._per_file * self.unit:020d}"
        data = os.pread(self._files.descriptor(name), count * self.unit, at * self.unit)
        return data[: len(data) - len(data) % self.unit]

    def fields(self, data: Buffer, at: int = 0) -> tuple[int, ...]:
        """Log offset, size and what else there is of entry number `at` in `data`."""
        fields: tuple[int, ...] = self._layout.unpack_from(data, at * self.unit)
        return fields

    def first_where(self, low: int, high: int, holds: Callable[[tuple[int, ...]], bool]) -> int:
        """The first entry of [low, high) for which it holds, as it does for all behind it; `high`: none."""
        while low < high:
            middle = (low + high) // 2
            data = self.read(middle, 1)
            if not data or holds(self.fields(data)):
                high = middle
            else:
                low = middle + 1
        return low

    def first_from(self, low: int, high: int, offset: int) -> int:
        """The first entry of [low, high) that points to `offset` or behind it."""
        return self.first_where(low, high, lambda entry: entry[0] >= offset)
