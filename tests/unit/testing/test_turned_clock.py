"""A turned clock: what is due in the time turned over happens, as often and in the order it should."""

import asyncio
import time

import pytest
import uvloop

from hotfire import Consumer, Message, Producer, ReceivedMessage
from hotfire.client.reader import TopicReader
from hotfire.errors import ConfigError
from hotfire.net.clock import now_ms
from hotfire.testing import Cluster, TurnedClock

HOUR_S = 3600.0
LEVEL_30_MINUTES, LEVEL_2_HOURS = 16, 18


async def ended(clock: TurnedClock, task: "asyncio.Task[object]") -> bool:
    await clock.settle()
    return task.done()


def test_timers_go_off_when_they_should() -> None:
    """Over an hour, sleepers of any length wake at their times, and periodic work happens each time."""

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        clock = TurnedClock.of(loop)
        assert TurnedClock.of(loop) is clock
        began_s, began_ms, woken, beats = loop.time(), now_ms(), [], []

        async def sleep(seconds: float) -> None:
            await asyncio.sleep(seconds)
            woken.append((seconds, round(loop.time() - began_s - seconds)))

        async def beat() -> None:
            while True:
                await asyncio.sleep(10)
                beats.append(round(loop.time() - began_s))

        tasks = [asyncio.create_task(sleep(s)) for s in (3599, 0.25, 30, 1800, 3601)]
        beating = asyncio.create_task(beat())
        real_s = time.monotonic()
        await clock.turn(HOUR_S)
        assert time.monotonic() - real_s < 30
        assert woken == [(0.25, 0), (30, 0), (1800, 0), (3599, 0)]
        assert beats[:359] == list(range(10, 3600, 10))
        assert 0 <= loop.time() - began_s - HOUR_S < 60
        assert -1 <= now_ms() - began_ms - HOUR_S * 1000 < 60_000  # each is rounded to the millisecond below
        for task in (*tasks, beating):
            task.cancel()

    asyncio.run(scenario())


def test_time_goes_on_between_turns() -> None:
    """A turned loop's time runs as it did: timeouts that nobody turns to go off by themselves."""

    async def scenario() -> None:
        clock = TurnedClock.of(asyncio.get_running_loop())
        await clock.turn(1000)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await asyncio.Event().wait()
        with pytest.raises(ValueError, match="forward"):
            await clock.turn(-1)

    asyncio.run(scenario())


@pytest.mark.timeout(240)
def test_delayed_messages_come_when_the_clock_says_so() -> None:
    """30 minutes and 2 hours: not a moment before, and then at once."""

    async def scenario() -> None:
        async with Cluster() as cluster, Producer(cluster.namesrv) as producer:
            clock = cluster.clock
            await cluster.create_topic("orders", queues=1)
            sent_ms = {}
            for level in (LEVEL_2_HOURS, LEVEL_30_MINUTES):
                sent_ms[level] = now_ms()
                await producer.send(Message("orders", b"%d" % level, delay_level=level))
            async with TopicReader(cluster.namesrv, "orders", start="earliest") as reader:
                for level, minutes in ((LEVEL_30_MINUTES, 30), (LEVEL_2_HOURS, 90)):
                    coming = asyncio.create_task(anext(reader))
                    await clock.turn(minutes * 60 - 5)
                    assert not await ended(clock, coming)
                    await clock.turn(6)
                    assert await ended(clock, coming)
                    message = coming.result()
                    assert message.body == b"%d" % level
                    wanted_ms = {LEVEL_30_MINUTES: 1_800_000, LEVEL_2_HOURS: 7_200_000}[level]
                    assert 0 <= message.store_timestamp_ms - sent_ms[level] - wanted_ms < 2000

    asyncio.run(scenario())


def test_nobody_is_lost_over_an_hour() -> None:
    """Heartbeats and registrations happen on the way: a client and a broker are known as before."""

    async def scenario() -> None:
        async with Cluster(name_servers=2) as cluster, Producer(cluster.namesrv) as producer:
            await producer.send(Message("orders", b"x"))
            await cluster.clock.turn(HOUR_S)
            program, names = cluster.brokers[0].program, cluster.name_servers[0].program
            assert program is not None
            assert names is not None
            assert list(names.name_server.state.routes.cluster_info().brokers) == ["broker-0"]
            assert producer.group in program.broker.clients.producers
            await producer.send(Message("orders", b"y"))

    asyncio.run(scenario())


def test_a_silent_broker_is_forgotten_in_two_minutes() -> None:
    """A broker whose connection hangs, no more registering: gone from the routes once its time is over."""

    async def scenario() -> None:
        async with Cluster() as cluster:
            program, names = cluster.brokers[0].program, cluster.name_servers[0].program
            assert program is not None
            assert names is not None
            for task in program._registration._tasks:
                task.cancel()
            routes = names.name_server.state.routes
            await cluster.clock.turn(110)
            assert routes.cluster_info().brokers
            await cluster.clock.turn(30)
            assert not routes.cluster_info().brokers

    asyncio.run(scenario())


def test_the_clock_of_a_cluster_on_its_own_thread() -> None:
    """From synchronous code: the cluster's loop, and clients that were started in it, see the hours pass."""

    async def send(namesrv: str) -> None:
        async with Producer(namesrv) as producer:
            await producer.send(Message("orders", b"late", delay_level=LEVEL_2_HOURS))

    async def read(namesrv: str) -> list[bytes]:
        async with TopicReader(namesrv, "orders", start="earliest", follow=False) as reader:
            return [message.body async for message in reader]

    with Cluster() as cluster:
        cluster.create_topic("orders")
        cluster.run(send(cluster.namesrv))
        cluster.clock.turn(2 * HOUR_S - 10)
        assert cluster.run(read(cluster.namesrv)) == []
        cluster.clock.turn(11)
        assert cluster.run(read(cluster.namesrv)) == [b"late"]


def test_uvloop_is_refused_with_the_reason() -> None:
    """A cluster runs on uvloop; its clock cannot be turned there, and says so."""

    async def scenario() -> None:
        async with Cluster() as cluster:
            await cluster.create_topic("orders")
            with pytest.raises(ConfigError, match=r"uvloop\.Loop cannot be turned.*asyncio's own"):
                await cluster.clock.turn(1)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(scenario())


def test_sends_and_listeners_go_by_the_turned_clock() -> None:
    """After an hour was turned over, the quick way of sends gives up none before its time, and a message is
    stuck with its listener no sooner than it should be."""

    async def scenario() -> None:
        async with Cluster() as cluster:
            await cluster.create_topic("T", queues=1)
            seen: list[bytes] = []

            async def handle(message: ReceivedMessage) -> None:
                seen.append(message.body)
                await asyncio.sleep(30)

            consumer = Consumer(cluster.namesrv, group="g", consume_timeout_s=100.0)
            consumer.subscribe("T", handle)
            async with consumer, Producer(cluster.namesrv, retries_async=0) as producer:
                await consumer.ready()
                await cluster.clock.turn(HOUR_S)
                for _ in range(3):
                    await producer.send_soon(Message("T", b"opens the quick way"))
                seen.clear()
                sends = [producer.send_soon(Message("T", b"%d" % number)) for number in range(20)]
                assert len(await asyncio.gather(*sends)) == len(sends)
                for _ in range(9):
                    await cluster.clock.turn(10.0)
                numbers = [body for body in seen if body.isdigit()]
                assert sorted(numbers) == sorted(b"%d" % number for number in range(20))

    asyncio.run(scenario())
