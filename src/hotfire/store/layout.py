"""What lies in a store directory, found out without opening it: files, their sizes, who has it.

File sizes are settings of the broker and written nowhere, so they are taken from the files themselves. Owns
that and the list of names a store may hold; reads, and never writes.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from itertools import pairwise

from hotfire.errors import StoreError
from hotfire.store import deletions
from hotfire.store.checkpoint import FILE as CHECKPOINT_FILE
from hotfire.store.checkpoint import Checkpoint
from hotfire.store.commitlog import ROOT as LOG_ROOT
from hotfire.store.config import ENTRY_BYTES, StoreConfig
from hotfire.store.consumequeue import ROOT as QUEUE_ROOT
from hotfire.store.disk import Disk, Mapped
from hotfire.store.keyindex import HEADER_BYTES, SLOT_BYTES
from hotfire.store.keyindex import ROOT as INDEX_ROOT
from hotfire.store.tables import ROOT as TABLE_ROOT

EXT_ROOT, BATCH_ROOT = "consumequeue_ext", "batchconsumequeue"
ABORT_FILE, LOCK_FILE = "abort", "lock"
REBUILD_ROOT = "rebuild.tmp"
"""Where queues and index are made anew; left behind only by a crash."""
BATCH_ENTRY_BYTES = 46
KNOWN_NAMES = {
    LOG_ROOT, QUEUE_ROOT, EXT_ROOT, BATCH_ROOT, INDEX_ROOT, TABLE_ROOT, CHECKPOINT_FILE, ABORT_FILE,
    LOCK_FILE, "abort.bak", "timerwheel", "timerlog", "epochFileCheckpoint", "epochFileCheckpoint.bak",
    "brokerIdentity", "compaction", "rocksdbstore",
}  # fmt: skip
INDEX_HEADER = struct.Struct(">qqqqii")
"""Begin time, end time, begin offset, end offset, used slots, next entry."""
INDEX_ENTRY = struct.Struct(">Iqii")
"""Key hash, physical offset, seconds since begin, entry before it in the slot."""
SHAPES_TRIED_MAX = 100_000
_DEFAULT = StoreConfig()
_INDEX_DEFAULT = _DEFAULT.index_slots, _DEFAULT.index_entries


@dataclass(frozen=True, slots=True)
class Sizes:
    """What a person may say about a store's files; 0 where the files themselves are asked."""

    segment_bytes: int = 0
    queue_file_bytes: int = 0
    index_slots: int = 0
    index_entries: int = 0


@dataclass(slots=True)
class QueueFiles:
    """The files of one queue in one of the three trees: first byte -> actual size."""

    directory: str
    topic: str
    queue_id: int
    files: dict[int, int] = field(default_factory=dict)

    def file(self, start: int) -> str:
        return f"{self.directory}/{start:020d}"


@dataclass(slots=True)
class Layout:
    """One store directory as its files show it."""

    disk: Disk
    segments: dict[int, int]
    """First offset -> actual size."""
    segment_bytes: int
    queue_file_bytes: int
    ext_file_bytes: int
    batch_file_bytes: int
    queues: dict[tuple[str, int], QueueFiles]
    exts: dict[tuple[str, int], QueueFiles]
    batches: dict[tuple[str, int], QueueFiles]
    indexes: list[str]
    index_shape: tuple[int, int] | None
    """(slots, entries) of an index file; None when no file shows them."""
    tables: list[str]
    gone: dict[bytes, int]
    """Deleted topics: of records before that offset there are no entries."""
    strays: list[str]
    checkpoint: Checkpoint
    was_unclean: bool
    holder: int | None
    """Process of the broker that has the store open."""

    @property
    def log_start(self) -> int:
        return min(self.segments, default=0)

    @property
    def log_limit(self) -> int:
        return max(self.segments, default=0) + (self.segment_bytes if self.segments else 0)

    @property
    def who(self) -> str:
        return "another process" if self.holder == -1 else f"process {self.holder}"

    def place(self, offset: int) -> tuple[str, int]:
        """File and byte of a log offset."""
        start = offset - offset % self.segment_bytes
        return f"{LOG_ROOT}/{start:020d}", offset - start

    def config(self) -> StoreConfig:
        """Settings under which a broker can open this store."""
        slots, entries = self.index_shape or _INDEX_DEFAULT
        return StoreConfig(
            segment_bytes=self.segment_bytes,
            queue_file_bytes=self.queue_file_bytes or _DEFAULT.queue_file_bytes,
            index_slots=slots,
            index_entries=entries,
        )


