"""Extensions of consume queues: what an entry's eight bytes of tags have no room for, in files beside them.

A queue with an extension holds, where its tags code would be, the address of a unit in these files:

    at  size  field
     0     2  size of the unit: 20 and the bitmap's
     2     8  tags code
    10     8  store time of the record
    18     2  size of the bitmap
    20     n  bitmap of the filters the message passes

An address is the unit's position, files end to end, plus the least int64: far below any tags code. A unit
never crosses files; where it would not leave four bytes, an int16 -1 says that the next file goes on.

Derived from the log, as the queue is, and synced with it. Must not know what the bitmap's bits mean.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from typing import NamedTuple

from hotfire.errors import StoreCorrupt
from hotfire.store.config import StoreConfig
from hotfire.store.disk import Disk, Mapped

ROOT = "consumequeue_ext"
FILE_BYTES = 48 << 20
ADDRESS_MAX = -(1 << 31) - 1
"""Addresses are at or below; tags codes, which are hashes of 32 bits or times, are above."""
END_BYTES = 4
UNIT_BYTES_MAX = 0x7FFF
RESERVE_STEP_BYTES = 256 << 10
COLD_FILES_MAX = 2
_HEAD = struct.Struct(">hqqh")
_END_MARK = struct.pack(">h", -1)
_LEAST = -(1 << 63)


class Unit(NamedTuple):
    """One extension."""

    tags: int
    store_time: int
    bitmap: bytes = b""

    @property
    def size(self) -> int:
        return _HEAD.size + len(self.bitmap)


def is_address(tags: int) -> bool:
    """Whether an entry's tags are the address of a unit."""
    return tags <= ADDRESS_MAX


