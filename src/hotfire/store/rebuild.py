"""Making queues and key index anew from the log, beside the old ones, and putting them in their place.

The old files stay until the new ones are whole and synced; stopped anywhere, a store is left that a broker
opens, because it makes anew by itself whatever is missing. Never writes to the log.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from hotfire.errors import StoreCorrupt
from hotfire.model import SCHEDULE_TOPIC
from hotfire.protocol.record import SysFlag
from hotfire.store.checkpoint import FILE as CHECKPOINT_FILE
from hotfire.store.config import DELAY_LEVELS, delays_ms
from hotfire.store.consumequeue import FILLER, ConsumeQueue
from hotfire.store.consumequeue import ROOT as QUEUE_ROOT
from hotfire.store.disk import Disk
from hotfire.store.facts import log_end, queue_range
from hotfire.store.flushing import NO_INDEX
from hotfire.store.keyindex import ROOT as INDEX_ROOT
from hotfire.store.keyindex import KeyIndexes
from hotfire.store.layout import EXT_ROOT, LOCK_FILE, REBUILD_ROOT, Layout
from hotfire.store.logwalk import Fault, LogWalk, Progress
from hotfire.store.scan import Scanned
from hotfire.store.syncing import sync_many

OLD = "old-"


@dataclass(slots=True)
class Rebuilt:
    """What was made."""

    records: int = 0
    entries: int = 0
    keys: int = 0
    end: int = 0
    dropped_ext: bool = False
    """Filter bits are gone: they cannot be told from the log, and consumers are served without them."""


def rebuild(
    layout: Layout, *, delay_levels: str = DELAY_LEVELS, progress: Progress = lambda done: None
) -> Rebuilt:
    """Take the store's lock, build, swap. StoreCorrupt, and nothing changed, when the log is damaged."""
    disk = layout.disk
    disk.lock(LOCK_FILE)
    try:
        disk.remove_tree(REBUILD_ROOT)
        disk.make_directory(REBUILD_ROOT)
        builder = _Builder(layout, disk.below(REBUILD_ROOT), delays_ms(delay_levels))
        try:
            built = builder.run(progress)
        finally:
            builder.close()
        _swap(layout)
        _mark(layout, built)
        built.dropped_ext = bool(layout.exts)
        return built
    finally:
        disk.remove_tree(REBUILD_ROOT)
        disk.unlock()


class _Builder:
    """New queues and a new index in a directory of their own."""

    def __init__(self, layout: Layout, beside: Disk, delays: tuple[int, ...]) -> None:
        self._layout, self._beside, self._delays = layout, beside, delays
        self._config = layout.config()
        self._queues: dict[tuple[bytes, int], ConsumeQueue] = {}
        self._index = KeyIndexes(beside, self._config) if self._has_index else None
        self._built = Rebuilt()

    @property
    def _has_index(self) -> bool:
        """A store whose index was switched off gets none; one that lost it cannot be told from that."""
        return (
            bool(self._layout.indexes)
            or not self._layout.checkpoint.is_ours
            or self._layout.checkpoint.keys > 0
        )

    def run(self, progress: Progress) -> Rebuilt:
        built, layout = self._built, self._layout
        walk = LogWalk(layout, summed_from=layout.checkpoint.summed_from, progress=progress)
        for window in walk.windows():
            for record in window.records:
                self._take(record)
            built.records += len(window.records)
            if window.fault is not None:
                _refuse_damage(layout, window.fault)
                break
        built.end = walk.end
        self._keep_places()
        built.entries = sum(queue.count for queue in self._queues.values())
        built.keys = NO_INDEX if self._index is None else self._index.count
        self._sync()
        return built

    def _take(self, record: Scanned) -> None:
        kind = record.sys_flag & SysFlag.TRANSACTION_MASK
        if self._index is not None and kind != SysFlag.TRANSACTION_ROLLBACK:
            for hash_ in record.key_hashes:
                self._index.put(hash_, record.physical, record.store_timestamp)
        if kind in (SysFlag.TRANSACTION_PREPARED, SysFlag.TRANSACTION_ROLLBACK):
            return
        if record.physical < self._layout.gone.get(record.topic, 0):
            return  # the topic was deleted since
        queue = self._queues.get((record.topic, record.queue_id)) or self._open(record.topic, record.queue_id)
        if queue is None or record.queue_offset < queue.entries.max:
            return
        tags = record.tags
        if record.topic == SCHEDULE_TOPIC.encode() and record.queue_id < len(self._delays):
            tags = record.store_timestamp + self._delays[record.queue_id]
        queue.put(record.queue_offset, record.physical, record.size, tags)

    def _open(self, topic: bytes, queue_id: int) -> ConsumeQueue | None:
        name = topic.decode()
        if (name, queue_id) in self._layout.batches:
            return None  # its entries are of another kind, and stay as they are
        queue = ConsumeQueue(self._beside, name, queue_id, self._config.queue_file_bytes)
        self._queues[topic, queue_id] = queue
        return queue

    def _keep_places(self) -> None:
        """A queue whose records have all left the log goes on where it was."""
        for (topic, queue_id), files in self._layout.queues.items():
            if (topic.encode(), queue_id) not in self._queues:
                _, high, _ = queue_range(self._layout, files)
                queue = self._open(topic.encode(), queue_id) if high else None
                if queue is not None:
                    queue.put(high - 1, *FILLER)

    def _sync(self) -> None:
        files = set().union(*(queue.take_dirty() for queue in self._queues.values()))
        if self._index is not None:
            files |= self._index.take_files()
        sync_many(self._beside, self._beside.take_unsynced(), files)

    def close(self) -> None:
        for queue in self._queues.values():
            queue.close()
        if self._index is not None:
            self._index.close()


def _refuse_damage(layout: Layout, fault: Fault) -> None:
    """A torn tail after a crash is where the log ends; anything else must be seen to first."""
    known = layout.checkpoint.durable
    if not layout.checkpoint.is_ours and not layout.was_unclean:
        known = log_end(layout)
    is_damage = fault.offset < known or (fault.resumed_at is not None and not layout.checkpoint.is_ours)
    if is_damage or (fault.resumed_at is not None and not layout.was_unclean):
        file, position = layout.place(fault.offset)
        raise StoreCorrupt(
            f"log is damaged at {layout.disk.path(file)} byte {position} ({fault.reason}): restore this file "
            "from a copy first, `hotfire store verify` shows all that is wrong; nothing was changed"
        )


def _swap(layout: Layout) -> None:
    disk = layout.disk
    for root in (QUEUE_ROOT, EXT_ROOT, INDEX_ROOT):
        if disk.exists(root):
            disk.rename(root, f"{REBUILD_ROOT}/{OLD}{root}")
        if disk.exists(f"{REBUILD_ROOT}/{root}"):
            disk.rename(f"{REBUILD_ROOT}/{root}", root)


def _mark(layout: Layout, built: Rebuilt) -> None:
    """After a clean end the checkpoint counts what there is; after another the next start looks itself."""
    checkpoint = layout.checkpoint
    if not checkpoint.is_ours or layout.was_unclean:
        return
    marked = replace(checkpoint, derived=built.end, entries=built.entries, keys=built.keys)
    if marked != checkpoint:
        layout.disk.write_whole(CHECKPOINT_FILE, marked.encode())
