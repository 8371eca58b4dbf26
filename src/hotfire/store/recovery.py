"""Start-up, told as one story.

    1. Open the log's segments. Read the checkpoint: up to `derived` every queue entry was on disk.
    2. Open the queues and keep the entries that point below `derived`. The rest is written anew.
    3. Read the log from there. A record counts when its layout, its own offset and its checksums are right.
    4. The first place where that fails is the end, provided nothing known to be durable lies behind it:
       a fault below the durable mark is damage, not a torn tail, and is never cut away.
    5. Behind the end of the log and of each queue, zeros, synced: stale bytes must not come back to life.

Knows the log, the queues and the checkpoint. Must not know topics' settings or clients.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from hotfire.errors import StoreCorrupt
from hotfire.protocol.record import SysFlag
from hotfire.store.checkpoint import Checkpoint
from hotfire.store.commitlog import ROOT as LOG_ROOT
from hotfire.store.commitlog import CommitLog
from hotfire.store.config import StoreConfig
from hotfire.store.consumequeue import ROOT as QUEUE_ROOT
from hotfire.store.consumequeue import ConsumeQueue
from hotfire.store.disk import Disk
from hotfire.store.scan import Scanned, scan_records

WINDOW_BYTES = 16 << 20
"""Larger than any record, so that a record cut by the window's end is whole in the next one."""

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
    *,
    was_unclean: bool,
) -> Recovered:
    """Find the log's end and make the queues agree with it. Queues are opened through `open_queue`."""
    start = max(min(checkpoint.derived, _last_end(commitlog, config)), commitlog.min_offset)
    has_queues = bool(disk.names(QUEUE_ROOT))
    if not has_queues:
        start = commitlog.min_offset
    queues = _load_queues(disk, open_queue, trusted_below=start)
    found = Recovered(end=start, last_timestamp=checkpoint.log_timestamp)
    reason = _scan(disk, config, commitlog, found, lambda entry: _derive(entry, queues, open_queue))
    if found.end < checkpoint.durable:
        raise StoreCorrupt(
            f"log record at offset {found.end} ({_place(disk, config, found.end)}) is damaged ({reason}), "
            f"but the log was durable up to {checkpoint.durable}: restore this file from a copy; "
            "nothing was changed"
        )
    # closed by us at this very end: everything behind it is as we left it, and we left zeros
    is_clean = not was_unclean and found.end == checkpoint.derived == checkpoint.durable
    if not is_clean:
        _cut(disk, config, commitlog, found.end)
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


def _scan(
    disk: Disk,
    config: StoreConfig,
    commitlog: CommitLog,
    found: Recovered,
    derive: Callable[[Scanned], None],
) -> str:
    """Walk the log from `found.end`; leaves the end and the newest store time in `found`. Why it stopped."""
    for start, fd in commitlog.segments.items():
        segment_end = start + config.segment_bytes
        if segment_end <= found.end:
            continue
        reason = "partial"
        while found.end < segment_end:
            window = disk.read(fd, min(WINDOW_BYTES, segment_end - found.end), found.end - start)
            entries, consumed, reason = scan_records(window, found.end, True)
            for entry in entries:
                derive(entry)
            if entries:
                found.records += len(entries)
                found.last_timestamp = max(found.last_timestamp, entries[-1].store_timestamp)
            found.end += consumed
            if reason != "partial" or consumed == 0:
                break
        if reason == "blank":
            found.end = segment_end
            continue
        return reason
    return "end"


def _derive(entry: Scanned, queues: dict[tuple[str, int], ConsumeQueue], open_queue: OpenQueue) -> None:
    kind = entry.sys_flag & SysFlag.TRANSACTION_MASK
    if kind in (SysFlag.TRANSACTION_PREPARED, SysFlag.TRANSACTION_ROLLBACK):
        return  # they never get a queue entry
    key = entry.topic.decode(), entry.queue_id
    queue = queues.get(key)
    if queue is None:
        queue = queues[key] = open_queue(*key)
    if entry.queue_offset >= queue.entries.max:
        queue.put(entry.queue_offset, entry.physical, entry.size, entry.tags)


def _cut(disk: Disk, config: StoreConfig, commitlog: CommitLog, end: int) -> None:
    for start, fd in commitlog.segments.items():
        if start + config.segment_bytes > end:
            within = max(0, end - start)
            disk.zero(fd, within, config.segment_bytes - within)
