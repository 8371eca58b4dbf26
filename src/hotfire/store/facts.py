"""Facts about a store that its files show at a glance: ranges, sizes, headers, marks.

Reads a few bytes of each file, and the log only when asked to count.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from hotfire.store.commitlog import ROOT as LOG_ROOT
from hotfire.store.config import ENTRY_BYTES
from hotfire.store.consumequeue import FILLER
from hotfire.store.dump import ENTRY, Row, batch_entries, index_header, readable_limit
from hotfire.store.keyindex import ROOT as INDEX_ROOT
from hotfire.store.layout import Layout, QueueFiles
from hotfire.store.logwalk import LogWalk, Progress


def facts(layout: Layout, *, count: bool = False, progress: Progress = lambda done: None) -> Row:
    """What the directory shows at a glance; with `count`, also how many records the log holds."""
    disk = layout.disk
    log = [f"{LOG_ROOT}/{start:020d}" for start in sorted(layout.segments)]
    trees = (layout.queues, layout.exts, layout.batches)
    queue_files = [q.file(start) for queues in trees for q in queues.values() for start in q.files]
    index_files = [f"{INDEX_ROOT}/{name}" for name in layout.indexes]
    found: Row = {
        "root": str(disk.root),
        "openBy": layout.holder,
        "abort": layout.was_unclean,
        "log": {
            "start": layout.log_start,
            "end": log_end(layout),
            "segmentBytes": layout.segment_bytes,
            "segments": len(layout.segments),
            "bytes": sum(layout.segments.values()),
            "bytesOnDisk": sum(map(disk.size_on_disk, log)),
        },
        "queueBytesOnDisk": sum(map(disk.size_on_disk, queue_files)),
        "indexBytesOnDisk": sum(map(disk.size_on_disk, index_files)),
        "queueFileBytes": layout.queue_file_bytes,
        "queues": [
            {"topic": topic, "queueId": number, "min": low, "max": high, "files": len(queue.files)}
            for (topic, number), queue in sorted(layout.queues.items())
            for low, high, _ in [queue_range(layout, queue)]
        ],
        "extQueues": len(layout.exts),
        "batchQueues": [
            {"topic": topic, "queueId": number, "entries": sum(1 for _ in batch_entries(layout, queue))}
            for (topic, number), queue in sorted(layout.batches.items())
        ],
        "indexShape": layout.index_shape,
        "indexes": [index_header(layout, name) for name in layout.indexes],
        "checkpoint": dataclasses.asdict(layout.checkpoint),
        "tables": layout.tables,
        "strays": layout.strays,
    }
    if count:
        found["log"] |= _counted(layout, progress)
    return found


def _counted(layout: Layout, progress: Progress) -> Row:
    walk = LogWalk(layout, verify=False, limit=readable_limit(layout), progress=progress)
    records_count = blanks = 0
    for window in walk.windows():
        records_count += len(window.records)
        blanks += window.blank is not None
    return {"records": records_count, "blanks": blanks, "end": walk.end}


def queue_range(layout: Layout, queue: QueueFiles) -> tuple[int, int, int]:
    """First and next index as the files show them, and where the last entry's record ends."""
    if not queue.files:
        return 0, 0, 0
    first, last = min(queue.files), max(queue.files)
    low = first // ENTRY_BYTES + _count_while(
        layout, queue, first, lambda e: e[1] > 0 and _is_below(e, layout)
    )
    high, end = low, 0
    for start in sorted(queue.files, reverse=True):
        count = _count_while(layout, queue, start, lambda e: e[1] > 0)
        if count or start == first or last == start == 0:
            high = start // ENTRY_BYTES + count
            if count:
                data = layout.disk.read_part(queue.file(start), ENTRY_BYTES, (count - 1) * ENTRY_BYTES)
                offset, size, _ = ENTRY.unpack(data)
                end = offset + size if (offset, size) != FILLER[:2] else 0
                break
    return min(low, high), high, end


def log_end(layout: Layout) -> int:
    """Where the log ends by its queues and the checkpoint, without reading it."""
    ends = [queue_end(layout, queue) for queue in layout.queues.values()]
    ends += [
        entry[0] + entry[1] for queue in layout.batches.values() for _, entry in batch_entries(layout, queue)
    ]
    return max([layout.checkpoint.durable, *ends])


def queue_end(layout: Layout, queue: QueueFiles) -> int:
    """Where the record of the queue's last entry ends, 0 without one."""
    return queue_range(layout, queue)[2]


def _is_below(entry: tuple[int, int, int], layout: Layout) -> bool:
    return entry == FILLER or entry[0] < layout.log_start


def _count_while(
    layout: Layout, queue: QueueFiles, start: int, holds: Callable[[tuple[int, int, int]], bool]
) -> int:
    """Entries at the front of a file for which `holds`; it holds for a prefix."""
    low, high = 0, queue.files[start] // ENTRY_BYTES
    fd = layout.disk.open_to_read(queue.file(start))
    try:
        while low < high:
            middle = (low + high) // 2
            data = layout.disk.read(fd, ENTRY_BYTES, middle * ENTRY_BYTES)
            if holds(ENTRY.unpack(data)):
                low = middle + 1
            else:
                high = middle
    finally:
        layout.disk.close(fd)
    return low
