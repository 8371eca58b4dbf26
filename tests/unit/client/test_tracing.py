"""Message traces: written beside what they tell of, in the words Apache's tools read."""

import asyncio
import logging

import pytest

import hotfire.sync
from hotfire import (
    Consumer,
    ConsumeResult,
    Message,
    Producer,
    QueueReader,
    ReceivedMessage,
    TransactionProducer,
    TransactionState,
)
from hotfire.client import tracing
from hotfire.client.consumersettings import ConsumeFrom
from hotfire.errors import BrokerRefused, ConfigError, HotfireError
from hotfire.model import TRACE_TOPIC
from hotfire.protocol.recall import Handle
from hotfire.protocol.trace import (
    MessageKind,
    TraceEntry,
    decode_trace,
    encode_end_transaction,
    encode_recall,
)
from hotfire.testing import Cluster
from tests.unit.client.consuming import run, until


async def traced(cluster: Cluster, message_id: str) -> list[TraceEntry]:
    async with QueueReader(cluster.namesrv) as reader:
        return await reader.trace(message_id)


def test_a_message_is_told_of_from_its_send_to_its_second_try() -> None:
    """Pub, then before and after each call of the listener: found by id and by key, in order of time."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.create_topic("T", queues=1)
        tries: list[ReceivedMessage] = []

        async def handle(message: ReceivedMessage) -> ConsumeResult:
            tries.append(message)
            return ConsumeResult.RETRY if len(tries) == 1 else ConsumeResult.DONE

        consumer = Consumer(cluster.namesrv, group="g", consume_from=ConsumeFrom.FIRST, trace=True)
        consumer.subscribe("T", handle)
        async with Producer(cluster.namesrv, group="p", trace=True) as producer:
            sent = await producer.send(Message("T", b"body", tag="a", keys=("k1", "k2")))
        async with consumer:
            await until(lambda: len(tries) == 1)
            while len(tries) < 2:
                await cluster.clock.turn(1)
                await asyncio.sleep(0.01)
        entries = await traced(cluster, sent.message_id)
        assert [entry.kind for entry in entries] == ["Pub", "SubBefore", "SubAfter", "SubBefore", "SubAfter"]
        pub, first, failed, second, done = entries
        assert (pub.group, pub.topic, pub.is_success, pub.keys) == ("p", "T", True, ("k1", "k2"))
        assert pub.store_host == cluster.brokers[0].address
        assert (first.group, first.retries, second.retries) == ("g", 0, 1)
        assert (first.request_id, second.request_id) == (failed.request_id, done.request_id)
        assert first.request_id != second.request_id
        assert (failed.is_success, done.is_success) == (False, True)
        async with QueueReader(cluster.namesrv) as reader:
            by_key = await reader.messages_by_key(TRACE_TOPIC, "k2")
        assert sum(len(decode_trace(message.body)) for message in by_key) == 5

    run(scenario, **{"trace_topic_enable": True})


def test_each_message_of_a_batch_has_its_own_entries() -> None:
    """Its consumer's too, though a batch's messages say neither region nor whether traces are wanted."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.create_topic("T", queues=1)
        seen: list[ReceivedMessage] = []

        async def handle(message: ReceivedMessage) -> None:
            seen.append(message)

        consumer = Consumer(cluster.namesrv, group="g", consume_from=ConsumeFrom.FIRST, trace="traces")
        consumer.subscribe("T", handle)
        async with Producer(cluster.namesrv, trace="traces") as producer:
            results = await producer.send_batch([Message("T", b"%d" % n) for n in range(3)])
        async with consumer:
            await until(lambda: len(seen) == 3)
        assert not any({"MSG_REGION", "TRACE_ON"} & message.properties.keys() for message in seen)
        async with QueueReader(cluster.namesrv) as reader:
            for result in results:
                entries = await reader.trace(result.message_id, topic="traces")
                assert [entry.kind for entry in entries] == ["Pub", "SubBefore", "SubAfter"]
                assert {entry.message_id for entry in entries} == {result.message_id}

    run(scenario)


def test_what_waits_for_its_time_is_told_as_delayed() -> None:
    """However the time is given; what is sent without one is normal."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.create_topic("T", queues=1)
        waits = (
            {},
            {"delay_level": 1},
            {"delay_ms": 60_000},
            {"deliver_at": cluster.clock.now_ms() + 60_000},
        )
        async with Producer(cluster.namesrv, trace="traces") as producer:
            ids = [(await producer.send(Message("T", b"x", **wait))).message_id for wait in waits]
        kinds: dict[str, MessageKind] = {}
        async with QueueReader(cluster.namesrv) as reader:
            for message in (await reader.find_by_time("traces", 0, 1 << 60)).messages:
                for line in message.body.decode().split("\x02"):
                    if line:
                        fields = line.split("\x01")
                        kinds[fields[5]] = MessageKind(int(fields[11]))
        late = MessageKind.DELAY
        assert [kinds[one] for one in ids] == [MessageKind.NORMAL, late, late, late]

    run(scenario)


def test_a_broker_that_wants_no_traces_gets_none() -> None:
    """traceOn=false goes with every answer and every message."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.create_topic("T", queues=1)
        seen: list[ReceivedMessage] = []

        async def handle(message: ReceivedMessage) -> None:
            seen.append(message)

        consumer = Consumer(cluster.namesrv, group="g", consume_from=ConsumeFrom.FIRST, trace=True)
        consumer.subscribe("T", handle)
        async with Producer(cluster.namesrv, trace=True) as producer, consumer:
            sent = await producer.send(Message("T", b"x"))
            await until(lambda: bool(seen))
        assert await traced(cluster, sent.message_id) == []

    run(scenario, **{"trace_topic_enable": True, "trace_on": False})