def look(disk: Disk, sizes: Sizes | None = None, *, with_indexes: bool = True) -> Layout:
    """The directory as it is; StoreError when it is no store or its files do not show their sizes.

    What index files look like may take long to find out, and is left out for those who read none.
    """
    sizes = sizes or Sizes()
    if not disk.is_directory("."):
        raise StoreError(f"{disk.root} is not a directory: give the one named by storePathRootDir")
    if not disk.is_directory(LOG_ROOT):
        raise StoreError(f"{disk.root} is not a store: it has no {LOG_ROOT} directory")
    strays = [name for name in disk.names(".") if name not in KNOWN_NAMES]
    segments = {}
    for name in disk.names(LOG_ROOT):
        if name.isdecimal() and len(name) == 20:
            segments[int(name)] = disk.size(f"{LOG_ROOT}/{name}")
        else:
            strays.append(f"{LOG_ROOT}/{name}")
    queues, exts, batches = (_queues(disk, root, strays) for root in (QUEUE_ROOT, EXT_ROOT, BATCH_ROOT))
    indexes = [name for name in disk.names(INDEX_ROOT) if name.isdecimal()]
    strays += [f"{INDEX_ROOT}/{name}" for name in disk.names(INDEX_ROOT) if not name.isdecimal()]
    return Layout(
        disk=disk,
        segments=segments,
        segment_bytes=sizes.segment_bytes or _segment_bytes(segments),
        queue_file_bytes=sizes.queue_file_bytes or _file_bytes(queues, ENTRY_BYTES),
        ext_file_bytes=_file_bytes(exts, 1),
        batch_file_bytes=_file_bytes(batches, BATCH_ENTRY_BYTES),
        queues=queues,
        exts=exts,
        batches=batches,
        indexes=indexes,
        index_shape=_index_shape(disk, indexes, sizes) if with_indexes else None,
        tables=disk.names(TABLE_ROOT),
        gone={topic.encode(): end for topic, end in deletions.look(disk).items()},
        strays=strays,
        checkpoint=Checkpoint.decode(disk.read_whole(CHECKPOINT_FILE)),
        was_unclean=disk.exists(ABORT_FILE),
        holder=disk.lock_holder(LOCK_FILE),
    )


def refuse_if_open(layout: Layout, what: str) -> None:
    """StoreError while a broker has the store."""
    if layout.holder is not None:
        raise StoreError(
            f"store {layout.disk.root} is in use: {layout.who} holds {layout.disk.path(LOCK_FILE)}; "
            f"stop that broker first, {what} needs a store that does not change"
        )


def _queues(disk: Disk, root: str, strays: list[str]) -> dict[tuple[str, int], QueueFiles]:
    found = {}
    for topic in disk.names(root):
        if topic.endswith(deletions.SUFFIX):
            continue  # of a deleted topic, being removed
        for queue in disk.names(f"{root}/{topic}") if disk.is_directory(f"{root}/{topic}") else [""]:
            directory = f"{root}/{topic}/{queue}"
            if not (queue.isdecimal() and disk.is_directory(directory)):
                strays.append(directory.rstrip("/"))
                continue
            files = QueueFiles(directory, topic, int(queue))
            for name in disk.names(directory):
                if name.isdecimal() and len(name) == 20:
                    files.files[int(name)] = disk.size(f"{directory}/{name}")
                else:
                    strays.append(f"{directory}/{name}")
            files.files = dict(sorted(files.files.items()))
            found[topic, int(queue)] = files
    return found


