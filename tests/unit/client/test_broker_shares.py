"""Members whose broker says which queues are theirs, and what they do where it does not."""

import asyncio
import json
from collections import Counter
from functools import partial
from typing import Any

import pytest

from hotfire import Consumer, MessageQueue, PullConsumer
from hotfire.allocation import BY_CIRCLE, CONSISTENT_HASH, Strategy, by_broker, by_config
from hotfire.broker.call import HANDLERS, PARKED, Answer, Outcome
from hotfire.errors import BrokerRefused
from hotfire.protocol.assignment import POP, Assignment, Assignments
from hotfire.protocol.bodies import encode_body
from hotfire.protocol.codes import ResponseCode
from hotfire.protocol.requests import GetConsumerListByGroup, QueryAssignment
from hotfire.testing import Cluster
from tests.unit.client.consuming import Seen, Wire, run, settles, turn
from tests.unit.client.test_consumer_members import ids, member


@pytest.mark.promise(114)
@pytest.mark.parametrize("kind", [Consumer, PullConsumer])
def test_members_may_have_their_broker_share_the_queues(
    kind: type[Consumer] | type[PullConsumer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the strategy each names; they ask the broker for their own share, and nobody for the others' names.
    A member that the broker forgot says that it is there, and keeps its queues."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.create_topic("T", queues=5)
        wire = Wire(monkeypatch)
        for group, allocation, expected in (
            ("g", "BROKER", [[0, 1, 2], [3, 4]]), ("h", by_broker(BY_CIRCLE), [[0, 2, 4], [1, 3]]),
        ):  # fmt: skip
            members = [told_by_broker(kind, cluster, group, allocation, n) for n in range(2)]
            for one in members:
                await one.start()
            await settles(cluster, lambda: [has(one) for one in members] == expected, within_s=5)  # noqa: B023
            broker = cluster.brokers[0].program.broker  # type: ignore[union-attr]
            broker.clients.consumers[group].members.clear()
            await members[0].rebalance()
            assert has(members[0]) == list(range(5)), "the other was forgotten too, and has said nothing yet"
            await members[1].rebalance()
            await settles(cluster, lambda: [has(one) for one in members] == expected, within_s=5)  # noqa: B023
            await members.pop().close()
            await settles(cluster, lambda: has(members[0]) == list(range(5)), within_s=5)  # noqa: B023
            await members[0].close()
        assert {json.loads(query.body)["strategyName"] for query in wire.of(QueryAssignment)} == {
            "AVG", "AVG_BY_CIRCLE",
        }  # fmt: skip
        assert wire.of(GetConsumerListByGroup) == []

    run(scenario)


def told_by_broker(
    kind: type[Consumer] | type[PullConsumer], cluster: Cluster, group: str, allocation: Any, number: int
) -> Consumer | PullConsumer:
    consumer = kind(cluster.namesrv, group=group, allocation=allocation, instance_name=f"{group}-{number}")
    if isinstance(consumer, Consumer):
        consumer.subscribe("T", Seen())
    else:
        consumer.subscribe("T")
    return consumer


def has(consumer: Consumer | PullConsumer) -> list[int]:
    if isinstance(consumer, Consumer):
        return ids(consumer)
    return sorted(queue.queue_id for queue in consumer.assignment())


@pytest.mark.promise(114)
@pytest.mark.parametrize("orderly", [False, True], ids=["refused", "orderly"])
def test_where_no_broker_shares_members_do_it_themselves(
    orderly: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that does not know the question is asked once for each topic; by orderly members never."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.create_topic("T", queues=4)
        monkeypatch.setitem(HANDLERS, QueryAssignment, not_supported)
        wire = Wire(monkeypatch)
        members = [
            member(cluster, Seen(), allocation="BROKER", orderly=orderly, instance_name=f"m{n}")
            for n in range(2)
        ]
        for one in members:
            await one.start()
        await settles(cluster, lambda: [ids(one) for one in members] == [[0, 1], [2, 3]], within_s=10)
        await turn(cluster, 21)
        asked = Counter(
            (query["clientId"], query["topic"])
            for query in (json.loads(query.body) for query in wire.of(QueryAssignment))
        )
        assert set(asked.values()) == (set() if orderly else {1})
        for one in members:
            await one.close()

    run(scenario)


def not_supported(*_: object) -> Outcome:
    raise BrokerRefused(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, " request type 400 not supported")


def test_a_broker_that_told_shares_is_not_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """It refuses for a while, cannot say, or would have us pop: we keep what we have, and ask again."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.create_topic("T", queues=4)
        async with member(cluster, Seen(), allocation="BROKER") as consumer:
            assert ids(consumer) == [0, 1, 2, 3]
            popped = Assignments((Assignment(MessageQueue("T", "broker-0", 0), POP),))
            shrunk = Assignments((Assignment(MessageQueue("T", "broker-0", 2)),))
            wire = Wire(monkeypatch)
            for answer in (not_supported, Assignments(None), popped):
                give = answer if callable(answer) else partial(told, answer)
                monkeypatch.setitem(HANDLERS, QueryAssignment, give)
                assert not await consumer.rebalance()
                assert ids(consumer) == [0, 1, 2, 3]
            monkeypatch.setitem(HANDLERS, QueryAssignment, partial(told, shrunk))
            await consumer.rebalance()
            assert ids(consumer) == [2]
            assert wire.of(GetConsumerListByGroup) == []

    run(scenario)


def told(answer: Assignments, *_: object) -> Outcome:
    return Answer(body=encode_body(answer))


def test_a_broker_that_is_silent_about_shares_is_asked_three_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then members share by themselves, as Java's do."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.create_topic("T", queues=4)
        monkeypatch.setitem(HANDLERS, QueryAssignment, lambda *_: PARKED)
        wire = Wire(monkeypatch)
        consumer = member(cluster, Seen(), allocation="BROKER", group="quiet")
        starting = asyncio.ensure_future(consumer.start())
        await settles(cluster, starting.done, within_s=4)
        await settles(cluster, lambda: ids(consumer) == [0, 1, 2, 3], within_s=30)
        topics = [json.loads(query.body)["topic"] for query in wire.of(QueryAssignment)]
        assert topics.count("T") in (3, 4), "the start may be over before the first answer is"
        await consumer.close()

    run(scenario)


@pytest.mark.parametrize("strategy", [CONSISTENT_HASH, by_config([])])
def test_brokers_share_by_the_strategies_they_know(strategy: Strategy) -> None:
    """Others are told by each client what a broker cannot know."""
    with pytest.raises(ValueError, match=f"brokers do not know the strategy {strategy.name}"):
        by_broker(strategy)
