"""Messages a listener could not handle: they come again, later and later, and in the end are laid aside."""

import asyncio
from itertools import pairwise

import pytest

from hotfire import QueueReader
from hotfire.client.consumer import Consumer
from hotfire.client.consumersettings import ConsumeFrom, Pace
from hotfire.errors import HotfireError
from hotfire.model import ReceivedMessage, dlq_topic, retry_topic
from hotfire.net.clock import now_ms
from hotfire.protocol.codes import ResponseCode
from hotfire.protocol.requests import ConsumerSendMsgBack, SendMessageV2
from hotfire.testing import Cluster
from tests.unit.client.consuming import Seen, Wire, committed, numbered, run, send, turn, until

STUCK_S = 60.0
STEPS_S = (10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)


@pytest.mark.promise(100, 102, 162)
def test_a_failed_message_comes_again_as_it_was() -> None:
    """Fail once: it comes again after ten seconds, counted, with its own topic, tag and keys."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.create_topic("T", queues=1)
        seen = Seen(fails=lambda message: message.reconsume_times == 0)
        async with Consumer(cluster.namesrv, group="g") as consumer:
            consumer.subscribe("T", seen, tags="t")
            await consumer.ready()
            await send(cluster, "T", [b"x"], tag="t", keys=("k",), properties={"mine": "1"})
            await seen.count(1)
            await until(lambda: committed(cluster, "%RETRY%g", "g") is not None or len(seen.messages) == 1)
            await turn(cluster, 9)
            assert len(seen.messages) == 1
            await turn(cluster, 2)
            first, again = await seen.count(2)
            assert again.reconsume_times == 1
            assert again.queue.topic == retry_topic("g")
            for name in ("topic", "body", "tag", "keys", "message_id"):
                assert getattr(again, name) == getattr(first, name), name
            assert again.properties["mine"] == "1"

    run(scenario)


@pytest.mark.promise(163, 164, 165)
@pytest.mark.timeout(180)
def test_sixteen_retries_with_growing_intervals_then_the_dead_letters() -> None:
    """10 s, 30 s, 1 m … 2 h; the failure after the last puts it into a topic that is read like others."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.create_topic("T", queues=1)
        times: list[int] = []

        async def fail(message: ReceivedMessage) -> bool:
            times.append(now_ms())
            return False

        async with Consumer(cluster.namesrv, group="g") as consumer:
            consumer.subscribe("T", fail)
            await consumer.ready()
            await send(cluster, "T", [b"doomed"])
            for tries, step_s in enumerate(STEPS_S, 1):
                await until(lambda tries=tries: len(times) == tries)
                await cluster.clock.settle()
                await turn(cluster, step_s + 1)
            await until(lambda: len(times) == 17)
            await turn(cluster, 60)
            assert len(times) == 17
        gaps_s = [(after - before) / 1000 for before, after in pairwise(times)]
        assert [gap_s >= step_s for gap_s, step_s in zip(gaps_s, STEPS_S, strict=True)] == [True] * 16
        assert [gap_s < step_s + 9 for gap_s, step_s in zip(gaps_s, STEPS_S, strict=True)] == [True] * 16
        again = Seen()
        reader = Consumer(cluster.namesrv, group="undertaker", consume_from=ConsumeFrom.FIRST)
        reader.subscribe(dlq_topic("g"), again)
        async with reader:
            (dead,) = await again.count(1)
            assert (dead.body, dead.properties["RETRY_TOPIC"]) == (b"doomed", "T")
        await send(cluster, dead.properties["RETRY_TOPIC"], [dead.body])  # another try, in its own topic
        redriven = Seen()
        consumer = Consumer(cluster.namesrv, group="g")
        consumer.subscribe("T", redriven)
        async with consumer:
            (alive,) = await redriven.count(1)
            assert (alive.body, alive.reconsume_times) == (b"doomed", 0)

    run(scenario)


