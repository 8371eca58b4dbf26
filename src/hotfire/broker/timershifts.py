"""By how much delays end later, for the clock was set forward while they lasted: kept in `timerShifts.json`.

Each shift is of the messages below a position in the queue of timers. Of many the oldest two are made one:
the messages between them come late by as much, and never early.
"""

from __future__ import annotations

from typing import Any

from hotfire.store.tables import Table

SHIFTS_MAX = 64


class Shifts:
    """Positions and milliseconds, oldest first."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._shifts: list[tuple[int, int]] = []
        self._is_owed = False

    @property
    def below(self) -> int:
        """The position from which on nothing was shifted."""
        return max((below for below, _ in self._shifts), default=0)

    def load(self, queue_min: int, queue_max: int) -> None:
        """What was kept. Positions behind the queue's end were of messages a crash has taken; others will
        be there soon, and are not meant."""
        found = self._table.load_as(_read) or []
        self._shifts = [(min(below, queue_max), by_ms) for below, by_ms in found if below > queue_min]
        self._is_owed = self._shifts != found
        self.save()

    def add(self, below: int, by_ms: int) -> None:
        self._shifts.append((below, by_ms))
        if len(self._shifts) > SHIFTS_MAX:
            (_, first_ms), (second, second_ms) = self._shifts[:2]
            self._shifts[:2] = [(second, first_ms + second_ms)]
        self._is_owed = True

    def of(self, queue_offset: int) -> int:
        return sum(by_ms for below, by_ms in self._shifts if queue_offset < below)

    def drop_below(self, queue_min: int) -> None:
        kept = [shift for shift in self._shifts if shift[0] > queue_min]
        self._is_owed = self._is_owed or len(kept) < len(self._shifts)
        self._shifts = kept

    def save(self) -> None:
        if self._is_owed:
            self._table.save(self._tree())
            self._is_owed = False

    def save_beside(self) -> None:
        if self._table.is_writing:
            return
        self._is_owed = not self._table.settle() or self._is_owed
        if not self._is_owed:
            return
        tree = self._tree()
        self._table.save_beside(lambda: tree)
        self._is_owed = False

    def _tree(self) -> dict[str, Any]:
        return {"shifts": [{"below": below, "byMs": by_ms} for below, by_ms in self._shifts]}


def _read(tree: dict[str, Any]) -> list[tuple[int, int]]:
    return [(int(shift["below"]), int(shift["byMs"])) for shift in tree.get("shifts") or []]
