"""A message that is answered: whoever consumes it replies, and who asked gets that."""

import asyncio

import pytest

import hotfire.sync
from hotfire import Consumer, Message, Producer, ReceivedMessage
from hotfire.client.consumersettings import ConsumeFrom
from hotfire.errors import (
    BrokerRefused,
    ConfigError,
    LocalProtocolError,
    NotRunning,
    RequestTimeout,
    Unreachable,
)
from hotfire.testing import Cluster
from tests.unit.client.consuming import run, turn, until


def replier(cluster: Cluster, served: list[bytes] | None = None) -> Consumer:
    """A consumer that replies in capitals."""
    consumer = Consumer(cluster.namesrv, group="g", consume_from=ConsumeFrom.FIRST)

    async def serve(message: ReceivedMessage) -> None:
        if served is not None:
            served.append(message.body)
        await consumer.reply(message, message.body.upper(), properties={"by": "g"})

    consumer.subscribe("T", serve)
    return consumer


def test_a_request_gets_the_reply_to_it() -> None:
    """Many at once, over two brokers: each has its own, at the first try; a large one comes whole."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.create_topic("T", queues=2)
        served: list[bytes] = []
        async with replier(cluster, served), Producer(cluster.namesrv) as producer:
            asked = [producer.request(Message("T", b"x%d" % n), timeout_s=20) for n in range(20)]
            replies = await asyncio.gather(*asked)
            assert [reply.body for reply in replies] == [b"X%d" % n for n in range(20)]
            assert {reply.topic for reply in replies} == {"DefaultCluster_REPLY_TOPIC"}
            assert {reply.properties["by"] for reply in replies} == {"g"}
            large = await producer.request(Message("T", b"ab" * 50_000), timeout_s=20)
            assert large.body == b"AB" * 50_000
            assert len(served) == 21
            assert not producer._instance.replies

    run(scenario, brokers=2)


def test_without_a_reply_the_request_times_out_by_name() -> None:
    """The error says that the message is stored; a reply that comes later is taken and dropped."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.create_topic("T", queues=1)
        heard: list[ReceivedMessage] = []
        consumer = Consumer(cluster.namesrv, group="g", consume_from=ConsumeFrom.FIRST)

        async def hear(message: ReceivedMessage) -> None:
            heard.append(message)

        consumer.subscribe("T", hear)
        async with consumer, Producer(cluster.namesrv) as producer:
            waiting = asyncio.create_task(producer.request(Message("T", b"x"), timeout_s=5))
            await until(lambda: len(heard) == 1)
            await turn(cluster, 6)
            with pytest.raises(
                RequestTimeout, match=r"topic T: request \w{32} is stored, and no reply.* 5 s"
            ):
                await waiting
            assert heard[0].properties["TTL"] == "5000"
            assert not producer._instance.replies
            await consumer.reply(heard[0], b"late")
        with pytest.raises(BrokerRefused, match="channel of <"):
            async with Consumer(cluster.namesrv, group="g2") as other:
                await other.reply(heard[0], b"nobody there")

    run(scenario)


def test_who_cannot_be_replied_to_is_told_from_a_request() -> None:
    """An ordinary message has nobody waiting; an application cannot pretend to have asked."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.create_topic("T", queues=1)
        consumer = Consumer(cluster.namesrv, group="g", consume_from=ConsumeFrom.FIRST)
        failures: list[Exception] = []

        async def serve(message: ReceivedMessage) -> None:
            try:
                await consumer.reply(message, b"x")
            except ConfigError as error:
                failures.append(error)

        consumer.subscribe("T", serve)
        async with consumer, Producer(cluster.namesrv) as producer:
            sent = await producer.send(Message("T", b"x"))
            await until(lambda: bool(failures))
            assert f"message {sent.message_id} of topic T has no property CORRELATION_ID" in str(failures[0])
            with pytest.raises(LocalProtocolError, match="REPLY_TO_CLIENT"):
                await producer.request(Message("T", b"x", properties={"REPLY_TO_CLIENT": "me"}))

    run(scenario)


def test_a_producer_that_is_closed_waits_no_longer() -> None:
    """Who asked and still waits hears that the producer is gone."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.create_topic("T", queues=1)
        producer = Producer(cluster.namesrv)
        await producer.start()
        waiting = asyncio.create_task(producer.request(Message("T", b"x"), timeout_s=30))
        await until(lambda: bool(producer._joined and producer._joined.replies))
        await until(lambda: cluster.brokers[0].program.broker.messages_stored == 1)  # type: ignore[union-attr]
        await producer.close()
        with pytest.raises(NotRunning, match="waited for a reply"):
            await waiting

    run(scenario)


def test_a_restarted_broker_still_finds_who_asks() -> None:
    """Replies go by connections: after one was lost the producer makes itself known before it asks."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.create_topic("T", queues=1)
        async with replier(cluster), Producer(cluster.namesrv) as producer:
            assert (await producer.request(Message("T", b"a"), timeout_s=20)).body == b"A"
            await cluster.brokers[0].restart()
            waiting = asyncio.create_task(producer.request(Message("T", b"b"), timeout_s=60))
            while not waiting.done():
                await turn(cluster, 1)
            assert (await waiting).body == b"B"

    run(scenario)


def test_one_broker_that_answers_nothing_leaves_the_requests_by_others_alone() -> None:
    """What goes by the sound broker is replied to in time; what goes by the other was surely not sent."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.create_topic("T", queues=1)
        proxy = cluster.brokers[1].proxy
        assert proxy is not None
        async with replier(cluster), Producer(cluster.namesrv) as producer:
            proxy.hold("requests")
            asked = [producer.request(Message("T", b"x"), timeout_s=2) for _ in range(4)]
            replies = await asyncio.gather(*asked, return_exceptions=True)
            proxy.flow()
        failures = [reply for reply in replies if isinstance(reply, Unreachable)]
        assert len(failures) == 2, replies
        assert not any(failure.outcome_unknown for failure in failures)
        assert [reply.body for reply in replies if isinstance(reply, ReceivedMessage)] == [b"X", b"X"]

    run(scenario, brokers=2, proxied=True)


def test_threads_ask_and_reply_without_a_loop() -> None:
    """The same names on the synchronous side, the listener a plain function."""
    with Cluster() as cluster:
        cluster.create_topic("T", queues=1)
        consumer = hotfire.sync.Consumer(cluster.namesrv, group="g", consume_from=ConsumeFrom.FIRST)
        consumer.subscribe("T", lambda message: consumer.reply(message, b"yes") and None)
        with consumer, hotfire.sync.Producer(cluster.namesrv) as producer:
            assert producer.request(Message("T", b"?"), timeout_s=30).body == b"yes"
