"""What Spark's interface for data sources in Python allows at most: batches that were there before it asked.

Format `ceiling` gives one row again and again, in Arrow batches of the columns and the size that our readers
make. Workers are used again by Spark and keep the batch, so that after the first query nothing is built.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from hotfire.spark.reading import BATCH_BYTES
from hotfire.spark.schema import ARROW_TYPES, BY_NAME, chosen, spark_schema

BATCH_ROWS_MAX = 50_000


class Ceiling(DataSource):
    """Options: `row` in JSON, `rows` in all, `partitions`."""

    @classmethod
    def name(cls) -> str:
        return "ceiling"

    def schema(self) -> StructType:
        return spark_schema()

    def reader(self, schema: StructType) -> DataSourceReader:
        names = tuple(column.name for column in chosen(schema))
        return CeilingReader(self.options["row"], int(self.options["rows"]), self.options, names)


class CeilingReader(DataSourceReader):
    def __init__(self, row: str, rows: int, options: Any, names: tuple[str, ...]) -> None:
        self._row = row
        self._rows = rows
        self._partitions = int(options["partitions"])
        self._names = names

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(self._rows // self._partitions) for _ in range(self._partitions)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        batch = prebuilt(self._row, self._names)
        for _ in range(partition.value // batch.num_rows):
            yield batch
        if rest := partition.value % batch.num_rows:
            yield batch.slice(0, rest)


@functools.cache
def prebuilt(row: str, names: tuple[str, ...]) -> pa.RecordBatch:
    """As many of the row as our readers put into a batch."""
    values = json.loads(row)
    one = _repeated(values, names, 1)
    return _repeated(values, names, min(BATCH_ROWS_MAX, BATCH_BYTES // one.nbytes))


def _repeated(values: dict[str, Any], names: tuple[str, ...], count: int) -> pa.RecordBatch:
    arrays = []
    for name in names:
        value, kind = values[name], BY_NAME[name].kind
        if kind == "bytes":
            value = value.encode("latin-1")
        if kind == "map":
            value = list(value.items())
        arrays.append(pa.array([value] * count, ARROW_TYPES[kind]))
    return pa.RecordBatch.from_arrays(arrays, names=list(names))
