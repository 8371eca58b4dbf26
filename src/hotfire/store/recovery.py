"""Start-up, told as one story.

    1. Open the log's segments. Read the checkpoint: up to `derived` every queue entry was on disk.
    2. Open the queues and keep the entries that point below `derived`. The rest is written anew. If there are
       not as many as the checkpoint counted, a queue was lost, and all are made anew from the log's start.
    3. Read the log from there. A record counts when its layout, its own offset and its checksums are right.
    4. The first place where that fails is the end, provided nothing known to be durable lies behind it:
       a fault below the durable mark is damage, not a torn tail, and is never cut away. This is looked at
       before anything is changed.
    5. Behind the end of the log and of each queue, zeros, synced: stale bytes must not come back to life.

Knows the log, the queues and the checkpoint. Must not know topics' settings or clients.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from hotfire.errors import StoreCorrupt
from hotfire.protocol.record import SysFlag
from hotfire.store.checkpoint import FILE as CHECKPOINT_FILE
from hotfire.store.checkpoint import Checkpoint
from hotfire.store.commitlog import ROOT as LOG_ROOT
from hotfire.store.commitlog import CommitLog
from hotfire.store.config import StoreConfig
from hotfire.store.consumequeue import ROOT as QUEUE_ROOT
from hotfire.store.consumequeue import ConsumeQueue
from hotfire.store.disk import Disk
from hotfire.store.keyindex import KeyIndexes
from hotfire.store.scan import NEVER, Scanned, scan_records

WINDOW_BYTES = 16 << 20
"""Larger than any record, so that a record cut by the window's end is whole in the next one."""

TURNS_UNDER_WAY_MAX = 2
"""One being written, one being filled: what a crash may leave in pieces."""
MAGIC_AT, PHYSICAL_AT, MAGIC_REACH_BYTES = 4, 28, 36
_MAGIC = re.compile(rb"\xda\xa3\x20[\xa7\xab]")

log = logging.getLogger("hotfire.store")


@dataclass(slots=True)
class Recovered:
    """Where the log ends, and what was found on the way."""

    end: int
    records: int = 0
    last_timestamp: int = 0


OpenQueue = Callable[[str, int], ConsumeQueue]


def recover(
    disk: Disk,
    config: StoreConfig,
    commitlog: CommitLog,
    checkpoint: Checkpoint,
    open_queue: OpenQueue,
    index: KeyIndexes | None,
    *,
    was_unclean: bool,
) -> Recovered:
    """Find the log's end and make the queues agree with it. Queues are opened through `open_queue`."""
    oldest = commitlog.min_offset
    start = max(min(checkpoint.derived, _last_end(commitlog, config)), oldest)
    is_foreign = not checkpoint.is_ours and not was_unclean
    queues = _load_queues(disk, open_queue, trusted_below=NEVER if is_foreign else start)
    if is_foreign:  # closed cleanly by the reference's broker: every record has its entries
        start = max(oldest, *(queue.physical_end for queue in queues.values()), 0)
        if start > _last_end(commitlog, config):
            raise StoreCorrupt(
                f"the log in {disk.path(LOG_ROOT)} ends at {_last_end(commitlog, config)}, but its queues go "
                f"on to {start}: segments are missing or lie elsewhere (storePathCommitLog); put them back"
            )
    entries = sum(queue.entries.max for queue in queues.values())
    if checkpoint.is_ours and start > oldest and entries != checkpoint.entries:
        log.warning("queues are made anew from the log entries=%d expected=%d", entries, checkpoint.entries)
        start = oldest
        queues = _load_queues(disk, open_queue, trusted_below=start)
    if index is not None:
        index.load(start, was_unclean=was_unclean)
        if checkpoint.is_ours and start > oldest and index.count != checkpoint.keys:
            log.warning(
                "key index is made anew from the log keys=%d expected=%d", index.count, checkpoint.keys
            )
            start = oldest
            index.clear()
    walk = _Walk(disk, config, commitlog, checkpoint)
    walk.refuse_damage(start)
    if start < checkpoint.derived:  # half-made queues must not be believed if we end before we are done
        disk.write_whole(CHECKPOINT_FILE, replace(checkpoint, derived=start).encode())
    found = Recovered(end=start, last_timestamp=checkpoint.log_timestamp)
    reason = walk.scan(found, lambda entry: _derive(entry, queues, open_queue, index))
    for fd in commitlog.holding(start, found.end):
        disk.sync(fd)  # read back is not the same as on the disk
    # closed by us at this very end: everything behind it is as we left it, and we left zeros
    is_clean = not was_unclean and found.end == checkpoint.derived == checkpoint.durable
    if not is_clean:
        cut = _cut(disk, config, commitlog, found.end)
        if cut:
            log.warning("torn records cut off the log end=%d cut_bytes=%d reason=%s", found.end, cut, reason)
    for queue in queues.values():
        queue.entries.next = queue.entries.max
        if not is_clean:
            queue.cut()
    if found.records:
        log.info("recovered records=%d from=%d end=%d stopped=%s", found.records, start, found.end, reason)
    return found


def _last_end(commitlog: CommitLog, config: StoreConfig) -> int:
    return max(commitlog.segments, default=0) + (config.segment_bytes if commitlog.segments else 0)


