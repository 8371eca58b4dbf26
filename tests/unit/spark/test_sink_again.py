"""What the sink promises when a partition is written again: nothing is lost, and nothing is there twice."""

import json
import random
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle

from hotfire import Message, sync
from hotfire.errors import ConfigError, HotfireError
from hotfire.protocol.codes import RequestCode
from hotfire.spark import delivery, labels
from hotfire.spark.points import DIRECTORY
from hotfire.spark.sink import HotfireStreamWriter, HotfireWriter, Written
from hotfire.spark.task import TaskFacts
from hotfire.testing.blocking import BlockingCluster
from tests.unit.spark.sinking import Sink, batch, bodies, schema, stored

LABELS = "HOTFIRE-SPARK-LABELS"
ROWS = [(f"body-{n}", f"key-{n % 40}") for n in range(300)]


class Died(Exception):
    """The task's end, in the middle of its rows."""


def rows_of(pairs: list[tuple[str, str]]) -> pa.RecordBatch:
    return batch(body=[body for body, _ in pairs], keys=[key for _, key in pairs])


def dies_after(sink: Sink, *batches: pa.RecordBatch, facts: TaskFacts | None = None) -> None:
    """An attempt that has sent these batches, all acknowledged, and no more."""

    def given() -> Iterator[pa.RecordBatch]:
        yield from batches
        raise Died

    writer = HotfireStreamWriter({**sink.options, "inFlightBytes": "1"}, schema(batches), False)
    writer.facts = lambda: facts or TaskFacts(query_id="query", batch_id="7")
    with pytest.raises(Died):
        writer.write(given())


def test_a_batch_that_is_replayed_adds_what_is_missing(hotfire_cluster: BlockingCluster) -> None:
    """After a task died half way, its rows come once each, though they come in another order."""
    sink = Sink(hotfire_cluster, topic="orders", requestRows=20)
    dies_after(sink, rows_of(ROWS[:100]))
    before = bodies(hotfire_cluster, "orders")
    again = random.Random(1).sample(ROWS, len(ROWS))
    written = sink.stream(rows_of(again[:200]), rows_of(again[200:]))
    assert 0 < before.total() <= 100
    assert bodies(hotfire_cluster, "orders") == {body.encode(): 1 for body, _ in ROWS}
    assert (written.counts.sent, written.counts.skipped) == (300 - before.total(), before.total())


def test_at_least_once_looks_for_nothing(hotfire_cluster: BlockingCluster) -> None:
    """Rows are sent again, and no name is left: what effectively-once is there to prevent."""
    sink = Sink(hotfire_cluster, topic="orders", delivery="at-least-once")
    for _ in range(2):
        sink.stream(rows_of(ROWS))
    assert bodies(hotfire_cluster, "orders") == {body.encode(): 2 for body, _ in ROWS}
    with (
        sync.QueueReader(hotfire_cluster.namesrv) as reader,
        pytest.raises(HotfireError, match="does not exist"),
    ):
        reader.queues(LABELS)


def test_rows_that_are_alike_stay_as_many(hotfire_cluster: BlockingCluster) -> None:
    """Rows without keys and with nothing to tell them apart: the same number of them is there at the end."""
    sink = Sink(hotfire_cluster, topic="orders", requestRows=1)
    dies_after(sink, batch(body=["same", "other", "same"]))
    sink.stream(batch(body=["same"] * 5), batch(body=["same", "other"]))
    assert bodies(hotfire_cluster, "orders") == {b"same": 6, b"other": 1}


def test_rows_of_one_key_in_another_order_are_not_mistaken(hotfire_cluster: BlockingCluster) -> None:
    """A shuffle gives rows of a key in any order: the one that is stored is known by what is in it."""
    sink = Sink(hotfire_cluster, topic="orders", requestRows=1)
    dies_after(sink, rows_of([("first", "k")]))
    sink.stream(rows_of([("second", "k"), ("third", "k"), ("first", "k")]))
    assert bodies(hotfire_cluster, "orders") == {b"first": 1, b"second": 1, b"third": 1}