def test_traces_that_cannot_be_written_disturb_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """No trace topic and none made: sends go on, the line stays bounded, the cause is told once."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.create_topic("T", queues=1)
        async with Producer(cluster.namesrv, trace=True) as producer:
            tracer = producer._tracing
            assert tracer is not None
            sends = [producer.send_soon(Message("T", b"x")) for _ in range(100)]
            await asyncio.gather(*sends)
            for _ in range(2 * tracing.WAITING_MAX):
                tracer.add(tracing.Entry("Pub", ("id",)))
            assert tracer.dropped_count >= tracing.WAITING_MAX
            assert (await producer.send(Message("T", b"y"))).queue_offset == 100

    with caplog.at_level(logging.WARNING):
        run(scenario, **{"auto_create_topic_enable": False})
    assert len([one for one in caplog.records if "trace is not written" in one.message]) == 1


def test_what_a_trace_may_be() -> None:
    with pytest.raises(ConfigError, match="trace=1: give True, False or the name of a topic"):
        Producer("127.0.0.1:1", trace=1)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="a topic"):
        Consumer("127.0.0.1:1", group="g", trace="a topic")


def test_ends_of_transactions_and_recalls_can_be_told() -> None:
    """Written and read again, with what a field cannot hold taken out."""
    text = encode_end_transaction(
        time_ms=1, region="r", group="p", topic="T", message_id="M", tag=None, keys=("k\x01", "l"),
        store_host="h:1", kind=MessageKind.COMMIT, transaction_id="M", state="COMMIT_MESSAGE",
        is_checked=True,
    )  # fmt: skip
    text += encode_recall(time_ms=2, region="r", group="p", topic="T", message_id="M", is_success=False)
    end, recall = decode_trace(text.encode())
    assert (end.kind, end.message_id, end.state, end.store_host) == (
        "EndTransaction",
        "M",
        "COMMIT_MESSAGE",
        "h:1",
    )
    assert end.keys == ("k", "l")
    assert (recall.kind, recall.time_ms, recall.is_success) == ("Recall", 2, False)


def test_threads_read_traces_too() -> None:
    with Cluster() as cluster:
        cluster.create_topic("T", queues=1)
        with hotfire.sync.Producer(cluster.namesrv, trace=True) as producer:
            sent = producer.send(Message("T", b"x"))
        with hotfire.sync.QueueReader(cluster.namesrv) as reader:
            assert [entry.kind for entry in reader.trace(sent.message_id)] == ["Pub"]


def test_the_end_of_each_transaction_is_told() -> None:
    """By the producer at once, and again when a broker asks it; in Java's words, with keys and tag."""
    ends = {b"paid": TransactionState.COMMIT, b"void": TransactionState.ROLLBACK, b"slow": None}

    async def scenario(cluster: Cluster) -> None:
        await cluster.create_topic("T", queues=1)
        checked: list[ReceivedMessage] = []

        async def execute(message: Message, arg: object) -> TransactionState | None:
            return ends[message.body]

        async def check(message: ReceivedMessage) -> TransactionState:
            checked.append(message)
            return TransactionState.COMMIT

        async with TransactionProducer(
            cluster.namesrv, group="p", execute=execute, check=check, trace=True
        ) as producer:
            results = [
                await producer.send_in_transaction(Message("T", body, tag="a", keys=("k",))) for body in ends
            ]
            while not checked:
                await cluster.clock.turn(7)
                await asyncio.sleep(0.01)
        told = []
        for result in results:
            _, *entries = await traced(cluster, result.sent.message_id)
            assert {entry.kind for entry in entries} == {"EndTransaction"}
            assert {(entry.group, entry.topic, entry.keys) for entry in entries} == {("p", "T", ("k",))}
            assert {entry.store_host for entry in entries} == {cluster.brokers[0].address}
            told.append([entry.state for entry in entries])
        assert told == [["COMMIT_MESSAGE"], ["ROLLBACK_MESSAGE"], ["UNKNOW", "COMMIT_MESSAGE"]]

    run(scenario, **{"trace_topic_enable": True})


@pytest.mark.parametrize("trace_on", [True, False])
def test_what_was_taken_back_is_told_unless_no_traces_are_wanted(*, trace_on: bool) -> None:
    """Whether it worked, too. A broker that wants no traces gets none of recalls and transactions either."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.create_topic("T", queues=1)

        async def commit(*_: object) -> TransactionState:
            return TransactionState.COMMIT

        async with TransactionProducer(
            cluster.namesrv, group="p", execute=commit, check=commit, trace="traces"
        ) as producer:
            late = await producer.send(Message("T", b"late", delay_ms=60_000))
            assert await producer.recall(late) == late.message_id
            with pytest.raises(BrokerRefused):
                await producer.recall(Handle("T", late.queue.broker_name, 1, late.message_id).encode())
            ended = await producer.send_in_transaction(Message("T", b"x"))
        async with QueueReader(cluster.namesrv) as reader:
            first = await reader.trace(late.message_id, topic="traces") if trace_on else []
            second = await reader.trace(ended.sent.message_id, topic="traces") if trace_on else []
        assert sorted((one.kind, one.is_success) for one in first if one.kind == "Recall") == (
            [("Recall", False), ("Recall", True)] if trace_on else []
        )
        assert [one.kind for one in second] == (["Pub", "EndTransaction"] if trace_on else [])
        assert trace_on or producer._tracing is not None
        if not trace_on:
            with pytest.raises(HotfireError):
                async with QueueReader(cluster.namesrv) as reader:
                    await reader.trace(late.message_id, topic="traces")

    run(scenario, **{"trace_on": trace_on, "recall_message_enable": True})
