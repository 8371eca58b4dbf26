"""A topic as a stream: where each batch ends, what it reads, and what the group is told of it.

Spark's checkpoint is the truth about progress. What Spark keeps nowhere, the place where a query begins, is
pinned three times over: in the first batch's end (`offsets`), in a file beside the query's checkpoint when
its place is given as an option, and as the group's offsets when there is a group.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from hotfire.errors import HotfireError
from hotfire.model import MessageQueue
from hotfire.spark import pin, starting
from hotfire.spark.cluster import Cluster
from hotfire.spark.offsets import Offsets, Place, Range, between, limited, queues_of
from hotfire.spark.planning import cut, cut_into, wanted
from hotfire.spark.points import reached
from hotfire.spark.reading import Part, RangeReader, lost
from hotfire.spark.schema import Column
from hotfire.spark.sourceoptions import SourceOptions

log = logging.getLogger("hotfire.spark")

LOOK_FOR_QUEUES_S = 5.0
"""A query asks this often for queues and topics that are new."""


class HotfireStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One source of a streaming query. One, in a process beside the driver, is asked for offsets and plans;
    others like it read in the executors."""

    def __init__(self, options: SourceOptions, columns: tuple[Column, ...]) -> None:
        self._options = options
        self._columns = columns
        self._queues: tuple[MessageQueue, ...] = ()
        self._looked_s = -LOOK_FOR_QUEUES_S
        self._last_batch_s = time.monotonic()
        self._stop_at: Offsets | None = None
        self._published: Offsets = {}

    # --- where it begins -----------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:
        """Asked for more than once, also after a crash: the first answer stands."""
        kept = pin.kept(self._options)
        if kept is None:
            cluster = Cluster.of(self._options)
            queues = self._current_queues(cluster, is_start=True)
            kept = starting.starts(cluster, self._options, queues, "latest")
            pin.keep(self._options, kept)
            self._publish(kept)
        reached("source.initial-offset")
        return Place(kept, is_initial=True).json()

    # --- where a batch ends --------------------------------------------------------------------------

    def getDefaultReadLimit(self) -> ReadLimit:
        most = self._options["maxOffsetsPerTrigger"]
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:
        """What is there now is all that this run reads, in however many batches."""
        cluster = Cluster.of(self._options)
        self._stop_at = cluster.ends(self._options, self._current_queues(cluster, is_start=True))

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """`start` is where the last batch ended that Spark knows to be done."""
        options, began = self._options, Place.read(start)
        if not began.is_initial:
            self._publish(began.until)
        cluster = Cluster.of(options)
        ends = self._ends(cluster)
        new = [queue for queue in ends if queue not in began.until]
        first = starting.joined(cluster, options, new) if new else {}
        first |= self._begun_anew(cluster, began.until | first, ends)
        starts = began.until | first
        # A queue that is gone from the route stays in the query's place, where it is.
        ends = {queue: max(ends.get(queue, offset), offset) for queue, offset in starts.items()}
        ends = self._shared_out(cluster, starts, ends)
        since = starts if began.is_initial else first
        waiting = sum(ends[queue] - starts[queue] for queue in ends)
        if not began.is_initial and (not waiting or self._holds_back(waiting)):
            if self._stop_at is not None:  # nobody asks again
                self._publish(began.until, is_last=True)
            return start
        self._last_batch_s = time.monotonic()
        reached("source.latest-offset")
        return Place(ends, since, parts=wanted(waiting, **self._cutting())).json()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """For Spark's progress reports: how much is behind the batch."""
        try:
            cluster = Cluster.of(self._options)
            return Place(cluster.ends(self._options, self._current_queues(cluster))).json()
        except HotfireError:
            return None

    def _ends(self, cluster: Cluster) -> Offsets:
        if self._stop_at is not None:
            return self._stop_at
        return cluster.ends(self._options, self._current_queues(cluster))

    def _begun_anew(self, cluster: Cluster, starts: Offsets, ends: Offsets) -> Offsets:
        """Queues that end before the query's place are others than they were: each is read from its first
        message on, if that is not an error. The batch's `#from` keeps it.
        """
        others = []
        for queue, end in ends.items():
            if end < starts[queue]:
                problem = lost(Range(queue, end, starts[queue]), f"the queue ends at {end} now")
                if self._options["failOnDataLoss"]:
                    raise problem
                log.warning("%s; it is read from its beginning", problem)
                others.append(queue)
        return cluster.begins(self._options, others) if others else {}

    def _holds_back(self, waiting: int) -> bool:
        least = self._options["minOffsetsPerTrigger"]
        if least is None or waiting >= least or self._stop_at is not None:
            return False
        waited_s, waits_s = time.monotonic() - self._last_batch_s, float(self._options["maxTriggerDelay"])
        return waited_s < waits_s

    def _shared_out(self, cluster: Cluster, starts: Offsets, ends: Offsets) -> Offsets:
        options, most = self._options, self._options["maxOffsetsPerTrigger"]
        if most is not None:
            ends = limited(starts, ends, most)
        bytes_max = options["maxBytesPerTrigger"]
        behind = {queue: starts[queue] for queue in ends if ends[queue] > starts[queue]}
        if bytes_max is not None and behind:
            means = cluster.mean_bytes(options, behind)
            total = sum(means.get(queue, 0.0) * (ends[queue] - starts[queue]) for queue in behind)
            if total > bytes_max:
                count = sum(ends[queue] - starts[queue] for queue in behind)
                ends = limited(starts, ends, max(int(count * bytes_max / total), 1))
        return ends

    def _current_queues(self, cluster: Cluster, *, is_start: bool = False) -> tuple[MessageQueue, ...]:
        """Those of the options' topics; new ones join, looked for now and then."""
        now = time.monotonic()
        if is_start or now - self._looked_s >= LOOK_FOR_QUEUES_S:
            self._looked_s = now
            try:
                found = cluster.queues(self._options)
            except HotfireError as error:
                if is_start:
                    raise
                log.warning("the queues of the last look are gone on with: %s", error)
                return self._queues
            new = set(found) - set(self._queues)
            if new and self._queues:
                log.info("new queues join: %s", queues_of(new))
            self._queues = found
        return self._queues

    # --- what it reads -------------------------------------------------------------------------------

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        reached("source.planned")
        until = Place.read(end)
        ranges = between(Place.read(start), until)
        # as it was cut the first time, on a machine that may have had other cores
        parts = cut(ranges, **self._cutting()) if until.parts is None else cut_into(ranges, until.parts)
        return [Part(part, self._options.tags) for part in parts] or [Part((), ())]

    def _cutting(self) -> dict[str, int | None]:
        options = self._options
        return {
            "at_least": options["minPartitions"],
            "at_most": options["maxPartitions"],
            "rows_max": options["maxRecordsPerPartition"],
        }

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Part)
        return iter(RangeReader(self._options, partition, self._columns))

    # --- what is told of it --------------------------------------------------------------------------

    def commit(self, end: dict[str, Any]) -> None:
        """Comes when the next batch is planned, and never for the last one: `latestOffset` knows sooner."""
        self._publish(Place.read(end).until)
        reached("source.commit")

    def stop(self) -> None:
        """The client is the process's, and ends with it."""

    def _publish(self, offsets: Offsets, *, is_last: bool = False) -> None:
        if not self._options["group"]:
            return
        news = {queue: offset for queue, offset in offsets.items() if self._published.get(queue) != offset}
        if news and Cluster.of(self._options).publish(self._options, news, is_last=is_last):
            self._published |= news
