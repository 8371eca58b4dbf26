"""What a producer promises: turns, deadlines, other brokers after a failure, and refusals before sending."""

import asyncio
import time
import zlib
from collections import Counter
from contextlib import suppress
from dataclasses import replace

import pytest

from hotfire import Message, MessageQueue, Producer, SendStatus
from hotfire.client import instance as instance_module
from hotfire.errors import (
    BrokerRefused,
    ConfigError,
    HotfireError,
    LocalProtocolError,
    MessageIllegal,
    NoRoute,
    NotRunning,
    SystemBusy,
    Unreachable,
)
from hotfire.model import AUTO_CREATE_TOPIC, Heartbeat, Perm, TopicConfig
from hotfire.protocol.bodies import decode_body
from hotfire.protocol.codes import ResponseCode
from hotfire.protocol.command import Command
from hotfire.protocol.record import parse_properties
from hotfire.protocol.requests import SendMessage
from tests.unit.client.cluster import SYSTEM_BUSY, Cluster, ScriptedBroker, accept, refuse, run, say_nothing

T = TopicConfig("T", 4, 4)


def properties(send: SendMessage) -> dict[str, str]:
    return parse_properties((send.properties or "").encode())


@pytest.mark.promise(83)
def test_queues_take_turns_beginning_anywhere() -> None:
    """80 messages over the 8 queues of two brokers: 10 in each, and not always the same one first."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.add("broker-a", T)
        await cluster.add("broker-b", T)
        firsts = set()
        for _ in range(12):
            async with Producer(cluster.namesrv) as producer:
                results = [await producer.send(Message("T", b"x")) for _ in range(80)]
            counts = Counter(result.queue for result in results)
            assert set(counts.values()) == {10}
            assert len(counts) == 8
            firsts.add(results[0].queue)
        assert len(firsts) > 1

    run(scenario)


@pytest.mark.promise(84)
def test_given_queue_gets_all_messages() -> None:
    """With a queue given every message goes there."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.add("broker-a", T)
        b = await cluster.add("broker-b", T)
        queue = MessageQueue("T", "broker-b", 2)
        async with Producer(cluster.namesrv) as producer:
            assert queue in await producer.queues("T")
            for index in range(10):
                result = await producer.send(Message("T", b"x"), queue=queue)
                assert (result.queue, result.queue_offset) == (queue, index)
        assert [send.queue_id for send in b.sends] == [2] * 10

    run(scenario)


@pytest.mark.promise(80)
def test_failed_send_goes_to_the_other_broker() -> None:
    """One broker refuses: every message is stored by the other one, under one id, in at most 3 attempts."""

    async def scenario(cluster: Cluster) -> None:
        refusing = await cluster.add("broker-a", T, behave=SYSTEM_BUSY)
        taking = await cluster.add("broker-b", T)
        async with Producer(cluster.namesrv) as producer:
            for index in range(20):
                before = len(refusing.sends) + len(taking.sends)
                result = await producer.send(Message("T", b"%d" % index))
                assert result.queue.broker_name == "broker-b"
                attempts = len(refusing.sends) + len(taking.sends) - before
                assert attempts <= 2  # the second attempt never goes to the broker that just failed
        stored, refused = ({properties(send)["UNIQ_KEY"] for send in one.sends} for one in (taking, refusing))
        assert len(stored) == 20
        assert refused
        assert refused <= stored

    run(scenario)


@pytest.mark.promise(80)
def test_three_attempts_at_most() -> None:
    """When both brokers refuse, three attempts alternate between them and the last refusal is raised."""

    async def scenario(cluster: Cluster) -> None:
        order: list[str] = []

        def refuse_and_note(broker: ScriptedBroker, send: SendMessage) -> Command | None:
            order.append(broker.name)
            return SYSTEM_BUSY(broker, send)

        for name in ("broker-a", "broker-b"):
            await cluster.add(name, T, behave=refuse_and_note)
        async with Producer(cluster.namesrv) as producer:
            with pytest.raises(SystemBusy, match="not today") as caught:
                await producer.send(Message("T", b"x"))
        assert len(order) == 3
        assert order[0] == order[2] != order[1]
        assert "failed 3 times" in caught.value.__notes__[0]

    run(scenario)


