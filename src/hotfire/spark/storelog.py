"""A partition read record by record: every record of a stretch of the log, queues or not.

Rows are the records that a queue would have an entry of: none that a transaction only prepared or took back,
none of a topic from before it was deleted. Behind what cannot be read it goes on with the next record.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterator

import pyarrow as pa

from hotfire.errors import StoreCorrupt
from hotfire.protocol.record import SysFlag
from hotfire.spark.storedamage import Damage
from hotfire.spark.storefiles import WINDOW_BYTES, Files, Gone, Log
from hotfire.spark.storeplan import StorePart
from hotfire.spark.storerows import Rows
from hotfire.store.logwalk import MAGIC_REACH_BYTES
from hotfire.store.scan import Scanned, scan_records

log = logging.getLogger("hotfire.spark")

_WITHOUT_ENTRY = (SysFlag.TRANSACTION_PREPARED, SysFlag.TRANSACTION_ROLLBACK)


class LogReader:
    """The rows of one partition."""

    def __init__(self, part: StorePart, files: Files, rows: Rows) -> None:
        self._part = part
        self._rows = rows
        self._log = Log(files, part.shape.segment_bytes)
        topics = part.selection.topics
        self._topics = None if topics is None else "\x01".join(topics).encode()

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        part = self._part
        at, size = part.log_from, WINDOW_BYTES
        while at < part.log_until:
            stop = min(self._log.segment_end(at), part.log_until)
            asked = min(size, stop - at)
            try:
                window = self._log.read(at, asked)
            except Gone as gone:
                self._rows.lost(gone)
                at = stop
                continue
            is_cut = len(window) < asked or at + asked == stop
            following = yield from self._take(window, at, is_cut=is_cut)
            # without a step forward it is larger than the window
            size = WINDOW_BYTES if following > at else min(2 * size, self._log.segment_bytes)
            at = following
        if at != part.log_until:
            raise self._no_boundary(at)

    def _take(self, window: memoryview, base: int, *, is_cut: bool) -> Generator[pa.RecordBatch, None, int]:
        """The records of the window, which begins at `base`; where to read on."""
        at = base
        while at - base < len(window):
            at = base + self._run(window, at - base, base)
            yield from self._rows.full()
            if at - base == len(window):
                break
            # What begins here is unusual, goes on behind the window, or is no record.
            following = self._step(window[at - base :], at, is_cut=is_cut)
            if following == at:
                break
            at = following
        else:
            if not len(window):  # the file is shorter than the others
                return self._step(window, base, is_cut=True)
        return at

    def _no_boundary(self, end: int) -> StoreCorrupt:
        part = self._part
        return StoreCorrupt(
            f"{part.shape.root}/{self._log.place(part.log_until)}: a partition was to end here, but the "
            f"record before it ends at log offset {end}. Set option maxPartitions to 1, or by to queue"
        )

    def _run(self, window: memoryview, at: int, base: int) -> int:
        """Take ordinary records of the window from `at` on; where the first other one is in it."""
        selection, shape = self._part.selection, self._part.shape
        end = len(window)
        gone = [(topic, until) for topic, until in shape.gone if until > base + at]
        if gone:  # which topics are gone changes on the way
            end = min(end, min(until for _, until in gone) - base)
        return self._rows.columns.run(
            window,
            at,
            end,
            self._topics,
            -1,
            selection.first,
            selection.until,
            self._rows.tags,
            base,
            b"\x01".join(topic for topic, _ in gone) if gone else None,
        )

    def _step(self, window: memoryview, at: int, *, is_cut: bool) -> int:
        """Where to go on from `at`, where no ordinary record begins; `at` itself asks for more bytes.

        With `is_cut` there are no more: the window ends with its file, its segment or its partition.
        """
        rows = self._rows
        records, _, reason = scan_records(window, at, True, rows.summed_from, 1)
        if records:
            self._add(records[0], window)
            return at + records[0].size
        if reason == "blank":
            return self._log.segment_end(at)
        if reason == "partial" and not is_cut:
            return at
        seen = window[:MAGIC_REACH_BYTES]
        if self._log.bytes_at(at, len(seen)) != seen:
            return at  # a broker is writing it just now
        here = self._log.record_at(at)
        if here is not None and at + here.size > self._part.log_until:
            raise self._no_boundary(at + here.size)
        if reason == "partial":
            reason = "the record reaches beyond the end of its file or its segment"
        return self._resume(at, reason, here, window)

    def _add(self, record: Scanned, window: memoryview) -> None:
        kind = record.sys_flag & SysFlag.TRANSACTION_MASK
        if kind not in _WITHOUT_ENTRY and self._is_wanted(record):
            self._rows.add(window[: record.size])

    def _is_wanted(self, record: Scanned) -> bool:
        selection = self._part.selection
        if any(record.topic == topic and record.physical < until for topic, until in self._part.shape.gone):
            return False
        if selection.queues is not None and record.queue_id not in selection.queues:
            return False
        return selection.topics is None or record.topic.decode() in selection.topics

    def _resume(self, at: int, reason: str, here: Scanned | None, window: memoryview) -> int:
        """The next record behind one that is harmed, or behind a place where there is none at all.

        With nothing behind it either it is what a broker was writing when it was killed: the end of the log.
        """
        part, place = self._part, self._log.place(at)
        found = self._log.next_record(at + (1 if here is None else here.size), part.log_until)
        if found is None and part.is_last and at >= part.shape.sound_until:
            if reason != "end":
                log.warning("%s/%s: the log ends here, with bytes that are no record", part.shape.root, place)
            return part.log_until
        if here is not None:  # it has a layout: only its content is harmed
            self._rows.harmed(Damage(place, at, reason, raw=bytes(window[: here.size])))
            return at + here.size
        following = part.log_until if found is None else found.physical
        why = "zeros" if reason == "end" else reason
        self._rows.harmed(Damage(place, at, f"{why}; the next {following - at} bytes hold no record"))
        return following
