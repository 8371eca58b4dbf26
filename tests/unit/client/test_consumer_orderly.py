"""Consuming in order: one listener per queue at a time, locks held meanwhile, nothing passes a failure."""

import asyncio
import shutil
import threading
from collections import defaultdict
from dataclasses import replace

import pytest

from hotfire import Message, MessageQueue, Producer
from hotfire.client.consumer import Consumer
from hotfire.client.consumersettings import ConsumeFrom, Pace
from hotfire.client.listening import ConsumeContext, ConsumeResult
from hotfire.client.orderly import OrderlyConsumption
from hotfire.model import ReceivedMessage, dlq_topic
from hotfire.protocol.requests import LockBatchMq, PullMessage, UnlockBatchMq
from hotfire.testing import Cluster
from tests.unit.client.consuming import Seen, Wire, committed, numbered, run, send, settles, turn, until


@pytest.mark.promise(122, 124)
def test_one_queue_is_consumed_in_the_order_it_was_sent_over_restarts_too() -> None:
    """Offsets go in the order of sending; a consumer that is restarted goes on, strictly increasing."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.create_topic("T", queues=1)
        await send(cluster, "T", numbered(90))
        bodies: list[bytes] = []
        for _ in range(3):
            seen = Seen()
            consumer = Consumer(cluster.namesrv, group="g", orderly=True)
            consumer.subscribe("T", seen)
            async with consumer:
                await seen.count(30 if len(bodies) < 60 else 90 - len(bodies))
            bodies += seen.bodies
            if len(bodies) >= 90:
                break
        assert bodies == numbered(90)

    run(scenario)


@pytest.mark.promise(125, 127)
@pytest.mark.parametrize("is_async", [True, False])
def test_one_listener_per_queue_and_several_over_queues(is_async: bool) -> None:
    """Twenty could run: each queue has one at a time, several queues are worked on at once, order is kept."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.create_topic("T", queues=4)
        for queue_id in range(4):
            await send(cluster, "T", numbered(25), queue_id=queue_id)
        lock, running, most, total_most = threading.Lock(), defaultdict(int), defaultdict(int), 0
        seen: dict[int, list[bytes]] = defaultdict(list)

        def step(message: ReceivedMessage, by: int) -> None:
            nonlocal total_most
            with lock:
                queue_id = message.queue.queue_id
                running[queue_id] += by
                most[queue_id] = max(most[queue_id], running[queue_id])
                total_most = max(total_most, sum(running.values()))
                if by < 0:
                    seen[queue_id].append(message.body)

        async def waits(message: ReceivedMessage) -> None:
            step(message, 1)
            await asyncio.sleep(0.002)
            step(message, -1)

        def works(message: ReceivedMessage) -> None:
            step(message, 1)
            threading.Event().wait(0.002)
            step(message, -1)

        consumer = Consumer(cluster.namesrv, group="g", orderly=True)
        consumer.subscribe("T", waits if is_async else works)
        async with consumer:
            await until(lambda: sum(map(len, seen.values())) == 100)
        assert dict(most) == dict.fromkeys(range(4), 1)
        assert total_most > 1
        assert dict(seen) == {queue_id: numbered(25) for queue_id in range(4)}

    run(scenario)


@pytest.mark.promise(126)
def test_a_queue_is_pulled_only_under_a_lease_that_is_renewed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lock comes before the first pull and every 20 s again; who dies keeps it for a minute."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.create_topic("T", queues=1)
        wire, seen = Wire(monkeypatch), Seen()
        consumer = Consumer(cluster.namesrv, group="g", orderly=True)
        consumer.subscribe("T", seen)
        await consumer.start()
        await turn(cluster, 2)
        kinds = [type(one) for one in wire.sent if getattr(one, "topic", "T") == "T"]
        assert kinds.index(LockBatchMq) < kinds.index(PullMessage)
        locks = len(wire.of(LockBatchMq))
        await turn(cluster, 60)
        assert 3 <= len(wire.of(LockBatchMq)) - locks <= 4
        # It dies: its tasks are gone, and its connections closed, without a word.
        await die(consumer)
        heir_seen = Seen()
        heir = Consumer(cluster.namesrv, group="g", orderly=True)
        heir.subscribe("T", heir_seen)
        async with heir:
            await send(cluster, "T", [b"x"])
            await turn(cluster, 30)
            assert not heir_seen.messages, "the lease of the dead one runs for a minute"
            await turn(cluster, 60)
            await heir_seen.count(1)

    run(scenario)