def test_refusal_that_cannot_improve_is_raised_at_once() -> None:
    """A code outside the retry set means one attempt."""

    async def scenario(cluster: Cluster) -> None:
        brokers = [
            await cluster.add(name, T, behave=refuse(ResponseCode.MESSAGE_ILLEGAL))
            for name in ("broker-a", "broker-b")
        ]
        async with Producer(cluster.namesrv) as producer:
            with pytest.raises(MessageIllegal):
                await producer.send(Message("T", b"x"))
        assert sum(len(broker.sends) for broker in brokers) == 1

    run(scenario)


@pytest.mark.promise(79)
def test_unknown_topic_without_creation_says_so() -> None:
    """No route, no template: the error names the topic and the name server. A template gives four queues."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.add("broker-a", T)
        async with Producer(cluster.namesrv) as producer:
            with pytest.raises(NoRoute, match=f"topic nowhere .*{cluster.namesrv}"):
                await producer.send(Message("nowhere", b"x"))
            b = await cluster.add(
                "broker-b", TopicConfig(AUTO_CREATE_TOPIC, 8, 8, Perm.READ_WRITE | Perm.INHERIT)
            )
            result = await producer.send(Message("nowhere", b"x"))
            assert result.queue.broker_name == "broker-b"
            assert len(await producer.queues("nowhere")) == 4
            assert (b.sends[0].topic, b.sends[0].default_topic) == ("nowhere", AUTO_CREATE_TOPIC)
            # once the topic exists its own route counts
            await producer._instance.routes.refresh("T", 3.0)
            assert len(await producer.queues("T")) == 4

    run(scenario)


@pytest.mark.promise(18)
def test_a_name_server_that_knows_the_template_before_the_topic_changes_no_queues() -> None:
    """Started anew it knows no topic for a while: the topic's own queues stay."""

    async def scenario(cluster: Cluster) -> None:
        template = TopicConfig(AUTO_CREATE_TOPIC, 8, 8, Perm.READ_WRITE | Perm.INHERIT)
        a = await cluster.add("broker-a", TopicConfig("T", 2, 2), template)
        async with Producer(cluster.namesrv) as producer:
            await producer.send(Message("T", b"x"))
            await a.stop()
            b = await cluster.add("broker-b", template)
            with pytest.raises(NoRoute, match="topic T does not exist"):
                await producer._instance.routes.refresh("T", 3.0)
            assert {(queue.broker_name, queue.queue_id) for queue in await producer.queues("T")} == {
                ("broker-a", 0), ("broker-a", 1),
            }  # fmt: skip
            assert (await producer.send(Message("new", b"x"))).queue.broker_name == "broker-b"
            assert [one.topic for one in b.sends] == ["new"]

    run(scenario)


