"""The quick way of later sends: the same bytes, results and errors as the ordinary way."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hotfire import Message, MessageQueue, Producer, SendResult, SendStatus
from hotfire.client import pipeline
from hotfire.client.confirm import Stored
from hotfire.client.messages import prepare, send_request
from hotfire.client.pipeline import Pipe, target
from hotfire.client.reader import TopicReader
from hotfire.core import SendPipe, plain_send
from hotfire.errors import BrokerRefused, ConnectionLost, HotfireError, SystemBusy, Timeout
from hotfire.model import TopicConfig
from hotfire.protocol.codes import ResponseCode
from hotfire.protocol.command import Command, decode, encode
from hotfire.protocol.record import parse_properties
from hotfire.protocol.requests import SendMessage, SendMessageV2
from tests.unit.client.cluster import SYSTEM_BUSY, Cluster, ScriptedBroker, accept, run, say_nothing
from tests.unit.client.real import real_cluster

pytestmark = pytest.mark.core
T = TopicConfig("T", 4, 4)
texts = st.text(alphabet="ab -_/", min_size=1, max_size=8)


@pytest.fixture(params=["compiled", "plain"], autouse=True)
def pipe(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Every promise holds for either twin."""
    if request.param == "plain":
        monkeypatch.setattr(pipeline, "SendPipe", plain_send.SendPipe)
    return str(request.param)


async def open_quick_way(producer: Producer, topic: str = "T") -> None:
    """Send until later sends take the quick way to all queues."""
    for _ in range(16):
        await producer.send_soon(Message(topic, b"open"))
    assert producer._later.pipelines is not None
    assert all(one is not None for one, _ in producer._later.pipelines._lanes[topic].targets)


def quick_count(producer: Producer) -> int:
    assert producer._later.pipelines is not None
    return sum(one.core.in_flight for one in producer._later.pipelines._pipes.values())


@given(
    body=st.binary(min_size=1, max_size=50),
    tag=st.one_of(st.none(), texts.filter(lambda text: "||" not in text)),
    keys=st.lists(texts.filter(lambda text: " " not in text), max_size=3).map(tuple),
    wait=st.booleans(),
    queue=st.builds(
        MessageQueue,
        st.sampled_from(["T", "%RETRY%x", 'g0"g'.replace('"', "")]),
        st.sampled_from(["broker-a", 'b"g":"0"', "b\\r", "bröker"]),
        st.integers(0, 99),
    ),
    group=st.sampled_from(["G", "opaque-0"]),
)
@settings(max_examples=200, deadline=None)
def test_frames_are_those_of_the_ordinary_way(
    body: bytes, tag: str | None, keys: tuple[str, ...], wait: bool, queue: MessageQueue, group: str
) -> None:
    """A plain message makes, byte for byte, the frame the ordinary way makes of it."""
    message = Message(queue.topic, body, tag, keys, wait_stored=wait)
    quick = SendPipe(Message, SendResult, "AB" * 10, 4095, 1 << 24)
    now_ms, month_ms = 1_794_771_400_123, 1_793_491_200_000
    if not quick.send(message, target(queue, group), object(), now_ms, month_ms, 1.0):
        pytest.fail("a plain message was refused")
    frame = quick.take()
    future, same, message_id, where, deadline = quick.clear()[0]
    assert (same, where, deadline) == (message, queue, 1.0)
    ordinary = send_request(prepare(message, message_id), queue, group=group, now_ms=now_ms)
    assert frame == encode(ordinary.to_command(opaque=decode(frame).opaque))
    assert future is not None


