"""A consumer without order: what reaches its listeners, when, and what their results do."""

import asyncio
import threading
from contextlib import suppress
from typing import Any

import pytest

from hotfire.client.consumer import Consumer
from hotfire.client.consumersettings import ConsumeFrom, Pace
from hotfire.client.handling import Consumption
from hotfire.client.listening import ConsumeContext, ConsumeResult
from hotfire.errors import ConfigError, NotRunning
from hotfire.model import ReceivedMessage
from hotfire.net.clock import now_ms
from hotfire.protocol.bodies import decode_body
from hotfire.protocol.members import ConsumerConnection
from hotfire.protocol.requests import (
    GetConsumerConnectionList,
    PullMessage,
    UnregisterClient,
    UpdateConsumerOffset,
)
from hotfire.testing import Cluster
from tests.unit.client.consuming import Seen, Wire, ask, committed, numbered, run, send, turn, until


@pytest.mark.promise(93, 102)
def test_messages_are_brought_to_the_listener_by_pulls(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that is stored and all that comes reaches the listener, by pulls and nothing else."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.create_topic("T", queues=2)
        await send(cluster, "T", numbered(5))
        wire, seen = Wire(monkeypatch), Seen()
        consumer = Consumer(cluster.namesrv, group="g")
        consumer.subscribe("T", seen)
        async with consumer:
            await seen.count(5)
            await send(cluster, "T", numbered(5, first=5))
            assert sorted(message.body for message in await seen.count(10)) == sorted(numbered(10))
        pulls = wire.of(PullMessage)
        assert {pull.topic for pull in pulls} == {"T", "%RETRY%g"}
        assert not [request for request in wire.sent if "Pop" in type(request).__name__]

    run(scenario)


@pytest.mark.promise(94)
def test_wrong_settings_are_told_before_anything_is_dialled() -> None:
    """Group, numbers, topic, tags, listener, strategy: each names what is wrong, without a server."""
    nowhere = "127.0.0.1:1"
    wrongs: list[dict[str, Any]] = [
        {"group": "two words"}, {"group": ""}, {"batch_max": 0}, {"concurrency": 0}, {"pull_batch": 1025},
        {"allocation": "NONE"}, {"span_max": 0}, {"nonsense": 1}, {"consume_timestamp_ms": 5},
    ]  # fmt: skip
    for wrong in wrongs:
        with pytest.raises(ConfigError, match=r"group|allocation"):
            Consumer(nowhere, **({"group": "g"} | wrong))
    consumer = Consumer(nowhere, group="g", threads=0)
    for topic, listener, tags in (
        ("a b", Seen.__call__, "*"),
        ("T", lambda: None, "*"),
        ("T", lambda a, b, c: None, "*"),
        ("T", print, "||"),
        ("T", "not a function", "*"),
        ("T", print, "*"),  # plain, and no threads
    ):
        with pytest.raises(ConfigError):
            consumer.subscribe(topic, listener, tags)
    with pytest.raises(NotRunning):
        consumer.suspend()


@pytest.mark.promise(94)
def test_first_message_is_handled_within_a_second_of_the_start() -> None:
    """What was there is handled without waiting for any timer: with all of them set to hours it still is."""
    never = Pace(after_error_s=9999, look_again_s=9999, first_pull_s=9999, after_flow_control_s=9999)

    async def scenario(cluster: Cluster) -> None:
        await cluster.create_topic("T", queues=4)
        await send(cluster, "T", [b"waiting"])
        seen = Seen()
        consumer = Consumer(cluster.namesrv, group="g", pace=never)
        consumer.subscribe("T", seen)
        async with asyncio.timeout(15), consumer:  # the next look at the queues would be after 20 s
            await seen.count(1)

    run(scenario)


def test_a_topic_made_after_the_start_is_read_soon(caplog: pytest.LogCaptureFixture) -> None:
    """Start the consumer, then send: it neither waits for the next heartbeat nor complains of its broker."""

    async def scenario(cluster: Cluster) -> None:
        seen = Seen()
        consumer = Consumer(cluster.namesrv, group="g")
        consumer.subscribe("Later", seen)
        async with consumer:
            async with asyncio.timeout(10):
                while "Later does not exist" not in caplog.text:  # noqa: ASYNC110  # a line of a log has no event
                    await asyncio.sleep(0.01)
            await cluster.create_topic("Later", queues=2)
            await send(cluster, "Later", [b"first"])
            async with asyncio.timeout(15):  # heartbeats and looks at routes are 30 s apart
                await seen.count(1)
        assert "no consumer for this group" not in caplog.text

    run(scenario)


@pytest.mark.promise(95)
def test_an_idle_queue_costs_one_pull_per_hold_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing new: a pull every 15 s and queue. A message then comes at once, on the held pull."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.create_topic("T", queues=1)
        seen = Seen()
        async with Consumer(cluster.namesrv, group="g") as consumer:
            consumer.subscribe("T", seen)
            await consumer.ready()
            await cluster.clock.settle()
            wire = Wire(monkeypatch)
            await turn(cluster, 60)
            assert 3 <= len([pull for pull in wire.of(PullMessage) if pull.topic == "T"]) <= 5
            held = len(wire.of(PullMessage))
            await send(cluster, "T", [b"now"])
            await seen.count(1)
            offsets = [pull.queue_offset for pull in wire.of(PullMessage)[held:] if pull.topic == "T"]
            assert 0 not in offsets, "it was answered on the pull that waited"

    run(scenario)


def test_pulls_may_be_of_hundreds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where more bytes are asked for than others give, our brokers give as many messages as asked for."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.create_topic("T", queues=1)
        await send(cluster, "T", numbered(1000))
        wire, seen = Wire(monkeypatch), Seen()
        consumer = Consumer(
            cluster.namesrv, group="bulk", consume_from=ConsumeFrom.FIRST, pull_batch=400,
            pull_batch_bytes=1 << 20,
        )  # fmt: skip
        consumer.subscribe("T", seen)
        async with consumer:
            await seen.count(1000)
        pulls = [pull for pull in wire.of(PullMessage) if pull.topic == "T"]
        assert [pull.queue_offset for pull in pulls][:3] == [0, 400, 800]
        assert {pull.max_msg_bytes for pull in pulls} == {1 << 20}
        with pytest.raises(ConfigError, match="pull_batch_bytes=1000 is not within"):
            Consumer(cluster.namesrv, group="bulk", pull_batch_bytes=1000)

    run(scenario)


@pytest.mark.promise(97)
def test_pulls_are_of_32_and_follow_at_once_or_after_the_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand stored are pulled 32 at a time; with an interval of a second, a pull a second."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.create_topic("T", queues=1)
        await send(cluster, "T", numbered(1000))
        wire, seen = Wire(monkeypatch), Seen()
        consumer = Consumer(cluster.namesrv, group="quick")
        consumer.subscribe("T", seen)
        async with consumer:
            await seen.count(1000)
            pulls = [pull for pull in wire.of(PullMessage) if pull.topic == "T"]
            assert [pull.queue_offset for pull in pulls][:32] == [32 * number for number in range(32)]
            assert {pull.max_msg_nums for pull in pulls} == {32}
        slow, began = Seen(), len(wire.sent)
        consumer = Consumer(cluster.namesrv, group="slow", pull_interval_s=1.0)
        consumer.subscribe("T", slow)
        async with consumer:
            await slow.count(32)
            await turn(cluster, 10)
            pulls = [
                pull for pull in wire.of(PullMessage) if pull.topic == "T" and pull.consumer_group == "slow"
            ]
            assert began
            assert 10 <= len(pulls) <= 12
            assert len(slow.messages) == 32 * len(pulls) or len(slow.messages) == 32 * (len(pulls) - 1)

    run(scenario)


@pytest.mark.promise(98)
def test_a_listener_that_does_not_keep_up_slows_pulling_down() -> None:
    """Listeners block: a queue holds at most 1000 messages and one pull more, or its bytes; then goes on."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.create_topic("T", queues=1)
        await send(cluster, "T", [b"x" * 100] * 1500)
        gate, seen = asyncio.Event(), []

        async def block(message: ReceivedMessage) -> None:
            await gate.wait()
            seen.append(message.queue_offset)

        cases: list[tuple[dict[str, int], int, int]] = [
            ({}, 1001, 1032),
            ({"queue_bytes_max": 20_000}, 201, 232),
            ({"topic_count_max": 300}, 301, 332),
            ({"span_max": 100}, 102, 132),
        ]
        for limits, low, high in cases:
            gate.clear()
            consumer = Consumer(cluster.namesrv, group=f"g{high}", **limits)
            consumer.subscribe("T", block)
            async with consumer:
                (one,) = [one for one in consumer._running.table.held() if one.queue.topic == "T"]
                await until(lambda one=one, low=low: len(one) >= low)
                await turn(cluster, 5)
                assert low <= len(one) <= high
                gate.set()
                await until(lambda: len(seen) >= 1500)
                assert not len(one)
            seen.clear()

    run(scenario)


@pytest.mark.promise(99)
def test_batches_are_cut_to_size_and_handled_side_by_side() -> None:
    """Ten messages in batches of four: 4+4+2, on different threads at the same time."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.create_topic("T", queues=1)
        together, batches = threading.Barrier(3), []

        def handle(messages: list[ReceivedMessage]) -> None:
            together.wait(20)
            batches.append((threading.get_ident(), len(messages)))

        await send(cluster, "T", numbered(10))
        consumer = Consumer(cluster.namesrv, group="g", batch_max=4, threads=3)
        consumer.subscribe("T", handle)
        async with consumer:
            await until(lambda: len(batches) == 3)
        assert sorted(size for _, size in batches) == [2, 4, 4]
        assert len({thread for thread, _ in batches}) == 3

    run(scenario)


@pytest.mark.parametrize("is_async", [True, False])
def test_no_more_listeners_run_at_a_time_than_asked_for(is_async: bool) -> None:
    """Coroutines are bounded by `concurrency`, plain functions by `threads` too."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.create_topic("T", queues=4)
        await send(cluster, "T", numbered(60))
        lock, running, most, total = threading.Lock(), 0, 0, 0

        def enter(step: int) -> None:
            nonlocal running, most, total
            with lock:
                running += step
                most, total = max(most, running), total + (step < 0)

        async def waits(_: ReceivedMessage) -> None:
            enter(1)
            await asyncio.sleep(0.005)
            enter(-1)

        def works(_: ReceivedMessage) -> None:
            enter(1)
            threading.Event().wait(0.005)
            enter(-1)

        consumer = Consumer(cluster.namesrv, group="g", concurrency=5 if is_async else 20, threads=5)
        consumer.subscribe("T", waits if is_async else works)
        async with consumer:
            await until(lambda: total == 60)
        assert most == 5

    run(scenario)


@pytest.mark.promise(100)
def test_hooks_see_each_call_and_its_result() -> None:
    """Before: the messages. After: what became of them. A hook that fails harms nobody."""

    class Hook:
        def __init__(self) -> None:
            self.told: list[tuple[str, bytes, object]] = []

        def before(self, consumption: Consumption) -> None:
            assert consumption.result is None
            self.told.append(("before", consumption.messages[0].body, None))

        def after(self, consumption: Consumption) -> None:
            assert consumption.spent_s >= 0
            self.told.append(("after", consumption.messages[0].body, consumption.result))

    class Broken:
        def before(self, consumption: Consumption) -> None:
            raise ZeroDivisionError

        after = before

    async def scenario(cluster: Cluster) -> None:
        await cluster.create_topic("T", queues=1)
        await send(cluster, "T", [b"good", b"bad"])
        hook, seen = Hook(), Seen(fails=lambda message: message.body == b"bad")
        consumer = Consumer(cluster.namesrv, group="g", hooks=[Broken(), hook], concurrency=1)
        consumer.subscribe("T", seen)
        async with consumer:
            await until(lambda: len(hook.told) == 4)
        assert hook.told == [
            ("before", b"good", None),
            ("after", b"good", ConsumeResult.DONE),
            ("before", b"bad", None),
            ("after", b"bad", ConsumeResult.RETRY),
        ]

    run(scenario)


@pytest.mark.promise(104)
def test_brokers_know_the_group_its_model_and_what_it_reads() -> None:
    """Every broker is told in heartbeats, and forgets the group when its consumer leaves."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.create_topic("T", queues=1)
        consumer = Consumer(cluster.namesrv, group="g")
        consumer.subscribe("T", Seen(), tags="a || b")
        async with consumer:
            for broker in range(2):
                body = await ask(cluster, GetConsumerConnectionList(consumer_group="g"), broker)
                told = decode_body(ConsumerConnection, body)
                assert told.message_model == "CLUSTERING"
                assert told.consume_type == "CONSUME_PASSIVELY"
                assert told.subscriptions["T"].tags == ("a", "b")
                assert "%RETRY%g" in told.subscriptions
                assert [one.client_id for one in told.connections] == [consumer._running.instance.client_id]
        for node in cluster.brokers:
            assert node.program is not None
            assert "g" not in node.program.broker.clients.consumers

    run(scenario, brokers=2)


@pytest.mark.promise(105)
def test_a_suspended_consumer_handles_nothing_and_then_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """While suspended there are neither calls nor pulls, for minutes; resumed it goes on without loss."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.create_topic("T", queues=2)
        seen = Seen()
        async with Consumer(cluster.namesrv, group="g") as consumer:
            consumer.subscribe("T", seen)
            await consumer.ready()
            await send(cluster, "T", numbered(10))
            await seen.count(10)
            consumer.suspend()
            await send(cluster, "T", numbered(10, first=10))
            await turn(cluster, 20)
            wire = Wire(monkeypatch)
            await turn(cluster, 300)
            assert not wire.of(PullMessage)
            assert len(seen.messages) == 10
            consumer.resume()
            assert sorted(message.body for message in await seen.count(20)) == sorted(numbered(20))

    run(scenario)


def test_a_rate_is_kept() -> None:
    """At most so many messages per second, however many wait."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.create_topic("T", queues=2)
        await send(cluster, "T", numbered(100))
        seen = Seen()
        consumer = Consumer(cluster.namesrv, group="g", max_rate=2.0)
        consumer.subscribe("T", seen)
        async with consumer:
            await seen.count(1)
            before = len(seen.messages)
            await turn(cluster, 10)
            assert 19 <= len(seen.messages) - before <= 25

    run(scenario)


@pytest.mark.promise(149, 150)
def test_tags_with_equal_hashes_are_told_apart_without_delay() -> None:
    """`Aa` and `BB` hash alike: only the one subscribed to is brought, and others cost no wait."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.create_topic("T", queues=1)
        await send(cluster, "T", numbered(200), tag="BB")
        await send(cluster, "T", [b"mine"], tag="Aa")
        await send(cluster, "T", [b"none"])
        seen = Seen()
        consumer = Consumer(cluster.namesrv, group="g")
        consumer.subscribe("T", seen, tags="Aa || Cc")
        async with consumer:
            assert [message.body for message in await seen.count(1)] == [b"mine"]
            await until(lambda: consumer._running.offsets.of_topic("T") != {})
            (offset,) = consumer._running.offsets.of_topic("T").values()
            assert offset >= 201
        assert committed(cluster, "T", "g") >= 201

    run(scenario)


def test_what_listeners_return_and_raise() -> None:
    """None, True and DONE are done; RETRY, False, an exception, nonsense and cancelling oneself are not."""
    results = {
        b"none": None,
        b"true": True,
        b"done": ConsumeResult.DONE,
        b"false": False,
        b"retry": ConsumeResult.RETRY,
    }

    async def handle(message: ReceivedMessage) -> object:
        if message.body == b"raise":
            raise ValueError("no")
        if message.body == b"cancel":
            raise asyncio.CancelledError
        return results.get(message.body, "nonsense")

    async def scenario(cluster: Cluster) -> None:
        await cluster.create_topic("T", queues=1)
        bodies = [*results, b"raise", b"cancel", b"nonsense"]
        await send(cluster, "T", bodies)
        consumer = Consumer(cluster.namesrv, group="g", concurrency=2)
        consumer.subscribe("T", handle)
        async with consumer:
            counts = consumer._running.stats.of("T")
            await until(lambda: counts.done + counts.failed == len(bodies))
            assert (counts.done, counts.failed) == (3, 5)

    run(scenario)


def test_part_of_a_batch_may_be_done_and_the_rest_come_again_when_told() -> None:
    """With a context the listener says how many are done, and the delay of the others' next try."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.create_topic("T", queues=1)
        await send(cluster, "T", numbered(4))
        calls: list[list[bytes]] = []

        async def handle(messages: list[ReceivedMessage], context: ConsumeContext) -> None:
            calls.append([message.body for message in messages])
            if len(calls) == 1:
                context.done_count = 3
                context.delay_level = 1

        consumer = Consumer(cluster.namesrv, group="g", batch_max=4)
        consumer.subscribe("T", handle)
        async with consumer:
            await until(lambda: len(calls) == 1)
            await turn(cluster, 3)
            await until(lambda: len(calls) == 2)
        assert calls == [numbered(4), [b"3"]]

    run(scenario)


def test_close_is_bounded_and_keeps_what_was_done(monkeypatch: pytest.MonkeyPatch) -> None:
    """Listeners that hang, in the loop or a thread, hold nothing up; what was done is committed."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.create_topic("T", queues=1)
        await send(cluster, "T", numbered(3))
        forever, calls = threading.Event(), []

        def hang(message: ReceivedMessage) -> None:
            calls.append(message.body)
            if message.body == b"1":
                forever.wait(30)

        async def hang_too(message: ReceivedMessage) -> None:
            calls.append(message.body)
            for _ in range(2 if message.body == b"1" else 0):  # cancelled once or twice it goes on
                with suppress(asyncio.CancelledError):
                    await asyncio.sleep(30)

        for group, listener in (("plain", hang), ("coroutine", hang_too)):
            consumer = Consumer(cluster.namesrv, group=group, pace=Pace(close_listeners_s=0.1))
            consumer.subscribe("T", listener)
            await consumer.start()
            await until(lambda: len(calls) >= 3)
            calls.clear()
            wire = Wire(monkeypatch)
            async with asyncio.timeout(10):
                await consumer.close()
            assert [one.commit_offset for one in wire.of(UpdateConsumerOffset) if one.topic == "T"] == [1]
            assert [one.consumer_group for one in wire.of(UnregisterClient)] == [group]
            await until(lambda group=group: committed(cluster, "T", group) == 1)
        forever.set()

    run(scenario)


def test_subscriptions_change_while_running() -> None:
    """A topic added is read, one taken away is not any more; other tags count from then on."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.create_topic("A", queues=1)
        await cluster.create_topic("B", queues=1)
        a, b = Seen(), Seen()
        async with Consumer(cluster.namesrv, group="g") as consumer:
            consumer.subscribe("A", a, tags="one")
            await consumer.ready()
            await send(cluster, "A", [b"1"], tag="one")
            await a.count(1)
            consumer.subscribe("B", b)
            consumer.subscribe("A", a, tags="two")
            await consumer.ready()
            await send(cluster, "B", [b"2"])
            await send(cluster, "A", [b"3"], tag="one")
            await send(cluster, "A", [b"4"], tag="two")
            await b.count(1)
            assert [message.body for message in await a.count(2)] == [b"1", b"4"]
            consumer.unsubscribe("A")
            await until(lambda: all(queue.topic != "A" for queue in consumer.queues))

    run(scenario)


def test_time_in_a_message_is_the_brokers_and_the_wall_clocks() -> None:
    """A message tells when it was born and stored, by the clock of the loop."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.create_topic("T", queues=1)
        await turn(cluster, 3600)
        seen = Seen()
        async with Consumer(cluster.namesrv, group="g") as consumer:
            consumer.subscribe("T", seen)
            await consumer.ready()
            await send(cluster, "T", [b"1"])
            (message,) = await seen.count(1)
            assert abs(message.store_timestamp_ms - now_ms()) < 60_000

    run(scenario)
