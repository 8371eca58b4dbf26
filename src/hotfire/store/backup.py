"""A consistent copy of a store, also of one that a broker is writing to; and its drill, the restore.

What a snapshot holds is the log up to one record's end, every byte of which was there at one moment, and the
tables. Queues and index are derived and made anew when the copy is opened; only queues of which the log holds
no record any more bring their place along.

    1. Consumers' positions first, then the log: none points behind the log's end. Topics and groups once more
       after the log: every message's topic is there.
    2. Segments that end at or below the durable mark are full and never written again: they are linked, or
       copied to another file system. The rest is copied record by record as far as records are sound, into
       segments of the copy's own with zeros behind. Everything acknowledged was written before, so it is in.
    3. A checkpoint that claims the log of the copy and nothing derived. Everything is synced, then the
       directory gets its name: what bears it is whole.

The broker is not asked and does not notice. If it deletes a segment meanwhile, the copy starts over.
Knows files and records. Must not know topics' settings or clients.
"""

from __future__ import annotations

import errno
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from hotfire.errors import StoreCorrupt, StoreError, StoreFull
from hotfire.store.checkpoint import FILE as CHECKPOINT_FILE
from hotfire.store.checkpoint import Checkpoint
from hotfire.store.commitlog import ROOT as LOG_ROOT
from hotfire.store.config import StoreConfig
from hotfire.store.consumequeue import ROOT as QUEUE_ROOT
from hotfire.store.disk import Disk
from hotfire.store.kinds import SNAPSHOT_FILE, refuse_foreign
from hotfire.store.logcopy import LogCopy, Progress
from hotfire.store.queuefloor import copy_floors
from hotfire.store.store import Store
from hotfire.store.tables import ROOT as TABLE_ROOT
from hotfire.store.timercheck import FILE as TIMERS_FILE

