"""Stores read as Spark's workers read them, without Spark."""

import pickle
from pathlib import Path
from typing import Any

from pyspark import cloudpickle
from pyspark.sql.datasource import Filter

from hotfire.spark.storeplan import StorePart
from hotfire.spark.storesource import NarrowedStore, StoreSource

Row = dict[str, Any]


def reader_of(root: Path | str, columns: str | None = None, **options: Any) -> Any:
    source = StoreSource({"path": str(root), **{name: str(value) for name, value in options.items()}})
    schema = source.schema()
    if columns is not None:
        schema = type(schema)([schema[name] for name in columns.split()])
    return source.reader(schema)


def parts_of(reader: Any) -> list[StorePart]:
    return list(reader.partitions())


def rows_of(
    root: Path | str, columns: str | None = None, filters: list[Filter] | None = None, **options: Any
) -> list[Row]:
    """Every row, partition after partition; reader and partitions go through pickle as they do in Spark."""
    reader = reader_of(root, columns, **options, **({} if filters is None else {"pushdown": "true"}))
    if filters is not None:
        assert isinstance(reader, NarrowedStore)
        assert list(reader.pushFilters(filters)) == filters
    rows = []
    for part in parts_of(reader):
        worker, there = pickle.loads(cloudpickle.dumps((reader, part)))  # noqa: S301
        for batch in worker.read(there):
            batch.validate(full=True)
            rows += batch.to_pylist()
    return rows


def by_place(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: (row["commitLogOffset"], row["queueOffset"]))
