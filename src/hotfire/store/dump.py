"""What is in a store, as plain values: facts about it, its records, queue entries and index entries.

The rows are those that go through JSON unchanged. Reads only; while a broker has the store open, only up to
where the log was surely on disk.
"""

from __future__ import annotations

import base64
import hashlib
import struct
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from hotfire.errors import StoreError
from hotfire.protocol.compression import inflate
from hotfire.protocol.record import MAGIC_BLANK, Host, Record, decode_record, parse_properties
from hotfire.store.config import ENTRY_BYTES
from hotfire.store.consumequeue import FILLER
from hotfire.store.keyindex import HEADER_BYTES, SLOT_BYTES
from hotfire.store.keyindex import ROOT as INDEX_ROOT
from hotfire.store.layout import (
    BATCH_ENTRY_BYTES,
    EXT_ROOT,
    INDEX_ENTRY,
    INDEX_HEADER,
    Layout,
    QueueFiles,
)
from hotfire.store.logwalk import Fault, LogWalk, Progress
from hotfire.store.scan import NEVER

ENTRY = struct.Struct(">qiq")
BATCH_ENTRY = struct.Struct(">qiqqqhii")
"""Offset, size, tags code, store time, base offset, messages, compacted offset, reserved."""
EXT_UNIT = struct.Struct(">hqqh")
"""Size, tags code, store time, bytes of the bitmap that follows."""
EXT_ADDRESS_MAX = -(1 << 31) - 1
EXT_BASE = -(1 << 63)
READ_ENTRIES = 50_000

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Selection:
    """Which records of a log are wanted."""

    topic: str | None = None
    queue_id: int | None = None
    start: int = 0
    stop: int = NEVER
    with_bodies: bool = False


def readable_limit(layout: Layout) -> int:
    """Log offset up to which a tool may read: what a running broker has not synced may yet change."""
    return layout.checkpoint.durable if layout.holder is not None and layout.checkpoint.is_ours else NEVER


# --- records ---


def records(
    layout: Layout, selection: Selection, progress: Progress = lambda done: None
) -> Iterator[Row | Fault]:
    """A row for each record and blank in log order; a Fault where there is neither."""
    walk = LogWalk(
        layout, summed_from=layout.checkpoint.summed_from, limit=readable_limit(layout), progress=progress
    )
    entries = _EntryReader(layout)
    wanted = None if selection.topic is None else selection.topic.encode()
    is_filtered = wanted is not None or selection.queue_id is not None
    first = selection.start - selection.start % layout.segment_bytes
    for window in walk.windows(max(first, layout.log_start)):
        if window.base >= selection.stop:
            return
        for scanned in window.records:
            if not selection.start <= scanned.physical < selection.stop:
                continue
            if wanted is not None and scanned.topic != wanted:
                continue
            if selection.queue_id is not None and scanned.queue_id != selection.queue_id:
                continue
            record = decode_record(window.raw(scanned), check_crc=False)
            yield _record_row(record, entries, with_body=selection.with_bodies)
        if window.blank is not None and not is_filtered:
            offset, size = window.blank
            if selection.start <= offset < selection.stop:
                row = {"physicalOffset": offset, "storeSize": size, "magic": f"{MAGIC_BLANK:08x}"}
                yield {**row, "blank": True}
        if window.fault is not None:
            yield window.fault


def _record_row(record: Record, entries: _EntryReader, *, with_body: bool) -> Row:
    properties = parse_properties(record.properties)
    body: bytes | None = None
    with suppress(StoreError):  # a body that does not inflate has no length of its own
        body = inflate(record.body, record.sys_flag)
    entry = entries.entry(record)
    stored_sum = hashlib.sha256(record.body).hexdigest()
    row: Row = {
        "physicalOffset": record.physical_offset,
        "storeSize": record.size,
        "magic": f"{record.magic:08x}",
        "topic": record.topic,
        "queueId": record.queue_id,
        "queueOffset": record.queue_offset,
        "sysFlag": record.sys_flag,
        "flag": record.flag,
        "bornTimestamp": record.born_timestamp,
        "storeTimestamp": record.store_timestamp,
        "bornHost": _host_text(record.born_host),
        "storeHost": _host_text(record.store_host),
        "reconsumeTimes": record.reconsume_times,
        "preparedTransactionOffset": record.prepared_transaction_offset,
        "bodyCRC": record.body_crc,
        "storedBodyLength": len(record.body),
        "storedBodySha256": stored_sum,
        "bodyLength": None if body is None else len(body),
        "bodySha256": None if body is None else hashlib.sha256(body).hexdigest(),
        "properties": dict(sorted(properties.items(), key=lambda pair: _utf16(pair[0]))),
        "msgId": record.message_id,
        "uniqKey": properties.get("UNIQ_KEY"),
        "tagsCode": None if entry is None else entry[2],
        "queueEntries": (
            None if entry is None else [f"{record.topic}/{record.queue_id}/{record.queue_offset}"]
        ),
    }
    if with_body:
        row["body"] = base64.b64encode(record.body if body is None else body).decode()
    return row


def _utf16(text: str) -> bytes:
    return text.encode("utf-16-be", "surrogatepass")  # the order of Java's strings


def _host_text(host: Host) -> str:
    if not host.is_v6:
        return f"{host.ip}:{host.port}"
    groups = (f"{int.from_bytes(host.address[i : i + 2]):x}" for i in range(0, 16, 2))
    return f"[{':'.join(groups)}]:{host.port}"


