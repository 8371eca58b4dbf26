"""How far each group has consumed each queue. An offset means the next message to read, everywhere.

In memory at once, on disk every few seconds and at shutdown: an offset lost in a crash is a message
delivered twice, never one lost.
"""

from __future__ import annotations

from hotfire.model import DataVersion
from hotfire.protocol.bodies import from_json, to_json
from hotfire.store.tables import Table

SEPARATOR = "@"


class Offsets:
    """(topic, group) -> queue id -> offset, kept in consumerOffset.json."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._offsets: dict[tuple[str, str], dict[int, int]] = {}
        self._version = DataVersion()
        self._dirty = False

    def load(self) -> None:
        tree = self._table.load() or {}
        self._version = from_json(DataVersion, tree.get("dataVersion") or {})
        for name, offsets in (tree.get("offsetTable") or {}).items():
            topic, _, group = str(name).partition(SEPARATOR)
            self._offsets[topic, group] = {int(queue_id): int(offset) for queue_id, offset in offsets.items()}

    def commit(self, topic: str, group: str, queue_id: int, offset: int) -> None:
        self._offsets.setdefault((topic, group), {})[queue_id] = offset
        self._dirty = True

    def get(self, topic: str, group: str, queue_id: int) -> int | None:
        return self._offsets.get((topic, group), {}).get(queue_id)

    def save_beside(self, now_ms: int) -> None:
        """Write the table while the loop goes on, if anything was committed since."""
        if self._table.is_writing:
            return
        if not self._table.settle():
            self._dirty = True
        if self._dirty:
            self._dirty = False
            self._table.save_beside(self._tree(now_ms))

    def save(self, now_ms: int) -> None:
        """Write the table and wait for the disk."""
        self._dirty = False
        self._table.save(self._tree(now_ms))

    def _tree(self, now_ms: int) -> dict[str, object]:
        self._version = self._version.next(now_ms)
        return {
            "dataVersion": to_json(self._version),
            "offsetTable": {
                f"{topic}{SEPARATOR}{group}": dict(sorted(offsets.items()))
                for (topic, group), offsets in self._offsets.items()
            },
        }