def test_results_are_those_of_the_ordinary_way() -> None:
    """Rotation, ids, results and requests: as if sent the ordinary way, and the quick way was taken."""

    async def scenario(cluster: Cluster) -> None:
        brokers = [await cluster.add(name, T) for name in ("broker-a", "broker-b")]
        async with Producer(cluster.namesrv, group="PG") as producer:
            await open_quick_way(producer)
            before = [len(broker.sends) for broker in brokers]
            sends = [producer.send_soon(Message("T", b"%d" % n, "tag", ("k",))) for n in range(80)]
            assert quick_count(producer) == 80
            results = await asyncio.gather(*sends)
            assert producer._permits.used == 0
            counts = {
                queue: [result.queue for result in results].count(queue)
                for queue in await producer.queues("T")
            }
            assert set(counts.values()) == {10}
            assert len({result.message_id for result in results}) == 80
            arrived = [
                send for broker, count in zip(brokers, before, strict=True) for send in broker.sends[count:]
            ]
            by_id = {parse_properties((send.properties or "").encode())["UNIQ_KEY"]: send for send in arrived}
            for n, result in enumerate(results):
                send = by_id[result.message_id]
                assert isinstance(send, SendMessageV2)
                assert (send.body, send.queue_id, send.broker_name) == (
                    b"%d" % n, result.queue.queue_id, result.queue.broker_name
                )  # fmt: skip
                assert (result.status, result.transaction_id) == (SendStatus.SEND_OK, "t")
                assert result.offset_message_id == "0" * 32
            ordinary = await producer.send(Message("T", b"x", "tag", ("k",)))
            assert type(ordinary) is type(results[0])
            assert repr(results[0]).startswith("SendResult(SEND_OK, ")
            assert results[0] == results[0]
            assert results[0] != results[1]
            assert len({*results, *results}) == 80

    run(scenario)


def test_what_is_not_plain_goes_the_ordinary_way() -> None:
    """Properties, delays, large bodies and odd text arrive all the same."""

    async def scenario(cluster: Cluster) -> None:
        broker = await cluster.add("broker-a", T)
        async with Producer(cluster.namesrv) as producer:
            await open_quick_way(producer)
            odd = [
                Message("T", b"1", properties={"a": "b"}),
                Message("T", b"2", delay_level=3),
                Message("T", bytes(5000)),
                Message("T", b"4", tag="ä"),
                Message("T", b"5", keys=('"',)),
                Message("T", b"6", flag=7),
            ]
            sends = [producer.send_soon(message) for message in odd]
            assert quick_count(producer) == 0
            await asyncio.gather(*sends)
            assert {send.flag for send in broker.sends} == {0, 7}
            with pytest.raises(HotfireError, match="empty"):
                producer.send_soon(Message("T", b""))

    run(scenario)


def test_refusal_and_reservation_are_told() -> None:
    """Answers that are not plain are read the ordinary way; permits come back."""

    async def scenario(cluster: Cluster) -> None:
        broker = await cluster.add("broker-a", T)
        async with Producer(cluster.namesrv, in_flight_max=3) as producer:
            await open_quick_way(producer)
            for _ in range(3):
                broker.behave = SYSTEM_BUSY
                send = producer.send_soon(Message("T", b"x"))
                assert quick_count(producer) == 1
                with pytest.raises(SystemBusy) as caught:
                    await send
                assert (caught.value.topic, caught.value.outcome_unknown) == ("T", False)
                for code in (ResponseCode.FLUSH_DISK_TIMEOUT, ResponseCode.SLAVE_NOT_AVAILABLE):

                    def late(one: ScriptedBroker, request: SendMessage, code: int = code) -> Command:
                        return replace(accept(one, request), code=code, remark="slow")

                    broker.behave = late
                    assert (await producer.send_soon(Message("T", b"x"))).status.value == code
            assert producer._permits.used == 0

    run(scenario)


@pytest.mark.promise(81)
def test_broker_that_dies_strands_nobody() -> None:
    """With quick sends under way one of two brokers dies: each future has one result, from the other broker
    and under its first id; with both gone each has one error after three tries, and permits come back."""

    async def scenario(cluster: Cluster) -> None:
        dying = await cluster.add("broker-a", T)
        taking = await cluster.add("broker-b", T)
        calls: list[asyncio.Future[SendResult]] = []
        async with Producer(cluster.namesrv, timeout_s=20.0) as producer:
            await open_quick_way(producer)
            dying.behave = say_nothing
            count = len(dying.sends)
            sends = [producer.send_soon(Message("T", b"%d" % n), on_done=calls.append) for n in range(40)]
            assert quick_count(producer) == 40
            await dying.until(lambda: len(dying.sends) == count + 20)
            await dying.server.close()
            results = await asyncio.gather(*sends)
            assert {result.queue.broker_name for result in results} == {"broker-b"}
            ids = {parse_properties((send.properties or "").encode())["UNIQ_KEY"] for send in taking.sends}
            assert {result.message_id for result in results} <= ids
            await asyncio.sleep(0)
            assert len(calls) == len(set(calls)) == 40

            taking.behave = say_nothing
            count = len(taking.sends)
            sends = [producer.send_soon(Message("T", b"x")) for _ in range(4)]
            await taking.until(lambda: len(taking.sends) > count)
            await taking.server.close()
            for outcome in await asyncio.gather(*sends, return_exceptions=True):
                assert isinstance(outcome, HotfireError)
                assert "failed 3 times" in outcome.__notes__[0]
            assert producer._permits.used == 0

    run(scenario)


