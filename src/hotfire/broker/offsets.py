"""How far each group has consumed each queue. An offset means the next message to read, everywhere.

In memory at once, on disk every few seconds and at shutdown: an offset lost in a crash is a message
delivered twice, never one lost. A reset counts from the moment it is made: until the group's own pull has
been told of it, what its clients still commit from before is not taken. That too outlives a restart.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

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
        self._resets: OffsetTable = {}
        self._pulls: OffsetTable = {}
        self._groups: dict[str, set[str]] = {}
        self._topics: dict[str, set[str]] = {}
        """Topic -> groups and group -> topics, of what is committed or was pulled."""
        self._version = DataVersion()
        self._is_adopted = False
        self._dirty = False
        self.is_urgent = False
        """Something was set by hand, which is worth a write of its own."""

    def load(self) -> None:
        stored = self._table.load_as(read_offsets)
        if stored is not None:
            self._version, self._offsets, self._resets = stored
        for topic, group in self._offsets:
            self._index(topic, group)

    # --- what groups have read ---

    def get(self, topic: str, group: str, queue_id: int) -> int | None:
        return self._offsets.get((topic, group), {}).get(queue_id)

    def slowest(self, topic: str, queue_id: int) -> tuple[int, str] | None:
        """Offset and name of the group that is furthest behind on a queue; None if none has consumed it."""
        rows = ((self._offsets[topic, group], group) for group in self.groups_of(topic))
        return min(((row[queue_id], group) for row, group in rows if queue_id in row), default=None)

    def commit(self, topic: str, group: str, queue_id: int, offset: int) -> int | None:
        """Set the offset to what is said, backwards too; the one before."""
        row = self._row(topic, group)
        before = row.get(queue_id)
        row[queue_id] = offset
        self._dirty = True
        return before

    def carry(self, topic: str, group: str, queue_id: int, offset: int) -> None:
        """Take the offset that comes with a pull. It may be old news: it never moves one backwards."""
        if offset < 0 or queue_id in self._resets.get((topic, group), ()):
            return
        row = self._row(topic, group)
        if offset > row.get(queue_id, -1):
            row[queue_id] = offset
            self._dirty = True

    def pulled(self, place: tuple[str, str], queue_id: int, next_offset: int) -> None:
        """A pull of (topic, group) goes on there. Only told to whoever asks, and not kept on disk."""
        row = self._pulls.get(place)
        if row is None:
            row = self._pulls[place] = {}
            self._index(*place)
        row[queue_id] = next_offset

    def groups_of(self, topic: str) -> frozenset[str]:
        """Groups that have read of the topic."""
        return frozenset(g for g in self._groups.get(topic, ()) if (topic, g) in self._offsets)

    def topics_of(self, group: str) -> frozenset[str]:
        """Topics the group has read of."""
        return frozenset(t for t in self._topics.get(group, ()) if (t, group) in self._offsets)

    def forget(self, topic: str, group: str) -> None:
        """Nothing more is known of what the group read of the topic."""
        if group not in self._groups.get(topic, ()):
            return
        self._pulls.pop((topic, group), None)
        self._resets.pop((topic, group), None)
        if self._offsets.pop((topic, group), None) is not None:
            self._dirty = self.is_urgent = True
        for index, key, item in ((self._groups, topic, group), (self._topics, group, topic)):
            index[key].discard(item)
            if not index[key]:
                del index[key]

    # --- administration ---

    @property
    def version(self) -> DataVersion:
        return self._version

    def copy(self) -> OffsetTable:
        """Every offset, for whoever reads them beside the loop."""
        return _copy(self._offsets)

    def of(self, topic: str, group: str) -> dict[int, int]:
        return dict(self._offsets.get((topic, group), {}))

    def pulls_of(self, topic: str, group: str) -> dict[int, int]:
        """Where the group's last pull of each queue went on."""
        return dict(self._pulls.get((topic, group), {}))

    def copy_pulls(self) -> OffsetTable:
        return _copy(self._pulls)

    def knows(self, group: str) -> bool:
        return group in self._topics

    @property
    def group_count(self) -> int:
        """How many groups have offsets or have pulled."""
        return len(self._topics)

    def clone(self, topic: str, source: str, target: str) -> None:
        offsets = self._offsets.get((topic, source))
        if offsets is not None and target != source:
            row = self._row(topic, target)
            row.clear()
            row.update(offsets)
            self._dirty = True

    def adopt(self, version: DataVersion, offsets: OffsetTable) -> None:
        """Take the offsets of a master's table; those it does not have stay."""
        self._dirty = self._dirty or version != self._version
        self._version, self._is_adopted = version, True
        for (topic, group), row in offsets.items():
            ours = self._row(topic, group)
            if not row.items() <= ours.items():
                ours.update(row)
                self._dirty = True

    def forget_group(self, group: str) -> None:
        for topic in tuple(self._topics.get(group, ())):
            self.forget(topic, group)

    def forget_beyond(self, topic: str, end_of: Callable[[int], int]) -> None:
        """Of a topic that begins anew, offsets behind its queues' ends are those of its former life.

        A group that went on there would miss what is stored before it.
        """
        for group in self.groups_of(topic):
            row = self._offsets[topic, group]
            for queue_id in [queue_id for queue_id, offset in row.items() if offset > end_of(queue_id)]:
                del row[queue_id]
                self.take_reset(topic, group, queue_id)
                self._dirty = True
            if not row:
                self.forget(topic, group)

    def forget_topic(self, topic: str) -> None:
        for group in tuple(self._groups.get(topic, ())):
            self.forget(topic, group)

    # --- resets ---

    def reset(self, topic: str, group: str, offsets: Mapping[int, int]) -> None:
        """Let the group go on at these offsets, whatever its clients think."""
        self._row(topic, group).update(offsets)
        self._resets.setdefault((topic, group), {}).update(offsets)
        self._dirty = self.is_urgent = True

    def is_reset(self, topic: str, group: str, queue_id: int) -> bool:
        """Whether the group has yet to be told that this queue was reset."""
        return queue_id in self._resets.get((topic, group), ())

    def has_resets(self, topic: str, group: str) -> bool:
        return (topic, group) in self._resets

    def take_reset(self, topic: str, group: str, queue_id: int) -> int | None:
        """Where the queue was reset to, for the pull that is told; None when it was not."""
        resets = self._resets.get((topic, group))
        if resets is None or queue_id not in resets:
            return None
        offset = resets.pop(queue_id)
        self._dirty = True
        if not resets:
            del self._resets[topic, group]
        return offset

    # --- on disk ---

    def save_beside(self, now_ms: int) -> bool:
        """Write the table while the loop goes on, if anything was committed since; False: not just now."""
        if self._table.is_writing:
            return False
        if not self._table.settle():
            self._dirty = True
        self.is_urgent = False
        if self._dirty:
            self._dirty = False
            version = self._next(now_ms)
            # copying is all the loop does of it; to spell a million offsets takes seconds
            copied, resets = _copy(self._offsets), _copy(self._resets)
            self._table.save_beside(lambda: _tree(version, copied, resets))
        return True

    def save(self, now_ms: int) -> None:
        """Write the table and wait for the disk."""
        self._dirty = False
        self._table.save(_tree(self._next(now_ms), self._offsets, self._resets))

    def _next(self, now_ms: int) -> DataVersion:
        """The edition that is written: what was taken of a master is the master's."""
        if not self._is_adopted:
            self._version = self._version.next(now_ms)
        self._is_adopted = False
        return self._version

    def _row(self, topic: str, group: str) -> dict[int, int]:
        row = self._offsets.get((topic, group))
        if row is None:
            row = self._offsets[topic, group] = {}
            self._index(topic, group)
        return row

    def _index(self, topic: str, group: str) -> None:
        self._groups.setdefault(topic, set()).add(group)
        self._topics.setdefault(group, set()).add(topic)


def _copy(table: OffsetTable) -> OffsetTable:
    return {key: row.copy() for key, row in table.items()}


def _rows(table: OffsetTable) -> dict[str, dict[int, int]]:
    return {f"{topic}{SEPARATOR}{group}": dict(sorted(row.items())) for (topic, group), row in table.items()}


def _tree(version: DataVersion, table: OffsetTable, resets: OffsetTable) -> dict[str, object]:
    tree: dict[str, object] = {"dataVersion": to_json(version), "offsetTable": _rows(table)}
    if resets:  # ours alone: the reference's broker passes over it
        tree["resetOffsetTable"] = _rows(resets)
    return tree


def read_offsets(tree: dict[str, object]) -> tuple[DataVersion, OffsetTable, OffsetTable]:
    """A table as it is on disk and on the wire: offsets, and resets the group has yet to be told of."""
    version = from_json(DataVersion, tree.get("dataVersion", {}))
    return version, _table(tree.get("offsetTable", {})), _table(tree.get("resetOffsetTable", {}))


def _table(tree: object) -> OffsetTable:
    offsets = {}
    for name, row in _OFFSET_TABLE(tree).items():
        topic, _, group = name.partition(SEPARATOR)
        offsets[topic, group] = row
    return offsets
