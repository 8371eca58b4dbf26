"""How far each group has consumed each queue. An offset means the next message to read, everywhere.

In memory at once, on disk every few seconds and at shutdown: an offset lost in a crash is a message
delivered twice, never one lost.
"""

from __future__ import annotations

from hotfire.model import DataVersion
from hotfire.protocol import bodies
from hotfire.protocol.bodies import from_json, to_json
from hotfire.store.tables import Table

SEPARATOR = "@"
OffsetTable = dict[tuple[str, str], dict[int, int]]
_OFFSET_TABLE = bodies.table(bodies.text, bodies.table(bodies.int32, bodies.int64))


class Offsets:
    """(topic, group) -> queue id -> offset, kept in consumerOffset.json."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._offsets: OffsetTable = {}
        self._version = DataVersion()
        self._dirty = False

    def load(self) -> None:
        stored = self._table.load_as(_read)
        if stored is not None:
            self._version, self._offsets = stored

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
            version = self._next(now_ms)
            # copying is all the loop does of it; to spell a million offsets takes seconds
            copied = {key: offsets.copy() for key, offsets in self._offsets.items()}
            self._table.save_beside(lambda: _tree(version, copied))

    def save(self, now_ms: int) -> None:
        """Write the table and wait for the disk."""
        self._dirty = False
        self._table.save(_tree(self._next(now_ms), self._offsets))

    def _next(self, now_ms: int) -> DataVersion:
        self._version = self._version.next(now_ms)
        return self._version


def _tree(version: DataVersion, table: OffsetTable) -> dict[str, object]:
    return {
        "dataVersion": to_json(version),
        "offsetTable": {
            f"{topic}{SEPARATOR}{group}": dict(sorted(offsets.items()))
            for (topic, group), offsets in table.items()
        },
    }


def _read(tree: dict[str, object]) -> tuple[DataVersion, OffsetTable]:
    rows = _OFFSET_TABLE(tree.get("offsetTable", {}))
    version = from_json(DataVersion, tree.get("dataVersion", {}))
    offsets = {}
    for name, row in rows.items():
        topic, _, group = name.partition(SEPARATOR)
        offsets[topic, group] = row
    return version, offsets
