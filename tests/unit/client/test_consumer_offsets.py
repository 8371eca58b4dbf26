"""How far a group is: committed when everything before is done, kept by brokers, taken over by the next."""

import asyncio

import pytest

from hotfire import MessageQueue
from hotfire.client.consumer import Consumer
from hotfire.client.consumersettings import ConsumeFrom
from hotfire.model import ReceivedMessage
from hotfire.net.clock import now_ms
from hotfire.protocol.bodies import decode_body, encode_body
from hotfire.protocol.members import ConsumerStatus, ResetOffsets
from hotfire.protocol.requests import GetConsumerStatus, PullMessage, ResetConsumerOffset, ResetOffset
from hotfire.store.store import Store
from hotfire.testing import Cluster
from tests.unit.client.consuming import Seen, Wire, ask, committed, numbered, run, send, settles, turn, until
from tests.unit.client.test_consumer_orderly import die


class Stuck:
    """A listener that keeps one message until it is let go."""

    def __init__(self, body: bytes) -> None:
        self.seen: list[bytes] = []
        self._body = body
        self.go = asyncio.Event()

    async def __call__(self, message: ReceivedMessage) -> None:
        if message.body == self._body:
            await self.go.wait()
        self.seen.append(message.body)


@pytest.mark.promise(168, 169, 170, 171)
def test_the_smallest_unfinished_offset_is_committed() -> None:
    """All done: behind the last. The first stuck: it stays there, then jumps. Kept within ten seconds."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.create_topic("T", queues=1)
        stuck = Stuck(b"11")
        async with Consumer(cluster.namesrv, group="g") as consumer:
            consumer.subscribe("T", stuck)
            await consumer.ready()
            await send(cluster, "T", numbered(8))
            await until(lambda: len(stuck.seen) == 8)
            await turn(cluster, 10)
            assert committed(cluster, "T", "g") == 8
            await send(cluster, "T", numbered(3, first=8))
            await until(lambda: len(stuck.seen) == 11)
            await turn(cluster, 10)
            assert committed(cluster, "T", "g") == 11
            await send(cluster, "T", numbered(10, first=11))
            await until(lambda: len(stuck.seen) == 20)
            await turn(cluster, 30)
            assert committed(cluster, "T", "g") == 11
            stuck.go.set()
            table = cluster.brokers[0].directory / "config" / "consumerOffset.json"
            await settles(cluster, lambda: '"T@g":{0:21}' in table.read_text(), within_s=10.5)

    run(scenario)


@pytest.mark.promise(172, 173, 199)
def test_what_was_stuck_when_its_consumer_died_goes_to_the_next_owner() -> None:
    """Messages behind the stuck one, done or not, are delivered again; none before, and none is left out."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.create_topic("T", queues=1)
        await send(cluster, "T", numbered(11))
        stuck = Stuck(b"1")
        consumer = Consumer(cluster.namesrv, group="g")
        consumer.subscribe("T", stuck)
        await consumer.start()
        await until(lambda: len(stuck.seen) == 10)
        await turn(cluster, 10)
        await die(consumer)
        heir = Seen()
        taking_over = Consumer(cluster.namesrv, group="g")
        taking_over.subscribe("T", heir)
        async with taking_over:
            assert sorted(message.queue_offset for message in await heir.count(10)) == list(range(1, 11))
            await turn(cluster, 5)
            assert len(heir.messages) == 10

    run(scenario)


