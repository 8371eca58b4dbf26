"""Start-up, told as one story.

    1. Open the log's segments. Read the checkpoint: up to `derived` every queue entry and every key was on
       disk, up to `durable` every byte of the log.
    2. Open the queues and the key index and keep what points below `derived`. The rest is written anew. If
       there is not as much as the checkpoint counted, something was lost, and all is made anew from the log.
    3. Read the log from there. A record counts when its layout, its own offset and its checksums are right
       and its store time is not before that of the record before it.
    4. The first place where that fails is the end if nothing known to be durable lies behind it. A fault
       below the durable mark is damage: said, never cut away, passed over to the next sound record.
    5. Behind the end of the log and of each queue, zeros, synced: stale bytes must not come back to life.
    6. What lies behind the durable mark is written again and synced: after a sync that failed the kernel
       calls pages clean that the disk never got.

Knows the log, the queues, the index and the checkpoint. Must not know topics' settings or clients.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from hotfire.errors import StoreCorrupt
from hotfire.store.checkpoint import FILE as CHECKPOINT_FILE
from hotfire.store.checkpoint import Checkpoint, CheckpointFile
from hotfire.store.commitlog import ROOT as LOG_ROOT
from hotfire.store.commitlog import CommitLog
from hotfire.store.config import StoreConfig
from hotfire.store.consumequeue import ROOT as QUEUE_ROOT
from hotfire.store.consumequeue import ConsumeQueue
from hotfire.store.deriving import Deriving, OpenQueue
from hotfire.store.disk import Disk
from hotfire.store.keyindex import KeyIndexes
from hotfire.store.queueext import ROOT as EXT_ROOT
from hotfire.store.scan import scan_records

WINDOW_BYTES = 16 << 20
"""Larger than any record, so that a record cut by the window's end is whole in the next one."""

TURN_BYTES_MIN = 1 << 20
"""A crash may leave the turn that was being written in pieces: the largest so far, and no less than this."""
MAGIC_AT, PHYSICAL_AT, MAGIC_REACH_BYTES = 4, 28, 36
BATCH_QUEUE_ROOT = "batchconsumequeue"
_MAGIC = re.compile(rb"\xda\xa3\x20[\xa7\xab]")

log = logging.getLogger("hotfire.store")


@dataclass(slots=True)
class Recovered:
    """Where the log ends, and what was found on the way."""

    end: int
    records: int = 0
    last_timestamp: int = 0
    damage: list[tuple[int, int]] = field(default_factory=list)
    """Stretches of the log that hold no sound record, from and to."""


def recover(
    disk: Disk,
    config: StoreConfig,
    commitlog: CommitLog,
    checkpoints: CheckpointFile,
    checkpoint: Checkpoint,
    open_queue: OpenQueue,
    index: KeyIndexes | None,
    gone: Mapping[str, int],
    *,
    was_unclean: bool,
) -> Recovered:
    """Find the log's end and make queues and index agree with it. Queues are opened through `open_queue`.

    Of a topic that is `gone`, records before that offset have no entries.
    """
    oldest, last = commitlog.min_offset, _last_end(commitlog, config)
    if checkpoint.durable > last:
        raise StoreCorrupt(
            f"log {disk.path(LOG_ROOT)} ends at {last}, but was durable up to {checkpoint.durable}: restore "
            f"the missing segments from a copy, or remove {disk.path(CHECKPOINT_FILE)} to go on without them"
        )
    start = max(checkpoint.derived, oldest)
    _drop_cut_short(disk, config)
    queues = _load_queues(disk, open_queue, trusted_below=start)
    start, stale = _check_counts(
        disk, checkpoint, queues, open_queue, index, start, oldest, was_unclean=was_unclean
    )
    if start < checkpoint.derived:  # half-made queues must not be believed if we end before we are done
        checkpoints.write(replace(checkpoint, derived=start))
    found = Recovered(end=start)
    walk = _Walk(disk, config, commitlog, checkpoint, was_unclean=was_unclean)
    batch_topics = set(disk.names(BATCH_QUEUE_ROOT))
    deriving = Deriving(queues, open_queue, index, config.delays_ms, batch_topics, stale, gone)
    reason = walk.scan(found, deriving)
    found.last_timestamp = max(found.last_timestamp, checkpoint.log_timestamp)
    # closed by us at this very end: everything behind it is as we left it, and we left zeros
    is_clean = not was_unclean and start == found.end == checkpoint.derived == checkpoint.durable
    if not is_clean:
        cut = _cut(disk, config, commitlog, found.end)
        if cut:
            log.warning("torn records cut off the log end=%d cut_bytes=%d reason=%s", found.end, cut, reason)
        _write_again(disk, config, commitlog, checkpoint.durable, found.end)
    for queue in queues.values():
        queue.entries.next = queue.entries.max
        if not is_clean:
            queue.cut()
        if oldest:
            queue.follow(oldest)
    if found.records:
        log.info("recovered records=%d from=%d end=%d stopped=%s", found.records, start, found.end, reason)
    return found


