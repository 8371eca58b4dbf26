"""The timer wheel: a slot for each second of two weeks, each the head of a chain of units in the timer log.

`timerwheel` is one mapped file of slots of 32 bytes, as the reference has it. The slot of a second is its
number modulo the slots there are; one that names another second is empty.

     0  8  the second, since 1970
     8  8  position of the first unit
    16  8  position of the last
    24  4  messages
    28  4  0

Made with the first timer message; its blocks are reserved, so that a store into it cannot meet a full disk.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from hotfire.store.disk import Disk, Mapped

FILE = "timerwheel"
ASIDE = FILE + ".new"
"""Until it holds all that it is to hold: a start that is killed must not leave a part of it as the wheel."""
SLOTS = 2 * 7 * 86_400
_SLOT = struct.Struct(">qqqii")
SLOT_BYTES = _SLOT.size
_EMPTY = bytes(SLOT_BYTES)


@dataclass(frozen=True, slots=True)
class Slot:
    """The messages of one second."""

    time_s: int
    first: int
    last: int
    count: int


class TimerWheel:
    """The slots."""

    def __init__(self, disk: Disk, slots: int = 0) -> None:
        self._disk = disk
        self.slots = slots or SLOTS
        self.mapped: Mapped | None = None
        """The slots as they lie there, once there are any: the lane looks at them too."""

    @property
    def exists(self) -> bool:
        return self.mapped is not None

    def load(self) -> bool:
        """Whether it was there; one of another size is no wheel of ours, and made anew when it is needed."""
        if not self._disk.exists(FILE) or self._disk.size(FILE) != self.slots * SLOT_BYTES:
            self._disk.remove(FILE)
            return False
        self.make()
        return True

    def make(self) -> None:
        if self.mapped is None:
            self.mapped = self._made(FILE)

    def make_aside(self) -> None:
        """An empty wheel, which is the wheel once it is put in its place."""
        self._disk.remove(ASIDE)
        self.mapped = self._made(ASIDE)

    def put_in_place(self) -> None:
        self._disk.sync_file(ASIDE)
        self._disk.rename(ASIDE, FILE)

    def _made(self, path: str) -> Mapped:
        size = self.slots * SLOT_BYTES
        made = self._disk.map(path, size, page_by_page=True)
        try:
            self._disk.reserve(path, size)
        except OSError:
            made.close()
            raise
        return made

    def remove(self) -> None:
        self.close()
        for path in (FILE, ASIDE):
            self._disk.remove(path)

    def close(self) -> None:
        if self.mapped is not None:
            self.mapped.close()
            self.mapped = None

    def _at(self, time_s: int) -> int:
        return time_s % self.slots * SLOT_BYTES

    def get(self, time_s: int) -> Slot | None:
        """The slot of a second; None when it is empty."""
        found = self.holder(time_s)
        return found if found is not None and found.time_s == time_s else None

    def holder(self, time_s: int) -> Slot | None:
        """What lies in the place of a second, of whatever second it is."""
        if self.mapped is None:
            return None
        time, first, last, count, _ = _SLOT.unpack_from(self.mapped, self._at(time_s))
        return Slot(time, first, last, count) if time > 0 else None

    def empty_run(self, time_s: int, count_max: int) -> int:
        """How many slots from this second on are empty at a glance, at most so many."""
        if self.mapped is None:
            return count_max
        at = self._at(time_s)
        data = bytes(self.mapped[at : at + count_max * SLOT_BYTES])
        return (len(data) - len(data.lstrip(b"\0"))) // SLOT_BYTES

    def put(self, slot: Slot) -> None:
        assert self.mapped is not None, "the wheel is made before anything is put"
        count = max(-(1 << 31), min(slot.count, (1 << 31) - 1))
        at = self._at(slot.time_s)
        # in one piece: packed into the map, it would be stored byte by byte, and a kill may come between
        self.mapped[at : at + SLOT_BYTES] = _SLOT.pack(slot.time_s, slot.first, slot.last, count, 0)

    def clear(self, time_s: int) -> None:
        """The second is over, and all of its messages are delivered."""
        if self.mapped is not None and self.get(time_s) is not None:
            at = self._at(time_s)
            self.mapped[at : at + SLOT_BYTES] = _EMPTY

    def all(self) -> Iterator[Slot]:
        """Every slot that is not empty, by place."""
        if self.mapped is None:
            return
        for time, first, last, count, _ in _SLOT.iter_unpack(self.mapped[:]):
            if time > 0:
                yield Slot(time, first, last, count)