def _segment_bytes(segments: dict[int, int]) -> int:
    """The files' distance says it best: a damaged file may have any size."""
    starts = sorted(segments)
    if not starts:
        return _DEFAULT.segment_bytes
    votes = [b - a for a, b in pairwise(starts)]
    votes += [size for start, size in segments.items() if size and start % size == 0]
    return _commonest(votes) or _DEFAULT.segment_bytes


def _file_bytes(queues: dict[tuple[str, int], QueueFiles], unit: int) -> int:
    return _commonest(
        [size for queue in queues.values() for size in queue.files.values() if size and size % unit == 0]
    )


def _commonest(values: list[int]) -> int:
    return max(sorted(set(values)), key=values.count, default=0)


# --- index files ---


def _index_shape(disk: Disk, names: list[str], sizes: Sizes) -> tuple[int, int] | None:
    told = sizes.index_slots or _INDEX_DEFAULT[0], sizes.index_entries or _INDEX_DEFAULT[1]
    is_told = bool(sizes.index_slots or sizes.index_entries)
    for name in names:
        size = disk.size(f"{INDEX_ROOT}/{name}")
        if size == _index_bytes(*told):
            return told
        if is_told:
            raise StoreError(
                f"index file {disk.path(INDEX_ROOT)}/{name} has {size} bytes, {told[0]} slots and {told[1]} "
                f"entries make {_index_bytes(*told)}: give --index-slots and --index-entries as the store "
                "was made, or neither to have them found out"
            )
        if size <= HEADER_BYTES:
            continue
        mapped = disk.map_to_read(f"{INDEX_ROOT}/{name}")
        try:
            shape = _shape_of(mapped)
        finally:
            mapped.close()
        if shape is not None:
            return shape
    return told if is_told else None


def _index_bytes(slots: int, entries: int) -> int:
    return HEADER_BYTES + slots * SLOT_BYTES + entries * ENTRY_BYTES


def _shape_of(mapped: Mapped) -> tuple[int, int] | None:
    """The one shape under which the header's last entry is where its offset is, and its slot leads to it.

    4 x slots + 20 x entries makes the size; a full file is tried first, then wherever the last entry's offset
    occurs.
    """
    *_, end_offset, _, following = INDEX_HEADER.unpack_from(mapped)
    if following < 2:
        return None
    space = len(mapped) - HEADER_BYTES
    full = space - following * ENTRY_BYTES
    if full > 0 and full % SLOT_BYTES == 0 and _fits(mapped, full // SLOT_BYTES, following):
        return full // SLOT_BYTES, following
    wanted = end_offset.to_bytes(8, signed=True)
    at = mapped.find(wanted, HEADER_BYTES)
    for _ in range(SHAPES_TRIED_MAX):
        if at < 0:
            break
        slots_bytes = at - 4 - (following - 1) * ENTRY_BYTES - HEADER_BYTES
        if slots_bytes > 0 and slots_bytes % SLOT_BYTES == 0 and (space - slots_bytes) % ENTRY_BYTES == 0:
            slots = slots_bytes // SLOT_BYTES
            if _fits(mapped, slots, following):
                return slots, (space - slots_bytes) // ENTRY_BYTES
        at = mapped.find(wanted, at + 1)
    return None


def _fits(mapped: Mapped, slots: int, following: int) -> bool:
    base = HEADER_BYTES + slots * SLOT_BYTES
    _, _, begin_offset, end_offset, _, _ = INDEX_HEADER.unpack_from(mapped)
    if base + following * ENTRY_BYTES > len(mapped):
        return False
    for number, offset in ((1, begin_offset), (following - 1, end_offset)):
        hash_, physical, seconds, before = INDEX_ENTRY.unpack_from(mapped, base + number * ENTRY_BYTES)
        if physical != offset or seconds < 0 or not 0 <= before < number:
            return False
        (newest,) = struct.unpack_from(">i", mapped, HEADER_BYTES + hash_ % slots * SLOT_BYTES)
        if not (newest == number if number == following - 1 else number <= newest < following):
            return False
    return True