def _check_counts(
    disk: Disk,
    checkpoint: Checkpoint,
    queues: dict[tuple[str, int], ConsumeQueue],
    open_queue: OpenQueue,
    index: KeyIndexes | None,
    start: int,
    oldest: int,
    *,
    was_unclean: bool,
) -> tuple[int, set[tuple[str, int]]]:
    """Where to read the log from: `start`, or its beginning when queues or keys are not as counted.

    And the queues of which nothing is believed that the log tells.
    """
    entries = sum(queue.count for queue in queues.values())
    is_short = oldest == 0 and any(queue.first for queue in queues.values())
    if checkpoint.is_ours and start > oldest and (entries != checkpoint.entries or is_short):
        log.warning("queues are made anew from the log entries=%d expected=%d", entries, checkpoint.entries)
        start = oldest
        queues |= _load_queues(disk, open_queue, trusted_below=start)
    stale = set(queues) if start == oldest else set()
    if index is not None:
        index.load(start, was_unclean=was_unclean)
        if start == oldest:
            index.clear()
        elif checkpoint.is_ours and index.count != checkpoint.keys:
            log.warning(
                "key index is made anew from the log keys=%d expected=%d", index.count, checkpoint.keys
            )
            start = oldest
            index.clear()
    return start, stale


def _last_end(commitlog: CommitLog, config: StoreConfig) -> int:
    return max(commitlog.segments, default=0) + (config.segment_bytes if commitlog.segments else 0)


def _place(disk: Disk, config: StoreConfig, offset: int) -> str:
    start = offset - offset % config.segment_bytes
    return f"file {disk.path(LOG_ROOT)}/{start:020d} byte {offset - start}"


def _drop_cut_short(disk: Disk, config: StoreConfig) -> None:
    """Queue files that have lost their end go; their entries are missed and made anew.

    If no file has the configured size it is the setting that is wrong, and loading refuses them.
    """
    roots = {QUEUE_ROOT: config.queue_file_bytes}
    if config.queue_ext:
        roots[EXT_ROOT] = config.queue_ext_file_bytes
    for root, size in roots.items():
        sizes = {
            f"{root}/{topic}/{queue}/{name}": disk.size(f"{root}/{topic}/{queue}/{name}")
            for topic in disk.names(root)
            for queue in disk.names(f"{root}/{topic}")
            for name in disk.names(f"{root}/{topic}/{queue}")
        }
        for file, actual in sizes.items():
            if 0 < actual < size and size in sizes.values():
                log.error("queue file has lost its end file=%s bytes=%d of=%d", disk.path(file), actual, size)
                disk.remove(file)


def _load_queues(
    disk: Disk, open_queue: OpenQueue, *, trusted_below: int
) -> dict[tuple[str, int], ConsumeQueue]:
    queues = {}
    for topic in disk.names(QUEUE_ROOT):
        for name in disk.names(f"{QUEUE_ROOT}/{topic}"):
            if name.isdecimal():
                queue = queues[topic, int(name)] = open_queue(topic, int(name))
                queue.load(trusted_below)
    return queues


