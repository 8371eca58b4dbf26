"""Our clients by condition: what it is true of, and nothing else, reaches the application."""

import pytest

from hotfire import Message, MessageQueue, Producer
from hotfire.client.consumer import Consumer
from hotfire.client.consumersettings import ConsumeFrom
from hotfire.client.pullconsumer import PullConsumer
from hotfire.client.reader import TopicReader
from hotfire.errors import ConfigError
from hotfire.testing import Cluster
from tests.unit.client.consuming import Seen, run

CONDITION = "a between 0 and 3"


async def fill(cluster: Cluster) -> None:
    await cluster.create_topic("T", queues=2)
    async with Producer(cluster.namesrv) as producer:
        for number in range(6):
            await producer.send(Message("T", b"%d" % number, properties={"a": str(number)}))
        await producer.send(Message("T", b"none"))


def test_a_consumer_gets_what_its_condition_lets_through() -> None:
    """What was there, and what comes while it waits."""

    async def scenario(cluster: Cluster) -> None:
        await fill(cluster)
        seen = Seen()
        consumer = Consumer(cluster.namesrv, group="g", consume_from=ConsumeFrom.FIRST)
        consumer.subscribe("T", seen, sql=CONDITION)
        async with consumer:
            await seen.count(4)
            async with Producer(cluster.namesrv) as producer:
                await producer.send(Message("T", b"no", properties={"a": "7"}))
                await producer.send(Message("T", b"yes", properties={"a": "2"}))
                await seen.count(5)
        assert sorted(message.body for message in seen.messages) == [b"0", b"1", b"2", b"3", b"yes"]

    run(scenario)


def test_a_polled_consumer_and_a_reader_by_condition() -> None:
    """Subscribed, assigned by hand, or without a group."""

    async def scenario(cluster: Cluster) -> None:
        await fill(cluster)
        async with PullConsumer(cluster.namesrv, group="p", consume_from=ConsumeFrom.FIRST) as consumer:
            consumer.subscribe("T", sql=CONDITION)
            got = list[bytes]()
            while len(got) < 4:
                got += [message.body for message in await consumer.poll(10)]
            assert sorted(got) == [b"0", b"1", b"2", b"3"]
        async with PullConsumer(cluster.namesrv, group="q", consume_from=ConsumeFrom.FIRST) as consumer:
            consumer.assign(await consumer.queues("T"), sql="a is null")
            assert [message.body for message in await consumer.poll(10)] == [b"none"]
        async with TopicReader(cluster.namesrv, "T", start="earliest", follow=False, sql="a > 3") as reader:
            assert sorted([message.body async for message in reader]) == [b"4", b"5"]

    run(scenario)


def test_a_polled_consumer_of_a_broker_without_conditions_is_told() -> None:
    """Who polls gets the error, subscribed or assigned, and does not wait for messages that never come."""

    async def scenario(cluster: Cluster) -> None:
        await fill(cluster)
        refused = "group p, topic T: broker broker-0 refuses the SQL92 condition 'a between 0 and 3'"
        async with PullConsumer(cluster.namesrv, group="p", consume_from=ConsumeFrom.FIRST) as consumer:
            consumer.subscribe("T", sql=CONDITION)
            with pytest.raises(ConfigError, match=refused):
                await consumer.poll(None)
        before = PullConsumer(cluster.namesrv, group="p", consume_from=ConsumeFrom.FIRST)
        before.assign([MessageQueue("T", "broker-0", 0)], sql=CONDITION)
        async with before:
            with pytest.raises(ConfigError, match=refused):
                await before.poll(None)

    run(scenario, enable_property_filter=False)


@pytest.mark.parametrize("make", [Consumer, PullConsumer])
def test_a_wrong_condition_is_told_when_it_is_given(make: type) -> None:
    """With its place, before any broker is asked."""
    consumer = make("127.0.0.1:1", group="g")
    wanted = (Seen(),) if make is Consumer else ()
    with pytest.raises(
        ConfigError, match="topic T: the condition 'a = 1 AND' is wrong: column 10, at the end"
    ):
        consumer.subscribe("T", *wanted, sql="a = 1 AND")
    with pytest.raises(ConfigError, match="column 3"):
        TopicReader("127.0.0.1:1", "T", sql="a = NULL")
