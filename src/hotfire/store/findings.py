"""What a check of a store found: damage, and what is no damage because the next start mends it.

Owns that difference. After an unclean end a broker makes everything derived anew from the checkpoint's mark
on, so nothing there can be damaged.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field

from hotfire.store.layout import Layout


@dataclass(frozen=True, slots=True)
class Damage:
    """One thing that is wrong, and where."""

    file: str
    position: int
    problem: str

    def __str__(self) -> str:
        return f"{self.file} byte {self.position}: {self.problem}"


@dataclass(slots=True)
class Findings:
    """Collects what the checks tell, and counts."""

    layout: Layout
    tell: Callable[[Damage], None]
    notes: list[str] = field(default_factory=list)
    records: int = 0
    entries: int = 0
    keys: int = 0
    damages: int = 0
    undispatched: int = 0
    """Records without a queue entry, which the next start makes."""
    unindexed: int = 0
    mended: int = 0
    """Faults in what the next start makes anew."""
    _starts: list[int] = field(default_factory=list)
    _ends: list[int] = field(default_factory=list)

    @property
    def is_sound(self) -> bool:
        return not self.damages

    def damage(self, file: str, position: int, problem: str) -> None:
        self.damages += 1
        self.tell(Damage(file, position, problem))

    def log_damage(self, offset: int, problem: str) -> None:
        self.damage(*self.layout.place(offset), problem)

    def derived_damage(self, offset: int, file: str, position: int, problem: str) -> None:
        """Something wrong in a file made from the log, about the record at `offset`."""
        if self.is_remade(offset):
            self.mended += 1
        else:
            self.damage(file, position, problem)

    def is_remade(self, offset: int) -> bool:
        """Whether the next start makes anew what is derived from the record at `offset`."""
        return self.layout.was_unclean and offset >= self.layout.checkpoint.derived

    def note(self, text: str) -> None:
        self.notes.append(text)

    # --- stretches of the log that cannot be read ---

    def add_hole(self, start: int, end: int) -> None:
        self._starts.append(start)
        self._ends.append(end)

    def in_hole(self, offset: int) -> bool:
        """Whether the record at `offset` was damaged, and what points at it is not to blame."""
        at = bisect_right(self._starts, offset) - 1
        return at >= 0 and offset < self._ends[at]
