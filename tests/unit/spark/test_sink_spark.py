"""The sink under Spark itself: batches, streams, round trips."""

import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from hotfire.testing.blocking import BlockingCluster
from tests.unit.spark.conftest import Topics
from tests.unit.spark.sinking import bodies, stored

FORMAT = "hotfire"
pytestmark = pytest.mark.timeout(600)  # the first to come starts Spark


def saved(frame: DataFrame, cluster: BlockingCluster, topic: str, **options: str) -> None:
    frame.write.format(FORMAT).mode("append").options(
        nameServers=cluster.namesrv, topic=topic, **options
    ).save()


def test_a_dataframe_is_written(spark: SparkSession, hotfire_cluster: BlockingCluster) -> None:
    """Every row of every partition, once."""
    frame = spark.range(0, 20_000, numPartitions=3).selectExpr(
        "cast(id as string) value", "concat('k', id) key"
    )
    saved(frame, hotfire_cluster, "orders")
    assert bodies(hotfire_cluster, "orders") == {b"%d" % n: 1 for n in range(20_000)}


def test_what_was_read_is_written_elsewhere(spark: SparkSession, topics: Topics) -> None:
    """A topic copied through Spark has the same bodies, keys and tags."""
    sent = topics.make("from", 200, tag="T")
    read = spark.read.format(FORMAT).options(nameServers=topics.namesrv, subscribe="from").load()
    saved(read.select("body", "keys", "tags", "properties"), topics.cluster, "to")
    copies = stored(topics.cluster, "to")
    assert sorted(one.body for one in copies) == sorted(sent)
    assert {(one.body, one.keys, one.tag) for one in copies} == {
        (body, (f"k{number}",), "T") for number, body in enumerate(sent)
    }


def test_what_is_wrong_is_told_before_anything_is_sent(
    spark: SparkSession, hotfire_session_cluster: BlockingCluster
) -> None:
    """The user sees which column or option it is, and nothing was written."""
    frame = spark.range(3).selectExpr("cast(id as string) value", "id colour")
    with pytest.raises(PySparkException, match="column colour is not one a sink takes: body"):
        saved(frame, hotfire_session_cluster, "never")
    with pytest.raises(PySparkException, match="no option topics; did you mean topic"):
        saved(frame.select("value"), hotfire_session_cluster, "never", topics="x")


def test_a_stream_is_written_and_goes_on(spark: SparkSession, topics: Topics, tmp_path: Path) -> None:
    """From one topic to another, over a restart of the query; each message once."""
    sent = topics.make("in", 300)

    def run() -> Any:
        read = spark.readStream.format(FORMAT).options(
            nameServers=topics.namesrv, subscribe="in", startingOffsets="earliest", maxOffsetsPerTrigger="100"
        )
        query = (
            read.load()
            .select("body", "keys", "tags")
            .writeStream.format(FORMAT)
            .queryName("copy")
            .options(nameServers=topics.namesrv, topic="out", checkpointLocation=str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return query

    run()
    sent += topics.send("in", 50, first=300)
    run()
    assert bodies(topics.cluster, "out") == dict.fromkeys(sent, 1)


def test_a_batch_that_was_not_committed_is_replayed_once(
    spark: SparkSession, topics: Topics, tmp_path: Path
) -> None:
    """Spark writes a batch again when it died before it noted the commit; its rows are there once."""
    sent = topics.make("in", 200)
    checkpoint = tmp_path / "checkpoint"

    def run(delivery: str, out: str) -> None:
        (
            spark.readStream.format(FORMAT)
            .options(nameServers=topics.namesrv, subscribe="in", startingOffsets="earliest")
            .load()
            .select("body", "keys")
            .writeStream.format(FORMAT)
            .options(
                nameServers=topics.namesrv, topic=out, checkpointLocation=str(checkpoint), delivery=delivery
            )
            .trigger(availableNow=True)
            .start()
            .awaitTermination()
        )

    run("effectively-once", "out")
    for note in (checkpoint / "commits").iterdir():
        note.unlink()
    run("effectively-once", "out")
    assert bodies(topics.cluster, "out") == dict.fromkeys(sent, 1)
    for note in (checkpoint / "commits").iterdir():
        note.unlink()
    run("at-least-once", "out")
    assert bodies(topics.cluster, "out") == dict.fromkeys(sent, 2)


def test_a_row_that_cannot_be_sent_fails_the_job_by_name(
    spark: SparkSession, hotfire_cluster: BlockingCluster
) -> None:
    """The error that reaches the user names row and partition."""
    frame = spark.range(0, 10, numPartitions=1).selectExpr("if(id = 7, null, cast(id as string)) body")
    began_s = time.monotonic()
    with pytest.raises(PySparkException, match=r"row 7 of partition 0.*its body is null"):
        saved(frame, hotfire_cluster, "orders")
    assert time.monotonic() - began_s < 30
