"""A partition read by queues: of each stretch of the log that is read, what the queues' entries lead to.

The queue whose next record comes first says where to read on; all others take what of theirs is there, too.
So the log is read once, whatever the number of queues, and what lies far apart is read piece by piece.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from heapq import heapify, heappop, heappush

import pyarrow as pa

from hotfire.protocol.record import RECORD_BYTES_MIN
from hotfire.spark.storedamage import Damage
from hotfire.spark.storefiles import FILLER_SIZE, WINDOW_BYTES, Files, Gone, Log, Queue
from hotfire.spark.storeplan import QueueRange, StorePart
from hotfire.spark.storerows import Rows

ENTRIES_AT_ONCE, ENTRIES_AT_ONCE_MIN = 65_536, 512
"""Of all queues together, and of each."""
DENSE = 16
"""When more than one byte in so many is wanted, all are read."""
GAP_BYTES = 32 << 10
"""Else pieces so near each other are read as one."""
BASE_OFFSET = 4
"""Field of a batch's entry: the queue offset of its first message."""


class _Cursor:
    """A place in a queue, with the entries from there on."""

    def __init__(self, queue: Queue, one: QueueRange, first: int, until: int, at_once: int) -> None:
        self.range = one
        self.topic = one.topic.encode()
        self.queue = queue
        self.entries = b""
        self.first = first
        """The number of the first of the entries."""
        self.at = 0
        self.loaded = 0
        self._until = until
        self._at_once = at_once

    def load(self) -> bool:
        """Have at least one entry in hand, of a record; False: there are no more."""
        while True:
            while self.at < self.loaded:
                if self.fields()[1] != FILLER_SIZE:
                    return True
                self.at += 1  # it only keeps a place
            self.first += self.loaded
            self.at = self.loaded = 0
            if self.first >= self._until:
                return False
            self.entries = self.queue.read(self.first, min(self._at_once, self._until - self.first))
            self.loaded = len(self.entries) // self.queue.unit
            if not self.loaded:
                raise Gone(self.range.directory)

    def fields(self, at: int | None = None) -> tuple[int, ...]:
        return self.queue.fields(self.entries, self.at if at is None else at)

    @property
    def offset(self) -> int:
        """Of the next record in the log."""
        return self.fields()[0]

    def reach(self, offset: int) -> int:
        """The first entry in hand whose record begins at `offset` or behind it."""
        return bisect_left(range(self.loaded), offset, self.at, key=lambda at: self.fields(at)[0])


