"""Format `hotfire` as a stream: nothing lost, nothing read twice, whatever is restarted or grows."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import ClassVar, cast

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.streaming.query import StreamingQuery

from hotfire import Message, sync
from hotfire.client.admin import Admin
from hotfire.client.queuereader import QueueReader
from hotfire.errors import ConfigError, Timeout
from hotfire.model import MessageQueue
from hotfire.protocol.requests import DeleteExpiredCommitLog
from hotfire.spark.cluster import Cluster
from hotfire.spark.offsets import Place
from hotfire.spark.schema import COLUMNS
from hotfire.spark.sourceoptions import SourceOptions
from hotfire.spark.stream import HotfireStream
from hotfire.spark.telling import tell_group
from tests.unit.spark.conftest import Topics

pytestmark = pytest.mark.timeout(600)


class Archive:
    """A query into Parquet, which keeps what is written twice apart from what is written once."""

    def __init__(self, spark: SparkSession, topics: Topics, place: Path, **options: str) -> None:
        self.spark = spark
        self.topics = topics
        self.place = place
        self.options = {"subscribe": "orders", "startingOffsets": "earliest", **options}

    def begin(self, *, now: bool) -> StreamingQuery:
        source = self.spark.readStream.format("hotfire").options(
            nameServers=self.topics.namesrv, **self.options
        )
        writer = source.load().select("body").writeStream.format("parquet")
        writer = writer.option("checkpointLocation", str(self.place / "checkpoint"))
        writer = writer.trigger(availableNow=True) if now else writer.trigger(processingTime="0 seconds")
        return writer.start(str(self.place / "table"))

    def run(self) -> StreamingQuery:
        query = self.begin(now=True)
        query.awaitTermination()
        return query

    def bodies(self) -> list[bytes]:
        table = self.spark.read.schema("body binary").parquet(str(self.place / "table"))
        return sorted(bytes(row.body) for row in table.collect())


def stream(topics: Topics, **options: str) -> HotfireStream:
    given = {"nameServers": topics.namesrv, "subscribe": "orders", **options}
    return HotfireStream(SourceOptions.read(given, streaming=True), COLUMNS)


def test_runs_take_up_where_the_last_one_ended_and_tell_the_group(
    spark: SparkSession, topics: Topics, tmp_path: Path
) -> None:
    """What is there is read once, in limited batches; the group's offsets are right when a run ends."""
    sent = topics.make("orders", 50)
    archive = Archive(spark, topics, tmp_path, group="archivists", maxOffsetsPerTrigger="20")
    query = archive.run()
    assert archive.bodies() == sorted(sent)
    assert max(progress["numInputRows"] for progress in query.recentProgress) <= 22
    with sync.QueueReader(topics.namesrv, group="archivists") as reader:
        committed = {queue: reader.committed(queue) for queue in reader.queues("orders")}
        assert committed == {queue: reader.max_offset(queue) for queue in committed}
    sent += topics.send("orders", 10, first=50)
    archive.run()
    assert archive.bodies() == sorted(sent)