def test_the_listener_may_choose_the_delay_or_the_dead_letters() -> None:
    """A delay level of its own for the next try; -1 gives it up at once. retries_max bounds the tries."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.create_topic("T", queues=1)
        calls: list[bytes] = []

        async def handle(message: ReceivedMessage, context: object) -> bool:
            calls.append(message.body)
            context.delay_level = {b"soon": 1, b"never": -1}.get(message.body, 1)  # type: ignore[attr-defined]
            return False

        async with Consumer(cluster.namesrv, group="g", retries_max=2) as consumer:
            consumer.subscribe("T", handle)
            await consumer.ready()
            await send(cluster, "T", [b"soon", b"never"])
            await until(lambda: len(calls) >= 2)
            for _ in range(10):
                await turn(cluster, 2)
            assert sorted(calls) == [b"never", b"soon", b"soon", b"soon"]
            program = cluster.brokers[0].program
            assert program is not None
            queue = program.broker.store.find_queue(dlq_topic("g"), 0)
            assert queue is not None
            assert queue.max == 2

    run(scenario)


@pytest.mark.promise(166)
def test_what_cannot_be_given_back_is_tried_again_here() -> None:
    """The broker goes while a message fails: it is handled again after 5 s, and its offset is not lost."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.create_topic("T", queues=1)
        broker, entered, leave = cluster.brokers[0], asyncio.Event(), asyncio.Event()
        tries: list[int] = []

        async def handle(message: ReceivedMessage) -> bool:
            tries.append(message.reconsume_times)
            entered.set()
            await leave.wait()
            return len(tries) > 1

        async with Consumer(cluster.namesrv, group="g") as consumer:
            consumer.subscribe("T", handle)
            await consumer.ready()
            await send(cluster, "T", [b"x"])
            await entered.wait()
            await broker.kill()
            leave.set()
            await turn(cluster, 4)
            assert tries == [0]
            await turn(cluster, 4)
            assert tries == [0, 1]
            await broker.start()
            await turn(cluster, 40)
            await until(lambda: committed(cluster, "T", "g") == 1)
            assert tries == [0, 1]

    run(scenario)


def test_a_refused_send_back_goes_to_the_retry_topic_as_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker does not have the message in its log any more: it is sent anew, and comes again."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.create_topic("T", queues=1)
        wire, seen = Wire(monkeypatch), Seen(fails=lambda message: message.reconsume_times == 0)
        to_command = ConsumerSendMsgBack.to_command

        def elsewhere(request: ConsumerSendMsgBack, **rest: object) -> object:
            command = to_command(request, **rest)  # type: ignore[arg-type]
            assert command.fields is not None
            command.fields["offset"] = "123456789"
            return command

        monkeypatch.setattr(ConsumerSendMsgBack, "to_command", elsewhere)
        async with Consumer(cluster.namesrv, group="g") as consumer:
            consumer.subscribe("T", seen)
            await consumer.ready()
            await send(cluster, "T", [b"x" * 5000], tag="t", keys=("k",))
            await until(lambda: any(one.topic == retry_topic("g") for one in wire.of(SendMessageV2)))
            await turn(cluster, 11)
            first, again = await seen.count(2)
            assert (again.reconsume_times, again.topic, again.body) == (1, "T", first.body)
            assert (again.tag, again.keys, again.message_id) == (first.tag, first.keys, first.message_id)
            assert again.properties["ORIGIN_MESSAGE_ID"] == first.message_id
            (sent,) = [one for one in wire.of(SendMessageV2) if one.topic == retry_topic("g")]
            assert (sent.reconsume_times, sent.max_reconsume_times) == (1, 16)

    run(scenario)


