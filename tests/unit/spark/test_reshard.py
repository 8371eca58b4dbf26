"""A backlog moved to a topic with more queues, and back: evenly, each message once, gone on with after a
kill.
"""

import json
from collections import Counter
from typing import Any

import pytest
from pyspark.sql import SparkSession

from hotfire import Message, sync
from hotfire.client.admin import Admin
from hotfire.client.bridge import Bridge
from hotfire.errors import ConfigError
from hotfire.model import MessageQueue
from hotfire.spark.pipelines import moving, reshard
from hotfire.spark.pipelines.carrying import COPIED_FROM
from hotfire.spark.pipelines.moving import Way
from tests.unit.spark.conftest import Topics
from tests.unit.spark.running import run_pipeline

pytestmark = pytest.mark.timeout(600)
WAY = Way("billing", "orders", "orders_rescue", "billing_rescue")


@pytest.fixture
def backlog(topics: Topics) -> Topics:
    """Queues of uneven length, of which the group has read some of the first."""
    topics.cluster.create_topic("orders", queues=3)
    with sync.Producer(topics.namesrv) as producer:
        queues = sorted(producer.queues("orders"))
        for queue, count in zip(queues, (50, 7, 0), strict=True):
            messages = [
                Message("orders", b"%d-%d" % (queue.queue_id, number), tag="pay") for number in range(count)
            ]
            for message in messages:
                producer.send(message, queue=queue)
    _commit(topics, "billing", {queues[0]: 10, queues[1]: 0, queues[2]: 0})
    return topics


def _commit(topics: Topics, group: str, places: dict[MessageQueue, int]) -> None:
    async def commit() -> None:
        async with Admin(topics.namesrv) as admin:
            await admin.create_group(group)
            for queue, offset in places.items():
                await admin.set_offset(group, queue, offset)

    Bridge.shared().run(commit())


def _offsets(topics: Topics, group: str, topic: str) -> list[int | None]:
    async def ask() -> list[int | None]:
        async with Admin(topics.namesrv) as admin:
            return [offset for _, offset in sorted((await admin.offsets(group, topic)).items())]

    return Bridge.shared().run(ask())


def _stored(topics: Topics, topic: str) -> dict[MessageQueue, list[bytes]]:
    found: dict[MessageQueue, list[bytes]] = {}
    with sync.QueueReader(topics.namesrv) as reader:
        for queue in reader.queues(topic):
            found[queue] = []
            offset = 0
            while messages := reader.pull(queue, offset).messages:
                found[queue] += [message.body for message in messages]
                offset = messages[-1].queue_offset + 1
    return found


MOVED = sorted([b"0-%d" % number for number in range(10, 50)] + [b"1-%d" % number for number in range(7)])


@pytest.mark.promise(223)
def test_backlog_is_spread_evenly_and_the_group_goes_on_behind_it(
    spark: SparkSession, backlog: Topics, capsys: pytest.CaptureFixture[str]
) -> None:
    """Dealt in rotation every queue has as many as any other or one less, over two rounds; nothing is there
    twice.
    """
    said: dict[str, Any] = {
        "namesrv": backlog.namesrv,
        "group": "billing",
        "topic": "orders",
        "times": 4,
        "json": True,
    }
    assert run_pipeline(spark, reshard, **said) == 0
    (first,) = json.loads(capsys.readouterr().out.splitlines()[-1])["rounds"]
    assert (first["messages"], first["arrived"], first["again"]) == (47, 47, 0)
    stored = _stored(backlog, "orders_rescue")
    assert len(stored) == 12
    assert sorted(body for bodies in stored.values() for body in bodies) == MOVED
    assert _offsets(backlog, "billing", "orders") == [50, 7, 0]
    assert _offsets(backlog, "billing_rescue", "orders_rescue") == [0] * 12

    backlog.send("orders", 8)  # producers were never stopped
    assert run_pipeline(spark, reshard, **said) == 0
    counts = Counter(len(bodies) for bodies in _stored(backlog, "orders_rescue").values())
    assert counts == {4: 5, 5: 7}, "55 messages in 12 queues"
    assert sum(offset or 0 for offset in _offsets(backlog, "billing", "orders")) == 65


