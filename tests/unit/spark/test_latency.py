"""Times and rates of messages, as their records and their consumers tell them."""

import asyncio
import json
import time
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from pyspark.sql import SparkSession

from hotfire import Consumer, Message, ReceivedMessage, sync
from hotfire.client.admin import Admin
from hotfire.client.bridge import Bridge
from hotfire.client.consumersettings import ConsumeFrom
from hotfire.client.consumestats import TopicCounts
from hotfire.spark.pipelines import latency
from tests.unit.spark.conftest import Topics
from tests.unit.spark.failing import Refused, done_with, refuse_all, soon_persisted
from tests.unit.spark.running import run_pipeline

pytestmark = pytest.mark.timeout(600)
TRACES = "traces"
"""One of their own: the one that clients use unless told otherwise is made by brokers that trace."""


def _told(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return told


def _statistics(topics: Topics) -> Any:
    """The counts of the broker itself."""
    return topics.cluster.cluster.brokers[0].program.broker.statistics  # type: ignore[union-attr]


@pytest.mark.promise(224)
def test_counts_are_those_of_the_brokers_metrics(
    spark: SparkSession, topics: Topics, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Stored by topic, and given back by group and topic, are what the broker counted while it happened."""
    topics.make("orders", 30, queues=2)
    topics.make("logs", 7)
    refuse_all(topics.namesrv, "billing", "orders", 30, retries_max=16)
    picture = tmp_path / "orders.svg"
    said: dict[str, Any] = {"namesrv": topics.namesrv, "topic": ("orders", "logs"), "json": True}
    assert run_pipeline(spark, latency, picture=str(picture), **said) == 0
    told = _told(capsys)
    counted = _statistics(topics)
    assert {row["topic"]: row["count"] for row in told["topics"]} == {
        topic: counted._stored[topic].messages for topic in ("orders", "logs")
    }
    assert sum(row["count"] for row in told["queues"] if row["topic"] == "orders") == 30
    assert sum(row["count"] for row in told["minutes"] if row["topic"] == "logs") == 7
    back = sum(row["retried"] for row in told["failures"] if row["group"] == "billing")
    # on a busy machine some come back, and are refused again, before their consumer ends
    assert back == counted._sent_back["orders", "billing"].messages >= 30
    assert told["consumed"] == []
    assert any("unknown" in note for note in told["notes"]), "what is not known is said"
    ElementTree.fromstring(picture.read_text())  # noqa: S314  # our own text


def test_times_are_those_in_the_records(
    spark: SparkSession, topics: Topics, capsys: pytest.CaptureFixture[str]
) -> None:
    """The longest and the median from birth to store are those of the messages themselves."""
    topics.make("orders", 20)
    with sync.QueueReader(topics.namesrv) as reader:
        stored = [message for queue in reader.queues("orders") for message in reader.pull(queue, 0).messages]
    took = sorted(message.store_timestamp_ms - message.born_timestamp_ms for message in stored)
    assert run_pipeline(spark, latency, namesrv=topics.namesrv, topic=("orders",), json=True) == 0
    (row,) = _told(capsys)["topics"]
    assert (row["count"], row["max"], row["early"]) == (20, took[-1], sum(one < 0 for one in took))
    assert row["p50"] in took


def test_traces_tell_when_messages_were_consumed(
    spark: SparkSession, topics: Topics, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where clients trace, times until a first try and until done are theirs, and so is what failed."""
    topics.cluster.create_topic("orders", queues=1)
    topics.cluster.create_topic(TRACES, queues=1)
    with sync.Producer(topics.namesrv) as producer:
        sent = [producer.send(Message("orders", b"%d" % number)) for number in range(3)]
        with sync.QueueReader(topics.namesrv) as reader:
            (queue,) = reader.queues("orders")
            times = {one.message_id: one for one in reader.pull(queue, 0).messages}
        text = ""
        for number, one in enumerate(sent):
            began = times[one.message_id].store_timestamp_ms + 100
            success = "false" if number == 2 else "true"
            text += f"SubBefore\x01{began}\x01r\x01billing\x01R{number}\x01{one.message_id}\x010\x01\x02"
            ended = f"0\x01{began + 50}\x01billing\x02"
            text += f"SubAfter\x01R{number}\x01{one.message_id}\x0150\x01{success}\x01\x01{ended}"
        producer.send(Message(TRACES, text.encode()))
    assert (
        run_pipeline(spark, latency, namesrv=topics.namesrv, topic=("orders",), trace_topic=TRACES, json=True)
        == 0
    )
    told = _told(capsys)
    (whole,) = [row for row in told["consumed"] if row["minute"] is None]
    assert (whole["group"], whole["done"], whole["failed"], whole["waited_max"]) == ("billing", 2, 1, 100)
    longest = max(one.store_timestamp_ms - one.born_timestamp_ms for one in list(times.values())[:2])
    assert whole["whole_max"] == longest + 150


@pytest.mark.promise(224)
def test_consumed_is_what_the_client_and_the_broker_counted(
    spark: SparkSession, topics: Topics, capsys: pytest.CaptureFixture[str]
) -> None:
    """What a consumer did with its messages, traced as Java's client does: how many it did and failed are its
    own counts and the broker's, and the times are those of birth, store and the listener's end.
    """
    topics.make("orders", 12, queues=1)
    topics.cluster.create_topic(TRACES, queues=1)
    with soon_persisted():
        traces, counts, whole_ms = asyncio.run(_traced(topics, 12))
    with sync.Producer(topics.namesrv) as producer:
        producer.send(Message(TRACES, "".join(traces).encode()))
    said: dict[str, Any] = {"namesrv": topics.namesrv, "topic": ("orders",), "trace_topic": TRACES}
    assert run_pipeline(spark, latency, json=True, **said) == 0
    told = _told(capsys)
    (row,) = [row for row in told["consumed"] if row["minute"] is None]
    broker = _statistics(topics)
    assert (row["done"], row["failed"]) == (counts.done, counts.failed) == (8, 4)
    assert row["failed"] == broker._sent_back["orders", "billing"].messages
    assert row["whole_max"] == max(whole_ms)


async def _traced(topics: Topics, count: int) -> tuple[list[str], TopicCounts, list[int]]:
    """A consumer that fails every third message: what it would trace, what it counted, and from birth to the
    end of each it did, in ms."""
    traces: list[str] = []
    whole_ms: list[int] = []
    enough = asyncio.Event()

    async def handle(message: ReceivedMessage) -> None:
        began, number = time.time_ns() // 1_000_000, int(message.body.rpartition(b"-")[2])
        await asyncio.sleep(0)
        ended, fails = time.time_ns() // 1_000_000, number % 3 == 2
        head = f"SubBefore\x01{began}\x01r\x01billing\x01R{number}\x01{message.message_id}\x010\x01\x02"
        tail = f"{ended - began}\x01{'false' if fails else 'true'}\x01\x010\x01{ended}\x01billing\x02"
        traces.append(f"{head}SubAfter\x01R{number}\x01{message.message_id}\x01{tail}")
        if not fails:
            whole_ms.append(ended - message.born_timestamp_ms)
        if len(traces) == count:
            enough.set()
        if fails:
            raise Refused(message.message_id)

    consumer = Consumer(topics.namesrv, group="billing", retries_max=16, consume_from=ConsumeFrom.FIRST)
    consumer.subscribe("orders", handle)
    async with consumer:
        await enough.wait()
        consumer.suspend()  # before what failed comes again
        await done_with(topics.namesrv, "billing", "orders")
        return traces[:count], consumer._running.stats.of("orders").minus(TopicCounts()), whole_ms


def test_groups_without_traces_are_told_by_their_offsets(
    spark: SparkSession, topics: Topics, capsys: pytest.CaptureFixture[str]
) -> None:
    """How many wait, and since when the oldest of them does."""
    topics.make("orders", 10, queues=1)

    async def commit() -> None:
        async with Admin(topics.namesrv) as admin:
            await admin.create_group("billing")
            (queue,) = (await admin.route("orders")).read_queues
            await admin.set_offset("billing", queue, 4)

    Bridge.shared().run(commit())
    with sync.QueueReader(topics.namesrv) as reader:
        (queue,) = reader.queues("orders")
        oldest = reader.pull(queue, 4).messages[0].store_timestamp_ms
    assert run_pipeline(spark, latency, namesrv=topics.namesrv, topic=("orders",), json=True) == 0
    told = _told(capsys)
    assert told["groups"] == [{"group": "billing", "topic": "orders", "waiting": 6, "oldestWaiting": oldest}]
