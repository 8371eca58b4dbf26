"""What the sink promises of rows: each becomes its message, where it is to go, or the write says why not."""

import threading
from collections import defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StringType, StructField, StructType

from hotfire import Message, sync
from hotfire.client.checks import deliver_ms
from hotfire.client.choosing import by_key_hash
from hotfire.errors import ConfigError
from hotfire.model import MessageQueue
from hotfire.protocol.codes import RequestCode
from hotfire.spark.outbox import NotAllSent
from hotfire.spark.sink import HotfireWriter
from hotfire.spark.sinkrows import RowRefused
from hotfire.spark.task import TaskFacts
from hotfire.spark.writing import LEFT_OUT
from hotfire.testing.blocking import BlockingCluster
from tests.unit.spark.sinking import MAP, Sink, batch, bodies, schema, stored


def test_rows_become_messages(hotfire_cluster: BlockingCluster) -> None:
    """Body, keys, tag and properties arrive as they were in the row."""
    rows = batch(
        body=pa.array([b"a", b"b"], pa.binary()),
        keys=["k1 k2", None],
        tags=[None, "T"],
        properties=pa.array([[("colour", "red")], None], MAP),
    )
    written = Sink(hotfire_cluster, topic="orders").write(rows)
    found = {message.body: message for message in stored(hotfire_cluster, "orders")}
    assert found.keys() == {b"a", b"b"}
    assert (found[b"a"].keys, found[b"a"].tag) == (("k1", "k2"), None)
    assert found[b"a"].properties["colour"] == "red"
    assert (found[b"b"].keys, found[b"b"].tag) == ((), "T")
    assert (written.counts.sent, written.counts.requests) == (2, 1)
    assert written.counts.size > 0


@pytest.mark.parametrize(
    "values",
    [
        pa.array(["x", "y"], pa.string()),
        pa.array(["x", "y"], pa.large_string()),
        pa.array([b"x", b"y"], pa.large_binary()),
        pa.array(["x", "y"]).dictionary_encode(),
        pa.array(["cut", "x", "y"])[1:],
    ],
)
def test_bodies_come_as_bytes_or_text(hotfire_cluster: BlockingCluster, values: pa.Array) -> None:
    """In any of Arrow's forms, and under Kafka's name."""
    sink = Sink(hotfire_cluster, topic="orders")
    writer = HotfireWriter(sink.options, StructType([StructField("value", StringType())]), False)
    writer.facts = TaskFacts
    writer.write(iter([batch(value=values)]))
    assert bodies(hotfire_cluster, "orders") == {b"x": 1, b"y": 1}


def test_many_rows_travel_in_few_requests(hotfire_cluster: BlockingCluster) -> None:
    """Requests are filled up to their limits, over several Arrow batches, and no row is lost or doubled."""
    batches = [batch(body=[f"{n}-{m}" * 20 for m in range(3000)]) for n in range(4)]
    sink = Sink(hotfire_cluster, topic="orders", requestBytes="64k", inFlightBytes="256k")
    written = sink.write(*batches)
    found = bodies(hotfire_cluster, "orders")
    assert found == {one.as_py().encode(): 1 for rows in batches for one in rows.column(0)}
    assert written.counts.sent == 12_000
    assert 12_000 * 120 // 65_536 < written.counts.requests < 100


def test_each_row_of_a_topic_column_goes_to_its_topic(hotfire_cluster: BlockingCluster) -> None:
    """Rows of one batch part ways by topic; the option wins over the column."""
    rows = batch(body=["1", "2", "3", "4"], topic=["A", "B", "A", "B"])
    Sink(hotfire_cluster).write(rows)
    assert bodies(hotfire_cluster, "A") == {b"1": 1, b"3": 1}
    assert bodies(hotfire_cluster, "B") == {b"2": 1, b"4": 1}
    Sink(hotfire_cluster, topic="C").write(rows)
    assert len(bodies(hotfire_cluster, "C")) == 4


@pytest.mark.hotfire(brokers=2)
def test_rows_of_a_sharding_key_keep_their_order(hotfire_cluster: BlockingCluster) -> None:
    """In the one queue that Java's clients choose for the key, over requests and Arrow batches."""
    hotfire_cluster.create_topic("orders", queues=3)
    batches = [
        batch(body=[f"{n} {m}" for m in range(500)], shardingKey=[f"key-{m % 7}" for m in range(500)])
        for n in range(3)
    ]
    Sink(hotfire_cluster, topic="orders", requestRows=16).write(*batches)
    seen: dict[str, list[tuple[int, int]]] = defaultdict(list)
    places: dict[str, set[MessageQueue]] = defaultdict(set)
    for message in stored(hotfire_cluster, "orders"):
        n, m = map(int, message.body.split())
        seen[f"key-{m % 7}"].append((n, m))
        places[f"key-{m % 7}"].add(message.queue)
    with sync.Producer(hotfire_cluster.namesrv) as producer:
        queues = producer.queues("orders")
    assert sum(map(len, seen.values())) == 1500
    assert all(order == sorted(order) for order in seen.values())
    assert places == {key: {by_key_hash(queues, Message("orders", b"x"), key)} for key in seen}