class _EntryReader:
    """Queue entries of records in log order: those of a queue follow each other, so many are read at once."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._read: dict[tuple[str, int], tuple[int, bytes]] = {}

    def entry(self, record: Record) -> tuple[int, int, int] | None:
        """The entry at the record's place in its queue, if it points at the record."""
        key, index = (record.topic, record.queue_id), record.queue_offset
        queue = self._layout.queues.get(key)
        if queue is None or not self._layout.queue_file_bytes or index < 0:
            return None
        first, data = self._read.get(key, (0, b""))
        if not first <= index < first + len(data) // ENTRY_BYTES:
            start, at = divmod(index * ENTRY_BYTES, self._layout.queue_file_bytes)
            file = queue.file(start * self._layout.queue_file_bytes)
            first, data = index, self._layout.disk.read_part(file, 1000 * ENTRY_BYTES, at)
            self._read[key] = first, data
            if len(data) < ENTRY_BYTES:
                return None
        found = ENTRY.unpack_from(data, (index - first) * ENTRY_BYTES)
        is_its = found[0] == record.physical_offset and found[1] == record.size
        return (found[0], found[1], found[2]) if is_its else None


# --- queues and index ---


def queue_rows(layout: Layout, topic: str | None = None, queue_id: int | None = None) -> Iterator[Row]:
    """A row for each entry of each queue; those of inner batches have their own fields too."""
    for (name, number), queue in sorted(layout.queues.items()):
        if topic in (None, name) and queue_id in (None, number):
            for index, (offset, size, tags) in queue_entries(layout, queue):
                row: Row = {"topic": name, "queueId": number, "index": index}
                row |= {"physicalOffset": offset, "size": size, "tagsCode": tags}
                if (offset, size, tags) == FILLER:
                    row["filler"] = True
                elif tags <= EXT_ADDRESS_MAX:
                    row["ext"] = ext_unit(layout, name, number, tags - EXT_BASE)
                yield row
    for (name, number), queue in sorted(layout.batches.items()):
        if topic in (None, name) and queue_id in (None, number):
            for index, entry in batch_entries(layout, queue):
                names = ("physicalOffset", "size", "tagsCode", "storeTimestamp", "baseOffset", "batchSize")
                values = dict(zip(names, entry, strict=False))
                yield {"topic": name, "queueId": number, "index": index, **values}


def queue_entries(layout: Layout, queue: QueueFiles) -> Iterator[tuple[int, tuple[int, int, int]]]:
    """(index, entry) from the queue's first file to the first entry without a size."""
    for start, size in queue.files.items():
        for at in range(0, size, READ_ENTRIES * ENTRY_BYTES):
            data = layout.disk.read_part(queue.file(start), READ_ENTRIES * ENTRY_BYTES, at)
            whole = len(data) - len(data) % ENTRY_BYTES
            for index, entry in enumerate(ENTRY.iter_unpack(data[:whole]), (start + at) // ENTRY_BYTES):
                if entry[1] <= 0:
                    return
                yield index, entry


def batch_entries(layout: Layout, queue: QueueFiles) -> Iterator[tuple[int, tuple[int, ...]]]:
    for start in queue.files:
        data = layout.disk.read_whole(queue.file(start)) or b""
        whole = len(data) - len(data) % BATCH_ENTRY_BYTES
        for index, entry in enumerate(BATCH_ENTRY.iter_unpack(data[:whole]), start // BATCH_ENTRY_BYTES):
            if entry[1] <= 0:
                return
            yield index, entry


def ext_unit(layout: Layout, topic: str, queue_id: int, address: int) -> Row | None:
    """The unit at a byte of the queue's ext files, None when there is none."""
    if not layout.ext_file_bytes:
        return None
    start = address - address % layout.ext_file_bytes
    file = f"{EXT_ROOT}/{topic}/{queue_id}/{start:020d}"
    head = layout.disk.read_part(file, EXT_UNIT.size, address - start)
    if len(head) < EXT_UNIT.size:
        return None
    size, tags, stored, bitmap_size = EXT_UNIT.unpack(head)
    if size < EXT_UNIT.size or size != EXT_UNIT.size + bitmap_size:
        return None
    bitmap = layout.disk.read_part(file, bitmap_size, address - start + EXT_UNIT.size)
    return {"address": address, "tagsCode": tags, "storeTimestamp": stored, "bitmap": bitmap.hex()}


def index_header(layout: Layout, name: str) -> Row:
    data = layout.disk.read_part(f"{INDEX_ROOT}/{name}", INDEX_HEADER.size, 0)
    names = (
        "beginTimestamp",
        "endTimestamp",
        "beginPhyOffset",
        "endPhyOffset",
        "hashSlotCount",
        "indexCount",
    )
    values = INDEX_HEADER.unpack(data.ljust(INDEX_HEADER.size, b"\0"))
    return {"file": name, **dict(zip(names, values, strict=True))}


def index_rows(layout: Layout) -> Iterator[Row]:
    """The header of each index file, then its entries in the order they were made."""
    for name in layout.indexes:
        header = index_header(layout, name)
        yield header
        if layout.index_shape is None:
            continue
        slots, entries_max = layout.index_shape
        base = HEADER_BYTES + slots * SLOT_BYTES
        count = min(max(header["indexCount"], 1), entries_max)
        for first in range(1, count, READ_ENTRIES):
            size = min(READ_ENTRIES, count - first) * ENTRY_BYTES
            data = layout.disk.read_part(f"{INDEX_ROOT}/{name}", size, base + first * ENTRY_BYTES)
            for number, entry in enumerate(INDEX_ENTRY.iter_unpack(data), first):
                hash_, physical, seconds, before = entry
                row = {"file": name, "entry": number, "keyHash": hash_, "slot": hash_ % slots}
                yield {**row, "physicalOffset": physical, "seconds": seconds, "previous": before}