async def die(consumer: Consumer) -> None:
    """As a killed process: nothing is said, connections break."""
    running = consumer._running
    tasks = [*running._tasks, *running.table._pulls.values(), *running.instance._timers]
    tasks += list(getattr(running.consumption, "_tasks", {}).values()) + getattr(
        running.consumption, "_workers", []
    )
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await running.instance.connections.close()
    running.instance.running = False
    running.instance._forget()


@pytest.mark.promise(128, 118)
def test_a_queue_changes_hands_only_when_the_listener_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow listener has a queue that goes to another member, who starts after it ended: no repeats."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.create_topic("T", queues=2)
        for queue_id in range(2):
            await send(cluster, "T", numbered(20), queue_id=queue_id)
        log: list[tuple[str, str, int, bytes]] = []
        slow = asyncio.Event()

        def listener(name: str) -> object:
            async def handle(message: ReceivedMessage) -> None:
                log.append((name, "begin", message.queue.queue_id, message.body))
                if message.body == b"10" and name == "first":
                    await slow.wait()
                log.append((name, "end", message.queue.queue_id, message.body))

            return handle

        first = Consumer(cluster.namesrv, group="g", orderly=True)
        first.subscribe("T", listener("first"))
        second = Consumer(cluster.namesrv, group="g", orderly=True)
        second.subscribe("T", listener("second"))
        async with first:
            await until(lambda: sum(body == b"10" for _, _, _, body in log) == 2)
            async with second:
                await turn(cluster, 10)  # less than the 20 s after which a listener is not waited for
                assert {name for name, *_ in log} == {"first"}
                slow.set()
                await turn(cluster, 10)
                await until(lambda: len(log) == 80)
        for queue_id in range(2):
            ended = [body for _, what, where, body in log if what == "end" and where == queue_id]
            assert ended == numbered(20), "in order, and nothing twice"
        assert {name for name, *_ in log} == {"first", "second"}

    run(scenario)


def test_a_failure_is_repeated_on_the_spot_and_nothing_passes_it() -> None:
    """The queue rests a second, the same message comes again, counted; the others wait."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.create_topic("T", queues=1)
        await send(cluster, "T", numbered(5))
        tries: list[tuple[bytes, int]] = []

        async def handle(message: ReceivedMessage, context: ConsumeContext) -> ConsumeResult | None:
            tries.append((message.body, message.reconsume_times))
            if message.body == b"2" and message.reconsume_times < 3:
                context.suspend_ms = 5000 if message.reconsume_times == 2 else None
                return ConsumeResult.RETRY
            return None

        consumer = Consumer(cluster.namesrv, group="g", orderly=True)
        consumer.subscribe("T", handle)
        async with consumer:
            await until(lambda: len(tries) == 3)
            await turn(cluster, 3)
            assert tries[2:] == [(b"2", 0), (b"2", 1), (b"2", 2)]
            await turn(cluster, 5)
            await until(lambda: len(tries) == 8)
            assert tries[5:] == [(b"2", 3), (b"3", 0), (b"4", 0)]

    run(scenario)


def test_after_too_many_failures_a_message_is_laid_aside() -> None:
    """retries_max bounds the tries: then it goes to the dead letters, and the queue goes on."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.create_topic("T", queues=1)
        await send(cluster, "T", numbered(3))
        seen = Seen(fails=lambda message: message.body == b"1")
        consumer = Consumer(cluster.namesrv, group="g", orderly=True, retries_max=2, suspend_ms=10)
        consumer.subscribe("T", seen)
        async with consumer:
            await turn(cluster, 3)
            await seen.count(5)
            assert seen.bodies == [b"0", b"1", b"1", b"1", b"2"]
            program = cluster.brokers[0].program
            assert program is not None
            await until(lambda: program.broker.store.find_queue(dlq_topic("g"), 0) is not None)

    run(scenario)