def test_orders_by_key_without_another_column(hotfire_cluster: BlockingCluster) -> None:
    """With orderBy=key the keys are the sharding key; rows without go anywhere."""
    rows = batch(
        body=[str(n) for n in range(200)], keys=[None if n % 5 == 4 else f"k{n % 5}" for n in range(200)]
    )
    Sink(hotfire_cluster, topic="orders", orderBy="key", requestRows=8).write(rows)
    places: dict[Any, set[int]] = defaultdict(set)
    order: dict[Any, list[int]] = defaultdict(list)
    for message in stored(hotfire_cluster, "orders"):
        places[message.keys].add(message.queue.queue_id)
        order[message.keys].append(int(message.body))
    assert sum(map(len, order.values())) == 200
    assert all(len(queues) == 1 for keys, queues in places.items() if keys)
    assert all(rows == sorted(rows) for keys, rows in order.items() if keys)


@pytest.mark.hotfire(brokers=2)
def test_rows_go_to_the_queue_they_name(hotfire_cluster: BlockingCluster) -> None:
    """By broker and number; rows that name none go anywhere, and one that is not there is told before."""
    hotfire_cluster.create_topic("orders", queues=2)
    sink = Sink(hotfire_cluster, topic="orders")
    rows = batch(
        body=["a", "b", "c"],
        brokerName=["broker-1", "broker-0", None],
        queueId=pa.array([1, 0, None], pa.int32()),
    )
    sink.write(rows)
    found = {
        one.body: (one.queue.broker_name, one.queue.queue_id) for one in stored(hotfire_cluster, "orders")
    }
    assert (found[b"a"], found[b"b"]) == (("broker-1", 1), ("broker-0", 0))
    assert b"c" in found
    with pytest.raises(RowRefused, match=r"row 0 .*broker-1 7.*broker-0 0, broker-0 1"):
        sink.write(batch(body=["d"], brokerName=["broker-1"], queueId=[7]))
    with pytest.raises(ConfigError, match="add a column brokerName"):
        sink.write(batch(body=["e"], queueId=[1]))
    assert len(stored(hotfire_cluster, "orders")) == 3


def test_delayed_rows_travel_alone(hotfire_cluster: BlockingCluster) -> None:
    """They come to their topic when their time has come, the others at once."""
    rows = batch(body=["now", "later", "also now"], delayLevel=pa.array([None, 1, 0], pa.int32()))
    written = Sink(hotfire_cluster, topic="orders").write(rows)
    assert written.counts.sent == 3
    assert bodies(hotfire_cluster, "orders") == {b"now": 1, b"also now": 1}
    hotfire_cluster.clock.turn(3)
    assert bodies(hotfire_cluster, "orders") == {b"now": 1, b"also now": 1, b"later": 1}


def test_rows_with_times_of_their_own_wait_for_them(hotfire_cluster: BlockingCluster) -> None:
    """A delay in ms, a time of day, or none: each comes when it is due, and not a millisecond early."""
    cluster = hotfire_cluster
    noon = datetime.fromtimestamp(cluster.clock.now_ms() / 1000, UTC)
    due = [None, None, noon + timedelta(seconds=30, microseconds=1), noon - timedelta(days=1)]
    rows = batch(
        body=["now", "delayed", "at its time", "past"],
        delayMs=pa.array([-5, 10_000, None, 0], pa.int64()),
        deliverAt=pa.array(due, pa.timestamp("us", "UTC")),
    )
    assert Sink(cluster, topic="orders").write(rows).counts.sent == 4
    assert set(bodies(cluster, "orders")) == {b"now", b"past"}
    cluster.clock.turn(15)
    assert set(bodies(cluster, "orders")) == {b"now", b"past", b"delayed"}
    cluster.clock.turn(20)
    assert bodies(cluster, "orders") == {b"now": 1, b"past": 1, b"delayed": 1, b"at its time": 1}
    (timed,) = [one for one in stored(cluster, "orders") if one.body == b"at its time"]
    asked_ms = int(timed.properties["TIMER_DELIVER_MS"])
    assert asked_ms == deliver_ms(due[2]), "the part of a millisecond is counted as a whole"  # type: ignore[arg-type]
    assert timed.store_timestamp_ms >= asked_ms


