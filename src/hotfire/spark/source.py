"""Format `hotfire`: topics of any RocketMQ-compatible cluster as a DataFrame, read and written."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    Filter,
    InputPartition,
)
from pyspark.sql.types import StructType

from hotfire.model import MessageQueue
from hotfire.spark import starting
from hotfire.spark.cluster import Cluster
from hotfire.spark.offsets import Offsets, Range
from hotfire.spark.options import Options
from hotfire.spark.planning import cut
from hotfire.spark.pushdown import Narrowing, narrowed
from hotfire.spark.reading import Part, RangeReader
from hotfire.spark.schema import COLUMNS, Column, chosen, spark_schema
from hotfire.spark.sourceoptions import FORMAT, SOURCE_OPTIONS, SourceOptions
from hotfire.spark.stream import HotfireStream


class HotfireSource(DataSource):
    """What Spark makes of `spark.read.format("hotfire")` and its kin. Asks nothing of anybody yet."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        has_properties = Options(SOURCE_OPTIONS, self.options, FORMAT)["includeHeaders"]
        return spark_schema(tuple(one for one in COLUMNS if has_properties or one.name != "properties"))

    def reader(self, schema: StructType) -> DataSourceReader:
        options = SourceOptions.read(self.options, streaming=False)
        # Spark refuses a reader that could take filters while its own setting for that is off.
        return (NarrowedBatch if options["pushdown"] else HotfireBatch)(options, chosen(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return HotfireStream(SourceOptions.read(self.options, streaming=True), chosen(schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from hotfire.spark.sink import HotfireWriter  # those who read need not wait for it

        return HotfireWriter(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from hotfire.spark.sink import HotfireStreamWriter

        return HotfireStreamWriter(self.options, schema, overwrite)


class HotfireBatch(DataSourceReader):
    """What lies between two places when the query is planned."""

    def __init__(self, options: SourceOptions, columns: tuple[Column, ...]) -> None:
        self._options = options
        self._columns = columns
        self._narrowing = Narrowing()

    def partitions(self) -> Sequence[InputPartition]:
        options = self._options
        cluster = Cluster.of(options)
        queues = [queue for queue in cluster.queues(options) if self._admits(queue)]
        starts = starting.starts(cluster, options, queues, "earliest")
        ends = starting.ends(cluster, options, queues)
        starts, ends = self._narrowed(cluster, starts, ends)
        ranges = [Range(queue, starts[queue], ends[queue]) for queue in queues if ends[queue] > starts[queue]]
        tags = self._tags()
        if tags is None:
            ranges = []
        parts = cut(
            ranges,
            at_least=options["minPartitions"],
            at_most=options["maxPartitions"],
            rows_max=options["maxRecordsPerPartition"],
        )
        return [Part(part, tags or ()) for part in parts] or [Part((), ())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Part)
        return iter(RangeReader(self._options, partition, self._columns))

    def _admits(self, queue: MessageQueue) -> bool:
        told = {"topic": queue.topic, "brokerName": queue.broker_name, "queueId": queue.queue_id}
        return all(self._narrowing.admits(name, value) for name, value in told.items())

    def _tags(self) -> tuple[str, ...] | None:
        """Those wanted, all when there is none; None when no message can be."""
        said, pushed = self._options.tags, self._narrowing.among.get("tags")
        if pushed is None:
            return said
        both = tuple(sorted(str(tag) for tag in pushed if not said or tag in said))
        return both or None

    def _narrowed(self, cluster: Cluster, starts: Offsets, ends: Offsets) -> tuple[Offsets, Offsets]:
        options, least, most = self._options, self._narrowing.least, self._narrowing.most
        if "storeTimestamp" in least:
            times = dict.fromkeys(starts, least["storeTimestamp"])
            starts = _later(starts, cluster.at_times(options, times))
        if "storeTimestamp" in most:
            times = dict.fromkeys(ends, most["storeTimestamp"] + 1)
            ends = _sooner(ends, cluster.at_times(options, times))
        if "queueOffset" in least:
            starts = _later(starts, dict.fromkeys(starts, least["queueOffset"]))
        if "queueOffset" in most:
            ends = _sooner(ends, dict.fromkeys(ends, most["queueOffset"] + 1))
        return starts, ends


class NarrowedBatch(HotfireBatch):
    """The same, where Spark may say which rows it wants."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        self._narrowing = narrowed(filters)
        return filters  # each is judged again by Spark


def _later(one: Offsets, other: Offsets) -> Offsets:
    return {queue: max(offset, other[queue]) for queue, offset in one.items()}


def _sooner(one: Offsets, other: Offsets) -> Offsets:
    return {queue: min(offset, other[queue]) for queue, offset in one.items()}
