"""Format `hotfire-store`: a store's files as a DataFrame, of a broker that runs or has stopped, or a copy."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from hotfire.spark.options import Options
from hotfire.spark.pushdown import Narrowing, narrowed
from hotfire.spark.schema import COLUMNS, DAMAGE, Column, chosen, spark_schema
from hotfire.spark.storefiles import Files
from hotfire.spark.storelog import LogReader
from hotfire.spark.storeoptions import FORMAT, Selection, read_options
from hotfire.spark.storeplan import Shape, StorePart, broker_name, plan
from hotfire.spark.storequeues import QueueReader
from hotfire.spark.storerows import Rows


class StoreSource(DataSource):
    """What Spark makes of `spark.read.format("hotfire-store")`."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        return spark_schema(_known(read_options(self.options)))

    def reader(self, schema: StructType) -> DataSourceReader:
        options = read_options(self.options)
        # Spark refuses a reader that could take filters while its own setting for that is off.
        return (NarrowedStore if options["pushdown"] else StoreReader)(
            options, chosen(schema, _known(options))
        )


def _known(options: Options) -> tuple[Column, ...]:
    return (*COLUMNS, DAMAGE) if options["damaged"] == "keep" else COLUMNS


class StoreReader(DataSourceReader):
    """What is in the files when the query is planned."""

    def __init__(self, options: Options, columns: tuple[Column, ...]) -> None:
        self._options = options
        self._columns = columns
        self._narrowing = Narrowing()
        self._selection = Selection.of(options)

    def partitions(self) -> Sequence[InputPartition]:
        options, selection = self._options, self._selection.narrowed(self._narrowing)
        parts: list[StorePart] = []
        if self._narrowing.admits("brokerName", broker_name(options)):
            parts = plan(options, selection)
        return parts or [StorePart(Shape(options["path"]), selection, 0, 0, (), is_last=True)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, StorePart)
        rows, files = Rows(self._options, partition, self._columns), Files(partition.shape.root)
        try:
            if partition.queues is None:
                yield from LogReader(partition, files, rows)
            else:
                yield from QueueReader(partition, files, rows)
            yield from rows.rest()
        finally:
            files.close()


class NarrowedStore(StoreReader):
    """The same, where Spark may say which rows it wants."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        self._narrowing = narrowed(filters)
        return filters  # each is judged again by Spark