def test_a_row_asks_for_one_time(hotfire_cluster: BlockingCluster) -> None:
    """Two are refused by the row's number, and so is a time that is none."""
    for columns, problem in (
        (
            {"delayMs": [0, 5], "deliverAt": [None, 9]},
            "more than one of delay_level, delay_ms and deliver_at",
        ),
        ({"deliverAt": [None, -1]}, "deliver_at=-1 is not within"),
    ):
        rows = batch(body=["x", "y"], **{name: pa.array(said, pa.int64()) for name, said in columns.items()})
        with pytest.raises(RowRefused, match=f"row 1 .*{problem}"):
            Sink(hotfire_cluster, topic="orders").write(rows)


def test_a_row_too_large_for_a_request_travels_alone(hotfire_cluster: BlockingCluster) -> None:
    """Up to the largest message a broker takes; a larger one is refused by its row."""
    large = bytes(range(256)) * 1024
    rows = batch(body=pa.array([b"small", large, b"small too"], pa.binary()), keys=["a", "b", "c"])
    Sink(hotfire_cluster, topic="orders", requestBytes="64k").write(rows)
    assert bodies(hotfire_cluster, "orders") == {b"small": 1, large: 1, b"small too": 1}
    with pytest.raises(RowRefused, match=r"row 1 .*4194304"):
        Sink(hotfire_cluster, topic="orders").write(
            batch(body=pa.array([b"x", bytes((4 << 20) + 1)], pa.binary()))
        )


def test_what_a_source_reads_can_be_written(hotfire_cluster: BlockingCluster) -> None:
    """Of its properties the system's own are left out, and the next broker gives its own."""
    held = {"colour": "red", **dict.fromkeys(LEFT_OUT, "1"), "KEYS": "k", "TAGS": "T", "UNIQ_KEY": "old"}
    rows = batch(body=["x"], keys=["k"], tags=["T"], properties=pa.array([list(held.items())], MAP))
    Sink(hotfire_cluster, topic="orders").write(rows)
    (message,) = stored(hotfire_cluster, "orders")
    assert (message.keys, message.tag, message.properties["colour"]) == (("k",), "T", "red")
    assert message.message_id != "old"
    assert "DELAY" not in message.properties
    # and without the columns, keys and tag are taken from the properties
    Sink(hotfire_cluster, topic="again").write(rows.select(["body", "properties"]))
    (message,) = stored(hotfire_cluster, "again")
    assert (message.keys, message.tag) == (("k",), "T")


def test_keys_may_be_an_array(hotfire_cluster: BlockingCluster) -> None:
    """Each is a key; one that could not be found as such is refused."""
    sink = Sink(hotfire_cluster, topic="orders")
    sink.write(batch(body=["x", "y", "z"], keys=[["a", "b"], [], None]))
    assert {one.body: one.keys for one in stored(hotfire_cluster, "orders")} == {
        b"x": ("a", "b"),
        b"y": (),
        b"z": (),
    }
    with pytest.raises(RowRefused, match=r"row 1 .*joined by blanks"):
        sink.write(batch(body=["x", "y"], keys=[["a"], ["b c"]]))


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        ({"body": ["x", None]}, "row 3 of partition 5, attempt 2: its body is null"),
        ({"body": ["x", ""]}, "row 3 .* its body is empty"),
        ({"body": ["x", "y"], "tags": ["T", "a||b"]}, r"row 3 .* separates tags"),
        ({"body": ["x", "y"], "topic": ["orders", None]}, r"row 3 .* its topic is null"),
        ({"body": [None, "y"], "delayLevel": [3, None]}, "row 2 .* its body is null"),
    ],
)
def test_a_row_that_cannot_be_a_message_is_named(
    hotfire_cluster: BlockingCluster, columns: dict[str, Any], problem: str
) -> None:
    """By its number in the partition, counted over Arrow batches; and what was sent before it is told."""
    topic = {} if "topic" in columns else {"topic": "orders"}
    arrays = {
        name: pa.array(values, pa.string() if name == "body" else None) for name, values in columns.items()
    }
    before = {name: pa.nulls(2, array.type) for name, array in arrays.items()}
    before |= {"body": pa.array(["1", "2"])} | (
        {"topic": pa.array(["orders"] * 2)} if "topic" in columns else {}
    )
    with pytest.raises(RowRefused, match=problem) as caught:
        Sink(hotfire_cluster, **topic).write(batch(**before), batch(**arrays), facts=TaskFacts(5, 2))
    sent = 3 if "delayLevel" in columns else 2
    assert f"{sent} rows of this task were sent" in "".join(caught.value.__notes__)


