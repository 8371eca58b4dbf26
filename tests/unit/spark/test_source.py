"""Format `hotfire` in batches: a topic is a DataFrame, whole or in part."""

import json
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from hotfire import Message, sync
from hotfire.spark.schema import COLUMNS
from tests.unit.spark.conftest import Topics

pytestmark = pytest.mark.timeout(600)


def read(spark: SparkSession, topics: Topics, columns: str | None = None, **options: str) -> DataFrame:
    reader = spark.read.format("hotfire").options(nameServers=topics.namesrv, **options)
    return (reader.schema(columns) if columns else reader).load()


def bodies(frame: DataFrame) -> list[bytes]:
    return sorted(bytes(row.body) for row in frame.select("body").collect())


def test_every_column_is_that_of_the_message(spark: SparkSession, topics: Topics) -> None:
    """A row says of a message what the client's own reader says of it."""
    topics.cluster.create_topic("orders", queues=2)
    with sync.Producer(topics.namesrv) as producer:
        sent = [
            producer.send(
                Message("orders", b"one", tag="paid", keys=("k1", "k2"), properties={"colour": "blue"})
            ),
            producer.send(Message("orders", b"z" * 10_000)),  # travels and is stored compressed
        ]
    with sync.QueueReader(topics.namesrv) as reader:
        kept = [message for queue in reader.queues("orders") for message in reader.pull(queue, 0).messages]
    frame = read(spark, topics, subscribe="orders")
    assert frame.columns == [column.name for column in COLUMNS]
    rows = {row.msgId: row for row in frame.collect()}
    assert rows.keys() == {result.message_id for result in sent}
    for message in kept:
        row = rows[message.message_id]
        assert (row.topic, row.brokerName, row.queueId, row.queueOffset) == (
            "orders", message.queue.broker_name, message.queue.queue_id, message.queue_offset,
        )  # fmt: skip
        assert (row.keys, row.tags) == (" ".join(message.keys) or None, message.tag)
        assert bytes(row.body) == message.body
        assert row.properties == message.properties
        assert row.bornTimestamp.timestamp() * 1000 == pytest.approx(message.born_timestamp_ms, abs=0.1)
        assert row.storeTimestamp.timestamp() * 1000 == pytest.approx(message.store_timestamp_ms, abs=0.1)
        assert row.reconsumeTimes == 0
        assert int(message.offset_message_id[16:], 16) == row.commitLogOffset
    assert not rows[sent[1].message_id].sysFlag & 1  # what is given is not compressed any more


@pytest.mark.promise(221)
def test_a_batch_by_time_is_what_a_query_by_time_gives(spark: SparkSession, topics: Topics) -> None:
    """A span of a topic's time, asked for by options or by a filter that Spark hands on, is what brokers have
    of that time; and no more of the topic is read for it.
    """
    topics.cluster.create_topic("orders", queues=2)
    for first in range(0, 20, 5):
        topics.send("orders", 5, first=first)
        topics.cluster.clock.turn(1)
    with sync.QueueReader(topics.namesrv) as reader:
        queues = reader.queues("orders")
        stored = sorted(
            (message.store_timestamp_ms, message.body)
            for queue in queues
            for message in reader.pull(queue, 0).messages
        )
        first, last = stored[5][0], stored[15][0]
        by_query = sorted(
            message.body
            for queue in queues
            for message in reader.pull(queue, reader.search(queue, first)).messages
            if first <= message.store_timestamp_ms < last
        )
    assert len(by_query) == 10
    by_options = read(
        spark, topics, subscribe="orders", startingTimestamp=str(first), endingTimestamp=str(last),
        startingOffsetsByTimestampStrategy="latest",
    )  # fmt: skip
    assert bodies(by_options) == by_query
    by_filter = read(spark, topics, subscribe="orders", pushdown="true").where(
        (F.col("storeTimestamp") >= F.timestamp_millis(F.lit(first)))
        & (F.col("storeTimestamp") < F.timestamp_millis(F.lit(last)))
    )
    assert bodies(by_filter) == by_query
    assert 10 <= _rows_read(by_filter) < 20, "brokers were asked for the span, to the millisecond"


def _rows_read(frame: DataFrame) -> int:
    """How many rows the source gave for the frame, by Spark's own count."""
    plan: Any = frame._jdf.queryExecution().executedPlan()
    plan.execute().count()
    leaves = plan.collectLeaves()
    return sum(int(leaves.apply(at).metrics().apply("numOutputRows").value()) for at in range(leaves.size()))


def test_columns_asked_for_are_the_columns_read(spark: SparkSession, topics: Topics) -> None:
    sent = topics.make("orders", 30, queues=3)
    frame = read(spark, topics, "body binary, queueId int", subscribe="orders")
    assert frame.columns == ["body", "queueId"]
    assert bodies(frame) == sorted(sent)
    assert {row.queueId for row in frame.collect()} == {0, 1, 2}


def test_offsets_tags_queues_and_filters_choose(spark: SparkSession, topics: Topics) -> None:
    topics.make("orders", 40, queues=2, tag="paid")
    refunds = topics.send("orders", 10, first=100, tag="refund")
    broker = topics.cluster.cluster.brokers[0].name
    assert bodies(read(spark, topics, subscribe="orders", tags="refund || none")) == sorted(refunds)
    starts = json.dumps({"orders": {broker: {"0": 3, "1": -2}}})
    ends = json.dumps({"orders": {broker: {"0": 5, "1": 1}}})
    some = read(spark, topics, subscribe="orders", startingOffsets=starts, endingOffsets=ends)
    assert sorted((row.queueId, row.queueOffset) for row in some.collect()) == [(0, 3), (0, 4), (1, 0)]
    assigned = read(spark, topics, assign=json.dumps({"orders": {broker: [1]}}), pushdown="true")
    narrow = assigned.where("queueOffset between 2 and 4 and topic = 'orders' and tags = 'paid'")
    assert sorted((row.queueId, row.queueOffset) for row in narrow.collect()) == [(1, 2), (1, 3), (1, 4)]


def test_mistakes_are_told_by_name(spark: SparkSession, topics: Topics) -> None:
    topics.make("orders", 1)
    with pytest.raises(PySparkException, match="did you mean subscribe"):
        read(spark, topics, subscrib="orders").collect()
    with pytest.raises(PySparkException, match="ghosts"):
        read(
            spark,
            topics,
            subscribe="ghosts",
            **{"fetchOffset.numRetries": "1", "fetchOffset.retryIntervalMs": "1"},
        ).collect()
    with pytest.raises(PySparkException, match="assign: topic orders on"):
        read(spark, topics, assign=json.dumps({"orders": {"nobody": [7]}})).collect()
