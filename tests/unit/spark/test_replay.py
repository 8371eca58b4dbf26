"""What was stored, sent again: chosen, in order, once."""

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from hotfire import Message, ReceivedMessage, sync
from hotfire.client.choosing import by_key_hash
from hotfire.spark.pipelines import replay
from hotfire.spark.pipelines.carrying import COPIED_BORN, COPIED_BY, COPIED_FROM
from tests.unit.spark.conftest import Topics
from tests.unit.spark.running import run_pipeline

pytestmark = pytest.mark.timeout(600)


def _received(topics: Topics, topic: str) -> list[list[ReceivedMessage]]:
    """The messages of each queue."""
    with sync.QueueReader(topics.namesrv) as reader:
        return [list(reader.pull(queue, 0).messages) for queue in reader.queues(topic)]


def _orders(topics: Topics, count: int) -> None:
    topics.cluster.create_topic("orders", queues=2)
    with sync.Producer(topics.namesrv) as producer:
        for number in range(count):
            producer.send(
                Message(
                    "orders", b"%d" % number, keys=(f"k{number % 3}",), tag="pay" if number % 2 else "refund"
                )
            )


def test_each_key_comes_in_the_order_it_was_stored_in(
    spark: SparkSession, topics: Topics, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """From an archive, though its keys lay in several queues. What the same replay has sent before is not
    sent again, also when it goes on at a rate and so by another number of tasks; copies of others count not.
    """
    _orders(topics, 24)
    topics.cluster.create_topic("again", queues=4)
    read = (
        spark.read.format("hotfire")
        .option("nameServers", topics.namesrv)
        .option("subscribe", "orders")
        .load()
    )
    read.write.parquet(str(tmp_path / "archive"))
    said: dict[str, Any] = {"namesrv": topics.namesrv, "archive": str(tmp_path / "archive")}
    name = replay.name_of("mine")
    with sync.Producer(topics.namesrv) as producer:  # as far as a replay came that was cut short, and another
        for queue in _received(topics, "orders"):
            (first,) = (message for message in queue if int(message.body) < 2)
            place = f"orders/broker-0/{first.queue.queue_id}/{first.queue_offset}"
            mark = {COPIED_FROM: place, COPIED_BY: name if first.body == b"0" else "other"}
            producer.send(
                Message("again", first.body, keys=first.keys, properties=mark),
                selector=by_key_hash,
                arg=first.keys[0],
            )
    for rate, told in (
        (None, "23 messages sent to again, 1 were"),
        (1000, "0 messages sent to again, 24 were"),
    ):
        assert (
            run_pipeline(spark, replay, topic=("orders",), into="again", label="mine", rate=rate, **said) == 0
        )
        assert capsys.readouterr().out.startswith(told)
    queues = [messages for messages in _received(topics, "again") if messages]
    assert sum(len(messages) for messages in queues) == 25
    by_key: dict[str, list[int]] = {}
    for messages in queues:
        for message in messages:
            if message.properties[COPIED_BY] == "other":
                continue
            by_key.setdefault(message.keys[0], []).append(int(message.body))
    assert by_key == {f"k{at}": list(range(at, 24, 3)) for at in range(3)}


def test_chosen_by_key_tag_and_condition(
    spark: SparkSession, topics: Topics, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only what all of them let through is sent, with where it came from and when it was born; a dry run
    sends none.
    """
    _orders(topics, 24)
    topics.cluster.create_topic("again", queues=1)
    said: dict[str, Any] = {
        "namesrv": topics.namesrv, "topic": ("orders",), "into": "again", "key": ("k0", "k1"),
        "tags": ("pay",), "where": "cast(body as string) >= '1'",
    }  # fmt: skip
    assert run_pipeline(spark, replay, dry_run=True, **said) == 0
    assert capsys.readouterr().out == "8 messages would be sent to again\n"
    assert _received(topics, "again") == [[]]
    assert run_pipeline(spark, replay, rate=1000, **said) == 0
    assert capsys.readouterr().out == "8 messages sent to again\n"
    (messages,) = _received(topics, "again")
    assert {int(message.body) for message in messages} == {n for n in range(24) if n % 3 < 2 and n % 2}
    originals = {message.body: message for queue in _received(topics, "orders") for message in queue}
    for message in messages:
        original = originals[message.body]
        place = f"orders/broker-0/{original.queue.queue_id}/{original.queue_offset}"
        assert message.properties[COPIED_FROM] == place
        assert int(message.properties[COPIED_BORN]) == original.born_timestamp_ms
        assert message.message_id != original.message_id


def test_order_is_the_logs_though_the_clock_went_back(spark: SparkSession) -> None:
    """A broker whose clock was set back has messages with earlier times behind later ones: they stay
    behind.
    """
    from pyspark.sql import functions as F

    from hotfire.spark.pipelines.ordering import in_order

    rows = [("orders", "b", 0, at, at * 100, "k", 1000 - at) for at in range(20)]
    columns = (
        "topic string, brokerName string, queueId int, queueOffset long, commitLogOffset long, keys string, "
        "t long"
    )
    made = spark.createDataFrame(rows, columns).withColumn("storeTimestamp", F.timestamp_millis("t"))
    messages = made.withColumn("properties", F.expr("cast(map() as map<string,string>)"))
    assert [row.queueOffset for row in in_order(messages, 3).collect()] == list(range(20))


def test_label_follows_from_what_is_asked_for() -> None:
    """The same request goes on where it was cut short; another one begins anew."""
    one = replay.Options(namesrv="n", topic=("orders",), into="again")
    same = replay.Options(namesrv="n", topic=("orders",), into="again")
    other = replay.Options(namesrv="n", topic=("orders",), into="again", where="true")
    assert replay.label_of(one) == replay.label_of(same) != replay.label_of(other)
    json.dumps(replay.label_of(one))
