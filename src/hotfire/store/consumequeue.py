"""Consume queues on disk: derived from the log, one directory per topic and queue, 20 bytes an entry.

Entry n of a queue lies at byte n x 20 of its files, so it is found without scanning. Files are sparse maps;
their blocks are reserved a step ahead of the entries, so that a full disk is an error here and never a fault
in the middle of a store into memory. The entries themselves are kept by `core.Queue`.

Names of new files and directories are synced as the files are: beside the loop, before a checkpoint counts
their entries. A queue's first message waits for none of it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Set
from contextlib import contextmanager

from hotfire import core
from hotfire.errors import StoreCorrupt
from hotfire.store.config import ENTRY_BYTES
from hotfire.store.disk import Disk, Mapped
from hotfire.store.queueext import QueueExt

ROOT = "consumequeue"
RESERVE_FIRST_BYTES = 64 << 10
RESERVE_STEP_BYTES_MAX = 1 << 20
COLD_WINDOWS_MAX = 2
LEAVING_WINDOW_ENTRIES = 1024
_ENTRY = struct.Struct(">qiq")
FILLER = 0, 0x7FFFFFFF, 0
"""An entry that only keeps a place, as the reference writes it."""

QueueKey = tuple[str, int]
BitmapOf = Callable[[str, int, int], bytes]
"""Topic, log offset and size of a record."""
NOTHING: Set[str] = frozenset()


class ConsumeQueue:
    """The files of one queue, and the windows into them that are open."""

    def __init__(
        self,
        disk: Disk,
        topic: str,
        queue_id: int,
        file_bytes: int,
        ext: QueueExt | None = None,
        *,
        extends: bool = False,
        bitmap_of: BitmapOf | None = None,
    ) -> None:
        """With `ext`, entries may point into it; those made from now on do when it `extends`.

        `bitmap_of` says which filters the record at some log offset passes.
        """
        self.directory = f"{ROOT}/{topic}/{queue_id}"
        self.entries = core.Queue((topic, queue_id), self._grow)
        self.ext = ext
        self.entries.extended = ext is not None
        self.entries.extend = self._extend if ext is not None and extends else None
        self._bitmap_of = bitmap_of
        self._disk = disk
        self._file_bytes = file_bytes
        self._per_file = file_bytes // ENTRY_BYTES
        self._maps: dict[int, Mapped] = {}
        self._tail_base = -1
        self._reserved = 0
        self._dirty: set[str] = set()
        self._taken = 0
        self.is_leaving = False
        """Its topic was deleted: what is still on its way to it goes nowhere."""
        self.first = 0
        """First entry of the first file that was there at the start."""

    # --- start-up ---

    def load(self, trusted_below: int) -> None:
        """Find the entries that point below `trusted_below`; later ones are written anew by recovery."""
        self.close()
        bases = self._bases()
        queue = self.entries
        end = queue.min = self.first = bases[0] if bases else 0
        for base in bases:
            if base != bases[0] and base != end:
                break  # a file before this one is missing
            self._open(base, self._file_bytes, page_by_page=True)
            count = self._count_while(base, lambda entry: entry[1] > 0 and 0 <= entry[0] < trusted_below)
            if base == bases[0]:
                queue.min = base + self._count_while(base, lambda entry: entry == FILLER)
            end = base + count
            if count < self._per_file:
                break
            if base != bases[-1]:
                self._shut(base)
        if self.ext is not None and not self._load_ext(self.ext, end):
            end = queue.min  # recovery counts, misses these, and makes them anew
        queue.next = queue.max = self._taken = end  # what is believed was synced before it was counted
        queue.min = min(queue.min, end)
        self._tail_base = end - end % self._per_file if bases else -1
        if self._tail_base in self._maps:
            # its blocks are there as far as there are entries; more come with the first append
            self.entries.detach(self._tail_base)
            used = (end - self._tail_base) * ENTRY_BYTES
            self.entries.attach(self._tail_base, memoryview(self._maps[self._tail_base])[:used])

    def _load_ext(self, ext: QueueExt, end: int) -> bool:
        """Whether the extension holds what the first entry and the one before `end` point at, without gap."""
        ext.load()
        if self.entries.extend is None:
            return True
        known = [
            entry[2]
            for index in (self.entries.min, end - 1)
            if self.entries.min < end
            and self.show(index)
            and (entry := self.entries.entry(index)) is not None
        ]
        return ext.recover(known[-1] if known else None) and all(map(ext.has, known)) and ext.is_gapless

    def _bases(self) -> list[int]:
        """First entry of each file. A file of another size is refused: its entries would be misplaced."""
        bases = []
        for name in self._disk.names(self.directory):
            if not name.isdecimal():
                continue
            size = self._disk.size(f"{self.directory}/{name}")
            if size not in (0, self._file_bytes):  # 0: made, and not yet given its size
                raise StoreCorrupt(
                    f"queue file {self._disk.path(self.directory)}/{name} has {size} bytes, configured are "
                    f"{self._file_bytes}: set mappedFileSizeConsumeQueue to the size this store was made "
                    "with, or move its consumequeue directory away to have it made anew from the log"
                )
            bases.append(int(name) // ENTRY_BYTES)
        return sorted(bases)

    def _count_while(
        self, base: int, holds: Callable[[tuple[int, int, int]], bool], high: int | None = None
    ) -> int:
        low, high = 0, self._per_file if high is None else high
        with (
            self.entry_reader() as entry_at
        ):  # not through the map: on a full tmpfs a look into a hole is the end
            while low < high:  # what is asked for holds for a prefix: offsets only grow
                middle = (low + high) // 2
                if holds(_ENTRY.unpack(entry_at(base + middle))):
                    low = middle + 1
                else:
                    high = middle
        return low

    def cut(self) -> None:
        """Zeros behind the last entry: what a crash left there must never be believed.

        They are synced with the other dirty files, and the names of all of them too, which whoever made
        them may not have lived to do.
        """
        for directory in (".", ROOT, self.directory.rpartition("/")[0], self.directory):
            self._disk.sync_directory(directory, later=True)
        if self.ext is not None and self.entries.extend is not None:
            self.ext.cut()
        for base in self._bases():
            if base + self._per_file <= self.entries.max:
                continue
            start = max(0, self.entries.max - base) * ENTRY_BYTES
            fd = self._disk.open(self._file(base))
            try:
                self._disk.zero(fd, start, self._file_bytes - start, later=True)
            finally:
                self._disk.close(fd)
            self._dirty.add(self._file(base))

    @property
    def physical_end(self) -> int:
        """Where the record of the last entry ends, 0 without one."""
        last = self.entries.max - 1
        if last < self.entries.min or not self.show(last):
            return 0
        entry = self.entries.entry(last)
        assert entry is not None
        return entry[0] + entry[1]

    # --- growing ---

    def _grow(self, index: int) -> None:
        """A window that holds entry `index`, its blocks reserved."""
        if self.is_leaving:
            self.entries.attach(index, bytearray(LEAVING_WINDOW_ENTRIES * ENTRY_BYTES))
            return
        base = index - index % self._per_file
        if base != self._tail_base or base not in self._maps:
            if self._tail_base in self._maps:
                self._dirty.add(self._file(self._tail_base))
                self._shut(self._tail_base)
            if not self._disk.exists(self.directory):
                self._disk.make_directory(self.directory, later=True)
            self._tail_base = base
            self._open(base, 0, page_by_page=True)
        self._reserve_tail((index - base + 1) * ENTRY_BYTES)

    def _reserve_tail(self, needed: int) -> None:
        base = self._tail_base
        step = min(max(RESERVE_FIRST_BYTES, needed), RESERVE_STEP_BYTES_MAX)
        self._reserved = min(self._file_bytes, needed + step)
        self._disk.reserve(self._file(base), self._reserved)
        self.entries.detach(base)
        self.entries.attach(base, memoryview(self._maps[base])[: self._reserved])
        self._dirty.add(self._file(base))

    def put(self, index: int, physical: int, size: int, tags: int, store_timestamp: int = 0) -> None:
        """Write an entry during recovery and make it visible."""
        entries = self.entries
        is_first = entries.max == entries.min == 0 and self._tail_base < 0
        if entries.entry(index) is None:
            self._grow(index)
        # a queue whose older records are gone begins where the log does; stale bytes before it stay unread
        low = max(entries.max, index - index % self._per_file)
        before = entries.entry(low - 1) if low > entries.min else None
        place = FILLER if before is None or before == FILLER else (before[0], FILLER[1], 0)
        for missing in range(low, index):  # in the midst of others they keep the order: who looks halves
            entries.put(missing, *place)
        if is_first:
            entries.min, self.first = index, index - index % self._per_file
        if entries.extend is not None:
            tags = entries.extend(tags, store_timestamp, physical, size)
        entries.put(index, physical, size, tags)
        entries.max = index + 1

    def _extend(self, tags: int, store_timestamp: int, physical: int, size: int) -> int:
        assert self.ext is not None
        bitmap = b"" if self._bitmap_of is None else self._bitmap_of(self.entries.key[0], physical, size)
        return self.ext.put(tags, store_timestamp, bitmap)

    @property
    def count(self) -> int:
        """Entries in the files."""
        return self.entries.max - self.first

    def begin_at(self, index: int) -> None:
        """The queue's first record in the log has this offset: its entry and all behind it are made anew.

        Those before it, whose records have left the log, only keep their places.
        """
        queue, base = self.entries, index - index % self._per_file
        if self.ext is not None and queue.extend is not None:
            self.ext.recover(None)
        for old in self._bases():
            if old < base:
                if old in self._maps:
                    self._shut(old)
                self._disk.remove(self._file(old))
        queue.max = queue.next = self.first = base
        queue.min = index  # the entry is about to be put, and fills the places before it

    # --- retention ---

    def follow(self, log_min: int) -> None:
        """The log begins at `log_min`: older entries are no longer there, nor files that hold only such."""
        if self.is_leaving:
            return  # files of this name are another's by now
        bases = self._bases()
        for base in bases[:-1]:
            if base == self._tail_base or not self.show(base):
                break
            last = self.entries.entry(base + self._per_file - 1)
            if last is None or last[0] >= log_min:
                break
            self._shut(base)
            self._disk.remove(self._file(base))
            self._dirty.discard(self._file(base))
            bases = bases[1:]
        self.first = bases[0] if bases else self.first
        if not bases or not self.show(bases[0]):
            return
        # the window of the file being filled ends before its blocks do
        high = min(self._per_file, max(0, self.entries.max - bases[0]))
        first = bases[0] + self._count_while(
            bases[0], lambda entry: entry == FILLER or entry[0] < log_min, high
        )
        self.entries.min = max(self.entries.min, first)
        oldest = self.entries.entry(self.entries.min) if self.entries.min < self.entries.max else None
        if self.ext is not None and oldest is not None:
            self.ext.drop_below(oldest[2])

    # --- windows ---

    def show(self, index: int) -> bool:
        """Open the file that holds entry `index` for reading; False when it does not exist."""
        base = index - index % self._per_file
        if base in self._maps:
            return True
        if not self._disk.exists(self._file(base)):
            return False
        cold = [b for b in self._maps if b != self._tail_base]
        for old in cold[: max(0, len(cold) - COLD_WINDOWS_MAX + 1)]:
            self._shut(old)
        self._open(base, self._file_bytes)
        return True

    def tags_at(self, index: int) -> int | None:
        """The tags code of an entry, or the time of delivery if it is a delayed message's.

        None when there is no such entry, or what it points at is missing.
        """
        entry = self.entries.entry(index) if self.show(index) else None
        if entry is None:
            return None
        return entry[2] if self.ext is None else self.ext.tags(entry[2])

    @contextmanager
    def entry_reader(self) -> Iterator[Callable[[int], bytes]]:
        """Bytes of entries, read without the windows: for a thread that must not touch them."""
        opened: dict[int, int] = {}

        def entry_at(index: int) -> bytes:
            base = index - index % self._per_file
            if base not in opened:
                if not self._disk.exists(self._file(base)):
                    return b""
                opened[base] = self._disk.open(self._file(base))
            return self._disk.read(opened[base], ENTRY_BYTES, (index - base) * ENTRY_BYTES)

        try:
            yield entry_at
        finally:
            for fd in opened.values():
                self._disk.close(fd)

    def following_file(self, index: int) -> int:
        """First entry of the file behind the one that holds `index`."""
        return index - index % self._per_file + self._per_file

    def _file(self, base: int) -> str:
        return f"{self.directory}/{base * ENTRY_BYTES:020d}"

    def _open(self, base: int, window_bytes: int, *, page_by_page: bool = False) -> None:
        self._maps[base] = self._disk.map(
            self._file(base), self._file_bytes, page_by_page=page_by_page, later=True
        )
        self.entries.attach(base, memoryview(self._maps[base])[:window_bytes])

    def _shut(self, base: int) -> None:
        self.entries.detach(base)
        self._maps.pop(base).close()

    def leave(self) -> None:
        """The topic is deleted. Files may go at once; entries on their way find memory until `close`."""
        self.is_leaving = True
        self.entries.extend = None

    def take_dirty(self) -> Set[str]:
        """Files with entries that were not in a file taken before."""
        if self._taken == self.entries.max and not self._dirty and self.ext is None:
            return NOTHING  # most queues, most of the time: there may be ten thousand
        dirty, self._dirty = self._dirty, set()
        if self._taken != self.entries.max and self._tail_base in self._maps:
            dirty.add(self._file(self._tail_base))
        self._taken = self.entries.max
        return dirty if self.ext is None else dirty | self.ext.take_dirty()

    def close(self) -> None:
        self.entries.close()
        if self.ext is not None:
            self.ext.close()
        for mapped in self._maps.values():
            mapped.close()
        self._maps.clear()