@pytest.mark.promise(103)
def test_a_stuck_message_is_sent_back_and_holds_nothing_up() -> None:
    """A listener hangs on one of ten: after the timeout it comes again by retry, and the offset moves on."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.create_topic("T", queues=1)
        forever, seen = asyncio.Event(), []

        async def handle(message: ReceivedMessage) -> None:
            seen.append((message.body, message.reconsume_times))
            if message.body == b"3" and message.reconsume_times == 0:
                await forever.wait()

        async with Consumer(cluster.namesrv, group="g", consume_timeout_s=60.0) as consumer:
            consumer.subscribe("T", handle)
            await consumer.ready()
            await send(cluster, "T", numbered(10))
            await until(lambda: len(seen) == 10)
            await turn(cluster, 50)
            assert committed(cluster, "T", "g") == 3
            await turn(cluster, 70)
            await until(lambda: committed(cluster, "T", "g") == 10)
            await turn(cluster, 15)
            assert (b"3", 1) in seen
            forever.set()  # it comes to an end after all: nothing is given back twice
            await turn(cluster, 30)
            assert len(seen) == 11

    run(scenario)


def test_a_broker_that_says_busy_makes_pulls_wait_a_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flow control of the broker delays a pull by 20 ms, any other refusal by a second; then it goes on."""
    waits: list[float] = []

    async def scenario(cluster: Cluster) -> None:
        await cluster.create_topic("T", queues=1)
        seen = Seen()
        async with Consumer(cluster.namesrv, group="g", pace=Pace(look_again_s=0.5)) as consumer:
            loop = consumer._running._pull_loop
            pull, codes = loop._puller._read, [ResponseCode.FLOW_CONTROL, ResponseCode.SYSTEM_ERROR]
            delay = loop._delay

            def read(queue: object, offset: object, wanted: object, reply: object) -> object:
                if codes and queue.topic == "T":  # type: ignore[attr-defined]
                    reply.code = codes.pop(0)  # type: ignore[attr-defined]
                return pull(queue, offset, wanted, reply)  # type: ignore[arg-type]

            async def measured(queue: object, error: object) -> float:
                waits.append(await delay(queue, error))  # type: ignore[arg-type]
                return waits[-1]

            monkeypatch.setattr(loop._puller, "_read", read)
            monkeypatch.setattr(loop, "_delay", measured)
            consumer.subscribe("T", seen)
            await consumer.ready()
            await send(cluster, "T", [b"x"])
            await turn(cluster, 20)
            await seen.count(1)
        assert waits == [0.02, 1.0]

    run(scenario)


def test_what_waits_to_be_tried_again_waits_for_its_listener() -> None:
    """A member that begins to listen after its start, to one topic and then the other, spends no try of the
    other's messages: nothing is laid aside, each is handled at its first try here."""

    async def scenario(cluster: Cluster) -> None:
        for topic in ("T", "U"):
            await cluster.create_topic(topic, queues=1)
        failing = Consumer(cluster.namesrv, group="g", retries_max=1)
        seen = Seen(fails=lambda _: True)
        failing.subscribe("T", seen)
        failing.subscribe("U", seen)
        async with failing:
            await failing.ready()
            await send(cluster, "T", numbered(5))
            await send(cluster, "U", numbered(5))
            await seen.count(10)
        good, other = Seen(), Seen()
        async with Consumer(cluster.namesrv, group="g", retries_max=1, consume_timeout_s=STUCK_S) as consumer:
            await turn(cluster, 15)  # by now they are there to be tried again
            consumer.subscribe("T", good)
            await turn(cluster, 30)
            await good.count(5)
            await turn(cluster, 3 * STUCK_S)  # nor is it stuck, however long it waits
            consumer.subscribe("U", other)
            await turn(cluster, 15)
            await other.count(5)
            assert {message.reconsume_times for message in [*good.messages, *other.messages]} == {1}
            await turn(cluster, 30)
            await consumer.ready()
        async with QueueReader(cluster.namesrv) as reader:
            with pytest.raises(HotfireError):
                await reader.queues(dlq_topic("g"))

    run(scenario)
