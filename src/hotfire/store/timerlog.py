"""The timer log: one unit for each timer message, in the order they were taken up; of one slot, a chain.

    timerlog/00000000000000000000      files of one size, named by the position of their first byte

A unit has 52 bytes, as the reference writes them:

     0  4  size, 52
     4  8  position of the unit before it in the same slot, -1 for none
    12  4  magic: 1, with 2 to be put into the wheel again, with 4 to delete another message
    16  8  time of writing in ms
    24  4  ms from then to the slot's time; ours to the millisecond before delivery, which is in the same slot
    28  8  where the message lies in the log of messages
    36  4  its size
    40  4  hash of its real topic's name
    44  8  0

A file ends in a blank where no unit and 16 bytes more have room. Derived data, without checksums: what lies
behind the position the checkpoint names is not believed but made anew.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from hotfire.store.disk import Disk

ROOT = "timerlog"
_UNIT = struct.Struct(">iqiqiqiiq")
UNIT_BYTES = _UNIT.size
_BLANK = struct.Struct(">iqi")
BLANK_MAGIC = 0xCBD43194 - (1 << 32)
ROLL, DELETE = 2, 4
NONE = -1
READ_UNITS = 1024
"""Read at once, beside the loop: about a millisecond of work between two looks at the disk."""


@dataclass(frozen=True, slots=True)
class Unit:
    """What the wheel knows of one message."""

    previous: int
    magic: int
    written_ms: int
    time_ms: int
    physical: int
    size: int
    topic_hash: int

    @property
    def slot(self) -> int:
        return self.time_ms // 1000

    def encode(self) -> bytes:
        delay_ms = self.time_ms - self.written_ms
        return _UNIT.pack(
            UNIT_BYTES, self.previous, self.magic, self.written_ms, delay_ms,
            self.physical, self.size, self.topic_hash, 0,
        )  # fmt: skip

    @classmethod
    def decode(cls, data: bytes, at: int = 0) -> Unit | None:
        """The unit there; None where none is."""
        if len(data) < at + UNIT_BYTES:
            return None
        size, previous, magic, written_ms, delay_ms, physical, length, topic, _ = _UNIT.unpack_from(data, at)
        if size != UNIT_BYTES or not 0 < magic <= 0xF or length <= 0 or physical < 0 or written_ms < 0:
            return None
        return cls(previous, magic, written_ms, written_ms + delay_ms, physical, length, topic)


def units_in(data: bytes) -> Iterator[Unit]:
    """Units one behind the other, as they were made here."""
    for at in range(0, len(data), UNIT_BYTES):
        unit = Unit.decode(data, at)
        assert unit is not None, at
        yield unit


class TimerLog:
    """The files, and the place of the next unit."""

    def __init__(self, disk: Disk, file_bytes: int) -> None:
        self._disk = disk
        self.file_bytes = file_bytes
        self._fd = -1
        self._base = NONE
        """Of the file that is open for the next units."""
        self.begin = self.end = 0
        self._dirty: set[str] = set()

    def load(self) -> int:
        """How far the files reach."""
        bases = self._bases()
        self.begin = bases[0] if bases else 0
        return bases[-1] + self.file_bytes if bases else 0

    def close(self) -> None:
        if self._fd >= 0:
            self._disk.close(self._fd)
            self._fd, self._base = -1, NONE

    def _bases(self) -> list[int]:
        """First position of each file of the right size, without gap."""
        found = sorted(
            int(name)
            for name in self._disk.names(ROOT)
            if name.isdecimal() and self._disk.size(f"{ROOT}/{name}") == self.file_bytes
        )
        while any(later - base != self.file_bytes for base, later in itertools.pairwise(found)):
            found = found[1:]
        return found

    def _path(self, base: int) -> str:
        return f"{ROOT}/{base:020d}"

    # --- writing ---

    def place(self) -> int:
        """Where the next unit goes: behind the last, or at the beginning of another file."""
        return self.place_behind(self.end)

    def place_behind(self, end: int) -> int:
        left = self.file_bytes - end % self.file_bytes
        return end if left >= UNIT_BYTES + _BLANK.size else end + left

    def write(self, position: int, data: bytes) -> None:
        """Units one behind the other, of which none goes beyond its file's end."""
        base = position - position % self.file_bytes
        if base != self._base:
            self._roll(base)
        self._disk.write(self._fd, data, position - base)
        self._dirty.add(self._path(base))
        self.end = position + len(data)

    def _roll(self, base: int) -> None:
        path = self._path(base)
        if not self._disk.exists(path) or self._disk.size(path) != self.file_bytes:
            self._disk.remove(path)  # a crash came while it was made; of another size it is not believed
            if base and base == self.end - self.end % self.file_bytes + self.file_bytes:
                self._write_blank(base)
            self._disk.make_directory(ROOT)
            self._disk.map(path, self.file_bytes).close()  # made at its size, of one hole
        self.close()
        self._fd, self._base = self._disk.open(path), base

    def _write_blank(self, base: int) -> None:
        before, left = base - self.file_bytes, base - self.end
        if left < _BLANK.size or before != self._base:
            return
        self._disk.write(self._fd, _BLANK.pack(left, 0, BLANK_MAGIC), self.end - before)
        self._dirty.add(self._path(before))

    def take_dirty(self) -> set[str]:
        dirty, self._dirty = self._dirty, set()
        return dirty

    def cut(self, end: int) -> None:
        """Zeros behind `end`: what lies there is not believed, by nobody."""
        self.close()
        self.end = end
        for base in self._bases():
            start = max(0, end - base)
            if start < self.file_bytes:
                fd = self._disk.open(self._path(base))
                try:
                    self._disk.zero(fd, start, self.file_bytes - start)
                finally:
                    self._disk.close(fd)

    def remove(self) -> None:
        """All of it: it is made anew from the queue."""
        self.close()
        for name in self._disk.names(ROOT):
            self._disk.remove(f"{ROOT}/{name}")
        self.begin = self.end = 0
        self._dirty.clear()

    def drop_below(self, physical: int) -> None:
        """Remove the oldest files, all of whose messages have left the log. For a thread beside the loop."""
        last = (self.file_bytes - _BLANK.size) // UNIT_BYTES * UNIT_BYTES - UNIT_BYTES
        for base in self._bases()[:-1]:
            unit = Unit.decode(self._disk.read_part(self._path(base), UNIT_BYTES, last))
            if unit is None or unit.physical >= physical:
                break
            self._disk.remove(self._path(base))

    # --- reading; for any thread ---

    def units(self, start: int, end: int) -> Iterator[tuple[int, Unit]]:
        """Positions and units from `start` on, which one begins at, up to the first place without."""
        at = start
        while at < end:
            base = at - at % self.file_bytes
            data = self._disk.read_part(self._path(base), READ_UNITS * UNIT_BYTES, at - base)
            for offset in range(0, len(data) - UNIT_BYTES + 1, UNIT_BYTES):
                unit = Unit.decode(data, offset)
                if unit is None or at >= end:
                    break
                yield at, unit
                at += UNIT_BYTES
            else:
                if len(data) >= UNIT_BYTES:
                    continue
            if at >= end or not self._is_blank(at):
                return
            at = base + self.file_bytes

    def _is_blank(self, at: int) -> bool:
        base = at - at % self.file_bytes
        data = self._disk.read_part(self._path(base), _BLANK.size, at - base)
        if len(data) == _BLANK.size and _BLANK.unpack(data)[2] == BLANK_MAGIC:
            return True
        return base + self.file_bytes - at < UNIT_BYTES + _BLANK.size

    def unit_before(self, end: int) -> Unit | None:
        """The last unit below `end`."""
        base = (end - 1) - (end - 1) % self.file_bytes
        count = min(end - base, self.file_bytes - _BLANK.size) // UNIT_BYTES
        return self.unit(base + (count - 1) * UNIT_BYTES) if count > 0 else None

    def unit(self, position: int) -> Unit | None:
        base = position - position % self.file_bytes
        return Unit.decode(self._disk.read_part(self._path(base), UNIT_BYTES, position - base))

    def sound_end(self, start: int) -> int:
        """Where the units that follow one another from `start` on end."""
        end = start
        for at, _ in self.units(start, NEVER):
            end = at + UNIT_BYTES
        return end

    def file_of(self, position: int) -> int:
        return position - position % self.file_bytes

    def chain(self, slot: int, last: int) -> Iterator[Unit]:
        """The units of a slot, the newest first, as far back as they are its own.

        A slot whose words a crash has mixed may lead to another's units; those of its own that it does not
        lead to are behind the checkpoint, and taken up again.
        """
        data, low, at = b"", 0, last
        while at >= 0:
            offset = at - low
            if not 0 <= offset <= len(data) - UNIT_BYTES:
                base = at - at % self.file_bytes
                low = max(base, at + UNIT_BYTES - READ_UNITS * UNIT_BYTES)
                data = self._disk.read_part(self._path(base), at + UNIT_BYTES - low, low - base)
                offset = at - low
            unit = Unit.decode(data, offset)
            if unit is None or unit.slot != slot:
                return
            yield unit
            if unit.previous >= at:  # a chain leads back, or it would have no end
                return
            at = unit.previous


NEVER = 1 << 62
