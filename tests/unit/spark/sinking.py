"""Writes through the sink without Spark, as its tasks do; and reads back what brokers then have."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema

from hotfire import sync
from hotfire.model import ReceivedMessage
from hotfire.spark.sink import HotfireStreamWriter, HotfireWriter, Written
from hotfire.spark.task import TaskFacts
from hotfire.testing.blocking import BlockingCluster

MAP = pa.map_(pa.string(), pa.string())


def batch(**columns: Any) -> pa.RecordBatch:
    """Columns given as lists, or as arrays where the type is not to be guessed."""
    arrays = {
        name: values if isinstance(values, pa.Array) else pa.array(values) for name, values in columns.items()
    }
    return pa.record_batch(list(arrays.values()), names=list(arrays))


class Sink:
    """One write, of which each call is an attempt at a partition."""

    def __init__(self, cluster: BlockingCluster, **options: Any) -> None:
        self.cluster = cluster
        self.options = {
            "nameServers": cluster.namesrv,
            "settleMs": "1",
            **{name: str(value) for name, value in options.items()},
        }

    def write(self, *batches: pa.RecordBatch, facts: TaskFacts | None = None) -> Written:
        """As a batch does; each call is another write, unless it has a label."""
        writer = HotfireWriter(self.options, schema(batches), False)
        writer.facts = lambda: facts or TaskFacts()
        return writer.write(iter(batches))

    def stream(self, *batches: pa.RecordBatch, facts: TaskFacts | None = None) -> Written:
        """As a stream does: by default an attempt at the first partition of one batch."""
        writer = HotfireStreamWriter(self.options, schema(batches), False)
        writer.facts = lambda: facts or TaskFacts(query_id="query", batch_id="7")
        return writer.write(iter(batches))


def schema(batches: Iterable[pa.RecordBatch]) -> Any:
    return from_arrow_schema(next(iter(batches)).schema)


def stored(cluster: BlockingCluster, topic: str) -> list[ReceivedMessage]:
    """All messages of the topic, queue by queue."""
    found: list[ReceivedMessage] = []
    with sync.QueueReader(cluster.namesrv) as reader:
        for queue in reader.queues(topic):
            offset, end = reader.min_offset(queue), reader.max_offset(queue)
            while offset < end:
                pulled = reader.pull(queue, offset, 4096, bytes_max=4 << 20)
                found += pulled.messages
                offset = pulled.next_offset
    return found


def bodies(cluster: BlockingCluster, topic: str) -> Counter[bytes]:
    return Counter(message.body for message in stored(cluster, topic))