def _place(disk: Disk, config: StoreConfig, offset: int) -> str:
    start = offset - offset % config.segment_bytes
    return f"file {disk.path(LOG_ROOT)}/{start:020d} byte {offset - start}"


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

    def __init__(self, disk: Disk, config: StoreConfig, commitlog: CommitLog, checkpoint: Checkpoint) -> None:
        self._disk = disk
        self._config = config
        self._log = commitlog
        self._checkpoint = checkpoint

    def refuse_damage(self, start: int) -> None:
        """Raise when what looks like the log's end is a fault with good records behind it.

        Below the durable mark any fault is damage. Behind it a crash may have left a hole, but not one longer
        than the turns that were under way. Without our marks nothing is known: a record behind the fault,
        wherever it lies, may have been acknowledged.
        """
        durable, found = self._checkpoint.durable, Recovered(end=start)
        reason = self.scan(found, lambda entry: None)
        place = _place(self._disk, self._config, found.end)
        fault = f"log record at offset {found.end} ({place}) is damaged ({reason})"
        mend = "restore this file from a copy, or cut the log there by hand; nothing was changed"
        if found.end < durable:
            raise StoreCorrupt(f"{fault}, but the log was durable up to {durable}: {mend}")
        reach = TURNS_UNDER_WAY_MAX * self._config.turn_bytes_max if self._checkpoint.is_ours else 0
        behind = self._sound_record_behind(found.end + reach)
        if behind is not None:
            raise StoreCorrupt(f"{fault}, but there is a sound record at {behind}: {mend}")

    def _sound_record_behind(self, offset: int) -> int | None:
        """The first offset behind `offset` where a sound record begins that says itself it lies there."""
        for start, fd in self._log.segments.items():
            end = self._config.segment_bytes
            for at, size in self._disk.written_ranges(fd, max(0, offset + 1 - start), end):
                found = self._sound_record_in(fd, start, at, size)
                if found is not None:
                    return found
        return None

    def _sound_record_in(self, fd: int, start: int, at: int, size: int) -> int | None:
        window = self._disk.read(fd, size + MAGIC_REACH_BYTES, at)
        for match in _MAGIC.finditer(window):
            begin = match.start() - MAGIC_AT
            physical = start + at + begin
            says = window[begin + PHYSICAL_AT : begin + PHYSICAL_AT + 8] if begin >= 0 else b""
            if says != physical.to_bytes(8):
                continue
            length = int.from_bytes(window[begin : begin + 4])
            record = self._disk.read(fd, min(length, self._config.segment_bytes), at + begin)
            if scan_records(record, physical, True)[0]:
                return physical
        return None

    def scan(self, found: Recovered, derive: Callable[[Scanned], None], stop: int = NEVER) -> str:
        """Walk on from `found.end`, at least to `stop` if the log goes that far; why it ended.

        Leaves the end and the newest store time in `found`.
        """
        size, summed_from = self._config.segment_bytes, self._checkpoint.summed_from
        for start, fd in self._log.segments.items():
            segment_end = start + size
            if segment_end <= found.end:
                continue
            reason, window_bytes = "partial", WINDOW_BYTES
            while found.end < segment_end:
                if found.end >= stop:
                    return "stop"
                window = self._disk.read(fd, min(window_bytes, segment_end - found.end), found.end - start)
                entries, consumed, reason = scan_records(window, found.end, True, summed_from)
                for entry in entries:
                    derive(entry)
                if entries:
                    found.records += len(entries)
                    found.last_timestamp = max(found.last_timestamp, entries[-1].store_timestamp)
                found.end += consumed
                if reason == "partial" and not consumed and len(window) < segment_end - found.end:
                    window_bytes *= 2  # a record larger than any we would write
                elif reason != "partial" or not consumed:
                    break
            if reason != "blank":
                return reason
            found.end = segment_end
        return "end"


def _derive(
    entry: Scanned,
    queues: dict[tuple[str, int], ConsumeQueue],
    open_queue: OpenQueue,
    index: KeyIndexes | None,
) -> None:
    kind = entry.sys_flag & SysFlag.TRANSACTION_MASK
    if index is not None and kind != SysFlag.TRANSACTION_ROLLBACK:
        for hash_ in entry.key_hashes:
            index.put(hash_, entry.physical, entry.store_timestamp)
    if kind in (SysFlag.TRANSACTION_PREPARED, SysFlag.TRANSACTION_ROLLBACK):
        return  # they never get a queue entry
    key = entry.topic.decode(), entry.queue_id
    queue = queues.get(key)
    if queue is None:
        queue = queues[key] = open_queue(*key)
    if entry.queue_offset >= queue.entries.max:
        queue.put(entry.queue_offset, entry.physical, entry.size, entry.tags, entry.store_timestamp)


def _cut(disk: Disk, config: StoreConfig, commitlog: CommitLog, end: int) -> int:
    """Zeros behind `end`; how many bytes were none."""
    cut = 0
    for start, fd in commitlog.segments.items():
        if start + config.segment_bytes > end:
            within = max(0, end - start)
            cut += disk.zero(fd, within, config.segment_bytes - within)
    return cut