def test_copies_say_what_they_are_copies_of(spark: SparkSession, backlog: Topics) -> None:
    """A copy has the body, the tag and the place of its original."""
    assert (
        run_pipeline(spark, reshard, namesrv=backlog.namesrv, group="billing", topic="orders", times=1) == 0
    )
    with sync.QueueReader(backlog.namesrv) as reader:
        messages = [
            message for queue in reader.queues("orders_rescue") for message in reader.pull(queue, 0).messages
        ]
    for message in messages:
        queue_id, number = message.body.decode().split("-")
        assert message.properties[COPIED_FROM] == f"orders/broker-0/{queue_id}/{number}"
        assert message.tag == "pay"


@pytest.mark.promise(207)
def test_move_cut_short_is_gone_on_with(spark: SparkSession, backlog: Topics) -> None:
    """What a killed run had sent is not sent again, what it had not is; only then does the group go on."""

    async def begin() -> None:
        async with Admin(backlog.namesrv) as admin:
            queues = await moving.make_target(admin, WAY, 2)
            await moving.remember(admin, await moving.next_round(admin, WAY, queues))

    Bridge.shared().run(begin())
    with sync.Producer(backlog.namesrv) as producer:  # as far as the killed run came
        for number in range(10, 30):
            mark = {COPIED_FROM: f"orders/broker-0/0/{number}"}
            producer.send(Message("orders_rescue", b"0-%d" % number, properties=mark))
    # uneven now, as this test did not deal them out; what counts is that every message is there once
    assert run_pipeline(spark, reshard, namesrv=backlog.namesrv, group="billing", topic="orders") == 0
    bodies = [body for queue in _stored(backlog, "orders_rescue").values() for body in queue]
    assert sorted(bodies) == MOVED
    assert _offsets(backlog, "billing", "orders") == [50, 7, 0]


@pytest.mark.promise(207)
def test_way_back_waits_for_what_was_moved(spark: SparkSession, backlog: Topics) -> None:
    """While anything moved is not consumed there is no way back, but by moving it back; then nothing is left
    over.
    """
    said: dict[str, Any] = {"namesrv": backlog.namesrv, "group": "billing", "topic": "orders"}
    assert run_pipeline(spark, reshard, times=2, **said) == 0
    with pytest.raises(ConfigError, match="47 messages of topic orders_rescue are not consumed"):
        run_pipeline(spark, reshard, back=True, **said)
    queues = sorted(_stored(backlog, "orders_rescue").items())
    _commit(backlog, "billing_rescue", {queue: len(bodies) for queue, bodies in queues[:4]})
    rest = [body for _, bodies in queues[4:] for body in bodies]
    assert run_pipeline(spark, reshard, back=True, return_rest=True, drop=True, **said) == 0
    waiting = [
        body
        for (_, bodies), offset in zip(
            sorted(_stored(backlog, "orders").items()), _offsets(backlog, "billing", "orders"), strict=True
        )
        for body in bodies[offset or 0 :]
    ]
    assert sorted(waiting) == sorted(rest), "what is left to the group is what the rescue did not consume"


@pytest.mark.promise(207)
def test_way_back_drops_nothing_that_was_not_moved(spark: SparkSession, backlog: Topics) -> None:
    """A way back that was cut short moves what it had meant to; of what came since nothing is dropped, until
    it is moved as well.
    """
    said: dict[str, Any] = {"namesrv": backlog.namesrv, "group": "billing", "topic": "orders"}
    assert run_pipeline(spark, reshard, times=2, **said) == 0

    async def begin_back() -> None:
        again = Way("billing_rescue", "orders_rescue", "orders", "billing")
        async with Admin(backlog.namesrv) as admin:
            queues = await moving.make_target(admin, again, 1)
            await moving.remember(admin, await moving.next_round(admin, again, queues))

    Bridge.shared().run(begin_back())
    later = backlog.send("orders_rescue", 3)
    with pytest.raises(ConfigError, match="topic orders_rescue has 3 more messages that are not consumed"):
        run_pipeline(spark, reshard, back=True, return_rest=True, drop=True, **said)
    assert run_pipeline(spark, reshard, back=True, return_rest=True, drop=True, **said) == 0
    bodies = [body for queue in _stored(backlog, "orders").values() for body in queue]
    came_back = Counter(bodies) - Counter(
        [b"0-%d" % number for number in range(50)] + [b"1-%d" % number for number in range(7)]
    )
    assert came_back == Counter([*MOVED, *later])
