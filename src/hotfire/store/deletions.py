"""Deleted topics: up to which log offset nothing of them exists any more.

The log keeps a deleted topic's records until its segments expire, and queues can be made anew from it at any
start. So a deletion is one line in a table: records of the topic before that offset have no entries. It is on
the disk first; whatever a crash leaves undone behind it, the next start does. A topic made again begins at
offset 0 behind that line. The line goes when the log begins behind it.

    1. the table, synced
    2. consumequeue/T becomes consumequeue/T.deleted, its directory synced: T may be made again at once
    3. beside the loop, the files are removed

Knows files and offsets. Whether a topic may go is not decided here.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Container, Mapping
from typing import Any

from hotfire import core
from hotfire.errors import RemoteProtocolError
from hotfire.model import TOPIC_QUEUES_MAX
from hotfire.protocol import bodies
from hotfire.store.commitlog import CommitLog
from hotfire.store.config import ENTRY_BYTES
from hotfire.store.consumequeue import FILLER, ConsumeQueue, QueueKey
from hotfire.store.consumequeue import ROOT as QUEUE_ROOT
from hotfire.store.disk import Disk
from hotfire.store.queueext import ROOT as EXT_ROOT
from hotfire.store.tables import ROOT as TABLE_ROOT
from hotfire.store.tables import Table

FILE = "deletedTopics.json"
KEY = "deletedTopics"
SUFFIX = ".deleted"
"""No topic's name has a dot."""
_ENTRY = struct.Struct(">qiq")
_FILLER = _ENTRY.pack(*FILLER)
_read_ends = bodies.table(bodies.text, bodies.int64)


class Deletions:
    """Topic -> the log offset before which it does not exist."""

    def __init__(
        self,
        disk: Disk,
        commitlog: CommitLog,
        queues: dict[QueueKey, ConsumeQueue],
        fail: Callable[[str], None],
    ) -> None:
        self._disk = disk
        self._fail = fail
        self._log = commitlog
        self._queues = queues
        self._table = Table(disk, FILE)
        self._leaving: list[tuple[int, ConsumeQueue]] = []
        """Queues that are gone, by the end of the log whose entries may still be on their way to them."""
        self.ends: Mapping[str, int] = {}

    # --- at the start ---

    def open(self) -> None:
        """Before recovery looks at the queues: finish what was begun."""
        if any(self._disk.exists(f"{TABLE_ROOT}/{name}") for name in (FILE, FILE + ".bak")):
            ends = self._table.load_as(_read) or {}
            self.ends = {topic: end for topic, end in ends.items() if end > self._log.min_offset}
        for root in (QUEUE_ROOT, EXT_ROOT):
            for name in self._disk.names(root):
                if name.endswith(SUFFIX):
                    self._disk.remove_tree(f"{root}/{name}")
        for topic, end in self.ends.items():
            if self._is_from_before(topic, end):
                for root in (QUEUE_ROOT, EXT_ROOT):
                    self._disk.remove_tree(f"{root}/{topic}")

    def log_ends_at(self, end: int) -> None:
        """Recovery found the log's end, perhaps before a deletion whose turn a crash took.

        What is stored from here on lies behind every deletion, and the table must say so first.
        """
        if any(before > end for before in self.ends.values()):
            self._save({topic: min(before, end) for topic, before in self.ends.items()})

    def _is_from_before(self, topic: str, end: int) -> bool:
        """Whether the topic's files are those of its former life: a life's entries lie on one side."""
        for queue in self._disk.names(f"{QUEUE_ROOT}/{topic}"):
            for file in self._disk.names(f"{QUEUE_ROOT}/{topic}/{queue}"):
                physical = self._first_record(f"{QUEUE_ROOT}/{topic}/{queue}/{file}")
                if physical is not None and physical < end:
                    return True
        return False

    def _first_record(self, file: str) -> int | None:
        """Log offset of the first message of a queue file; entries that only keep a place tell nothing."""
        at, entry = 0, self._disk.read_part(file, ENTRY_BYTES, 0)
        while entry == _FILLER:
            at += ENTRY_BYTES
            entry = self._disk.read_part(file, ENTRY_BYTES, at)
        physical, size, _ = _ENTRY.unpack(entry) if len(entry) == ENTRY_BYTES else (0, 0, 0)
        return physical if size > 0 else None

    # --- deleting ---

    def delete(self, topics: list[str]) -> list[core.Queue]:
        """Nothing of these exists any more, whatever happens from here on; the queues they had."""
        end = self._log.journal.end
        ends = {topic: before for topic, before in self.ends.items() if before > self._log.min_offset}
        self._save(ends | dict.fromkeys(topics, end))
        left = []
        for topic in topics:
            names = self._disk.names(f"{QUEUE_ROOT}/{topic}")
            ids = {int(name) for name in names if name.isdecimal()} | set(range(TOPIC_QUEUES_MAX))
            for queue in filter(None, (self._queues.pop((topic, queue_id), None) for queue_id in ids)):
                queue.leave()
                self._leaving.append((end, queue))
                left.append(queue.entries)
        try:
            for topic in topics:
                self._move_away(topic)
        except OSError as error:  # the next life's entries would come between those of the last
            self._fail(f"files of a deleted topic could not be moved away: {error.strerror}")
        return left

    def _save(self, ends: Mapping[str, int]) -> None:
        self._table.save({KEY: dict(sorted(ends.items()))})
        self.ends = ends

    def topics_besides(self, kept: Container[str]) -> list[str]:
        """Topics with queues that are not among these."""
        return sorted({topic for topic, _ in self._queues if topic not in kept})

    def let_go(self, derived: int) -> None:
        """Close queues that left, once no entry is on its way to them."""
        if self._leaving and derived >= self._leaving[-1][0]:
            self.close()

    def close(self) -> None:
        for _, queue in self._leaving:
            queue.close()
        self._leaving.clear()

    def _move_away(self, topic: str) -> None:
        """Take the topic's files out of the way, and remove them beside the loop."""
        away = []
        for root in (QUEUE_ROOT, EXT_ROOT):
            if not self._disk.exists(f"{root}/{topic}"):
                continue
            name, number = f"{root}/{topic}{SUFFIX}", 0
            while self._disk.exists(name):  # one that went before is still being removed
                number += 1
                name = f"{root}/{topic}.{number}{SUFFIX}"
            self._disk.rename(f"{root}/{topic}", name)
            away.append(name)

        def work() -> None:
            for name in away:
                self._disk.remove_tree(name)

        if away:
            self._disk.beside(work)


def _read(tree: dict[str, Any]) -> dict[str, int]:
    ends: dict[str, int] = _read_ends(tree.get(KEY, {}))
    return ends


def look(disk: Disk) -> dict[str, int]:
    """What the table of a store says that is not open; nothing when it does not say it soundly."""
    try:
        return _read(bodies.loads(disk.read_whole(f"{TABLE_ROOT}/{FILE}") or b"{}"))
    except (RemoteProtocolError, ValueError, AttributeError):
        return {}