def test_partitions_batches_and_queries_do_not_hide_each_other(hotfire_cluster: BlockingCluster) -> None:
    """The same row in another partition, batch or query is another row."""
    sink = Sink(hotfire_cluster, topic="orders")
    facts = [
        TaskFacts(partition, 0, query, number)
        for partition in (0, 1)
        for query in ("query", "other")
        for number in ("7", "8")
    ]
    for _ in range(2):
        for one in facts:
            sink.stream(rows_of([("row", "key")]), facts=one)
    assert bodies(hotfire_cluster, "orders") == {b"row": len(facts)}
    assert len({message.message_id for message in stored(hotfire_cluster, "orders")}) == len(facts)


def test_ids_have_the_shape_and_time_of_rocketmqs(hotfire_cluster: BlockingCluster) -> None:
    """32 hex digits, in the place of the time the time: tools narrow their search for an id by it."""
    Sink(hotfire_cluster, topic="orders").stream(rows_of(ROWS[:3]))
    with sync.Producer(hotfire_cluster.namesrv) as producer:
        real = producer.send(Message("other", b"x")).message_id
    for message in stored(hotfire_cluster, "orders"):
        assert len(message.message_id) == 32
        assert message.message_id == message.message_id.upper()
        assert 0 <= int(real[20:28], 16) - int(message.message_id[20:28], 16) < 60_000


def test_by_keys_alone_other_content_is_no_other_row(hotfire_cluster: BlockingCluster) -> None:
    """For rows that are computed anew with a difference; those without keys are sent again."""
    sink = Sink(hotfire_cluster, topic="orders", uniqueBy="keys")
    sink.stream(batch(body=["a at 1", "b at 1", "c at 1"], keys=["a", "b", None]))
    written = sink.stream(batch(body=["a at 2", "b at 2", "c at 2", "d at 2"], keys=["a", "b", None, "d"]))
    assert bodies(hotfire_cluster, "orders").keys() == {b"a at 1", b"b at 1", b"c at 1", b"c at 2", b"d at 2"}
    assert written.counts.skipped == 2


def test_a_labelled_batch_can_be_run_again(hotfire_cluster: BlockingCluster) -> None:
    """Under the same name it adds what is missing; under another, or none, everything."""
    sink = Sink(hotfire_cluster, topic="orders", label="nightly-2024-05-01")
    sink.write(rows_of(ROWS))
    written = sink.write(rows_of([*ROWS, ("new", "key")]))
    assert (written.counts.sent, written.counts.skipped) == (1, 300)
    Sink(hotfire_cluster, topic="orders").write(rows_of(ROWS[:1]))
    Sink(hotfire_cluster, topic="orders", label="nightly-2024-05-02").write(rows_of(ROWS[:1]))
    assert bodies(hotfire_cluster, "orders")[b"body-0"] == 3


def test_a_batchs_tasks_share_its_name_with_their_retries(hotfire_cluster: BlockingCluster) -> None:
    """Without a label too: the writer travels to the executors with a name of its own."""
    options = Sink(hotfire_cluster, topic="orders").options
    sent = cloudpickle.dumps(HotfireWriter(options, schema([rows_of(ROWS)]), False))
    for attempt in range(2):
        writer: HotfireWriter = cloudpickle.loads(sent)
        writer.facts = lambda attempt=attempt: TaskFacts(0, attempt)
        writer.write(iter([rows_of(ROWS)]))
    assert bodies(hotfire_cluster, "orders") == {body.encode(): 1 for body, _ in ROWS}