def test_silence_ends_at_the_deadline() -> None:
    """No answer: a Timeout that says the outcome is unknown, not before its time; a late one is dropped."""

    async def scenario(cluster: Cluster) -> None:
        broker = await cluster.add("broker-a", T)
        async with Producer(cluster.namesrv, timeout_s=0.3) as producer:
            await open_quick_way(producer)
            broker.delay_s = 0.5
            loop = asyncio.get_running_loop()
            started = loop.time()
            send = producer.send_soon(Message("T", b"x"))
            assert quick_count(producer) == 1
            with pytest.raises(Timeout) as caught:
                await send
            assert loop.time() - started >= 0.3
            assert caught.value.outcome_unknown
            assert caught.value.message_id in (broker.sends[-1].properties or "")
            await asyncio.sleep(0.4)
            broker.delay_s = 0.0
            assert (await producer.send_soon(Message("T", b"y"))).status is SendStatus.SEND_OK
            assert len(broker.server.connections) == 1  # others on this connection were not disturbed

    run(scenario)


def test_given_up_futures_do_no_harm() -> None:
    """A cancelled future: its answer is dropped, the others have theirs."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.add("broker-a", T)
        async with Producer(cluster.namesrv) as producer:
            await open_quick_way(producer)
            sends = [producer.send_soon(Message("T", b"x")) for _ in range(10)]
            sends[3].cancel()
            results = await asyncio.gather(*sends, return_exceptions=True)
            assert [isinstance(result, SendResult) for result in results] == [n != 3 for n in range(10)]
            assert producer._permits.used == 0

    run(scenario)


async def clogged(producer: Producer) -> Pipe:
    """The only pipe, whose connection takes no more."""
    await open_quick_way(producer)
    pipe: Pipe
    (pipe,) = producer._later.pipelines._pipes.values()  # type: ignore[union-attr]
    pipe.peer._link.pause_writing()
    pipe.peer._link.close_room()
    return pipe


def test_broker_that_does_not_read_is_waited_for() -> None:
    """More than the network takes: what is written waits, in order, and goes when there is room."""

    async def scenario(cluster: Cluster) -> None:
        broker = await cluster.add("broker-a", TopicConfig("T", 1, 1))
        async with Producer(cluster.namesrv, timeout_s=30.0) as producer:
            one = await clogged(producer)
            sends = [producer.send_soon(Message("T", b"%d" % n)) for n in range(100)]
            await asyncio.sleep(0.05)
            assert one.core.unsent > 0
            before = len(broker.sends)
            one.peer._link.resume_writing()
            await asyncio.gather(*sends)
            assert [send.body for send in broker.sends[before:]] == [b"%d" % n for n in range(100)]

    run(scenario)


def test_what_waits_longest_is_written_first() -> None:
    """What came the quick way waits for room no longer than calls that came after it: a question whether a
    send is stored must not overtake that send."""

    async def scenario(cluster: Cluster) -> None:
        broker = await cluster.add("broker-a", TopicConfig("T", 1, 1))
        async with Producer(cluster.namesrv, timeout_s=30.0) as producer:
            one = await clogged(producer)
            first = producer.send_soon(Message("T", b"first"))
            second = asyncio.create_task(producer.send(Message("T", b"second")))
            for _ in range(20):  # turns of the loop, for both to come as far as they can
                await asyncio.sleep(0)
            assert one.core.unsent > 0
            assert not one.peer.in_flight_count
            before = len(broker.sends)
            one.peer._link.resume_writing()
            await asyncio.gather(first, second)
            assert [send.body for send in broker.sends[before:]] == [b"first", b"second"]

    run(scenario)


def test_routes_and_connections_are_followed() -> None:
    """A broker that joins is sent to after the next refresh; a connection lost is dialled again, and the
    quick way opens again on it."""

    async def scenario(cluster: Cluster) -> None:
        a = await cluster.add("broker-a", T)
        async with Producer(cluster.namesrv) as producer:
            await open_quick_way(producer)
            await cluster.add("broker-b", T)
            await producer._instance.routes.refresh("T", 3.0)
            await open_quick_way(producer)
            results = await asyncio.gather(*(producer.send_soon(Message("T", b"x")) for _ in range(16)))
            assert {result.queue.broker_name for result in results} == {"broker-a", "broker-b"}
            for connection in list(a.server.connections):
                connection.close()
            await asyncio.gather(*(producer.send_soon(Message("T", b"x")) for _ in range(16)))
            await open_quick_way(producer)
            send = producer.send_soon(Message("T", b"x"))
            assert quick_count(producer) == 1
            await send

    run(scenario)


def test_second_producer_of_a_client_goes_the_ordinary_way() -> None:
    """One connection has one rider; the other producer's sends are stored as well."""

    async def scenario(cluster: Cluster) -> None:
        broker = await cluster.add("broker-a", T)
        async with (
            Producer(cluster.namesrv, group="G1", instance_name="one") as first,
            Producer(cluster.namesrv, group="G2", instance_name="one") as second,
        ):
            await open_quick_way(first)
            await asyncio.gather(*(second.send_soon(Message("T", b"y")) for _ in range(20)))
            await asyncio.gather(*(first.send_soon(Message("T", b"z")) for _ in range(20)))
            assert len(broker.server.connections) == 1
        assert sum(send.producer_group == "G2" for send in broker.sends) == 20

    run(scenario)


