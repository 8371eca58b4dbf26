"""Simulated disks that tell of each turn of the log, and one of them that the compiled fast lane writes to.

Owns what lies between the compiled journal and a simulated disk. The lane puts records into the memory of a
turn and nothing on any disk: that is the flusher's work, and its alone. So the compiled flusher here writes
to files in the machine's memory, at once, and what it wrote there is written and synced on the simulated disk
by the journal's plain twin, when and as far as the seed and the next cut let it. Until then the turn is under
way.

What is read from the log is read from the files in memory: bits that a test flips on the simulated disk are
seen after the next start.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import cast

from hotfire import core
from hotfire.core import plain
from hotfire.protocol.record import Record, iter_records
from hotfire.store.store import Store
from hotfire.testing import SimDisk
from hotfire.testing.inodes import Directory
from hotfire.testing.simdisk import SimJournal
from tests.unit.store.driven import ring


class ToldDisk(SimDisk):
    """Tells which records a turn has when it is handed to the flusher, before anything of it is written."""

    has_lane = False

    def __init__(self, seed: int = 0, root: Directory | None = None) -> None:
        super().__init__(seed, root)
        self.told: Callable[[list[Record]], None] = lambda records: None

    def journal(self, end: int, turn_bytes_max: int) -> core.Journal:
        journal = ToldJournal(end, turn_bytes_max, files=self.system)
        journal.disk = self
        self._journals.append(journal)
        return cast(core.Journal, journal)


class ToldJournal(SimJournal):
    def _hand_over(self, turn: plain.Turn) -> None:
        assert isinstance(self.disk, ToldDisk)
        self.disk.told([record for _, _, data in turn[0] for record in iter_records(data)])
        super()._hand_over(turn)


class LaneDisk(ToldDisk):
    """The same under the compiled journal, which is the only one that the lane writes to."""

    has_lane = True

    def __init__(self, seed: int = 0, root: Directory | None = None) -> None:
        super().__init__(seed, root)
        self._lane_journals: list[LaneJournal] = []

    def journal(self, end: int, turn_bytes_max: int) -> core.Journal:
        assert core.COMPILED, core.WHY_PLAIN
        flusher = cast(ToldJournal, super().journal(end, turn_bytes_max))
        self._lane_journals.append(LaneJournal(end, turn_bytes_max, flusher))
        return self._lane_journals[-1]

    def switch_off(self) -> None:
        super().switch_off()
        for journal in self._lane_journals:
            journal.close()


class LaneJournal(core.Journal):
    """The compiled journal. A turn is complete once its plain twin, which writes it, is done with it."""

    def __init__(self, end: int, turn_bytes_max: int, flusher: ToldJournal) -> None:
        super().__init__(end, turn_bytes_max)
        self._flusher = flusher
        self._handed = end
        self._files: dict[int, tuple[int, int, int]] = {}
        """First offset of a segment -> its size, the file on the simulated disk, and the one in memory."""

    def add_segment(self, start: int, size: int, fd: int, /) -> None:
        memory = os.memfd_create(f"segment {start}")
        os.pwrite(memory, self._flusher.disk.system.pread(fd, size, 0), 0)
        self._files[start] = size, fd, memory
        self._flusher.add_segment(start, size, fd)
        super().add_segment(start, size, memory)

    def drop_segment(self, start: int, /) -> bool:
        is_dropped = super().drop_segment(start)
        os.close(self._files.pop(start)[2])
        return self._flusher.drop_segment(start) and is_dropped

    def submit(self, how: int, /) -> bool:
        end = self.end
        if self._flusher._failed or not super().submit(how):
            return False
        ring(super().fileno())  # all of it is in the files in memory
        begin, self._handed = self._handed, end
        self._flusher._chunks = list(self._written(begin, end))
        self._flusher._pending, self._flusher.end = end - begin, end
        return self._flusher.submit(how)

    def _written(self, begin: int, end: int) -> Iterator[tuple[int, int, bytearray]]:
        """What the flusher wrote. The zeros it writes ahead of the log lie where a start has left zeros."""
        for start, (size, fd, memory) in self._files.items():
            low, high = max(begin, start), min(end, start + size)
            if low < high:
                yield fd, low - start, bytearray(os.pread(memory, high - low, low - start))

    def complete(self) -> int:
        self._flusher.complete()
        if self._flusher.busy:
            return self.written
        assert all(self._is_same(*files) for files in self._files.values()), (
            "not all that the flusher wrote was handed on"
        )
        return super().complete()

    def _is_same(self, size: int, fd: int, memory: int) -> bool:
        return os.pread(memory, size, 0) == self._flusher.disk.system.pread(fd, size, 0)

    def retry(self) -> bool:
        return self._flusher.retry()

    def set_mark(self, fd: int, position: int, magic: bytes, /) -> None:
        self._flusher.set_mark(fd, position, magic)

    @property
    def stalled(self) -> bool:
        return self._flusher.stalled

    @property
    def is_written(self) -> bool:
        """Of the machine's clock, which a second run must not depend on."""
        return True

    def locate(self, physical: int, size: int) -> tuple[int, int]:
        """For the simulated reader of cold bytes."""
        return self._flusher.locate(physical, size)

    def fileno(self) -> int:
        return self._flusher.fileno()

    def close(self) -> None:
        super().close()
        self._flusher.close()
        while self._files:
            os.close(self._files.popitem()[1][2])


def told_disk(seed: int, *, lane: bool) -> ToldDisk:
    return LaneDisk(seed) if lane else ToldDisk(seed)


class LaneSpans:
    """Stretches of the log that the lane filled, found by what it counts."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._spans: list[tuple[int, int]] = []

    @contextmanager
    def noting(self, count: Callable[[], int]) -> Iterator[None]:
        """What is placed meanwhile is the lane's if `count` grows."""
        begin, before = self._store.end, count()
        yield
        if count() > before:
            self._spans.append((begin, self._store.end))

    def hold(self, record: Record) -> bool:
        return any(begin <= record.physical_offset < end for begin, end in self._spans)
