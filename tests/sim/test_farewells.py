"""Brokers that die or fall silent, in simulated time: sends go on, and who ends, ends within 3 seconds."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from hotfire import ConsumeFrom, Consumer, Message, Producer, PullConsumer
from hotfire.errors import HotfireError
from hotfire.net.peer import Peer
from hotfire.protocol.requests import UpdateAndCreateTopic
from hotfire.testing.simulation import SimBroker, Simulation

GREETED_S = 1.5
"""By then a producer's brokers have had a heartbeat, and are to be told goodbye."""
TOPIC, TRACES = "orders", "traces"
LARGE = bytes(4 << 20)
"""As large as a message may be: two of them are more than a connection takes that nobody reads."""
CLOSE_S_MAX = SEND_S_MAX = 3.0
CLIENT = "10.0.3.1"


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def simulate(brokers: int, test: Callable[[Simulation], Coroutine[Any, Any, None]], seed: int = 0) -> None:
    async def main(sim: Simulation) -> None:
        await sim.add_name_server()
        for _ in range(brokers):
            broker = await sim.add_broker()
            for topic in (TOPIC, TRACES):
                request = UpdateAndCreateTopic(
                    topic=topic, default_topic="TBW102", read_queue_nums=4, write_queue_nums=4, perm=6,
                    topic_filter_type="SINGLE_TAG", topic_sys_flag=0, order=False,
                )  # fmt: skip
                async with await Peer.connect(broker.address) as peer:
                    await peer.ask(request, 5.0)
        await sim.on(sim.network.host(CLIENT), test(sim))

    Simulation(seed).run(main)


@pytest.mark.promise(185)
@pytest.mark.parametrize("seed", range(10))
def test_sends_go_on_when_one_of_two_brokers_dies(seed: int) -> None:
    """Killed under sends: none fails, none takes more than 3 s, the other broker gets them."""

    async def scenario(sim: Simulation) -> None:
        async with Producer(sim.namesrv, instance_name="producer", rng=sim.fork()) as producer:
            names = set()
            for number in range(200):
                if number == 50:
                    sim.loop.call_later(sim.rng.uniform(0.0, 0.02), sim.brokers[0].kill)
                began_s = sim.loop.time()
                result = await producer.send(Message(TOPIC, b"%d" % number))
                assert sim.loop.time() - began_s <= SEND_S_MAX
                names.add(result.queue.broker_name)
                if number == 60:
                    names.clear()
            assert names == {"broker-1"}

    simulate(2, scenario, seed)


def cut_off(sim: Simulation, broker: SimBroker) -> None:
    """Nothing passes any more, either way."""
    sim.network.partition([broker.host], list(sim.network.hosts.values()))


def freeze(sim: Simulation, broker: SimBroker) -> None:
    """As a stopped process: its kernel takes connections and bytes, and nobody reads them."""
    for transport in [one for one in sim.network._transports if one.host is broker.host]:
        transport._is_reading = False
        transport.resume_reading = lambda: None  # type: ignore[method-assign]
    listeners = [one for place, one in sim.network._listeners.items() if place[0] == broker.host.ip]
    for listener in listeners:
        listener.factory = asyncio.Protocol


async def fill(sim: Simulation, instance_name: str, silence: Callable[[], None], **more: Any) -> Producer:
    """A producer that has sent to each broker, and then more than the connections of silent ones take."""
    producer = Producer(
        sim.namesrv, compression=None, instance_name=instance_name, rng=sim.fork(), timeout_s=60.0, **more
    )
    await producer.start()
    for _ in range(4 * len(sim.brokers)):
        await producer.send(Message(TOPIC, b"x"))
    await asyncio.sleep(GREETED_S)
    silence()
    for _ in range(2 * len(sim.brokers)):
        producer.send_soon(Message(TOPIC, LARGE)).add_done_callback(asyncio.Future.exception)
    await asyncio.sleep(0.1)
    return producer


async def run_full_producer(sim: Simulation, silence: Callable[[], None], **more: Any) -> float:
    producer = await fill(sim, "producer", silence, **more)
    began_s = sim.loop.time()
    await producer.close()
    return sim.loop.time() - began_s