def test_closing_ends_every_future() -> None:
    """Sends under way at the end: answered if that takes less than a second, else told so."""

    async def scenario(cluster: Cluster) -> None:
        broker = await cluster.add("broker-a", T)
        for delay_s, expected in ((0.1, SendResult), (None, ConnectionLost)):
            async with asyncio.timeout(10), Producer(cluster.namesrv, timeout_s=60.0) as producer:
                await open_quick_way(producer)
                broker.behave, broker.delay_s = (accept, delay_s) if delay_s else (say_nothing, 0.0)
                sends = [producer.send_soon(Message("T", b"x")) for _ in range(5)]
                loop = asyncio.get_running_loop()
                started = loop.time()
            assert loop.time() - started < 3.0
            outcomes = await asyncio.gather(*sends, return_exceptions=True)
            assert {type(outcome) for outcome in outcomes} == {expected}
            broker.behave, broker.delay_s = accept, 0.0

    run(scenario)


def test_a_real_broker_stores_what_went_the_quick_way(tmp_path: Path) -> None:
    """Thousands of sends, all stored once with the ids and offsets their results name, and found."""

    async def scenario() -> None:
        async with real_cluster(tmp_path) as cluster:
            async with Producer(cluster.namesrv) as producer:
                await open_quick_way(producer)
                sends = [producer.send_soon(Message("T", b"%d" % n, "tag", ("k",))) for n in range(3000)]
                assert quick_count(producer) == 3000
                results = await asyncio.gather(*sends)
                found = await producer.confirm(results[17].message_id, "T")
                assert found == Stored(results[17].queue, results[17].queue_offset)
                assert await producer.confirm(results[17]) == found
                assert results[17].transaction_id == results[17].message_id
            places = {}
            async with TopicReader(cluster.namesrv, "T", start="earliest", follow=False) as reader:
                async for message in reader:
                    places[message.message_id] = (
                        message.queue,
                        message.queue_offset,
                        message.offset_message_id,
                    )
            assert len(places) == 3016
            for result in results:
                assert places[result.message_id] == (
                    result.queue,
                    result.queue_offset,
                    result.offset_message_id,
                )

    asyncio.run(scenario())


def test_refused_codes_are_the_brokers() -> None:
    """Whatever a broker answers, the error is of its code."""

    async def scenario(cluster: Cluster) -> None:
        broker = await cluster.add("broker-a", T)
        async with Producer(cluster.namesrv) as producer:
            await open_quick_way(producer)
            for code in (1, 13, 17, 4711):
                broker.behave = lambda *_, code=code: Command(code)
                with pytest.raises(BrokerRefused) as caught:
                    await producer.send_soon(Message("T", b"x"))
                assert caught.value.code == code
                broker.behave = accept
                await open_quick_way(producer)

    run(scenario)