FILE = SNAPSHOT_FILE
"""In every whole snapshot, and in no store: what it holds."""
FORMAT = 1
UNFINISHED = ".unfinished"
TABLES_LATE = ("topics.json", "subscriptionGroup.json")
TRIES_MAX = 10

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a snapshot holds: the log from `oldest` to `end`."""

    segment_bytes: int
    oldest: int
    end: int
    taken_ms: int
    linked: int = 0
    copied: int = 0

    def encode(self) -> bytes:
        return json.dumps(
            {
                "format": FORMAT,
                "segmentBytes": self.segment_bytes,
                "oldest": self.oldest,
                "end": self.end,
                "takenMs": self.taken_ms,
            },
            indent=1,
        ).encode()

    @classmethod
    def read(cls, disk: Disk) -> Snapshot:
        data = disk.read_whole(FILE)
        if data is None:
            raise StoreError(
                f"{disk.root} has no {FILE}: give a directory that `hotfire store snapshot` made"
            )
        try:
            tree = json.loads(data)
            if tree["format"] != FORMAT:
                raise StoreError(
                    f"snapshot {disk.root} has format {tree['format']}, known is {FORMAT}: "
                    "restore it with a later Hotfire"
                )
            return cls(tree["segmentBytes"], tree["oldest"], tree["end"], tree["takenMs"])
        except (ValueError, KeyError, TypeError) as error:
            raise StoreCorrupt(f"{disk.path(FILE)} is damaged ({error}): use another snapshot") from None


@dataclass(frozen=True, slots=True)
class Restored:
    """What a restored store was found to hold."""

    oldest: int
    end: int
    records: int
    topics: dict[str, tuple[int, int]]
    """Topic -> queues, messages."""
    damage: tuple[tuple[int, int], ...] = ()
    """Stretches of the log, from and to, without a sound record: the store is what is left."""


def durable_end(disk: Disk) -> int:
    """A log offset below which everything is on the disk for good and never written again."""
    return Checkpoint.decode(disk.read_whole(CHECKPOINT_FILE)).durable


def snapshot(
    source: Disk, to: Path, *, now_ms: int, progress: Progress = lambda done, total: None
) -> Snapshot:
    """Copy the store into the new directory `to`: on disk and whole when this returns, else not there."""
    refuse_foreign(source)
    if Disk(to).exists("."):
        raise StoreError(f"{to} exists: choose another name for the snapshot, or move it away")
    if not Disk(to.parent).exists("."):
        raise StoreError(f"{to.parent} does not exist: is the disk for the copies mounted?")
    if to.is_relative_to(source.root):
        raise StoreError(f"{to} lies in the store itself: choose a place outside {source.root}")

    def make(part: Disk) -> Snapshot:
        taken = _copy_store(source, part, now_ms, progress)
        part.write_whole(FILE, taken.encode())
        return taken

    return _make_whole(to, make)


def restore(
    source: Disk, to: Path, config: StoreConfig, *, progress: Progress = lambda done, total: None
) -> Restored:
    """Make a store of a snapshot in a new or empty directory, all of it read; nothing is left if it fails."""
    expected = Snapshot.read(source)
    if Disk(to).names("."):
        raise StoreError(f"{to} is not empty: restore into a new or an empty directory")

    def make(part: Disk) -> Restored:
        copied = _copy_store(source, part, expected.taken_ms, progress)
        if (copied.oldest, copied.end) != (expected.oldest, expected.end):
            raise StoreCorrupt(
                f"snapshot {source.root} holds the log from {copied.oldest} to {copied.end}, not from "
                f"{expected.oldest} to {expected.end} as when it was taken: it is damaged or was changed; "
                "use another"
            )
        return _drill(part, replace(config, segment_bytes=expected.segment_bytes), expected)

    return _make_whole(to, make)


def _make_whole(to: Path, make: Callable[[Disk], T]) -> T:
    """`make` fills a directory beside `to`, which then gets its name; nothing is left of one that fails."""
    part = Disk(to.with_name(to.name + UNFINISHED))
    if part.exists("."):
        raise StoreError(f"{part.root} exists: another copy is being made, or was broken off; then delete it")
    try:
        for _ in range(TRIES_MAX):
            try:
                made = make(part)
            except FileNotFoundError:  # the broker has deleted its oldest segment: what is left is the store
                part.discard()
                continue
            part.publish(to)
            return made
        raise StoreError(f"log segments were deleted during each of {TRIES_MAX} tries: try again")
    except OSError as error:
        part.discard()
        kind = StoreFull if error.errno == errno.ENOSPC else StoreError
        raise kind(
            f"{to} could not be made: {error.strerror} {error.filename or ''}; nothing is left of it"
        ) from None
    except BaseException:
        part.discard()
        raise


def _copy_store(source: Disk, part: Disk, now_ms: int, progress: Progress) -> Snapshot:
    """Log, tables and checkpoint, synced. FileNotFoundError when a segment is deleted on the way."""
    checkpoint = Checkpoint.decode(source.read_whole(CHECKPOINT_FILE))
    durable = durable_end(source)  # before the segments are listed: they hold it
    starts, size = _segments(source)
    part.make_directory(LOG_ROOT)
    part.make_directory(TABLE_ROOT)
    for name in source.names(TABLE_ROOT):
        _copy_table(source, part, name)
    log = LogCopy(source, part, size, checkpoint, progress)
    log.copy(starts, durable)
    copy_floors(source, part, oldest=starts[0], end=log.end)
    for name in TABLES_LATE:
        _copy_table(source, part, name)
    part.sync_directory(LOG_ROOT)
    # times are those of the newest record derived, and none is
    claim = Checkpoint(derived=starts[0], durable=log.end, summed_from=checkpoint.summed_from)
    part.write_whole(CHECKPOINT_FILE, claim.encode())
    return Snapshot(size, starts[0], log.end, now_ms, log.linked, log.copied)


def _segments(source: Disk) -> tuple[list[int], int]:
    """Where the log's segments begin, and their size."""
    names = [name for name in source.names(LOG_ROOT) if name.isdecimal() and len(name) == 20]
    if not names:
        raise StoreError(f"{source.path(LOG_ROOT)} has no log segment: give the directory of a store")
    sizes = {source.size(f"{LOG_ROOT}/{name}") for name in names}
    starts, size = [int(name) for name in names], min(sizes)
    if len(sizes) > 1 or starts != [starts[0] + i * size for i in range(len(starts))]:
        raise StoreCorrupt(
            f"log segments in {source.path(LOG_ROOT)} are of several sizes or not all there: no copy was made"
        )
    return starts, size


def _copy_table(source: Disk, part: Disk, name: str) -> None:
    file = f"{TABLE_ROOT}/{name}"
    is_wanted = name.endswith((".json", ".json.bak")) or file == TIMERS_FILE
    data = source.read_whole(file) if is_wanted else None
    if data is not None:
        part.write_whole(file, data)


def _drill(part: Disk, config: StoreConfig, expected: Snapshot) -> Restored:
    """Open the copy as a broker would: every record is read, queues and index are made."""
    store = Store(part, config)
    try:
        store.open()
    except BaseException:
        part.unlock()
        raise
    found = store.recovered
    topics = {topic: _held(part, store, topic) for topic in part.names(QUEUE_ROOT)}
    store.close()
    if store.fault is not None:
        raise StoreError(f"{part.root} could not be written: {store.fault}")
    if found.end != expected.end:
        raise StoreCorrupt(
            f"restored log ends at {found.end}, in the snapshot it ended at {expected.end}: the snapshot is "
            "damaged; use another"
        )
    return Restored(expected.oldest, found.end, found.records, topics, tuple(found.damage))


def _held(part: Disk, store: Store, topic: str) -> tuple[int, int]:
    queues = [
        store.queue(topic, int(name)) for name in part.names(f"{QUEUE_ROOT}/{topic}") if name.isdecimal()
    ]
    return len(queues), sum(queue.max - queue.min for queue in queues)
