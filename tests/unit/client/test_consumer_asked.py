"""What administrators learn of a consumer through its brokers, and what they may have it do."""

import asyncio
import threading

import pytest

from hotfire import Message, MessageQueue, Producer, QueueReader
from hotfire.client.admin import Admin
from hotfire.client.consumer import Consumer
from hotfire.client.consumersettings import ConsumeFrom
from hotfire.client.consumestats import ConsumeStats
from hotfire.errors import ConfigError, SystemFailed
from hotfire.model import ReceivedMessage
from hotfire.protocol.bodies import decode_body
from hotfire.protocol.requests import ConsumeMessageDirectly, GetConsumerRunningInfo
from hotfire.protocol.running import ConsumerRunningInfo, DirectResult
from hotfire.testing import Cluster
from tests.unit.client.consuming import Seen, ask, numbered, run, send, turn, until


@pytest.mark.promise(101)
def test_rates_of_success_and_failure_are_told() -> None:
    """60 messages within a minute, every third failing: 2/3 and 1/3 per second, queues, settings and all."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.create_topic("T", queues=1)
        seen = Seen(fails=lambda message: int(message.body) % 3 == 0)
        consumer = Consumer(cluster.namesrv, group="g", consume_from=ConsumeFrom.FIRST)
        consumer.subscribe("T", seen, tags="t")
        async with consumer:
            await turn(cluster, 65)
            await send(cluster, "T", numbered(60), tag="t")
            await seen.count(60)
            counts = consumer._running.stats.of("T")
            await until(lambda: consumer._running.offsets.get(MessageQueue("T", "broker-0", 0)) == 60)
            assert (counts.done, counts.failed) == (40, 20)
            client_id = consumer._running.instance.client_id
            request = GetConsumerRunningInfo(consumer_group="g", client_id=client_id, jstack_enable=True)
            info = decode_body(ConsumerRunningInfo, await ask(cluster, request))
            status = info.statuses["T"]
            assert status.consume_ok_tps == pytest.approx(40 / 60, rel=0.3)
            assert status.consume_failed_tps == pytest.approx(20 / 60, rel=0.3)
            assert status.consume_failed_count == 20
            assert status.pull_tps == pytest.approx(1.0, rel=0.3)
            assert info.properties["PROP_CONSUME_TYPE"] == "CONSUME_PASSIVELY"
            assert info.properties["PROP_CONSUMEORDERLY"] == "false"
            assert info.properties["PROP_NAMESERVER_ADDR"].startswith(cluster.namesrv)
            assert {one.topic: one.expression for one in info.subscriptions} == {"T": "t", "%RETRY%g": "*"}
            queue = info.queues[MessageQueue("T", "broker-0", 0)]
            assert (queue.commit_offset, queue.cached_count, queue.dropped) == (60, 0, False)
            assert queue.last_pull_ms > 0
            assert "task hotfire-g-0\n" in (info.stacks or "")
            assert "test_consumer_asked.py" in (info.stacks or "")

    run(scenario)


def test_rates_are_those_of_the_last_minute_and_hour() -> None:
    """Samples leave as they age; the failures of an hour are counted."""
    stats = ConsumeStats(0.0)
    for second in range(0, 7200, 5):
        counts = stats.of("T")
        if second < 3600:
            counts.done += 10
            counts.failed += 5
        stats.sample(float(second))
        if second == 3500:
            status = stats.status("T", float(second))
            assert (round(status.done_tps), round(status.failed_tps)) == (2, 1)
            assert status.failed_in_hour == counts.failed
    status = stats.status("T", 7200.0)
    assert (status.done_tps, status.failed_tps) == (0.0, 0.0)
    assert status.failed_in_hour <= 60


def test_a_message_can_be_given_to_one_consumer_again() -> None:
    """By hand, by its id: the listener's verdict is told, be it done, later, or an exception."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.create_topic("T", queues=1)
        bodies: list[bytes] = []

        async def handle(message: ReceivedMessage) -> bool:
            bodies.append(message.body)
            if bodies.count(message.body) == 3:
                raise ValueError("no")
            return bodies.count(message.body) == 1

        consumer = Consumer(cluster.namesrv, group="g", consume_from=ConsumeFrom.FIRST)
        consumer.subscribe("T", handle)
        async with consumer, Producer(cluster.namesrv) as producer:
            sent = await producer.send(Message("T", b"x"))
            await until(lambda: len(bodies) == 1)
            request = ConsumeMessageDirectly(
                consumer_group="g", client_id=consumer._running.instance.client_id,
                msg_id=sent.offset_message_id, topic="T",
            )  # fmt: skip
            first, second = [decode_body(DirectResult, await ask(cluster, request)) for _ in range(2)]
            assert (first.result, second.result) == ("CR_LATER", "CR_THROW_EXCEPTION")
            assert second.remark == "ValueError: no"
            assert not second.order

    run(scenario)


@pytest.mark.promise(107)
def test_a_condition_the_broker_cannot_serve_fails_the_start() -> None:
    """The error names group, topic, condition and the broker's reason; nothing keeps running."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.create_topic("T", queues=1)
        consumer = Consumer(cluster.namesrv, group="g")
        consumer.subscribe("T", Seen(), sql="price > 10")
        with pytest.raises(
            ConfigError, match=r"group g, topic T: .*SQL92 condition 'price > 10'.*not support"
        ):
            await consumer.start()
        program = cluster.brokers[0].program
        assert program is not None
        assert "g" not in program.broker.clients.consumers
        with pytest.raises(ConfigError, match="empty"):
            consumer.subscribe("T", Seen(), sql=" ")
        with pytest.raises(
            ConfigError, match=r"topic T: .*'price >' is wrong: column 8, at the end: a property"
        ):
            consumer.subscribe("T", Seen(), sql="price >")

    run(scenario, enable_property_filter=False)


def test_stacks_tell_what_a_listener_waits_for() -> None:
    """By thread name for a plain function, coroutine by coroutine for others; by way of Admin."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.create_topic("T", queues=1)
        await cluster.create_topic("U", queues=1)
        may_end, began, ended = threading.Event(), asyncio.Event(), asyncio.Event()
        loop = asyncio.get_running_loop()

        async def deep_within() -> None:
            began.set()
            await ended.wait()

        async def waits(message: ReceivedMessage) -> None:
            await deep_within()

        in_thread = asyncio.Event()

        def blocks(message: ReceivedMessage) -> None:
            loop.call_soon_threadsafe(in_thread.set)
            may_end.wait()

        consumer = Consumer(cluster.namesrv, group="g", consume_from=ConsumeFrom.FIRST)
        consumer.subscribe("T", waits)
        consumer.subscribe("U", blocks)
        async with consumer, Producer(cluster.namesrv) as producer, Admin(cluster.namesrv) as admin:
            sent = await producer.send(Message("T", b"x"))
            await producer.send(Message("U", b"x"))
            await began.wait()
            await in_thread.wait()
            client_id = consumer._running.instance.client_id
            told = (await admin.running_info("g", client_id, stacks=True)).stacks or ""
            assert (await admin.running_info("g", client_id)).stacks is None
            may_end.set()
            ended.set()
            assert "deep_within" in told
            assert "thread hotfire-g-1" in told
            assert "in blocks" in told
            with pytest.raises(SystemFailed, match="not online"):
                await admin.running_info("g", "nobody")
            async with QueueReader(cluster.namesrv) as reader:
                message = await reader.message_by_id(sent.offset_message_id)
            assert message is not None
            assert (await admin.consume_directly("g", client_id, message)).result == "CR_SUCCESS"

    run(scenario)