@pytest.mark.promise(78)
@pytest.mark.parametrize(
    ("message", "problem"),
    [
        (Message("", b"x"), "blank"),
        (Message("two words", b"x"), "characters"),
        (Message("T" * 128, b"x"), "128 characters"),
        (Message("SCHEDULE_TOPIC_XXXX", b"x"), "belongs to the broker"),
        (Message("T", b""), "empty"),
        (Message("T", None), "NoneType, not bytes"),  # type: ignore[arg-type]
        (Message("T", "text"), "str, not bytes"),  # type: ignore[arg-type]
        (Message("T", bytes(4 * 1024 * 1024 + 1)), "4194305 bytes, at most 4194304"),
        (Message("T", b"x", properties={"a": "b\x02c"}), "property 'a'"),
        (Message("T", b"x", properties={"a": ""}), "property 'a'"),
        (Message("T", b"x", tag="a\x01"), "property 'TAGS'"),
        (Message("T", b"x", properties={"a": "b" * 32767}), "at most 32767"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_message_is_checked_before_sending(message: Message, problem: str) -> None:
    """What every broker would refuse is an error of ours, and nothing is sent."""

    async def scenario(cluster: Cluster) -> None:
        broker = await cluster.add("broker-a", T)
        async with Producer(cluster.namesrv) as producer:
            with pytest.raises(LocalProtocolError, match=problem):
                await producer.send(message)
            await producer.send(Message("T", b"fine"))
        assert [send.body for send in broker.sends] == [b"fine"]

    run(scenario)


def test_largest_body_and_compression() -> None:
    """4 MiB pass; 4095 bytes go as they are, 4096 compressed and flagged."""

    async def scenario(cluster: Cluster) -> None:
        broker = await cluster.add("broker-a", T)
        async with Producer(cluster.namesrv) as producer:
            for size in (4095, 4096, 4 * 1024 * 1024):
                await producer.send(Message("T", b"a" * size))
        assert [send.sys_flag for send in broker.sends] == [0, 0x301, 0x301]
        assert broker.sends[0].body == b"a" * 4095
        assert zlib.decompress(broker.sends[2].body) == b"a" * 4 * 1024 * 1024

    run(scenario)


def test_request_says_everything_about_the_message() -> None:
    """Tag, keys, properties, flag, delay and waiting travel as the protocol names them."""

    async def scenario(cluster: Cluster) -> None:
        broker = await cluster.add("broker-a", T)
        message = Message(
            "T", b"body", "tag", ("k1", "k2"), {"colour": "röt"}, flag=7, delay_level=3, wait_stored=False
        )
        async with Producer(cluster.namesrv, group="PG") as producer:
            result = await producer.send(message)
        (send,) = broker.sends
        assert properties(send) == {
            "colour": "röt",
            "KEYS": "k1 k2",
            "UNIQ_KEY": result.message_id,
            "WAIT": "false",
            "DELAY": "3",
            "TAGS": "tag",
        }
        assert (send.producer_group, send.flag, send.body, send.broker_name) == ("PG", 7, b"body", "broker-a")
        assert abs(send.born_timestamp - time.time() * 1000) < 60_000

    run(scenario)


@pytest.mark.parametrize("status", SendStatus)
def test_stored_with_reservations_is_a_result(status: SendStatus) -> None:
    """Flush and slave time-outs are stored messages: a result with a status, no error and no second try."""

    async def scenario(cluster: Cluster) -> None:
        def behave(broker: ScriptedBroker, send: SendMessage) -> Command:
            return replace(accept(broker, send), code=status.value)

        broker = await cluster.add("broker-a", T, behave=behave)
        async with Producer(cluster.namesrv) as producer:
            assert (await producer.send(Message("T", b"x"))).status is status
        assert len(broker.sends) == 1

    run(scenario)


def test_oneway_waits_for_nobody() -> None:
    """A oneway send to a broker that never answers returns at once and carries the flag."""

    async def scenario(cluster: Cluster) -> None:
        broker = await cluster.add("broker-a", T, behave=say_nothing)
        async with Producer(cluster.namesrv, timeout_s=30.0) as producer:
            await producer.queues("T")
            started = time.perf_counter()
            for _ in range(10):
                await producer.send_oneway(Message("T", b"x"))
            assert time.perf_counter() - started < 1.0
        await broker.until(lambda: len(broker.sends) == 10)
        assert set(broker.flags) == {2}

    run(scenario)


def test_producer_that_does_not_run_refuses() -> None:
    """Sending before start and after close, and starting twice, are errors that say so."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.add("broker-a", T)
        producer = Producer(cluster.namesrv)
        with pytest.raises(NotRunning):
            await producer.send(Message("T", b"x"))
        await producer.start()
        with pytest.raises(NotRunning, match="already"):
            await producer.start()
        await producer.send(Message("T", b"x"))
        await producer.close()
        await producer.close()
        for call in (producer.send, producer.send_oneway):
            with pytest.raises(NotRunning):
                await call(Message("T", b"x"))

    run(scenario)


@pytest.mark.parametrize("group", ["", " ", "a b", "g" * 121])
def test_bad_group_is_refused(group: str) -> None:
    """A group that no broker would take is refused when the producer is made."""
    with pytest.raises(LocalProtocolError, match="group"):
        Producer("127.0.0.1:9876", group=group)


@pytest.mark.parametrize("addresses", ["", ";", "localhost", "host:port"])
def test_bad_name_server_is_refused(addresses: str) -> None:
    """So is an address that is none."""

    async def make() -> None:
        Producer(addresses)

    with pytest.raises(ConfigError):
        asyncio.run(make())


def test_dead_name_server_is_passed_over() -> None:
    """With one of two name servers dead routes are found all the same; with all dead the error names them."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.add("broker-a", T)
        for _ in range(6):
            async with Producer(["127.0.0.1:1", cluster.namesrv]) as producer:
                await producer.send(Message("T", b"x"))
        async with Producer("127.0.0.1:1;127.0.0.1:2") as producer:
            with pytest.raises(
                NoRoute, match=r"127\.0\.0\.1:1.*127\.0\.0\.1:2|127\.0\.0\.1:2.*127\.0\.0\.1:1"
            ):
                await producer.send(Message("T", b"x"))

    run(scenario)


def test_silent_name_server_leaves_time_for_the_others() -> None:
    """A name server that accepts and says nothing costs its share of the deadline, not all of it."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.add("broker-a", T)
        hush = asyncio.Event()

        async def deaf(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await hush.wait()
            writer.close()

        listener = await asyncio.start_server(deaf, "127.0.0.1", 0)
        silent = f"127.0.0.1:{listener.sockets[0].getsockname()[1]}"
        for _ in range(4):  # whichever is asked first
            async with Producer([silent, cluster.namesrv], timeout_s=0.6) as producer:
                assert (await producer.send(Message("T", b"x"))).status is SendStatus.SEND_OK
        hush.set()
        listener.close()
        await listener.wait_closed()

    run(scenario)


def test_sends_go_on_while_all_name_servers_are_away() -> None:
    """What was learnt is used on: with the name server gone a running producer does not notice."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.add("broker-a", T)
        async with Producer(cluster.namesrv) as producer:
            await producer.send(Message("T", b"x"))
            await cluster.names.close()
            await producer._instance.routes.refresh_all(0.5)
            for _ in range(20):
                await producer.send(Message("T", b"x"))

    run(scenario)


def test_lost_connection_is_dialled_again() -> None:
    """The broker hangs up between two sends: the second dials anew and is stored."""

    async def scenario(cluster: Cluster) -> None:
        broker = await cluster.add("broker-a", T)
        async with Producer(cluster.namesrv) as producer:
            await producer.send(Message("T", b"1"))
            for connection in list(broker.server.connections):
                connection.close()
            await producer.send(Message("T", b"2"))
        assert [send.body for send in broker.sends][-1] == b"2"

    run(scenario)


def test_many_senders_share_one_connection() -> None:
    """A hundred tasks that start together dial the broker once and ask for the route once."""

    async def scenario(cluster: Cluster) -> None:
        broker = await cluster.add("broker-a", T)
        async with Producer(cluster.namesrv) as producer:
            results = await asyncio.gather(*(producer.send(Message("T", b"x")) for _ in range(100)))
            assert len({result.message_id for result in results}) == 100
            assert len(broker.server.connections) == 1

    run(scenario)


def test_heartbeat_and_goodbye(monkeypatch: pytest.MonkeyPatch) -> None:
    """Brokers in use hear of the producer's group and client id, and of its end."""
    monkeypatch.setattr(instance_module, "HEARTBEAT_FIRST_S", 0.05)
    monkeypatch.setattr(instance_module, "HEARTBEAT_INTERVAL_S", 0.05)

    async def scenario(cluster: Cluster) -> None:
        broker = await cluster.add("broker-a", T)
        async with Producer(cluster.namesrv, group="PG", instance_name="one") as producer:
            await producer.send(Message("T", b"x"))
            await broker.until(lambda: len(broker.heartbeats) >= 2)
        heartbeat = decode_body(Heartbeat, broker.heartbeats[0])
        assert [one.group for one in heartbeat.producers] == ["PG"]
        assert heartbeat.client_id.endswith("@one")
        assert [(one.client_id, one.producer_group) for one in broker.goodbyes] == [
            (heartbeat.client_id, "PG")
        ]

    run(scenario)


def test_dead_broker_is_unreachable_at_once() -> None:
    """The only broker is gone: an error long before the timeout, and it is one of reaching."""

    async def scenario(cluster: Cluster) -> None:
        broker = await cluster.add("broker-a", T)
        async with Producer(cluster.namesrv, timeout_s=30.0) as producer:
            await producer.send(Message("T", b"x"))
            await broker.server.close()
            started = time.perf_counter()
            with pytest.raises(Unreachable):
                await producer.send(Message("T", b"x"))
            assert time.perf_counter() - started < 5.0

    run(scenario)


def test_errors_are_all_of_one_family() -> None:
    """Whatever a send raises is a HotfireError, so one except clause is enough."""

    async def scenario(cluster: Cluster) -> None:
        broker = await cluster.add("broker-a", T)
        async with Producer(cluster.namesrv, timeout_s=0.2) as producer:
            for code in (1, 2, 3, 13, 14, 16, 17, 29, 205, 4711):
                broker.behave = refuse(code)
                with pytest.raises(BrokerRefused) as caught:
                    await producer.send(Message("T", b"x"))
                assert caught.value.code == code
            broker.behave = say_nothing
            with suppress(HotfireError):
                await producer.send(Message("T", b"x"))

    run(scenario)