def test_commits_may_be_the_listeners_own() -> None:
    """With auto_commit off, DONE moves on without committing; ROLLBACK repeats since the last COMMIT."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.create_topic("T", queues=1)
        await send(cluster, "T", numbered(4))
        bodies: list[bytes] = []
        offsets: list[int | None] = []

        async def handle(message: ReceivedMessage, context: ConsumeContext) -> ConsumeResult:
            context.auto_commit = False
            bodies.append(message.body)
            offsets.append(consumer._running.offsets.get(message.queue))
            if message.body == b"1":
                return ConsumeResult.COMMIT
            if message.body == b"3":
                return ConsumeResult.ROLLBACK if bodies.count(b"3") == 1 else ConsumeResult.COMMIT
            return ConsumeResult.DONE

        consumer = Consumer(
            cluster.namesrv, group="g", orderly=True, suspend_ms=10, consume_from=ConsumeFrom.FIRST
        )
        consumer.subscribe("T", handle)
        async with consumer:
            await turn(cluster, 3)
            await until(lambda: len(bodies) == 6)
            await until(lambda: consumer._running.offsets.get(MessageQueue("T", "broker-0", 0)) == 4)
        assert bodies == [b"0", b"1", b"2", b"3", b"2", b"3"]
        assert offsets == [0, 0, 2, 2, 2, 2]

    run(scenario)


def test_an_expired_lease_stops_consuming_until_it_is_had_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker is away for longer than the lease: no listener is called under it; then it goes on."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.create_topic("T", queues=1)
        await send(cluster, "T", numbered(3))
        seen, go = [], asyncio.Event()

        async def handle(message: ReceivedMessage) -> None:
            seen.append(message.body)
            await go.wait()

        consumer = Consumer(cluster.namesrv, group="g", orderly=True)
        consumer.subscribe("T", handle)
        async with consumer:
            await until(lambda: len(seen) == 1)
            await cluster.brokers[0].kill()
            await turn(cluster, 40)
            go.set()
            await turn(cluster, 5)
            assert seen == [b"0"], "the lease ran out while the first was handled"
            await cluster.brokers[0].start()
            await turn(cluster, 30)
            await until(lambda: len(seen) >= 3)
            assert seen[-2:] == [b"1", b"2"]

    run(scenario)


def test_what_comes_as_a_queue_runs_empty_is_consumed() -> None:
    """However close it comes behind the last one: nothing else may ever come that would start it."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.create_topic("T", queues=1)
        await send(cluster, "T", [b"0"])
        seen: list[ReceivedMessage] = []
        go = asyncio.Event()

        async def handle(message: ReceivedMessage) -> None:
            seen.append(message)
            await go.wait()

        consumer = Consumer(cluster.namesrv, group="g", orderly=True)
        consumer.subscribe("T", handle)
        async with consumer:
            await until(lambda: len(seen) == 1)
            running = consumer._running
            consumption = running.consumption
            assert isinstance(consumption, OrderlyConsumption)
            queue = running.table.queues[seen[0].queue]
            task = consumption._tasks[queue]
            go.set()
            while not task.done():  # noqa: ASYNC110 - its callbacks are still to come
                await asyncio.sleep(0)
            consumption.feed(queue, queue.put([replace(seen[0], queue_offset=1, body=b"1")]))
            await until(lambda: [one.body for one in seen] == [b"0", b"1"])

    run(scenario)


