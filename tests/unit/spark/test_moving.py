"""Rounds of a move, at brokers in the test's process: planned, remembered, gone on with, ended."""

import asyncio

import pytest

from hotfire import Consumer, Message, Producer
from hotfire.client.admin import Admin
from hotfire.client.consumersettings import ConsumeFrom
from hotfire.errors import ConfigError
from hotfire.model import MessageQueue
from hotfire.spark.offsets import Range
from hotfire.spark.pipelines import moving
from hotfire.spark.pipelines.moving import Way
from hotfire.testing import Cluster

WAY = Way("billing", "orders", "orders_rescue", "billing_rescue")


async def _backlog(cluster: Cluster, count: int = 10) -> list[MessageQueue]:
    """Two queues of messages, of which group billing has read the first one of each."""
    await cluster.create_topic("orders", queues=2)
    async with Producer(cluster.namesrv) as producer:
        queues = sorted(await producer.queues("orders"))
        for number in range(count):
            await producer.send(Message("orders", b"%d" % number), queue=queues[number % 2])
    async with Admin(cluster.namesrv) as admin:
        await admin.create_group("billing")
        for queue in queues:
            await admin.set_offset("billing", queue, 1)
    return queues


def test_target_has_so_many_times_the_queues_on_each_broker() -> None:
    """The topic moved to has N times the queues of the one that is left, on the same brokers."""

    async def story() -> None:
        async with Cluster(brokers=2) as cluster, Admin(cluster.namesrv) as admin:
            await admin.create_topic("orders", queues=2)
            queues = await moving.make_target(admin, WAY, 5)
            assert len(queues) == 20
            assert {queue.broker_name for queue in queues} == {node.name for node in cluster.brokers}
            assert await moving.make_target(admin, WAY, 99) == queues, (
                "a topic that is there is taken as it is"
            )

    asyncio.run(story())


def test_round_is_from_the_group_to_the_end_of_the_topic() -> None:
    """What is moved begins where the group is, and ends where the topic ended when the round was planned."""

    async def story() -> None:
        async with Cluster() as cluster, Admin(cluster.namesrv) as admin:
            first, second = await _backlog(cluster)
            queues = await moving.make_target(admin, WAY, 3)
            one = await moving.next_round(admin, WAY, queues)
            assert one.ranges == (Range(first, 1, 5), Range(second, 1, 5))
            assert (one.count, one.first_turn, one.is_resumed) == (8, 0, False)

    asyncio.run(story())


def test_round_cut_short_is_gone_on_with_and_its_end_stays() -> None:
    """A round whose process died has the end it had, whatever was sent since; once ended, the next begins
    there.
    """

    async def story() -> None:
        async with Cluster() as cluster, Admin(cluster.namesrv) as admin:
            first, second = await _backlog(cluster)
            queues = await moving.make_target(admin, WAY, 3)
            one = await moving.next_round(admin, WAY, queues)
            await moving.remember(admin, one)
            async with Producer(cluster.namesrv) as producer:
                await producer.send(Message("orders", b"later"), queue=first)
            again = await moving.next_round(admin, WAY, queues)
            assert again.is_resumed
            assert (again.ranges, again.ends, again.arrived) == (one.ranges, one.ends, one.arrived)

            await moving.finish(admin, again)
            assert await admin.offsets("billing", "orders") == {first: 5, second: 5}
            following = await moving.next_round(admin, WAY, queues)
            assert not following.is_resumed
            assert following.ranges == (Range(first, 5, 6),)

    asyncio.run(story())


def test_round_whose_beginning_was_cut_short_begins_anew() -> None:
    """Offsets remembered of one topic only are no round: nothing was sent for it yet."""

    async def story() -> None:
        async with Cluster() as cluster, Admin(cluster.namesrv) as admin:
            first, _ = await _backlog(cluster)
            queues = await moving.make_target(admin, WAY, 3)
            await admin.create_group(WAY.memory)
            await admin.set_offset(WAY.memory, first, 3)
            one = await moving.next_round(admin, WAY, queues)
            assert not one.is_resumed
            assert one.ranges[0] == Range(first, 1, 5)

    asyncio.run(story())


def test_round_cut_short_stays_the_same_when_topics_get_queues() -> None:
    """Queues that either topic got since are none of the round's: what was sent for it is not sent again."""

    async def story() -> None:
        async with Cluster() as cluster, Admin(cluster.namesrv) as admin:
            await _backlog(cluster)
            one = await moving.next_round(admin, WAY, await moving.make_target(admin, WAY, 3))
            await moving.remember(admin, one)
            await admin.create_topic("orders", queues=3)
            await admin.create_topic("orders_rescue", queues=8)
            queues = await moving.make_target(admin, WAY, 3)
            assert len(queues) == 8
            again = await moving.next_round(admin, WAY, queues)
            assert again.is_resumed
            assert (again.ranges, again.ends) == (one.ranges, one.ends)
            assert again.arrived == dict.fromkeys(queues, 0)

    asyncio.run(story())


