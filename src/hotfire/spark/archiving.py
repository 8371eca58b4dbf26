"""A stream's batches to Parquet, with Spark: what `batches` notes and moves is written and read here."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from hotfire.errors import ConfigError
from hotfire.spark.batches import CHECKPOINT, LOCK, Batches, Merge, Origin
from hotfire.spark.files import files_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

ATTEMPTS_MAX = 20


class Archive:
    """A directory of Parquet files that one streaming query writes, by these columns, one of them `date`."""

    def __init__(
        self,
        spark: SparkSession,
        location: str,
        *,
        reads: Sequence[str],
        by: Sequence[str],
        checkpoint: str | None,
        file_bytes: int,
        compression: str,
        is_stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        self._spark = spark
        self._files = files_of(spark, location)
        self._batches = Batches(self._files, file_bytes=file_bytes)
        self._reads = tuple(reads)
        self._by = tuple(by)
        self._compression = compression
        self._is_stopping = is_stopping
        self._is_signed = False
        self._day = today()
        self.checkpoint = checkpoint or f"{self._files.root}/{CHECKPOINT}"

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Nobody else writes here meanwhile, where that can be seen to; what a dead run left is finished."""
        with self._files.locked(LOCK) as is_alone:
            query_id = query_id_of(self._spark, self.checkpoint)
            self._batches.open(self._reads, query_id, is_alone=is_alone, now_ms=time.time_ns() // 1_000_000)
            yield

    def add(self, rows: DataFrame, batch: int, *, compact: bool = True) -> None:
        """A batch of the stream; the same one again changes nothing."""
        if not self._is_signed:
            query_id = query_id_of(self._spark, self.checkpoint)
            assert query_id is not None, "a query that has batches has a checkpoint"
            self._batches.sign(Origin(query_id, self._reads))
            self._is_signed = True

        def write(to: str) -> None:
            self._writer(rows).partitionBy(*self._by).parquet(to)

        written = self._batches.add(batch, write)
        if compact:
            is_new_day, self._day = self._day != today(), today()
            self.compact(None if is_new_day else {name.rpartition("/")[0] for name in written})

    def compact(self, folders: set[str] | None = None) -> None:
        """Put small files together, in these directories or in all."""
        for merge in self._batches.merges(folders, open_folder=f"date={today()}"):
            if self._is_stopping():
                return
            self._batches.merge(merge, self._merged(merge))

    def _merged(self, merge: Merge) -> Callable[[str], None]:
        paths = [f"{self._files.root}/{name}" for name in merge.inputs]

        def write(to: str) -> None:
            rows = self._spark.read.option("mergeSchema", "true").parquet(*paths)
            self._writer(rows.coalesce(merge.file_count)).parquet(to)
            # before anything is removed: both counts come from the files' footers
            had, has = rows.count(), self._spark.read.parquet(to).count()
            if had != has:
                raise ConfigError(f"{to} has {has} rows of {had}; the files it was made of are kept")

        return write

    def _writer(self, rows: DataFrame) -> Any:
        return rows.write.mode("overwrite").option("compression", self._compression)


def read_archive(spark: SparkSession, location: str, schema: StructType | None = None) -> DataFrame:
    """Each row once, also while its writer puts files together."""
    files = files_of(spark, location)
    if not files.exists(""):
        raise ConfigError(f"archive {location} does not exist")
    batches = Batches(files)
    reader = spark.read if schema is None else spark.read.schema(schema)
    for _ in range(ATTEMPTS_MAX):
        seen, readable = batches.visible(), batches.readable()
        if readable is None:
            found = reader.parquet(files.root)
        else:
            paths = [f"{files.root}/{name}" for name in readable]
            found = reader.option("basePath", files.root).parquet(*paths)
        # Spark has listed the files by now. They are those of one moment if nothing has changed: neither what
        # is noted, nor the files, among which those put together meanwhile have names of their own.
        if batches.readable() == readable and batches.visible() == seen:
            return found
    raise ConfigError(f"archive {location} is being put together again and again; try it a little later")


def query_id_of(spark: SparkSession, checkpoint: str) -> str | None:
    """The id that Spark gave the query when its checkpoint was made."""
    data = files_of(spark, checkpoint).read("metadata")
    return None if data is None else str(json.loads(data)["id"])


def today() -> str:
    return time.strftime("%Y-%m-%d", time.gmtime())
