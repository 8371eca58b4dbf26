"""Format `hotfire` as a sink: rows of a DataFrame become messages, in batches and as a stream.

The driver makes a writer when a query is planned, and checks options and schema there; executors get a copy
of it for each partition; and what they say they wrote comes back to the driver.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from hotfire.errors import ConfigError
from hotfire.spark.outbox import Counts
from hotfire.spark.points import reached
from hotfire.spark.sinkoptions import SinkOptions
from hotfire.spark.sinkrows import Layout
from hotfire.spark.task import BATCH_ID, QUERY_ID, TaskFacts, keep_imports, task_facts
from hotfire.spark.writing import write_partition

log = logging.getLogger("hotfire.spark")


@dataclass(slots=True)
class Written(WriterCommitMessage):
    """What a task wrote."""

    partition: int
    counts: Counts


def _checked(
    options: Mapping[str, str], schema: StructType, overwrite: bool, *, streaming: bool
) -> tuple[SinkOptions, Layout]:
    keep_imports()
    if overwrite:
        raise ConfigError("a log is only appended to: use mode append, not overwrite")
    read = SinkOptions.read(options, streaming=streaming)
    layout = Layout.read(schema, has_topic=read["topic"] is not None, orders_by_key=read["orderBy"] == "key")
    return read, layout


def _told(messages: Sequence[WriterCommitMessage | None]) -> str:
    """One line of totals."""
    counts = [one.counts for one in messages if isinstance(one, Written)]
    told = (
        f"partitions={len(counts)} rows={sum(one.sent for one in counts)} "
        f"skipped={sum(one.skipped for one in counts)} bytes={sum(one.size for one in counts)} "
        f"requests={sum(one.requests for one in counts)}"
    )
    repeated, reserved = sum(one.repeated for one in counts), sum(one.reserved for one in counts)
    told += f" perhaps_twice={repeated}" if repeated else ""
    return told + (f" not_yet_safe={reserved}" if reserved else "")


class HotfireWriter(DataSourceArrowWriter):
    """A batch. Without an option `label` it has a name of its own, which its tasks' retries share."""

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        self._options, self._layout = _checked(options, schema, overwrite, streaming=False)
        self._name = self._options["label"] or f"write-{uuid.uuid4()}"
        self.facts = task_facts

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        facts = self.facts()
        name = f"{self._name}/{facts.partition}"
        counts = write_partition(iterator, self._options, self._layout, facts, name)
        return Written(facts.partition, counts)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        reached("sink.commit")
        log.info("write=%s %s", self._name, _told(messages))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        log.warning("write=%s failed; %s of the tasks that ended stay sent", self._name, _told(messages))


class HotfireStreamWriter(DataSourceStreamArrowWriter):
    """A stream: its batches are named by the query's id and their number, which a restart keeps."""

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        self._options, self._layout = _checked(options, schema, overwrite, streaming=True)
        self.facts = task_facts

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        facts = self.facts()
        counts = write_partition(iterator, self._options, self._layout, facts, _name(facts))
        return Written(facts.partition, counts)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        reached("sink.commit")
        log.info("batch=%d %s", batchId, _told(messages))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        log.warning("batch=%d failed; %s of the tasks that ended stay sent", batchId, _told(messages))


def _name(facts: TaskFacts) -> str:
    if facts.query_id is None or facts.batch_id is None:
        raise ConfigError(f"the task knows no {QUERY_ID} or {BATCH_ID}: is this Spark's streaming?")
    return f"{facts.query_id}/{facts.batch_id}/{facts.partition}"