def test_round_of_which_a_broker_is_away_is_not_gone_on_with() -> None:
    """Without one of its brokers nobody knows what of a round was sent: it stays as it is."""

    async def story() -> None:
        async with Cluster(brokers=2) as cluster, Admin(cluster.namesrv) as admin:
            await _backlog(cluster)
            queues = await moving.make_target(admin, WAY, 2)
            one = await moving.next_round(admin, WAY, queues)
            await moving.remember(admin, one)
            await cluster.brokers[1].stop()
            left = await moving.make_target(admin, WAY, 2)
            assert {queue.broker_name for queue in left} == {cluster.brokers[0].name}
            with pytest.raises(ConfigError, match=r"of its 12 queues 6 are in no route"):
                await moving.next_round(admin, WAY, left)
            assert await moving._sealed(admin, WAY.memory) == 12

    asyncio.run(story())


def test_round_that_was_ended_but_for_its_memory_is_forgotten() -> None:
    """A round whose messages the group has behind it is over: the next one has what came since."""

    async def story() -> None:
        async with Cluster() as cluster, Admin(cluster.namesrv) as admin:
            first, second = await _backlog(cluster)
            queues = await moving.make_target(admin, WAY, 3)
            await moving.remember(admin, await moving.next_round(admin, WAY, queues))
            for queue in (first, second):
                await admin.set_offset("billing", queue, 5)
            async with Producer(cluster.namesrv) as producer:
                await producer.send(Message("orders", b"later"), queue=second)
            one = await moving.next_round(admin, WAY, queues)
            assert not one.is_resumed
            assert one.ranges == (Range(second, 5, 6),)

    asyncio.run(story())


def test_end_of_a_round_moves_no_group_back() -> None:
    """A group that has read on meanwhile stays where it is."""

    async def story() -> None:
        async with Cluster() as cluster, Admin(cluster.namesrv) as admin:
            first, second = await _backlog(cluster)
            one = await moving.next_round(admin, WAY, await moving.make_target(admin, WAY, 3))
            await moving.remember(admin, one)
            async with Producer(cluster.namesrv) as producer:
                await producer.send(Message("orders", b"later"), queue=first)
            await admin.set_offset("billing", first, 6)
            await moving.finish(admin, one)
            assert await admin.offsets("billing", "orders") == {first: 6, second: 5}

    asyncio.run(story())


def test_group_that_has_read_nothing_is_no_beginning() -> None:
    """Where a group has no offset at all there is nothing to move from, and the next step is said."""

    async def story() -> None:
        async with Cluster() as cluster, Admin(cluster.namesrv) as admin:
            await _backlog(cluster)
            queues = await moving.make_target(admin, WAY, 3)
            await admin.create_group("audit")
            with pytest.raises(ConfigError, match="hotfire offset reset audit orders --to earliest"):
                await moving.next_round(admin, Way("audit", "orders", "orders_rescue", "r"), queues)

    asyncio.run(story())


def test_consumers_that_run_are_named_before_anything_is_moved() -> None:
    """While consumers of the group are connected nothing is moved, unless the operator insists."""

    async def story() -> None:
        async with Cluster() as cluster, Admin(cluster.namesrv) as admin:
            await _backlog(cluster)
            assert await moving.check_stopped(admin, "billing", force=False) == 0
            async with Consumer(cluster.namesrv, group="billing", consume_from=ConsumeFrom.FIRST) as consumer:
                consumed = asyncio.Event()

                async def handle(message: object) -> None:
                    consumed.set()

                consumer.subscribe("orders", handle)
                await asyncio.wait_for(consumed.wait(), 20)
                with pytest.raises(ConfigError, match="1 consumers of group billing are connected"):
                    await moving.check_stopped(admin, "billing", force=False)
                assert await moving.check_stopped(admin, "billing", force=True) == 1

    asyncio.run(story())


def test_group_of_the_rescue_begins_with_the_first_message() -> None:
    """Consumers of the rescue that start later, whatever they are set to, miss none; those under way are not
    moved.
    """

    async def story() -> None:
        async with Cluster() as cluster, Admin(cluster.namesrv) as admin:
            await _backlog(cluster)
            queues = await moving.make_target(admin, WAY, 2)
            await moving.make_group(admin, "billing_rescue", dict.fromkeys(queues, 0))
            assert set((await admin.offsets("billing_rescue", "orders_rescue")).values()) == {0}
            await admin.set_offset("billing_rescue", queues[0], 0)
            await moving.make_group(admin, "billing_rescue", dict.fromkeys(queues, 7))
            assert set((await admin.offsets("billing_rescue", "orders_rescue")).values()) == {0}

    asyncio.run(story())
