"""The slots of the timer wheel that are open: what is due in them, by millisecond, in compact arrays.

A slot is opened some time before its second: its chain is read beside the loop, and what comes later is added
here as it is added to the files. Twelve bytes for a message, whatever its size; all others are in the files
alone. Knows no clock and no disk: the chain comes as units.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field

from hotfire.store.timerlog import DELETE, NONE, ROLL, Unit

NEVER = 1 << 62
Entry = tuple[int, int]
"""Where a message lies in the log and its size, below 0 when it is only to be put into the wheel again."""


class Line:
    """Messages due at one millisecond, in the order they came."""

    __slots__ = ("_first", "offsets", "sizes")

    def __init__(self) -> None:
        self.offsets, self.sizes = array("q"), array("i")
        self._first = 0

    def __len__(self) -> int:
        return len(self.offsets) - self._first

    def append(self, entry: Entry) -> None:
        self.offsets.append(entry[0])
        self.sizes.append(entry[1])

    def reverse(self) -> None:
        self.offsets.reverse()
        self.sizes.reverse()

    def holds(self, physical: int) -> bool:
        with suppress(ValueError):
            return self.offsets.index(physical, self._first) >= 0
        return False

    def left(self) -> Iterator[Entry]:
        return zip(self.offsets[self._first :], self.sizes[self._first :], strict=True)

    def take(self, count_max: int, bytes_max: int) -> tuple[list[Entry], int]:
        """The first so many, until the bytes are used up; and how many bytes are left."""
        begin = end = self._first
        most = min(len(self.offsets), begin + count_max)
        while end < most and bytes_max > 0:
            bytes_max -= abs(self.sizes[end])
            end += 1
        self._first = end
        return list(zip(self.offsets[begin:end], self.sizes[begin:end], strict=True)), bytes_max


Lines = dict[int, Line]
"""By millisecond of the second."""


@dataclass(slots=True)
class Loaded:
    """A chain as it was read: its messages, and the messages that delete others."""

    lines: Lines = field(default_factory=dict)
    deleting: list[Entry] = field(default_factory=list)


def offsets(lines: Lines) -> set[int]:
    return {offset for line in lines.values() for offset, _ in line.left()}


def load(chain: Iterable[Unit]) -> Loaded:
    """Sort a chain, which comes newest first, by milliseconds; a message counts once.

    Units of messages that were put off, and those of the reference after a crash, may be of one that has
    another. Else each lies below the one before it, and nothing needs to be remembered.
    """
    loaded = Loaded()
    lowest, seen = NEVER, None
    for unit in chain:
        entry = unit.physical, -unit.size if unit.magic & ROLL else unit.size
        if unit.magic & DELETE and not unit.magic & ROLL:
            loaded.deleting.append(entry)
            continue
        if seen is None and unit.physical >= lowest:
            seen = offsets(loaded.lines)
        if seen is not None:
            if unit.physical in seen:
                continue
            seen.add(unit.physical)
        lowest = min(lowest, unit.physical)
        millisecond = unit.time_ms % 1000
        line = loaded.lines.get(millisecond)
        if line is None:
            line = loaded.lines[millisecond] = Line()
        line.append(entry)
    for line in loaded.lines.values():
        line.reverse()
    return loaded


@dataclass(slots=True, eq=False)
class OpenSlot:
    """One second whose messages are at hand, or on their way from the timer log."""

    time_s: int
    is_loading: bool = False
    deleted: set[str] = field(default_factory=set)
    """Keys of messages that were taken back."""
    deleting: list[Entry] = field(default_factory=list)
    """The messages that take them back."""
    lines: Lines = field(default_factory=dict)
    under_way: int = 0
    """Messages taken out to be delivered, and not dealt with."""
    end: int = 0
    """Where the last copy of its messages ends in the log: it is done with once that is safe."""
    units_end: int = 0
    """Where the last unit ends of those put off from here: once the checkpoint vouches for it."""
    shown_end: int = 0
    """Where the timer log ended when the last message came here."""
    has_held: bool = False
    has_dealt: bool = False
    """Whether some of its messages were dealt with: whoever goes on here must not meet them again."""

    @property
    def is_empty(self) -> bool:
        return not (self.is_loading or self.under_way or self.lines)

    def is_done(self, safe: int, sure: int) -> bool:
        """Whether nothing here is needed any more: with the log and the timer log on the disk so far.

        Messages the checkpoint does not vouch for are taken up again, and must meet what takes them back.
        """
        needed = max(self.units_end, self.shown_end) if self.deleted else self.units_end
        return self.is_empty and self.end <= safe and needed <= sure

    def holds(self, physical: int) -> bool:
        """Whether a message waits here."""
        return any(line.holds(physical) for line in self.lines.values())

    def add(self, millisecond: int, entry: Entry) -> None:
        """A message behind all others of its millisecond."""
        self.has_held = True
        line = self.lines.get(millisecond)
        if line is None:
            line = self.lines[millisecond] = Line()
        line.append(entry)

    def take_in(self, loaded: Loaded, deleted: Iterable[str]) -> None:
        """The chain has come; what was added meanwhile stands behind it."""
        self.is_loading = False
        self.has_held = self.has_held or bool(loaded.lines)
        self.deleted.update(deleted)
        self.deleting.extend(loaded.deleting)
        later, self.lines = self.lines, loaded.lines
        known = offsets(loaded.lines) if later else set()
        for millisecond, line in later.items():
            for entry in line.left():
                if entry[0] not in known:
                    self.add(millisecond, entry)

    def due_ms(self) -> int | None:
        """When its next message is due; None when there is none, or it is not known yet."""
        if self.is_loading or not self.lines:
            return None
        return self.time_s * 1000 + min(self.lines) + 1

    def take(self, now_ms: int, count_max: int, bytes_max: int) -> list[Entry]:
        """Messages due by now, at most so many and so many bytes and one message more; they are under way."""
        taken: list[Entry] = []
        for millisecond in self._due(now_ms):
            line = self.lines[millisecond]
            found, bytes_max = line.take(count_max - len(taken), bytes_max)
            taken += found
            if line:
                break
            del self.lines[millisecond]
        self.under_way += len(taken)
        return taken

    def units(self, written_ms: int) -> Iterator[Unit]:
        """What is left, as it would be written into the timer log."""
        for millisecond in sorted(self.lines):
            for physical, size in self.lines[millisecond].left():
                magic = 1 | ROLL if size < 0 else 1
                time_ms = self.time_s * 1000 + millisecond
                yield Unit(NONE, magic, written_ms, time_ms, physical, abs(size), 0)
        for physical, size in self.deleting:
            yield Unit(NONE, 1 | DELETE, written_ms, self.time_s * 1000, physical, abs(size), 0)

    def _due(self, now_ms: int) -> list[int]:
        """Milliseconds of which something is due."""
        if self.is_loading:
            return []
        return sorted(at for at in self.lines if self.time_s * 1000 + at < now_ms)
