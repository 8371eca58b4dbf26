"""A partition -> Arrow batches: exactly its ranges, over bulk pulls, decoded by the compiled core.

The client's loop, on a thread of its own, asks ahead; this thread takes the answers apart, which it does
without the interpreter's lock, and hands batches to Spark. So the network, the decoding and the JVM each have
their turn at once. What lies between is bounded in bytes.

A range that is not there any more is data loss, and an error unless the user said otherwise: never a gap that
nobody sees. Without a filter by tags every offset of a range must come, so each is counted.
"""

from __future__ import annotations

import asyncio
import logging
import queue as threads
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from hotfire.client.pulling import Fetched, PullStatus
from hotfire.client.queuereader import BULK_BYTES_MAX, BULK_COUNT_MAX
from hotfire.core import Columns
from hotfire.errors import HotfireError, RecordInvalid, Timeout
from hotfire.protocol.record import RECORD_BYTES_MIN
from hotfire.spark.arrow import add_unusual, record_batch
from hotfire.spark.cluster import Cluster
from hotfire.spark.offsets import Range
from hotfire.spark.points import reached
from hotfire.spark.schema import Column, wanted_bits
from hotfire.spark.sourceoptions import SourceOptions
from hotfire.spark.task import keep_imports

log = logging.getLogger("hotfire.spark")

QUEUES_AT_ONCE_MAX = 4
AHEAD_BYTES_MAX = 4 * BULK_BYTES_MAX
"""Answers that wait to be taken apart; one more may be on its way for each queue that is read."""
BATCH_BYTES = 16 << 20
RETRY_S = 0.5


class DataLoss(HotfireError):
    """Messages that a query was to read are there no more."""


def lost(one: Range, why: str) -> DataLoss:
    return DataLoss(
        f"{one}: {why}. They were deleted by retention or with their topic, or a broker came back with less "
        "than it had. Set failOnDataLoss to false to go on without them, or begin anew at earliest"
    )


class Part(InputPartition):
    """Some ranges of queues, and the tags wanted of them: all when there is none."""

    def __init__(self, ranges: tuple[Range, ...], tags: tuple[str, ...]) -> None:
        super().__init__(None)
        self.ranges = ranges
        self.tags = tags


@dataclass(slots=True)
class _Piece:
    """An answer: what was asked for begins at `first`, though a batch in it may begin before."""

    range: Range
    body: bytes
    first: int
    is_last: bool