def test_nothing_to_write_asks_nobody() -> None:
    """A partition without rows dials no broker and leaves no name."""

    class Nobody:
        namesrv = "127.0.0.1:1"

    empty = batch(body=pa.array([], pa.string()))
    assert Sink(Nobody(), topic="orders").write(empty).counts.sent == 0  # type: ignore[arg-type]


def test_text_that_is_none_is_refused(hotfire_cluster: BlockingCluster) -> None:
    """Bytes that were cast to a string are fit for the body only."""
    bad = pa.Array.from_buffers(
        pa.string(), 1, [None, pa.py_buffer(b"\0\0\0\0\2\0\0\0"), pa.py_buffer(b"\xff\xfe")]
    )
    Sink(hotfire_cluster, topic="orders").write(batch(body=bad))
    assert bodies(hotfire_cluster, "orders") == {b"\xff\xfe": 1}
    with pytest.raises(RowRefused, match="column tags"):
        Sink(hotfire_cluster, topic="orders").write(batch(body=["x"], tags=bad))


def test_a_broker_that_refuses_is_an_error_with_counts(hotfire_cluster: BlockingCluster) -> None:
    """Topic, queue, how many were sent and how many not, and what to do."""
    hotfire_cluster.create_topic("orders", queues=1)
    rows = batch(body=["x" * 1000] * 50)
    refusing = Sink(
        hotfire_cluster, topic="orders", requestRows=10, delivery="at-least-once", deliveryTimeoutMs=300
    )

    def then_die() -> Any:
        yield rows
        hotfire_cluster.brokers[0].kill()
        yield rows

    writer = HotfireWriter({**refusing.options, "inFlightBytes": "10k"}, schema([rows]), False)
    writer.facts = TaskFacts
    with pytest.raises(NotAllSent, match=r"topic orders, broker broker-0 queue 0: 10 rows .* run it again"):
        writer.write(then_die())


@pytest.mark.hotfire(proxied=True)
def test_order_survives_a_request_that_is_lost(hotfire_cluster: BlockingCluster) -> None:
    """Those behind it in their queue wait until it was sent again."""
    hotfire_cluster.create_topic("orders", queues=1)
    proxy = hotfire_cluster.brokers[0].proxy
    assert proxy is not None
    proxy.drop("requests", RequestCode.SEND_BATCH_MESSAGE, times=1)
    rows = batch(body=[str(n) for n in range(60)], shardingKey=["key"] * 60)
    Sink(hotfire_cluster, topic="orders", requestRows=10, requestTimeoutMs=300).write(rows)
    assert [int(message.body) for message in stored(hotfire_cluster, "orders")] == list(range(60))


@pytest.mark.hotfire(proxied=True)
def test_nothing_follows_a_request_that_failed_in_its_queue(hotfire_cluster: BlockingCluster) -> None:
    """Rows behind one that could not be sent would be before it when the task is run again."""
    hotfire_cluster.create_topic("orders", queues=1)
    proxy = hotfire_cluster.brokers[0].proxy
    assert proxy is not None
    proxy.drop("requests", RequestCode.SEND_BATCH_MESSAGE, times=1)
    rows = batch(body=[str(n) for n in range(60)], shardingKey=["key"] * 60)
    sink = Sink(hotfire_cluster, topic="orders", requestRows=10, requestTimeoutMs=300, deliveryTimeoutMs=350,
                delivery="at-least-once")  # fmt: skip
    with pytest.raises(NotAllSent, match=r"may be stored or not.* 0 were sent .* 60 failed"):
        sink.write(rows)
    assert bodies(hotfire_cluster, "orders") == {}


@pytest.mark.hotfire(proxied=True)
def test_no_more_is_under_way_than_may_be(hotfire_cluster: BlockingCluster) -> None:
    """While brokers are silent a task holds on; when they answer it goes on."""
    hotfire_cluster.create_topic("orders", queues=4)
    proxy = hotfire_cluster.brokers[0].proxy
    assert proxy is not None
    sink = Sink(hotfire_cluster, topic="orders", requestRows=10, inFlightBytes="8k", delivery="at-least-once")
    asked: list[int] = []

    def given() -> Iterator[pa.RecordBatch]:
        yield batch(body=["x" * 100] * 10)
        proxy.hold("replies")
        for number in range(50):
            asked.append(number)
            yield batch(body=["x" * 100] * 10)

    writer = HotfireWriter(sink.options, schema([batch(body=["x"])]), False)
    writer.facts = TaskFacts
    task = threading.Thread(target=lambda: writer.write(given()))
    task.start()
    seen = -1
    while seen != len(asked) or not asked:  # until it asks for no more rows
        seen = len(asked)
        task.join(0.3)
    assert task.is_alive()
    assert 2 <= len(asked) <= 8
    proxy.flow("replies")
    task.join(30)
    assert bodies(hotfire_cluster, "orders").total() == 510