def test_new_queues_join_a_running_query(
    spark: SparkSession, topics: Topics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = topics.make("orders", 10, queues=1)
    archive = Archive(spark, topics, tmp_path)
    archive.run()
    topics.cluster.create_topic("orders", queues=4)
    sent += topics.send("orders", 40, first=10)
    archive.run()
    assert archive.bodies() == sorted(sent)
    monkeypatch.setattr("hotfire.spark.stream.LOOK_FOR_QUEUES_S", 0.0)
    running = stream(topics, startingOffsets="earliest")
    place = running.latestOffset(running.initialOffset(), ReadAllAvailable())
    topics.cluster.create_topic("orders", queues=5)
    topics.send("orders", 5, first=50)
    later = Place.read(running.latestOffset(place, ReadAllAvailable()))
    assert len(later.until) == 5
    assert list(later.since.values()) == [0]


def test_a_query_that_began_at_latest_loses_nothing_when_its_first_batch_dies(
    topics: Topics, tmp_path: Path
) -> None:
    """Spark asks again where to begin; the answer is what it was, or what the logged batch says."""
    topics.make("orders", 6)
    kept = stream(topics, checkpointLocation=str(tmp_path))
    began = kept.initialOffset()
    topics.send("orders", 6, first=6)
    assert stream(topics, checkpointLocation=str(tmp_path)).initialOffset() == began
    grouped = stream(topics, group="readers")
    began = grouped.initialOffset()
    topics.send("orders", 6, first=12)
    assert stream(topics, group="readers").initialOffset() == began
    # Neither place nor group: the end that Spark logged for batch 0 knows where it began.
    alone = stream(topics)
    began = alone.initialOffset()
    topics.send("orders", 6, first=18)
    end = alone.latestOffset(began, ReadAllAvailable())
    topics.send("orders", 6, first=24)
    again = stream(topics)
    parts = again.partitions(again.initialOffset(), end)
    assert sum(one.count for part in parts for one in part.ranges) == 6


def test_nothing_new_is_the_same_place_and_too_little_waits(topics: Topics) -> None:
    topics.make("orders", 4)
    patient = stream(topics, startingOffsets="earliest", minOffsetsPerTrigger="5")
    place = patient.latestOffset(patient.initialOffset(), ReadAllAvailable())
    assert patient.latestOffset(place, ReadAllAvailable()) == place
    topics.send("orders", 4, first=4)
    assert patient.latestOffset(place, ReadAllAvailable()) == place
    topics.send("orders", 1, first=8)
    assert patient.latestOffset(place, ReadAllAvailable()) != place


def test_a_batch_is_cut_as_it_was_the_first_time_whatever_machine_reads_it(
    topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sink knows its rows by partition: on other cores, with other options, a batch has the same ones."""
    monkeypatch.setattr("hotfire.spark.planning.ROWS_WORTH_A_TASK", 2)
    topics.make("orders", 12)
    monkeypatch.setattr("os.cpu_count", lambda: 3)
    first = stream(topics, startingOffsets="earliest")
    began = first.initialOffset()
    end = first.latestOffset(began, ReadAllAvailable())
    parts = [part.ranges for part in first.partitions(began, end)]
    assert len(parts) == 3
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    again = stream(topics, startingOffsets="earliest", minPartitions="5")
    assert [part.ranges for part in again.partitions(began, end)] == parts
    assert len(again.partitions(began, again.latestOffset(began, ReadAllAvailable()))) == 6


def test_a_new_queue_begins_where_the_group_is(topics: Topics, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a queue that joins, what the group has done with already is not read again."""
    monkeypatch.setattr("hotfire.spark.stream.LOOK_FOR_QUEUES_S", 0.0)
    topics.make("orders", 2, queues=1)
    running = stream(topics, startingOffsets="earliest", group="readers")
    place = running.latestOffset(running.initialOffset(), ReadAllAvailable())
    topics.cluster.create_topic("orders", queues=3)
    topics.send("orders", 9, first=2)
    with sync.QueueReader(topics.namesrv, group="readers") as reader:
        joined = [queue for queue in reader.queues("orders") if queue.queue_id == 1]
        reader.commit(joined[0], 2)
    later = Place.read(running.latestOffset(place, ReadAllAvailable()))
    assert {queue.queue_id: offset for queue, offset in later.since.items()} == {1: 2, 2: 0}


def test_a_queue_made_anew_is_read_from_its_beginning_where_loss_is_allowed(topics: Topics) -> None:
    """With failOnDataLoss=false a topic that was deleted and made anew is read, all of it; and a batch that
    is read again reads the same.
    """
    topics.make("orders", 10, queues=1)
    running = stream(topics, startingOffsets="earliest", failOnDataLoss="false")
    place = running.latestOffset(running.initialOffset(), ReadAllAvailable())
    administer(topics, lambda admin: admin.delete_topic("orders"))
    topics.make("orders", 3, queues=1)
    later = running.latestOffset(place, ReadAllAvailable())
    for one in (running, stream(topics, failOnDataLoss="false")):
        (part,) = one.partitions(place, later)
        assert [(at.first, at.until) for at in part.ranges] == [(0, 3)]
    assert running.latestOffset(later, ReadAllAvailable()) == later


def test_two_sources_of_a_query_begin_each_where_it_was_told(topics: Topics, tmp_path: Path) -> None:
    """One topic from its beginning and the same one from now on, with one checkpoint."""
    topics.make("orders", 6)
    place = str(tmp_path)
    early, late = (
        stream(topics, checkpointLocation=place, startingOffsets=said) for said in ("earliest", "latest")
    )
    assert sum(Place.read(early.initialOffset()).until.values()) == 0
    assert sum(Place.read(late.initialOffset()).until.values()) == 6


@pytest.mark.parametrize("place", ["dbfs:/checkpoints/q", "hdfs://127.0.0.1:1/q", "wasb://box@host/q"])
def test_a_checkpoint_that_cannot_be_opened_is_gone_on_without(
    topics: Topics, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """Where Arrow knows no way to the checkpoint the first batch alone keeps where a query began."""
    monkeypatch.setenv("HADOOP_HOME", "/nowhere")
    topics.make("orders", 6)
    running = stream(topics, checkpointLocation=place, startingOffsets="earliest")
    assert running.initialOffset() == running.initialOffset()
    told = [one for one in caplog.records if place in one.getMessage()]
    assert len(told) == 1


def test_a_checkpoint_that_cannot_be_written_is_named(topics: Topics, tmp_path: Path) -> None:
    topics.make("orders", 1)
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"checkpointLocation .*file"):
        stream(topics, checkpointLocation=str(tmp_path / "file")).initialOffset()


def test_the_last_place_of_a_run_is_said_until_it_is_heard(
    topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody tells the group later: at the end of a run a broker that does not answer is asked again."""
    topics.make("orders", 6)
    running = stream(
        topics, startingOffsets="earliest", group="readers", **{"fetchOffset.retryIntervalMs": "1"}
    )
    running.prepareForTriggerAvailableNow()
    place = running.latestOffset(running.initialOffset(), ReadAllAvailable())
    deaf = iter(range(3))
    heard = QueueReader.commit

    async def commit(reader: QueueReader, queue: MessageQueue, offset: int) -> None:
        if next(deaf, None) is not None:
            raise Timeout("no answer")
        await heard(reader, queue, offset)

    monkeypatch.setattr(QueueReader, "commit", commit)
    assert running.latestOffset(place, ReadAllAvailable()) == place
    with sync.QueueReader(topics.namesrv, group="readers") as reader:
        assert [reader.committed(queue) for queue in reader.queues("orders")] == [3, 3]


def test_the_job_tells_the_group_once_more_where_its_query_ended(topics: Topics) -> None:
    """What the source could not say at the end, Spark's report of the last batch still knows."""

    class Ended:
        lastProgress: ClassVar = {  # Spark's name
            "sources": [{"endOffset": '{"orders": {"broker-0": {"0": 2, "1": 3}}, "#parts": 1}'}]
        }

    topics.make("orders", 6)
    given = {"nameServers": topics.namesrv, "subscribe": "orders", "group": "readers"}
    tell_group(cast("StreamingQuery", Ended()), given)
    with sync.QueueReader(topics.namesrv, group="readers") as reader:
        assert [reader.committed(queue) for queue in sorted(reader.queues("orders"))] == [2, 3]


def test_a_time_is_found_though_a_broker_gives_any_message_of_its_millisecond(
    topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Apache's 4.9 searches until it meets the time, and steps back to none of its neighbours."""
    topics.cluster.create_topic("orders", queues=1)
    with sync.Producer(topics.namesrv) as producer:
        for _ in range(2):
            producer.send_batch([Message("orders", b"%d" % number) for number in range(5)])
    with sync.QueueReader(topics.namesrv) as reader:
        (queue,) = reader.queues("orders")
        stored = [one.store_timestamp_ms for one in reader.pull(queue, 0).messages]

    async def search(reader: QueueReader, queue: MessageQueue, time_ms: int) -> int:
        equal = [offset for offset, at in enumerate(stored) if at == time_ms]
        before = [offset for offset, at in enumerate(stored) if at < time_ms]
        return max(equal or before, default=0)

    monkeypatch.setattr(QueueReader, "search", search)
    given = {"nameServers": topics.namesrv, "subscribe": "orders"}
    options = SourceOptions.read(given, streaming=False)
    for time_ms in (stored[0], stored[5], stored[5] + 1, stored[0] - 1):
        first = sum(at < time_ms for at in stored)
        assert Cluster.of(options).at_times(options, {queue: time_ms}) == {queue: first}


def test_bytes_of_a_batch_are_limited(topics: Topics) -> None:
    topics.make("orders", 100)
    limited = stream(topics, startingOffsets="earliest", maxBytesPerTrigger="4k")
    end = Place.read(limited.latestOffset(limited.initialOffset(), ReadAllAvailable()))
    assert 5 < sum(end.until.values()) < 50  # records of some 250 bytes


@pytest.mark.hotfire(mapped_file_size_commit_log=1 << 16, max_message_size=1 << 15, file_reserved_time=0)
def test_retention_overtaking_the_reader_is_an_error_unless_told_otherwise(
    spark: SparkSession, topics: Topics, tmp_path: Path
) -> None:
    """Messages that a query was to read and that are gone stop it, with their offsets; or are passed over."""
    topics.make("orders", 10, queues=1)
    archive = Archive(spark, topics, tmp_path)
    archive.run()
    topics.send("orders", 600, first=10)  # two segments and a part: some to be deleted, one to stay
    first = delete_oldest(topics, beyond=10)
    with pytest.raises(StreamingQueryException, match=r"messages 10 to \d+ are gone.*failOnDataLoss"):
        archive.run()
    archive.options["failOnDataLoss"] = "false"
    archive.run()
    numbers = sorted(int(body.split(b"-")[1]) for body in archive.bodies())
    assert numbers[:10] == list(range(10))
    assert first <= numbers[10] < 609  # more was deleted meanwhile
    assert numbers[10:] == list(range(numbers[10], 610))


def administer(topics: Topics, work: Callable[[Admin], Awaitable[object]]) -> None:
    async def once() -> None:
        async with Admin(topics.namesrv) as admin:
            await work(admin)

    topics.cluster.run(once())


def delete_oldest(topics: Topics, beyond: int) -> int:
    """Let the broker delete segments until messages up to `beyond` are gone; the first there is."""

    async def clean(admin: Admin) -> None:
        for broker in await admin.masters():
            await admin._ask(broker.address, DeleteExpiredCommitLog())

    with sync.QueueReader(topics.namesrv) as reader:
        queue = reader.queues("orders")[0]
        while (first := reader.min_offset(queue)) <= beyond:
            administer(topics, clean)
    return first


def test_a_broker_that_restarts_holds_a_query_up_and_no_more(
    spark: SparkSession, topics: Topics, tmp_path: Path
) -> None:
    sent = topics.make("orders", 10)
    archive = Archive(spark, topics, tmp_path)
    query = archive.begin(now=False)
    try:
        query.processAllAvailable()
        topics.cluster.brokers[0].restart()
        sent += topics.send("orders", 10, first=10)
        query.processAllAvailable()
    finally:
        query.stop()
    assert archive.bodies() == sorted(sent)


def test_a_queue_that_ends_before_it_did_fails_the_query(
    spark: SparkSession, topics: Topics, tmp_path: Path
) -> None:
    """A topic deleted and made anew is not the topic that the checkpoint knows."""
    topics.make("orders", 10)
    archive = Archive(spark, topics, tmp_path)
    archive.run()
    administer(topics, lambda admin: admin.delete_topic("orders"))
    topics.make("orders", 2)
    with pytest.raises(StreamingQueryException, match=r"failOnDataLoss"):
        archive.run()