@pytest.mark.promise(168)
def test_pulls_carry_the_offset(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pull commits what was done before it, without waiting for the timer."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.create_topic("T", queues=1)
        wire, seen = Wire(monkeypatch), Seen()
        async with Consumer(cluster.namesrv, group="g") as consumer:
            consumer.subscribe("T", seen)
            await consumer.ready()
            for number in range(3):
                await send(cluster, "T", numbered(1))
                await seen.count(number + 1)
            await until(lambda: (committed(cluster, "T", "g") or 0) >= 2)
            carried = [
                pull.commit_offset for pull in wire.of(PullMessage) if pull.sys_flag & 1 and pull.topic == "T"
            ]
            assert max(carried) >= 2
            assert all(not pull.sys_flag & 1 for pull in wire.of(PullMessage) if not pull.commit_offset)

    run(scenario)


@pytest.mark.promise(106, 167)
@pytest.mark.timeout(120)
def test_each_group_gets_every_message_and_each_message_one_member() -> None:
    """2 groups of 3 members, 2000 messages: each group has them all, none twice; a third group later, too."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.create_topic("T", queues=6)
        groups: dict[str, list[Seen]] = {"a": [], "b": []}
        consumers = []
        for group, members in groups.items():
            for _ in range(3):
                members.append(Seen())
                consumer = Consumer(cluster.namesrv, group=group)
                consumer.subscribe("T", members[-1])
                await consumer.start()
                consumers.append(consumer)
        await turn(cluster, 3)
        assert [len(own_queues(consumer)) for consumer in consumers] == [2] * 6
        await send(cluster, "T", numbered(2000))
        for members in groups.values():
            await until(lambda members=members: sum(len(one.messages) for one in members) >= 2000)
        await turn(cluster, 5)
        for consumer in consumers:
            await consumer.close()
        for members in groups.values():
            assert all(one.messages for one in members)
            assert sorted(int(body) for one in members for body in one.bodies) == list(range(2000))
        late = Seen()
        consumer = Consumer(cluster.namesrv, group="c", consume_from=ConsumeFrom.FIRST)
        consumer.subscribe("T", late)
        async with consumer:
            await late.count(2000)

    run(scenario)


def own_queues(consumer: Consumer) -> list[MessageQueue]:
    return [queue for queue in consumer.queues if queue.topic == "T"]


def test_where_a_group_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    """LAST behind what is there, FIRST at the beginning, TIMESTAMP at a time, by default half an hour ago."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.create_topic("T", queues=1)
        await send(cluster, "T", numbered(3))
        await turn(cluster, 100)
        at_ms = now_ms() - 50_000
        await send(cluster, "T", numbered(3, first=3))
        # An old queue: its beginning is not in memory any more, or a new group would begin there in any case.
        monkeypatch.setattr(Store, "memory_window", 0)
        cases = (
            ("last", {"consume_from": ConsumeFrom.LAST}, 6),
            ("first", {"consume_from": ConsumeFrom.FIRST}, 0),
            ("time", {"consume_from": ConsumeFrom.TIMESTAMP, "consume_timestamp_ms": at_ms}, 3),
            ("half an hour", {"consume_from": ConsumeFrom.TIMESTAMP}, 0),
        )
        for name, choice, expected in cases:
            seen = Seen()
            consumer = Consumer(cluster.namesrv, group=name.replace(" ", "-"), **choice)
            consumer.subscribe("T", seen)
            async with consumer:
                (one,) = [one for one in consumer._running.table.held() if one.queue.topic == "T"]
                await seen.count(6 - expected)
                assert seen.bodies == numbered(6 - expected, first=expected)
                assert one.next_offset == 6

    run(scenario)


@pytest.mark.promise(174)
def test_a_reset_at_the_broker_moves_a_running_group(caplog: pytest.LogCaptureFixture) -> None:
    """By time, and one queue by hand: what lies there is read again, at once and in full.

    The log has a line for each that changes anything.
    """

    async def scenario(cluster: Cluster) -> None:
        await cluster.create_topic("T", queues=1)
        await send(cluster, "T", numbered(5))
        await turn(cluster, 100)
        at_ms = now_ms() - 50_000
        seen = Seen()
        consumer = Consumer(cluster.namesrv, group="g")
        consumer.subscribe("T", seen)
        async with consumer:
            await send(cluster, "T", numbered(5, first=5))
            await seen.count(10)
            await ask(cluster, ResetOffset(topic="T", group="g", timestamp=at_ms))
            await turn(cluster, 5)
            assert seen.bodies[10:] == numbered(5, first=5)
            await ask(cluster, ResetOffset(topic="T", group="g", timestamp=0, queue_id=0, offset=9))
            await turn(cluster, 5)
            assert seen.bodies[15:] == [b"9"]
            await turn(cluster, 10)
            assert committed(cluster, "T", "g") == 10
            assert caplog.text.count("was set from outside") == 2
            await ask(cluster, ResetOffset(topic="T", group="g", timestamp=0, queue_id=0, offset=10))
            await turn(cluster, 5)
            assert caplog.text.count("was set from outside") == 2
            await send(cluster, "T", numbered(1, first=10))
            await seen.count(17)
            assert seen.bodies[16:] == [b"10"]

    run(scenario)


@pytest.mark.promise(174)
def test_a_reset_that_a_broker_passes_on_is_followed() -> None:
    """Brokers that leave resets to clients send offsets: handled ones come again, running ones are void."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.create_topic("T", queues=1)
        await send(cluster, "T", numbered(5))
        stuck = Stuck(b"4")
        async with Consumer(cluster.namesrv, group="g") as consumer:
            consumer.subscribe("T", stuck)
            await until(lambda: len(stuck.seen) == 4)
            body = encode_body(ResetOffsets({MessageQueue("T", "broker-0", 0): 2}))
            answer = consumer.asked(ResetConsumerOffset(topic="T", group="g", timestamp=0, body=body))
            assert answer is not None
            resetting = asyncio.ensure_future(answer)  # type: ignore[arg-type]
            await asyncio.sleep(0)
            stuck.go.set()
            await turn(cluster, 12)
            await resetting
            await turn(cluster, 5)
            await until(lambda: stuck.seen == [*numbered(5), b"2", b"3", b"4"])
            await turn(cluster, 6)
            assert committed(cluster, "T", "g") == 5

    run(scenario)


def test_administrators_see_what_a_consumer_has() -> None:
    """The offsets in its memory are told, by queue, when a broker asks for them."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.create_topic("T", queues=1)
        await send(cluster, "T", numbered(3))
        seen = Seen()
        consumer = Consumer(cluster.namesrv, group="g")
        consumer.subscribe("T", seen)
        async with consumer:
            await seen.count(3)
            body = await ask(cluster, GetConsumerStatus(topic="T", group="g"))
            told = decode_body(ConsumerStatus, body)
            client_id = consumer._running.instance.client_id
            assert told.clients == {client_id: {MessageQueue("T", "broker-0", 0): 3}}

    run(scenario)


def test_an_offset_that_is_gone_is_passed_over() -> None:
    """The broker no longer has what the group asks for: it goes on at the first message that is there."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.create_topic("T", queues=1)
        await send(cluster, "T", numbered(6))
        program = cluster.brokers[0].program
        assert program is not None
        queue = program.broker.store.find_queue("T", 0)
        assert queue is not None
        queue.min = 4
        seen = Seen()
        consumer = Consumer(cluster.namesrv, group="g", consume_from=ConsumeFrom.FIRST)
        consumer.subscribe("T", seen)
        async with consumer:
            await seen.count(2)
            assert seen.bodies == [b"4", b"5"]

    run(scenario)
