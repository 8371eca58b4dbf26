"""The commit log: one sequence of records for all topics, in files of equal size named by their first offset.

Owns which segments exist and that the next one lies ready before it is needed. Filling and flushing turns is
`core.Journal`'s work; which records are sound is `recovery`'s.
"""

from __future__ import annotations

import errno
import logging
from concurrent.futures import Future

from hotfire import core
from hotfire.errors import StoreCorrupt, StoreError
from hotfire.protocol.record import BLANK_BYTES
from hotfire.store.config import StoreConfig
from hotfire.store.disk import Disk

log = logging.getLogger("hotfire.store")

ROOT = "commitlog"
PREPARE_AT = 0.5
"""Share of a segment in use at which the next one is made ready."""


class CommitLog:
    """Segments of the log, oldest first, and the journal that appends to the last."""

    def __init__(self, disk: Disk, config: StoreConfig) -> None:
        self._disk = disk
        self._config = config
        self._coming: Future[int] | None = None
        self._is_cramped = False
        self.segments: dict[int, int] = {}
        """First offset -> descriptor."""
        self.journal: core.Journal

    def load(self) -> None:
        """Open every segment; refuse a directory whose files are not ours or not of this size."""
        size = self._config.segment_bytes
        self._disk.make_directory(ROOT)
        self._disk.sync_directory(ROOT)  # a segment may have got its name just before a kill
        following: int | None = None
        names = self._disk.names(ROOT)
        for name in names:
            if name.endswith(".new"):  # a crash while the next segment was being made
                self._disk.remove(f"{ROOT}/{name}")
                continue
            if not (name.isdecimal() and len(name) == 20):
                raise StoreCorrupt(f"{self._disk.path(ROOT)}/{name} is not a log segment: move it away")
            actual = self._disk.size(f"{ROOT}/{name}")
            if 0 < actual < size and any(self._disk.size(f"{ROOT}/{other}") == size for other in names):
                raise StoreCorrupt(
                    f"log segment {self._disk.path(ROOT)}/{name} has {actual} bytes, others have {size}: "
                    "it has lost its end; restore it from a copy"
                )
            if actual != size:
                raise StoreCorrupt(
                    f"log segment {self._disk.path(ROOT)}/{name} has {actual} bytes, configured are {size}: "
                    "set mappedFileSizeCommitLog to the size this store was made with"
                )
            start = int(name)
            if following is not None and start != following:
                raise StoreCorrupt(
                    f"log segment {following:020d} is missing before {name}: restore it from a copy"
                )
            self.segments[start] = self._disk.open(f"{ROOT}/{name}")
            following = start + size

    def start(self, end: int) -> None:
        """Begin to append at `end`, which recovery found."""
        config = self._config
        copied_max = config.turn_bytes_max if config.sync_flush else config.copied_turn_bytes_max
        self.journal = self._disk.journal(end, min(config.turn_bytes_max, copied_max))
        if not self.segments:
            self.segments[end] = self._allocate(end)
        for start, fd in self.segments.items():
            self.journal.add_segment(start, self._config.segment_bytes, fd)

    @property
    def segment_bytes(self) -> int:
        return self._config.segment_bytes

    def segment_of(self, offset: int) -> int:
        """First offset of the segment that holds `offset`."""
        return offset - offset % self._config.segment_bytes

    @property
    def min_offset(self) -> int:
        return next(iter(self.segments), 0)

    def reserve(self, size: int) -> int:
        """Where the next record of `size` bytes will lie."""
        if size + BLANK_BYTES > self._config.segment_bytes:
            raise StoreError(
                f"record of {size} bytes does not fit a log segment of {self._config.segment_bytes}"
            )
        offset = self.journal.reserve(size)
        if offset is None:
            if self.journal.is_full:
                raise BlockingIOError(f"turn of {self.journal.pending} bytes is full")
            self.add_segment()
            offset = self.journal.reserve(size)
            assert offset is not None, "a fresh segment has room"
        return offset

    def prepare(self) -> None:
        """Make the next segment beside the loop once this one is half full; take it in when it is ready."""
        last = next(reversed(self.segments))
        if self._coming is None:
            if self.journal.end - last > self._config.segment_bytes * PREPARE_AT:
                following = last + self._config.segment_bytes
                self._coming = self._disk.beside(lambda: self._allocate(following))
        elif self._coming.done():
            was_cramped = self._is_cramped
            try:
                self.add_segment()
            except OSError as error:  # tried again at the next tick
                if not was_cramped:
                    log.error("next log segment cannot be made reason=%s", error)
            else:
                self._is_cramped = False

    def add_segment(self) -> None:
        """The segment after the last, waiting for it if it is being made."""
        coming, self._coming = self._coming, None
        start = next(reversed(self.segments)) + self._config.segment_bytes
        if coming is None and self._is_cramped:
            raise OSError(errno.ENOSPC, "No space left on device")  # `prepare` sees when there is some
        try:
            fd = coming.result() if coming is not None else self._allocate(start)
        except OSError:
            self._is_cramped = True
            raise
        self.segments[start] = fd
        self.journal.add_segment(start, self._config.segment_bytes, fd)

    def _allocate(self, start: int) -> int:
        return self._disk.allocate(self.file(start), self._config.segment_bytes)

    def let_go(self) -> tuple[int, int]:
        """The oldest segment is no longer part of the log: its first offset, and the descriptor to close."""
        start = next(iter(self.segments))
        assert start != next(reversed(self.segments)), "the last segment stays"
        self.journal.drop_segment(start)
        return start, self.segments.pop(start)

    def file(self, start: int) -> str:
        return f"{ROOT}/{start:020d}"

    def holding(self, low: int, high: int) -> list[int]:
        """Descriptors of the segments that hold bytes of [low, high)."""
        size = self._config.segment_bytes
        return [fd for start, fd in self.segments.items() if max(start, low) < min(start + size, high)]

    def close(self) -> None:
        if hasattr(self, "journal"):
            self.journal.close()
        coming, self._coming = self._coming, None
        if coming is not None and coming.exception() is None:
            self._disk.close(coming.result())
        for fd in self.segments.values():
            self._disk.close(fd)
        self.segments.clear()