async def run_producer(sim: Simulation, silence: Callable[[], None], **more: Any) -> float:
    producer = Producer(sim.namesrv, instance_name="producer", rng=sim.fork(), **more)
    await producer.start()
    await producer.send(Message(TOPIC, b"x"))
    await asyncio.sleep(GREETED_S)
    silence()
    unanswered = [producer.send_soon(Message(TOPIC, b"y")) for _ in range(20)]
    await asyncio.sleep(0.1)
    began_s = sim.loop.time()
    await producer.close()
    took_s = sim.loop.time() - began_s
    for one in unanswered:
        with pytest.raises(HotfireError):
            await one
    return took_s


async def run_consumer(sim: Simulation, silence: Callable[[], None], *, orderly: bool, slow: bool) -> float:
    called = asyncio.Event()

    async def handle(message: Any) -> None:
        called.set()
        await asyncio.sleep(60.0 if slow else 0.0)

    await run_sender(sim)
    consumer = Consumer(
        sim.namesrv, group="g", orderly=orderly, consume_from=ConsumeFrom.FIRST, instance_name="consumer",
        rng=sim.fork(),
    )  # fmt: skip
    consumer.subscribe(TOPIC, handle)
    await consumer.start()
    await called.wait()
    silence()
    await asyncio.sleep(0.1)
    began_s = sim.loop.time()
    await consumer.close()
    return sim.loop.time() - began_s


async def run_sender(sim: Simulation) -> None:
    async with Producer(sim.namesrv, instance_name="sender", rng=sim.fork()) as producer:
        for number in range(20):
            await producer.send(Message(TOPIC, b"%d" % number))


async def run_pull_consumer(sim: Simulation, silence: Callable[[], None]) -> float:
    await run_sender(sim)
    consumer = PullConsumer(
        sim.namesrv, group="g", consume_from=ConsumeFrom.FIRST, instance_name="consumer", rng=sim.fork()
    )
    consumer.subscribe(TOPIC)
    await consumer.start()
    assert await consumer.poll()
    silence()
    await asyncio.sleep(0.1)
    began_s = sim.loop.time()
    await consumer.close()
    return sim.loop.time() - began_s


async def run_full_pull_consumer(sim: Simulation, silence: Callable[[], None]) -> float:
    """It has given up queues just now, whose offsets do not get through, and it is the last to leave."""
    await run_sender(sim)
    consumer = PullConsumer(
        sim.namesrv, group="g", consume_from=ConsumeFrom.FIRST, instance_name="shared", rng=sim.fork()
    )
    await consumer.start()
    queues = await consumer.queues(TOPIC)
    consumer.assign(queues)
    polled = 0
    while polled < 20:
        polled += len(await consumer.poll())
    producer = await fill(sim, "shared", silence)
    await producer.close()
    consumer.assign(queues[:1])
    began_s = sim.loop.time()
    await consumer.close()
    return sim.loop.time() - began_s


@pytest.mark.parametrize("silence", [cut_off, freeze])
@pytest.mark.parametrize("brokers", [1, 2])
@pytest.mark.parametrize(
    "client",
    [
        "producer",
        "traced producer",
        "full producer",
        "full traced producer",
        "consumer",
        "slow consumer",
        "orderly consumer",
        "slow orderly consumer",
        "pull consumer",
        "full pull consumer",
    ],
)
def test_close_takes_three_seconds_at_most(
    client: str, brokers: int, silence: Callable[[Simulation, SimBroker], None]
) -> None:
    """Whatever the brokers do not answer, whatever the listeners do not finish. Sends under way fail."""

    async def scenario(sim: Simulation) -> None:
        def silent() -> None:
            for broker in sim.brokers:
                silence(sim, broker)

        traced = {"trace": TRACES} if "traced" in client else {}
        if client.endswith("producer"):
            run = run_full_producer if "full" in client else run_producer
            took_s = await run(sim, silent, **traced)
        elif client == "full pull consumer":
            took_s = await run_full_pull_consumer(sim, silent)
        elif client == "pull consumer":
            took_s = await run_pull_consumer(sim, silent)
        else:
            took_s = await run_consumer(sim, silent, orderly="orderly" in client, slow="slow" in client)
        assert took_s <= CLOSE_S_MAX + 1e-6

    simulate(brokers, scenario)