class RangeReader:
    """Reads a partition, in Arrow batches of the chosen columns."""

    def __init__(self, options: SourceOptions, part: Part, columns: tuple[Column, ...]) -> None:
        self._options = options
        self._ranges = part.ranges
        self._tags = part.tags
        self._columns = columns
        self._cluster = Cluster.of(options)
        self._pieces: threads.SimpleQueue[_Piece | BaseException] = threads.SimpleQueue()
        self._filling: dict[str, Columns] = {}
        self._counts: dict[Range, int] = {}
        self._passed_over: dict[Range, int] = {}
        self._come = 0
        self._half = max(sum(one.count for one in part.ranges) // 2, 1)
        self._tag_bytes = "\x01".join(part.tags).encode() if part.tags else None

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        keep_imports()
        bridge = self._cluster.bridge
        room = bridge.call(_Room, AHEAD_BYTES_MAX)
        asking = bridge.submit(self._ask_all(room))
        rows_max = self._options["batchRows"]
        try:
            left = len(self._ranges)
            while left:
                piece = self._pieces.get()
                if isinstance(piece, BaseException):
                    raise piece
                columns = self._filling_for(piece.range)
                yield from self._take_apart(piece, columns)
                bridge.soon(room.give_back, len(piece.body))
                if columns.rows >= rows_max or columns.size >= BATCH_BYTES:
                    yield record_batch(columns, self._columns)
                if piece.is_last:
                    self._check_count(piece.range)
                    left -= 1
            for columns in self._filling.values():
                if columns.rows:
                    yield record_batch(columns, self._columns)
            reached("source.read")
        finally:
            asking.cancel()

    def _filling_for(self, one: Range) -> Columns:
        broker = one.queue.broker_name
        columns = self._filling.get(broker)
        if columns is None:
            columns = self._filling[broker] = Columns(wanted_bits(self._columns), broker.encode())
        return columns

    def _take_apart(self, piece: _Piece, columns: Columns) -> Iterator[pa.RecordBatch]:
        one, body, at = piece.range, piece.body, 0
        topic = one.queue.topic.encode()
        before = columns.rows
        while at < len(body):
            at = columns.run(
                body, at, len(body), topic, one.queue.queue_id, piece.first, one.until, self._tag_bytes
            )
            if at < len(body):
                if columns.size >= BATCH_BYTES:  # it may have stopped for want of room
                    self._counts[one] = self._counts.get(one, 0) + columns.rows - before
                    yield record_batch(columns, self._columns)
                    before = 0
                at = self._add_unusual(columns, piece, at)
        self._counts[one] = self._counts.get(one, 0) + columns.rows - before

    def _add_unusual(self, columns: Columns, piece: _Piece, at: int) -> int:
        """The record that the core leaves to us; one that cannot be read either is missed by the count."""
        one, body = piece.range, piece.body
        try:
            return add_unusual(columns, body, at, first=piece.first, until=one.until, tags=self._tags)
        except RecordInvalid as error:
            problem = lost(one, f"a record came damaged ({error})")
            if self._options["failOnDataLoss"]:
                raise problem from None
            log.warning("%s", problem)
            size = int.from_bytes(body[at : at + 4], "big")
            return at + size if RECORD_BYTES_MIN <= size <= len(body) - at else len(body)

    def _check_count(self, one: Range) -> None:
        got, expected = self._counts.pop(one, 0), one.count - self._passed_over.pop(one, 0)
        if not self._tags and got != expected:
            problem = lost(one, f"{got} of {expected} messages came; the others cannot be read")
            if self._options["failOnDataLoss"]:
                raise problem
            log.warning("%s", problem)

    # --- asking, on the client's loop ----------------------------------------------------------------

    async def _ask_all(self, room: _Room) -> None:
        todo = list(reversed(self._ranges))

        async def work() -> None:
            while todo:
                await self._ask_range(todo.pop(), room)

        try:
            async with asyncio.TaskGroup() as tasks:
                for _ in range(min(QUEUES_AT_ONCE_MAX, len(todo))):
                    tasks.create_task(work())
        except BaseExceptionGroup as errors:
            self._pieces.put(errors.exceptions[0])
        except BaseException as error:
            self._pieces.put(error)
            raise

    async def _ask_range(self, one: Range, room: _Room) -> None:
        offset = one.first
        while offset < one.until:
            answer = await self._ask_patiently(one, offset)
            next_offset = self._judged(one, offset, answer)
            body = bytes(answer.body) if answer.status is PullStatus.FOUND else b""
            await room.take(len(body))
            asked, offset = offset, min(next_offset, one.until)
            self._come += offset - asked
            if self._come - (offset - asked) < self._half <= self._come:
                reached("source.read-half")
            self._pieces.put(_Piece(one, body, asked, offset >= one.until))

    async def _ask_patiently(self, one: Range, offset: int) -> Fetched:
        """The broker may be starting again; only a queue that stays silent fails the task."""
        options, reader = self._options, self._cluster.reader
        patience_s = options["pollTimeoutMs"] / 1000
        deadline = time.monotonic() + patience_s
        while True:
            count = min(one.until - offset, BULK_COUNT_MAX)
            failure: HotfireError | str = "its broker has too much to read just now"
            try:
                answer = await reader.fetch(one.queue, offset, self._tags or "*", count=count)
                if answer.status is not PullStatus.NOTHING_MATCHED or answer.next_offset > offset:
                    return answer
            except HotfireError as error:
                if not error.retriable:
                    raise
                failure = error
            if time.monotonic() > deadline:
                cause = failure if isinstance(failure, HotfireError) else None
                raise Timeout(f"{one} at {offset}: nothing came for {patience_s:.0f} s: {failure}") from cause
            log.warning("%s at %d: asked again: %s", one, offset, failure)
            await asyncio.sleep(RETRY_S)

    def _judged(self, one: Range, offset: int, answer: Fetched) -> int:
        """Where to go on. What is missing is an error, or skipped and told."""
        if answer.status in (PullStatus.FOUND, PullStatus.NOTHING_MATCHED) and answer.next_offset > offset:
            return answer.next_offset
        if answer.status is PullStatus.OFFSET_MOVED and answer.min_offset > offset:
            gone_to = answer.min_offset
            problem = lost(
                one, f"messages {offset} to {min(gone_to, one.until) - 1} are gone, the first is {gone_to}"
            )
        else:
            gone_to = one.until
            problem = lost(one, f"the queue ends at {answer.max_offset}, and {offset} was to be read")
        if self._options["failOnDataLoss"]:
            raise problem
        log.warning("%s", problem)
        self._passed_over[one] = self._passed_over.get(one, 0) + min(gone_to, one.until) - offset
        return gone_to


class _Room:
    """Bytes that may lie between the loop and the thread that takes them apart. Touched on the loop only."""

    def __init__(self, bytes_max: int) -> None:
        self._left = bytes_max
        self._freed = asyncio.Event()

    async def take(self, size: int) -> None:
        while self._left <= 0:
            self._freed.clear()
            await self._freed.wait()
        self._left -= size

    def give_back(self, size: int) -> None:
        self._left += size
        self._freed.set()