class QueueReader:
    """The rows of one partition."""

    def __init__(self, part: StorePart, files: Files, rows: Rows) -> None:
        self._part = part
        self._rows = rows
        self._files = files
        self._log = Log(files, part.shape.segment_bytes)
        self._heap: list[tuple[int, int, _Cursor]] = []

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        heap, shape = self._heap, self._part.shape
        heap += self._cursors()
        heapify(heap)
        while heap:
            start, number, leader = heap[0]
            if not shape.log_from <= start < shape.log_until:
                heappop(heap)
                self._take_one(leader, memoryview(b""))
                leader.at += 1
                self._go_on(number, leader)
                continue
            try:
                window = self._log.read(start, self._size(leader, start))
            except Gone as gone:
                self._rows.lost(gone)
                self._skip_segment(start)
                continue
            yield from self._take_all(window, start)
            yield from self._rows.full()

    def _take_all(self, window: memoryview, start: int) -> Iterator[pa.RecordBatch]:
        heap, end, here = self._heap, start + max(len(window), 1), []
        while heap and start <= heap[0][0] < end:
            here.append(heappop(heap))
        for _, number, cursor in here:
            try:
                yield from self._take(cursor, window, start)
            except Gone as gone:
                self._rows.lost(gone)
            else:
                self._go_on(number, cursor)

    def _go_on(self, number: int, cursor: _Cursor) -> None:
        try:
            if cursor.load():
                heappush(self._heap, (cursor.offset, number, cursor))
        except Gone as gone:
            self._rows.lost(gone)

    def _cursors(self) -> Iterator[tuple[int, int, _Cursor]]:
        part, shape = self._part, self._part.shape
        queues = part.queues or ()
        at_once = max(ENTRIES_AT_ONCE // max(len(queues), 1), ENTRIES_AT_ONCE_MIN)
        for number, one in enumerate(queues):
            size = shape.batch_file_bytes if one.of_batches else shape.queue_file_bytes
            queue = Queue(self._files, one.directory, size, of_batches=one.of_batches)
            try:
                # Partitions that meet ask the same, and so get the same, be the entries in order or not.
                first = queue.first_from(one.first, one.until, part.log_from) if part.log_from else one.first
                until = one.until if part.is_last else queue.first_from(one.first, one.until, part.log_until)
                cursor = _Cursor(queue, one, first, until, at_once)
                if cursor.load():
                    yield cursor.offset, number, cursor
            except Gone as gone:
                self._rows.lost(gone)

    def _skip_segment(self, offset: int) -> None:
        """Go on behind the segment of `offset`, which is gone."""
        end, here = self._log.segment_end(offset), []
        while self._heap and self._heap[0][0] < end:
            here.append(heappop(self._heap))
        for _, number, cursor in here:
            try:
                while cursor.load() and end - self._log.segment_bytes <= cursor.offset < end:
                    cursor.at += 1
            except Gone as gone:
                self._rows.lost(gone)
            else:
                self._go_on(number, cursor)

    def _size(self, leader: _Cursor, start: int) -> int:
        """How much to read at once."""
        size = leader.fields()[1]
        size = size if 0 < size < FILLER_SIZE else RECORD_BYTES_MIN
        count = leader.reach(start + WINDOW_BYTES) - leader.at
        if size >= WINDOW_BYTES or count * size * len(self._heap) * DENSE >= WINDOW_BYTES:
            return max(size, WINDOW_BYTES)
        end = start + size
        for at in range(leader.at + 1, leader.at + count):
            offset, length, *_ = leader.fields(at)
            if offset > end + GAP_BYTES or not 0 < length < FILLER_SIZE:
                break
            end = max(end, offset + length)
        return min(end - start, WINDOW_BYTES)

    def _take(self, cursor: _Cursor, window: memoryview, start: int) -> Iterator[pa.RecordBatch]:
        """What `cursor` has in the window, which begins at log offset `start`."""
        rows, end = self._rows, start + len(window)
        topic, queue_id = cursor.topic, cursor.range.queue_id
        while cursor.load():
            if not cursor.range.of_batches:
                cursor.at = rows.columns.gather(
                    window, start, cursor.entries, cursor.at, topic, queue_id, cursor.first, rows.tags
                )
                if cursor.at == cursor.loaded:
                    continue
            offset, size, *_ = cursor.fields()
            if size == FILLER_SIZE:
                continue
            if not start <= offset < max(end, start + 1):
                return
            if offset > start and offset + size > end:
                return  # the next window begins with it
            if rows.is_full:  # it may have stopped for want of room
                yield from rows.full()
                continue
            self._take_one(cursor, window[offset - start : offset - start + max(size, 0)])
            cursor.at += 1

    def _take_one(self, cursor: _Cursor, data: memoryview) -> None:
        """The record of the next entry: one that is not ordinary, or damaged."""
        rows, one = self._rows, cursor.range
        offset, size, *more = cursor.fields()
        queue_offset = more[BASE_OFFSET - 2] if one.of_batches else cursor.first + cursor.at
        reason = None
        if not self._part.shape.log_from <= offset < self._part.shape.log_until:
            reason = f"the queue's entry leads to log offset {offset}, where the log does not reach"
        elif size < RECORD_BYTES_MIN:
            reason = f"the queue's entry says {size} bytes"
        elif len(data) < size:
            reason = f"the queue's entry says {size} bytes, the log's file ends after {len(data)}"
        else:
            record = rows.judge(data, offset)
            if isinstance(record, str):
                reason = record
            elif (record.topic, record.queue_id, record.queue_offset) != (
                one.topic,
                one.queue_id,
                queue_offset,
            ):
                reason = f"this is {record.topic} queue {record.queue_id} offset {record.queue_offset}"
        if reason is None:
            rows.add(data)
            return
        rows.harmed(
            Damage(
                self._log.place(offset), offset, reason, one.topic, one.queue_id, queue_offset, bytes(data)
            )
        )
