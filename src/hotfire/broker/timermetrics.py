"""How many messages of each topic wait for their time: asked for by slaves and tools, kept in `timermetrics`.

Counted as messages come and go; a crash may leave the counts off by what the last second brought.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hotfire.model import DataVersion
from hotfire.protocol.bodies import from_json, to_json
from hotfire.store.tables import Table


class TimerMetrics:
    """Counts by real topic."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._counts: dict[str, tuple[int, int]] = {}
        """Topic -> messages that wait, and when that changed."""
        self._version = DataVersion()

    def load(self, now_ms: int) -> None:
        found = self._table.load_as(_read)
        if found is not None:
            self._version, self._counts = found

    def count(self, topic: str, step: int, now_ms: int) -> None:
        before, _ = self._counts.get(topic, (0, 0))
        self._counts[topic] = before + step, now_ms

    def waiting(self, topic: str) -> int:
        return self._counts.get(topic, (0, 0))[0]

    def spell(self) -> Callable[[], dict[str, Any]]:
        """What makes the tree of the counts as they are now: of thousands of topics beside the loop."""
        version, counts = self._version, self._counts.copy()
        return lambda: _tree(version, counts)

    def forget(self, topic: str) -> None:
        self._counts.pop(topic, None)

    def save(self, now_ms: int) -> None:
        if self._counts:
            self._version = self._version.next(now_ms)
            self._table.save(_tree(self._version, self._counts))

    def save_beside(self, now_ms: int) -> None:
        if self._table.is_writing or not self._counts:
            return
        self._table.settle()
        self._version = self._version.next(now_ms)
        self._table.save_beside(self.spell())


def _tree(version: DataVersion, counts: dict[str, tuple[int, int]]) -> dict[str, Any]:
    told = {topic: {"count": count, "timeStamp": at} for topic, (count, at) in counts.items()}
    return {"dataVersion": to_json(version), "timingCount": told}


def _read(tree: dict[str, Any]) -> tuple[DataVersion, dict[str, tuple[int, int]]]:
    counts = {
        str(topic): (int(metric["count"]), int(metric["timeStamp"]))
        for topic, metric in (tree.get("timingCount") or {}).items()
    }
    return from_json(DataVersion, tree.get("dataVersion") or {}), counts