@pytest.mark.parametrize("delay", [{"delayLevel": 2}, {"delayMs": 5000}])
@pytest.mark.parametrize("way", ["read", "asked"])
def test_delayed_rows_are_found_wherever_they_lie(
    hotfire_cluster: BlockingCluster, way: str, delay: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Waiting for their time, or delivered; also where brokers are asked for each id."""
    if way == "asked":
        monkeypatch.setattr(delivery, "READ_COUNT_MAX", -1)
    sink = Sink(hotfire_cluster, topic="orders")
    ((name, much),) = delay.items()
    rows = batch(body=["now", "late"], keys=["a", "b"], **{name: pa.array([0, much], pa.int32())})
    sink.stream(rows)
    assert sink.stream(rows).counts.skipped == 2
    hotfire_cluster.clock.turn(6)
    assert sink.stream(rows).counts.skipped == 2
    hotfire_cluster.clock.turn(6)
    assert bodies(hotfire_cluster, "orders") == {b"now": 1, b"late": 1}


def test_a_busy_topic_is_asked_for_each_id(
    hotfire_cluster: BlockingCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where too much was stored since to be read, brokers are asked; the outcome is the same."""
    monkeypatch.setattr(delivery, "READ_COUNT_MAX", 10)
    sink = Sink(hotfire_cluster, topic="orders", requestRows=20)
    dies_after(sink, rows_of(ROWS[:40]), rows_of(ROWS[40:60]))
    before = bodies(hotfire_cluster, "orders").total()
    written = sink.stream(rows_of(ROWS))
    assert bodies(hotfire_cluster, "orders") == {body.encode(): 1 for body, _ in ROWS}
    assert written.counts.skipped == before > 0


@pytest.mark.hotfire(brokers=2)
def test_a_name_is_found_without_the_broker_that_is_gone(hotfire_cluster: BlockingCluster) -> None:
    """What the others have is not sent again while one of them is away."""
    hotfire_cluster.create_topic("orders", queues=1)
    sink = Sink(hotfire_cluster, topic="orders", requestRows=50)
    sink.stream(rows_of(ROWS))
    hotfire_cluster.brokers[0].stop()
    left = bodies(hotfire_cluster, "orders").total()
    assert 0 < left < 300
    assert sink.stream(rows_of(ROWS)).counts.skipped == left


@pytest.mark.hotfire(brokers=2, proxied=True)
def test_a_name_is_at_every_broker_before_a_row_is(hotfire_cluster: BlockingCluster) -> None:
    """One that did not take it the first time has it too, though another is gone afterwards."""
    for topic in ("orders", LABELS):
        hotfire_cluster.create_topic(topic, queues=1)
    first, second = hotfire_cluster.brokers
    assert second.proxy is not None
    second.proxy.drop("requests", RequestCode.SEND_MESSAGE_V2, times=1)
    sink = Sink(hotfire_cluster, topic="orders", requestRows=50)
    sink.stream(rows_of(ROWS))
    first.stop()
    left = bodies(hotfire_cluster, "orders").total()
    assert 0 < left < 300
    assert sink.stream(rows_of(ROWS)).counts.skipped == left


@pytest.mark.hotfire(brokers=2)
def test_a_broker_that_was_away_is_given_the_name(hotfire_cluster: BlockingCluster) -> None:
    """By the next attempt, with the time of the first: later ones need no other broker to find all rows."""
    for topic in ("orders", LABELS):
        hotfire_cluster.create_topic(topic, queues=1)
    first, second = hotfire_cluster.brokers
    sink = Sink(hotfire_cluster, topic="orders", requestRows=50)
    second.stop()
    sink.stream(rows_of(ROWS[:100]))
    second.start()
    hotfire_cluster.clock.turn(60)
    assert sink.stream(rows_of(ROWS)).counts.skipped == 100
    first.stop()
    left = bodies(hotfire_cluster, "orders").total()
    assert 0 < left <= 200
    (name,) = stored(hotfire_cluster, LABELS)
    told = json.loads(name.body)
    assert told["stored"] <= name.store_timestamp_ms - 60_000
    assert sink.stream(rows_of(ROWS)).counts.skipped == left


def test_attempts_that_began_together_are_both_found(
    hotfire_cluster: BlockingCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither saw the other's name; a third finds the rows of both, each under its own time."""
    sink = Sink(hotfire_cluster, topic="orders")
    unseen = labels.Labels.found

    async def sees_nothing(self: labels.Labels, name: str) -> list[labels.Label]:
        return []

    sink.stream(rows_of(ROWS[:10]))
    hotfire_cluster.clock.turn(1)
    monkeypatch.setattr(labels.Labels, "found", sees_nothing)
    sink.stream(rows_of(ROWS[10:20]))
    monkeypatch.setattr(labels.Labels, "found", unseen)
    written = sink.stream(rows_of(ROWS[:20]))
    assert written.counts.skipped == 20
    assert bodies(hotfire_cluster, "orders").total() == 20


def test_what_arrives_while_we_wait_is_seen(hotfire_cluster: BlockingCluster) -> None:
    """A task given up by Spark may send on for a moment: what it stores within settleMs is not sent again."""
    sink = Sink(hotfire_cluster, topic="orders")
    begun, go_on = threading.Event(), threading.Event()

    def slowly() -> Iterator[pa.RecordBatch]:
        yield rows_of(ROWS[:100])
        begun.set()
        go_on.wait(30)
        yield rows_of(ROWS[100:])

    first = HotfireStreamWriter(sink.options, schema([rows_of(ROWS)]), False)
    first.facts = lambda: TaskFacts(query_id="query", batch_id="7")
    zombie = threading.Thread(target=lambda: first.write(slowly()))
    zombie.start()
    begun.wait(30)
    waiting = Sink(hotfire_cluster, topic="orders", settleMs=1500)
    written: list[Written] = []
    second = threading.Thread(target=lambda: written.append(waiting.stream(rows_of(ROWS))))
    second.start()
    go_on.set()
    zombie.join()
    second.join()
    assert bodies(hotfire_cluster, "orders") == {body.encode(): 1 for body, _ in ROWS}
    assert written[0].counts.skipped == 300


@pytest.mark.hotfire(proxied=True)
def test_a_lost_answer_makes_no_second_copy(hotfire_cluster: BlockingCluster) -> None:
    """A request that was stored and not answered is looked for before it is sent again."""
    hotfire_cluster.create_topic("orders", queues=2)
    proxy = hotfire_cluster.brokers[0].proxy
    assert proxy is not None
    proxy.drop("replies", RequestCode.SEND_BATCH_MESSAGE, times=2)
    written = Sink(hotfire_cluster, topic="orders", requestRows=60, requestTimeoutMs=700).stream(
        rows_of(ROWS)
    )
    assert bodies(hotfire_cluster, "orders") == {body.encode(): 1 for body, _ in ROWS}
    assert (written.counts.sent, written.counts.repeated) == (300, 0)


@pytest.mark.hotfire(proxied=True)
def test_at_least_once_counts_what_may_be_there_twice(hotfire_cluster: BlockingCluster) -> None:
    """Nothing is lost with the answer, and the count of rows that were sent twice is told."""
    hotfire_cluster.create_topic("orders", queues=2)
    proxy = hotfire_cluster.brokers[0].proxy
    assert proxy is not None
    proxy.drop("replies", RequestCode.SEND_BATCH_MESSAGE, times=1)
    sink = Sink(hotfire_cluster, topic="orders", requestTimeoutMs=300, delivery="at-least-once")
    written = sink.stream(rows_of(ROWS))
    assert bodies(hotfire_cluster, "orders") == {body.encode(): 2 for body, _ in ROWS}
    assert (written.counts.sent, written.counts.repeated) == (300, 300)


@pytest.mark.hotfire(brokers=2)
def test_a_broker_that_dies_costs_no_row(hotfire_cluster: BlockingCluster) -> None:
    """The others take what it does not, and it comes back with what it had: each row once."""
    hotfire_cluster.create_topic("orders", queues=2)

    def meanwhile() -> Iterator[pa.RecordBatch]:
        for at in range(0, 300, 50):
            if at == 100:
                hotfire_cluster.brokers[0].kill()
            if at == 250:
                hotfire_cluster.brokers[0].start()
            yield rows_of(ROWS[at : at + 50])

    options = Sink(hotfire_cluster, topic="orders", requestRows=7, inFlightBytes="4k").options
    writer = HotfireStreamWriter(options, schema([rows_of(ROWS)]), False)
    writer.facts = lambda: TaskFacts(query_id="query", batch_id="7")
    counts = writer.write(meanwhile()).counts
    found = bodies(hotfire_cluster, "orders")
    assert found.keys() == {body.encode() for body, _ in ROWS}
    assert found.total() - 300 <= counts.repeated
    assert counts.sent == 300


def test_a_broker_that_cannot_say_is_an_error(hotfire_cluster: BlockingCluster) -> None:
    """Whether a batch was begun before is not guessed: without an answer nothing is sent."""
    sink = Sink(hotfire_cluster, topic="orders", deliveryTimeoutMs=300)
    sink.stream(rows_of(ROWS[:1]))
    hotfire_cluster.name_servers[0].stop()
    with pytest.raises(HotfireError):
        sink.stream(rows_of(ROWS))
    hotfire_cluster.name_servers[0].start()


def test_points_are_passed_in_order(
    hotfire_cluster: BlockingCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each place at which a kill is to be survived can be waited for."""
    monkeypatch.setenv(DIRECTORY, str(tmp_path))
    sink = Sink(hotfire_cluster, topic="orders", requestRows=10)
    written = sink.stream(rows_of(ROWS))
    HotfireStreamWriter(sink.options, schema([rows_of(ROWS)]), False).commit([written, None], 7)
    seen = sorted(tmp_path.iterdir(), key=lambda path: path.stat().st_mtime_ns)
    assert [path.name for path in seen] == [
        "sink.label-written",
        "sink.first-chunk-sent",
        "sink.half-sent",
        "sink.all-sent-before-return",
        "sink.commit",
    ]


def test_commit_and_abort_tell_what_was_written(
    hotfire_cluster: BlockingCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """One line of totals each; an abort says that what was sent stays."""
    caplog.set_level("INFO", "hotfire.spark")
    sink = Sink(hotfire_cluster, topic="orders")
    written = [sink.stream(rows_of(ROWS)), sink.stream(rows_of(ROWS)), None]
    writer = HotfireStreamWriter(sink.options, schema([rows_of(ROWS)]), False)
    caplog.clear()
    writer.commit(written, 7)
    writer.abort(written, 7)
    commit, abort = (record.getMessage() for record in caplog.records)
    assert "batch=7 partitions=2 rows=300 skipped=300" in commit
    assert "stay sent" in abort


def test_a_task_that_is_none_of_a_stream_is_told(hotfire_cluster: BlockingCluster) -> None:
    """Without a query's id rows could not be told from another's."""
    with pytest.raises(ConfigError, match=r"sql\.streaming\.queryId"):
        Sink(hotfire_cluster, topic="orders").stream(rows_of(ROWS), facts=TaskFacts())


def test_names_are_kept_in_a_topic_that_is_made(hotfire_cluster: BlockingCluster) -> None:
    """One message for each partition of a batch, however often it is written."""
    sink = Sink(hotfire_cluster, topic="orders", labelTopic="names")
    for partition in (0, 1, 0):
        sink.stream(rows_of(ROWS[:5]), facts=TaskFacts(partition, 0, "query", "7"))
    kept: Counter[Any] = Counter(message.keys for message in stored(hotfire_cluster, "names"))
    assert kept == {("query/7/0",): 1, ("query/7/1",): 1}


def test_two_rows_of_a_key_are_refused_where_keys_make_the_row(hotfire_cluster: BlockingCluster) -> None:
    """With uniqueBy=keys a key comes once: in another order one row would be taken for the other."""
    sink = Sink(hotfire_cluster, topic="orders", uniqueBy="keys")
    with pytest.raises(HotfireError, match=r"row 2 of .*same keys, a, came before it.*uniqueBy=row"):
        sink.stream(batch(body=["a at 1", "b", "a at 2"], keys=["a", "b", "a"]))
    sink.options["uniqueBy"] = "row"
    sink.stream(batch(body=["a at 1", "b", "a at 2"], keys=["a", "b", "a"]))
    assert bodies(hotfire_cluster, "orders").total() == 3