class _Walk:
    """Reads the log record by record."""

    def __init__(
        self,
        disk: Disk,
        config: StoreConfig,
        commitlog: CommitLog,
        checkpoint: Checkpoint,
        *,
        was_unclean: bool,
    ) -> None:
        self._disk = disk
        self._config = config
        self._log = commitlog
        self._checkpoint = checkpoint
        self._was_unclean = was_unclean

    def scan(self, found: Recovered, deriving: Deriving) -> str:
        """Walk on from `found.end` to the log's end, over what is damaged; why it is the end."""
        while True:
            reason = self._run(found, deriving)
            resume = self._behind_damage(found)
            if resume is None:
                return reason
            log.error(
                "log is damaged %s from=%d to=%d reason=%s: the records there are lost, others are served; "
                "look at it with `hotfire store verify`; with a copy of the file: put it in place, then "
                "`hotfire store rebuild`",
                _place(self._disk, self._config, found.end), found.end, resume, reason,
            )  # fmt: skip
            found.damage.append((found.end, resume))
            found.end = resume

    def _behind_damage(self, found: Recovered) -> int | None:
        """Where the log goes on if `found.end` is a fault in its midst; None if it is the end.

        Below the durable mark any fault is damage. Behind it ASYNC_FLUSH may have left holes anywhere. In
        SYNC_FLUSH a crash may have left a hole, but not one longer than the turn that was being written: a
        sound record further behind shows damage again. Without our marks a record behind the fault, wherever
        it lies, may have been acknowledged; one older than those before it is left over from an earlier life
        of the file.
        """
        end, durable = found.end, self._checkpoint.durable
        if end < durable:
            behind = self._sound_record_behind(end, 0)
            return durable if behind is None else min(behind, durable)
        if self._checkpoint.is_ours and not self._was_unclean:
            return None
        if self._checkpoint.is_ours and not self._config.sync_flush:
            return None
        reach = max(TURN_BYTES_MIN, self._checkpoint.turn_bytes) if self._checkpoint.is_ours else 0
        newest = 0 if self._checkpoint.is_ours else found.last_timestamp
        if self._sound_record_behind(end + reach, newest) is None:
            return None
        return self._sound_record_behind(end, newest)

    def _sound_record_behind(self, offset: int, newest: int) -> int | None:
        """The first offset behind `offset` where a sound record begins that says itself it lies there.

        It must not have been stored before `newest`.
        """
        for start, fd in self._log.segments.items():
            end = self._config.segment_bytes
            for at, size in self._disk.written_ranges(fd, max(0, offset + 1 - start), end):
                found = self._sound_record_in(fd, start, at, size, newest)
                if found is not None:
                    return found
        return None

    def _sound_record_in(self, fd: int, start: int, at: int, size: int, newest: int) -> int | None:
        window = self._disk.read(fd, size + MAGIC_REACH_BYTES, at)
        for match in _MAGIC.finditer(window):
            begin = match.start() - MAGIC_AT
            physical = start + at + begin
            says = window[begin + PHYSICAL_AT : begin + PHYSICAL_AT + 8] if begin >= 0 else b""
            if says != physical.to_bytes(8):
                continue
            length = int.from_bytes(window[begin : begin + 4])
            record = self._disk.read(fd, min(length, self._config.segment_bytes), at + begin)
            sound, _, _ = scan_records(record, physical, True, self._checkpoint.summed_from)
            if sound and sound[0].store_timestamp >= newest:
                return physical
        return None

    def _run(self, found: Recovered, deriving: Deriving) -> str:
        """Walk on from `found.end` while records are sound; why it ended.

        Leaves the end and the newest store time in `found`.
        """
        size = self._config.segment_bytes
        for start, fd in self._log.segments.items():
            segment_end = start + size
            if segment_end <= found.end:
                continue
            reason, window_bytes = "partial", WINDOW_BYTES
            while found.end < segment_end:
                window = self._disk.read(fd, min(window_bytes, segment_end - found.end), found.end - start)
                consumed, reason = self._window(found, window, deriving)
                if reason == "partial" and not consumed and len(window) < segment_end - found.end:
                    window_bytes *= 2  # a record larger than any we would write
                elif reason != "partial" or not consumed:
                    break
            if reason != "blank":
                return reason
            found.end = segment_end
        return "end"

    def _window(self, found: Recovered, window: bytes, deriving: Deriving) -> tuple[int, str]:
        """Walk over the bytes at `found.end`: how many of them are sound records, why it ended.

        Ordinary records are derived many at a time. One that is not goes the long way, alone; with others
        of its kind behind it, ever more of them together.
        """
        view, at, step, summed_from = memoryview(window), 0, 1, self._checkpoint.summed_from
        while True:
            many, done, found.last_timestamp = deriving.many(
                view[at:], found.end, found.last_timestamp, summed_from
            )
            found.records += many
            found.end += done
            at += done
            step = 1 if done else step * 2
            entries, consumed, reason = scan_records(view[at:], found.end, True, summed_from, step)
            for entry in entries:
                if entry.store_timestamp < found.last_timestamp and entry.physical >= summed_from:
                    return at, "store time"  # a record of an earlier life of these bytes
                found.last_timestamp = max(found.last_timestamp, entry.store_timestamp)
                deriving.one(entry)
                found.records += 1
                found.end = entry.physical + entry.size
            at += consumed
            if reason != "enough":
                return at, reason


def _cut(disk: Disk, config: StoreConfig, commitlog: CommitLog, end: int) -> int:
    """Zeros behind `end`; how many bytes were none."""
    cut = 0
    for start, fd in commitlog.segments.items():
        if start + config.segment_bytes > end:
            within = max(0, end - start)
            cut += disk.zero(fd, within, config.segment_bytes - within)
    return cut


def _write_again(disk: Disk, config: StoreConfig, commitlog: CommitLog, durable: int, end: int) -> None:
    """The bytes of [durable, end) once more, synced. Without a mark the last segment must do."""
    last = next(reversed(commitlog.segments), 0)
    for start, fd in commitlog.segments.items():
        at = max(start, durable or last)
        while at < min(start + config.segment_bytes, end):
            step = min(WINDOW_BYTES, start + config.segment_bytes - at, end - at)
            disk.write(fd, disk.read(fd, step, at - start), at - start)
            at += step
        if start < end and durable < start + config.segment_bytes:
            disk.sync(fd)  # read back is not the same as on the disk
