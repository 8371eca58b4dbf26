"""Halves to be asked about while no producer of their group is there: said in the log, and seldom.

It is a mistake of operation, or a crash nobody recovered from: halves that nobody answers for are laid aside
in the end. Clients choose the names of groups, so neither lines nor names are without bound. Knows no halves.
"""

from __future__ import annotations

import logging
from collections import Counter

log = logging.getLogger("hotfire.broker")

TOLD_EVERY_MS = 60_000
GROUPS_MAX = 1000
"""Counted by name; the others are counted together."""


class Unasked:
    """What could not be asked since the last line about it."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._rest = 0
        self._told_ms: int | None = None

    def note(self, group: str) -> None:
        """Nobody of this group could be asked about one half."""
        if group in self._counts or len(self._counts) < GROUPS_MAX:
            self._counts[group] += 1
        else:
            self._rest += 1

    def tell(self, now_ms: int) -> None:
        """One line, if there is something to say and the last is long enough ago."""
        if not self._counts or (self._told_ms is not None and now_ms < self._told_ms + TOLD_EVERY_MS):
            return
        ((group, count),) = self._counts.most_common(1)
        log.warning(
            "nobody to ask how transactions ended: no producer of group=%.255s is connected questions=%d "
            "other_groups=%d their_questions=%d: start one, or its messages are laid aside in the end",
            group, count, len(self._counts) - 1, self._counts.total() - count + self._rest,
        )  # fmt: skip
        self._counts.clear()
        self._rest, self._told_ms = 0, now_ms

    def clock_moved(self, by_ms: int) -> None:
        if self._told_ms is not None:
            self._told_ms += by_ms
