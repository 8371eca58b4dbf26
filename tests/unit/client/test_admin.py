"""Looking after a real cluster of two brokers in this process."""

import pytest

from hotfire import Message, MessageQueue, Producer, PullConsumer, QueueReader
from hotfire.client.admin import Admin
from hotfire.client.consumersettings import ConsumeFrom
from hotfire.errors import (
    ConfigError,
    ConsumerNotOnline,
    GroupNotExist,
    InvalidParameter,
    NoRoute,
    NotRunning,
    Unreachable,
)
from hotfire.model import Perm, SubscriptionGroup
from hotfire.protocol.requests import DeleteTopicInBroker
from hotfire.testing import Cluster
from tests.unit.client.consuming import numbered, run, send, until

NAMES = ("broker-0", "broker-1")


def test_brokers() -> None:
    """Every broker with its cluster, name, id and address; unknown names are refused with those there are."""

    async def scenario(cluster: Cluster) -> None:
        async with Admin(cluster.namesrv) as admin:
            brokers = await admin.brokers()
            assert [(one.cluster, one.name, one.is_master) for one in brokers] == [
                ("DefaultCluster", name, True) for name in NAMES
            ]
            assert [one.address for one in brokers] == [broker.address for broker in cluster.brokers]
            assert await admin.brokers("DefaultCluster") == brokers
            assert await admin.masters(brokers=["broker-1"]) == brokers[1:]
            with pytest.raises(ConfigError, match="knows no cluster C; it has DefaultCluster"):
                await admin.brokers("C")
            with pytest.raises(ConfigError, match="no broker b-9; it has broker-0, broker-1"):
                await admin.masters(brokers=["b-9"])

    run(scenario, brokers=2)


def test_a_topic_from_its_making_to_its_end() -> None:
    """Made on all brokers or some, changed, shown, measured and deleted; then nobody knows it."""

    async def scenario(cluster: Cluster) -> None:
        async with Admin(cluster.namesrv) as admin:
            made = await admin.create_topic("T", queues=3)
            assert [one.name for one in made] == list(NAMES)
            route = await admin.route("T")
            assert len(route.read_queues) == len(route.write_queues) == 6
            assert "T" in await admin.topics()
            assert "TBW102" not in await admin.topics()
            assert "TBW102" in await admin.topics(include_system=True)

            await admin.create_topic("T", queues=1, read_queues=3, perm=Perm.READ, brokers=["broker-1"])
            configs = await admin.topic_configs("T")
            assert {name: (one.write_queues, one.perm) for name, one in configs.items()} == {
                "broker-0": (3, 6),
                "broker-1": (1, 4),
            }
            await send(cluster, "T", numbered(7), queue_id=2)
            report = await admin.topic_stats("T")
            assert (report.count, len(report.queues)) == (7, 6)
            full = next(one for one in report.queues if one.count)
            assert full.queue == MessageQueue("T", "broker-0", 2)
            assert (full.min_offset, full.max_offset) == (0, 7)
            assert report.last_stored_ms == full.last_stored_ms is not None
            assert all(one.last_stored_ms is None for one in report.queues if one is not full)

            await admin.delete_topic("T")
            assert "T" not in await admin.topics()
            with pytest.raises(NoRoute, match="topic T does not exist"):
                await admin.topic_stats("T")

    run(scenario, brokers=2)


def test_what_a_broker_refuses_names_it() -> None:
    """A refusal says which broker it was, and what was done before it."""

    async def scenario(cluster: Cluster) -> None:
        async with Admin(cluster.namesrv) as admin:
            with pytest.raises(InvalidParameter, match=r"broker broker-0: writeQueueNums 0|readQueueNums 0"):
                await admin.create_topic("T", queues=0)
            masters = await admin.masters()
            await cluster.brokers[1].kill()  # between the asking who is there and the change
            with pytest.raises(Unreachable, match="broker broker-1") as caught:
                await admin._change(masters, DeleteTopicInBroker(topic="T"))
            assert caught.value.__notes__ == ["done on broker-0; not on the others"]

    run(scenario, brokers=2)