class QueueExt:
    """The extension files of one queue. Units are put in the order of the entries that point at them."""

    def __init__(self, disk: Disk, topic: str, queue_id: int, file_bytes: int = FILE_BYTES) -> None:
        self.directory = f"{ROOT}/{topic}/{queue_id}"
        self._disk = disk
        self._file_bytes = file_bytes
        self._files: dict[int, int] = {}
        """First position -> size, in order."""
        self._maps: dict[int, Mapped] = {}
        self._end = 0
        self._reserved = 0
        self._is_cut = True
        self._dirty: set[str] = set()

    # --- start-up ---

    def load(self) -> None:
        """Look at which files there are; `recover` says how much of them counts."""
        self.close()
        names = [name for name in self._disk.names(self.directory) if name.isdecimal()]
        sizes = {int(name): self._disk.size(f"{self.directory}/{name}") for name in names}
        self._files = {
            base: size for base, size in sizes.items() if size
        }  # 0: made, and not yet given its size
        self._end = self._reserved = 0
        self._is_cut = not self._files

    def recover(self, last_tags: int | None) -> bool:
        """Find the end, to put units there: behind the unit that the last believed entry points at.

        That entry holds `last_tags`. Without one the end is the very start: what there is belongs to entries
        that will be made anew. An entry with plain tags says nothing, and the end is behind the last unit.
        False when the unit is missing.
        """
        for base, size in self._files.items():
            if size != self._file_bytes:
                raise StoreCorrupt(
                    f"queue extension {self._disk.path(self._file(base))} has {size} bytes, configured are "
                    f"{self._file_bytes}: set mappedFileSizeConsumeQueueExt to the size this store was made "
                    "with, or move consumequeue and consumequeue_ext away to have them made anew from the log"
                )
        if last_tags is None:
            self._end = 0
        elif is_address(last_tags):
            unit = self.get(last_tags)
            if unit is None:
                return False
            self._end = last_tags - _LEAST + unit.size
        else:
            self._end = self._walked()
        return True

    def has(self, tags: int) -> bool:
        """Whether what an entry holds is no address, or one at which there is a unit."""
        return not is_address(tags) or self.get(tags) is not None

    @property
    def is_gapless(self) -> bool:
        """No file is missing between the first and the last."""
        bases = list(self._files)
        return not bases or bases == list(range(bases[0], bases[-1] + 1, self._file_bytes))

    def _walked(self) -> int:
        """Behind the last unit of the last file."""
        if not self._files:
            return 0
        base = max(self._files)
        mapped, size, at = self._map(base), self._files[base], 0
        while (unit := _unit_at(mapped, at, size)) is not None:
            at += unit.size
        return base + (size if mapped[at : at + len(_END_MARK)] == _END_MARK else at)

    def cut(self) -> None:
        """Zeros behind the end, and no file behind it. They are synced with the units put next."""
        if self._is_cut:
            return
        for base, size in list(self._files.items()):
            if base >= self._end:
                self._shut(base)
                self._disk.remove(self._file(base))
                del self._files[base]
            elif base + size > self._end:
                self._zero(base, self._end - base, size)
        self._is_cut = True

    def _zero(self, base: int, start: int, end: int) -> None:
        fd = self._disk.open(self._file(base))
        try:
            for at, step in self._disk.written_ranges(fd, start, end):
                if any(self._disk.read(fd, step, at)):
                    self._disk.write(fd, bytes(step), at)
                    self._dirty.add(self._file(base))
        finally:
            self._disk.close(fd)

    # --- growing ---

    def put(self, tags: int, store_time: int, bitmap: bytes = b"") -> int:
        """Write a unit behind the last; its address. An OSError means that nothing was put."""
        unit = Unit(tags, store_time, bitmap)
        if unit.size > min(UNIT_BYTES_MAX, self._file_bytes - END_BYTES):
            raise ValueError(f"queue extension of {unit.size} bytes, at most {UNIT_BYTES_MAX} are possible")
        self.cut()
        base = self._tail(self._end - self._end % self._file_bytes)
        if unit.size > base + self._file_bytes - self._end - END_BYTES:
            at = self._end - base
            self._reserve(base, at + END_BYTES)
            self._maps[base][at : at + len(_END_MARK)] = _END_MARK
            base = self._tail(base + self._file_bytes)
            self._end = base
        at = self._end - base
        self._reserve(base, at + unit.size)
        _HEAD.pack_into(self._maps[base], at, unit.size, tags, store_time, len(bitmap))
        self._maps[base][at + _HEAD.size : at + unit.size] = bitmap
        self._dirty.add(self._file(base))
        self._end += unit.size
        return at + base + _LEAST

    def _tail(self, base: int) -> int:
        """Have the file at `base` open, made if it does not exist."""
        if base not in self._files:
            self._disk.make_directory(self.directory)
            self._maps[base] = self._disk.map(self._file(base), self._file_bytes)
            self._files[base] = self._file_bytes
            self._reserved = 0
        self._map(base)
        return base

    def _reserve(self, base: int, needed: int) -> None:
        """Blocks up to `needed` and a step ahead, so that a store into the map cannot meet a full disk."""
        if needed > self._reserved:
            reserved = min(self._file_bytes, needed + RESERVE_STEP_BYTES)
            self._disk.reserve(self._file(base), reserved)
            self._reserved = reserved

    # --- reading ---

    def get(self, address: int) -> Unit | None:
        """The unit at `address`, None when it is not there."""
        position = address - _LEAST
        bases = list(self._files)
        at = bisect_right(bases, position) - 1
        if not is_address(address) or at < 0:
            return None
        base = bases[at]
        if position - base >= self._files[base]:
            return None
        return _unit_at(self._map(base), position - base, self._files[base])

    def tags(self, tags: int) -> int | None:
        """The tags code behind what an entry holds: itself, or its unit's. None when the unit is missing."""
        if not is_address(tags):
            return tags
        unit = self.get(tags)
        return None if unit is None else unit.tags

    # --- keeping ---

    def drop_below(self, address: int) -> None:
        """Delete the files with nothing at or behind `address`; the last one stays."""
        if not is_address(address):
            return
        for base in list(self._files)[:-1]:
            if base + self._files[base] <= address - _LEAST:
                self._shut(base)
                self._disk.remove(self._file(base))
                self._dirty.discard(self._file(base))
                del self._files[base]

    def take_dirty(self) -> set[str]:
        """Files written to since they were last taken."""
        dirty, self._dirty = self._dirty, set()
        return dirty

    def close(self) -> None:
        for base in list(self._maps):
            self._shut(base)

    # --- files ---

    def _file(self, base: int) -> str:
        return f"{self.directory}/{base:020d}"

    def _map(self, base: int) -> Mapped:
        mapped = self._maps.get(base)
        if mapped is None:
            tail = self._end - self._end % self._file_bytes
            cold = [each for each in self._maps if each != tail]
            for old in cold[: max(0, len(cold) - COLD_FILES_MAX + 1)]:
                self._shut(old)
            mapped = self._maps[base] = self._disk.map(self._file(base), self._files[base])
        return mapped

    def _shut(self, base: int) -> None:
        mapped = self._maps.pop(base, None)
        if mapped is not None:
            mapped.close()


def _unit_at(mapped: Mapped, at: int, end: int) -> Unit | None:
    """The unit at byte `at` of a file of `end` bytes; None where none begins."""
    if at + _HEAD.size > end:
        return None
    size, tags, store_time, bitmap_bytes = _HEAD.unpack_from(mapped, at)
    if size < _HEAD.size or size != _HEAD.size + bitmap_bytes or at + size > end:
        return None
    return Unit(tags, store_time, mapped[at + _HEAD.size : at + size])


def open_ext(disk: Disk, config: StoreConfig, topic: str, queue_id: int) -> QueueExt | None:
    """The queue's extension: when it is to have one, and when it has one from a time it was to."""
    if not config.queue_ext and not disk.exists(f"{ROOT}/{topic}/{queue_id}"):
        return None
    ext = QueueExt(disk, topic, queue_id, config.queue_ext_file_bytes)
    ext.load()
    return ext