def test_what_was_done_before_a_lease_ran_out_is_not_done_again() -> None:
    """The broker forgot what it was told last: it died before it was written."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.create_topic("T", queues=1)
        await send(cluster, "T", numbered(3))
        seen = Seen()
        consumer = Consumer(cluster.namesrv, group="g", orderly=True)
        consumer.subscribe("T", seen)
        async with consumer:
            await seen.count(3)
            await cluster.brokers[0].kill()
            await turn(cluster, 40)
            await cluster.brokers[0].start()
            await turn(cluster, 30)
            await send(cluster, "T", [b"3"])
            await seen.count(4)
            assert seen.bodies == [b"0", b"1", b"2", b"3"]

    run(scenario)


@pytest.mark.parametrize("away_s", [0, 40])
def test_a_broker_that_came_back_with_less_has_its_new_messages_consumed(away_s: int) -> None:
    """At places that were done before: nothing is skipped for having been there once, whether the queue is
    still ours when the broker is back or its lease ran out."""

    async def scenario(cluster: Cluster) -> None:
        broker = cluster.brokers[0]
        await cluster.create_topic("T", queues=1)
        await send(cluster, "T", numbered(1))
        seen = Seen()
        first = Consumer(cluster.namesrv, group="g", orderly=True)
        first.subscribe("T", seen)
        async with first:
            await seen.count(1)
        await broker.stop()
        older = broker.directory.with_name("older")
        shutil.copytree(broker.directory, older)
        await broker.start()
        await send(cluster, "T", [b"1", b"2"])
        consumer = Consumer(cluster.namesrv, group="g", orderly=True)
        consumer.subscribe("T", seen)
        async with consumer:
            await seen.count(3)
            await broker.kill()
            await turn(cluster, away_s)
            shutil.rmtree(broker.directory)
            shutil.copytree(older, broker.directory)
            await broker.start()
            await send(cluster, "T", [b"new"])
            await turn(cluster, 30)
            await seen.count(4)
            assert seen.bodies == [b"0", b"1", b"2", b"new"]

    run(scenario)


@pytest.mark.promise(120, 123)
@pytest.mark.timeout(120)
def test_steps_of_each_order_come_in_sequence_though_members_come_and_die() -> None:
    """40 orders of 10 steps, 4 queues, four members of which some are killed: no step comes too early."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.create_topic("T", queues=4)
        steps: dict[int, list[int]] = defaultdict(list)

        async def handle(message: ReceivedMessage) -> None:
            order, _, step = message.body.partition(b":")
            await asyncio.sleep(0)
            steps[int(order)].append(int(step))

        def member() -> Consumer:
            consumer = Consumer(
                cluster.namesrv,
                group="g",
                orderly=True,
                consume_from=ConsumeFrom.FIRST,
                pace=Pace(lock_lease_s=30),
            )
            consumer.subscribe("T", handle)
            return consumer

        members = [member() for _ in range(4)]
        for one in members:
            await one.start()
        async with Producer(cluster.namesrv) as producer:
            for step in range(10):
                for order in range(40):
                    queue = MessageQueue("T", "broker-0", order % 4)
                    await producer.send(Message("T", b"%d:%d" % (order, step)), queue=queue)
                if step in (3, 6):
                    await die(members.pop())
                    members.append(member())
                    await members[-1].start()
                if step == 8:
                    await members.pop(0).close()
                await turn(cluster, 5)
        for _ in range(40):
            await turn(cluster, 10)
            if all(set(range(10)) <= set(steps[order]) for order in range(40)):
                break
        for one in members:
            await one.close()
        for order in range(40):
            firsts = list(dict.fromkeys(steps[order]))
            assert firsts == list(range(10)), f"order {order}: {steps[order]}"

    run(scenario)


def test_unlocked_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A consumer that closes gives its queues up: the next has them at once, from where it was."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.create_topic("T", queues=1)
        await send(cluster, "T", numbered(2))
        wire = Wire(monkeypatch)
        for expected in (numbered(2), numbered(1, first=2)):
            seen = Seen()
            consumer = Consumer(cluster.namesrv, group="g", orderly=True)
            consumer.subscribe("T", seen)
            async with consumer:
                if expected != numbered(2):
                    await send(cluster, "T", expected)
                await seen.count(len(expected))
                assert seen.bodies == expected
            assert wire.of(UnlockBatchMq)
        assert committed(cluster, "T", "g") == 3

    run(scenario)


def named(cluster: Cluster, name: str) -> Consumer:
    consumer = Consumer(cluster.namesrv, group="g", orderly=True, instance_name=name)
    consumer.subscribe("T", Seen())
    return consumer


def queues_of(consumer: Consumer) -> list[int]:
    return [queue.queue_id for queue in consumer.queues if queue.topic == "T"]


@pytest.mark.promise(121)
def test_a_lease_whose_answer_was_lost_is_given_up_when_another_is_to_have_it() -> None:
    """The broker leased the queue to a member that never heard of it: the next one has it in seconds."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.create_topic("T", queues=1)
        proxy = cluster.brokers[0].proxy
        assert proxy is not None
        proxy.drop("replies", LockBatchMq.code)
        second, first = named(cluster, "b"), named(cluster, "a")
        starting = asyncio.create_task(second.start())
        await turn(cluster, 4)
        await starting
        assert queues_of(second) == []
        proxy.clear()
        async with first:
            await settles(cluster, lambda: queues_of(first) == [0], within_s=5)
        await second.close()

    run(scenario, proxied=True)


@pytest.mark.promise(120)
def test_leases_of_one_that_died_go_on_when_its_namesake_does_not_need_them() -> None:
    """Killed with two queues, started again under its name with a share of one: the other is free at once."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.create_topic("T", queues=2)
        dying = named(cluster, "b")
        await dying.start()
        await settles(cluster, lambda: queues_of(dying) == [0, 1], within_s=2)
        await die(dying)
        async with named(cluster, "a") as first, named(cluster, "b") as second:
            await settles(cluster, lambda: (queues_of(first), queues_of(second)) == ([0], [1]), within_s=5)

    run(scenario)