def test_groups_and_how_far_they_are() -> None:
    """Groups are made, listed, measured queue by queue with those who are in them, and deleted."""

    async def scenario(cluster: Cluster) -> None:
        async with Admin(cluster.namesrv) as admin:
            await admin.create_topic("T", queues=2)
            await send(cluster, "T", numbered(40))
            with pytest.raises(GroupNotExist, match="there are none yet"):
                await admin.lag("nobody")
            await admin.create_group("g")
            await admin.create_group(SubscriptionGroup("other", retry_times_max=3), brokers=["broker-0"])
            assert await admin.groups() == ("g", "other")
            assert "TOOLS_CONSUMER" in await admin.groups(include_system=True)
            with pytest.raises(ConsumerNotOnline, match="group g: none of its consumers"):
                await admin.connections("g")
            with pytest.raises(GroupNotExist, match=r"group nobody does not exist .* there are g, other$"):
                await admin.lag("nobody")
            assert (await admin.lag("g")).queues == ()

            async with PullConsumer(cluster.namesrv, group="g", consume_from=ConsumeFrom.FIRST) as consumer:
                consumer.subscribe("T", tags="*")
                polled = 0
                while polled < 25:
                    polled += len(await consumer.poll(30.0, count_max=5))
                await consumer.commit()
                lag = await admin.lag("g", "T")
                assert (len(lag.queues), lag.total, lag.by_topic()) == (4, 15, {"T": 15})
                assert sum(one.committed_offset for one in lag.queues) == 25
                assert all(one.end_offset == 10 for one in lag.queues)
                assert all(one.last_consumed_ms for one in lag.queues if one.committed_offset)
                there = await admin.connections("g")
                assert len(there.clients) == 1
                assert (there.consume_type, list(there.subscriptions)) == ("CONSUME_ACTIVELY", ["T"])
            await admin.delete_group("g", clean_offsets=True)
            assert await admin.groups() == ("other",)
            assert set((await admin.offsets("g", "T")).values()) == {None}

    run(scenario, brokers=2)


@pytest.mark.promise(174)
def test_offsets_are_moved_by_time_by_hand_and_to_the_end() -> None:
    """A group goes on where it was told to, also while it reads: from a time on, at an offset, behind all."""

    async def scenario(cluster: Cluster) -> None:
        async with Admin(cluster.namesrv) as admin:
            await admin.create_topic("T", queues=1)
            first, second = (MessageQueue("T", name, 0) for name in NAMES)
            async with Producer(cluster.namesrv) as producer:
                for number in range(20):
                    await producer.send(Message("T", b"%d" % number), queue=(first, second)[number % 2])
            async with PullConsumer(cluster.namesrv, group="g", consume_from=ConsumeFrom.FIRST) as consumer:
                consumer.subscribe("T")
                await take(consumer, 20)
                await consumer.commit()
                assert await admin.offsets("g", "T") == {first: 10, second: 10}

                async with QueueReader(cluster.namesrv) as reader:
                    stored_ms = (await reader.pull(first, 0)).messages[6].store_timestamp_ms
                    expected = {queue: await reader.search(queue, stored_ms) for queue in (first, second)}
                assert await admin.reset_offsets("g", "T", stored_ms) == expected
                again = await take(consumer, 20 - sum(expected.values()))
                assert {one.queue_offset for one in again if one.queue == first} == set(
                    range(expected[first], 10)
                )
                await admin.set_offset("g", second, 8)
                assert [one.queue_offset for one in await take(consumer, 2)] == [8, 9]
                assert await consumer.poll(0.05) == []

            await admin.set_offset("g", first, 0)
            assert (await admin.lag("g", "T")).total == 10
            assert await admin.skip_to_end("g", "T") == {first: 10, second: 10}
            assert (await admin.lag("g", "T")).total == 0
            async with PullConsumer(cluster.namesrv, group="g") as consumer:
                consumer.subscribe("T")
                await until(lambda: len(consumer.assignment()) == 2)
                assert await consumer.poll(0.1) == []
            with pytest.raises(ConfigError, match="not on a broker nobody"):
                await admin.set_offset("g", MessageQueue("T", "nobody", 0), 0)
            with pytest.raises(GroupNotExist, match="broker broker-0: Group nobody does not exist"):
                await admin.reset_offsets("nobody", "T", 0)

    async def take(consumer: PullConsumer, count: int) -> list:  # type: ignore[type-arg]
        got: list = []  # type: ignore[type-arg]
        while len(got) < count:
            got += await consumer.poll(30.0)
        return got

    run(scenario, brokers=2)


def test_an_admin_that_does_not_run_refuses() -> None:
    """Asking before the start says what to do."""

    async def scenario(cluster: Cluster) -> None:
        with pytest.raises(NotRunning, match="admin is not running"):
            await Admin(cluster.namesrv).brokers()

    run(scenario)
