"""Time that is spent counts: one deadline for a whole send, and little time is no proof against a broker."""

import asyncio
import time
from typing import Any

import pytest

from hotfire import Message, MessageQueue, Producer
from hotfire.client import messages
from hotfire.client.connections import Connections
from hotfire.client.messages import send_request
from hotfire.errors import Timeout
from hotfire.model import TopicConfig
from hotfire.net.peer import Peer
from hotfire.testing.turned import TurnedClock
from tests.unit.client.cluster import SYSTEM_BUSY, Cluster, run, say_nothing
from tests.unit.client.test_batches import take

T = TopicConfig("T", 4, 4)
SOON_S = 0.9
"""For what happens in real time meanwhile; no turned time here differs by less from what it must not be."""


async def turn_until(clock: TurnedClock, awaited: "asyncio.Task[Any]") -> float:
    """Let time pass until it is done; how much has passed."""
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    while not awaited.done():
        await clock.turn(0.05)
        await asyncio.sleep(0.001)  # for the kernel to carry what was written
    return loop.time() - began_s


@pytest.mark.promise(91)
def test_one_deadline_for_all_attempts() -> None:
    """Three brokers that refuse after 2 s, or say nothing, and 3 s for a send: the second attempt has the one
    second that is left, and there is no third."""

    async def scenario(cluster: Cluster) -> None:
        brokers = [
            await cluster.add(name, T, behave=SYSTEM_BUSY, delay_s=2.0)
            for name in ("broker-a", "broker-b", "broker-c")
        ]
        clock = TurnedClock.of(asyncio.get_running_loop())
        async with Producer(cluster.namesrv, timeout_s=3.0) as producer:
            await producer.queues("T")
            for behave, attempts in ((SYSTEM_BUSY, 2), (say_nothing, 1)):
                for broker in brokers:
                    broker.behave = behave
                    broker.sends.clear()
                sending = asyncio.create_task(producer.send(Message("T", b"x")))
                assert 3.0 <= await turn_until(clock, sending) < 3.0 + SOON_S
                with pytest.raises(Timeout) as caught:
                    await sending
                assert caught.value.outcome_unknown
                assert sum(len(broker.sends) for broker in brokers) == attempts

    run(scenario)


@pytest.mark.promise(91)
def test_one_deadline_for_all_requests_of_a_batch() -> None:
    """Ten requests, one a second, and 3.5 s for all: the error comes then, with what was stored by then."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.add("broker-a", T, behave=take, delay_s=1.0)
        clock = TurnedClock.of(asyncio.get_running_loop())
        async with Producer(cluster.namesrv, message_bytes_max=1000) as producer:
            await producer.queues("T")
            batch = [Message("T", bytes([n]) * 600) for n in range(10)]
            sending = asyncio.create_task(producer.send_batch(batch, timeout_s=3.5))
            assert 3.5 <= await turn_until(clock, sending) < 3.5 + SOON_S
            with pytest.raises(Timeout) as caught:
                await sending
            assert 1 <= len(caught.value.results) <= 3

    run(scenario)


@pytest.mark.promise(91)
@pytest.mark.parametrize("way", ["send", "send_soon", "send_batch"])
def test_preparing_counts(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What compressing or encoding takes is no time given on top: when it took all, nothing is sent."""
    slow = messages.property_string

    def slowly(*given: Any) -> str:
        time.sleep(0.2)
        return slow(*given)

    async def scenario(cluster: Cluster) -> None:
        broker = await cluster.add("broker-a", T, behave=take)
        async with Producer(cluster.namesrv) as producer:
            await producer.queues("T")
            monkeypatch.setattr(messages, "property_string", slowly)
            monkeypatch.setattr("hotfire.client.batches.property_string", slowly)
            message = Message("T", b"x")
            with pytest.raises(Timeout, match="no time left") as caught:
                await getattr(producer, way)([message] if way == "send_batch" else message, timeout_s=0.15)
            assert not caught.value.outcome_unknown
        assert not broker.sends

    run(scenario)


# --- silence as a proof --------------------------------------------------------------------------------


def is_open(connections: Connections, address: str) -> bool:
    return connections.current(address) is not None


def test_a_broker_that_had_no_time_to_answer_keeps_its_connection() -> None:
    """A retry with 1 % of the time left proves nothing by its timeout. One with all of it gives the
    connection up."""

    async def scenario(cluster: Cluster) -> None:
        broker = await cluster.add("broker-a", T, behave=say_nothing)
        queue = MessageQueue("T", "broker-a", 0)
        loop = asyncio.get_running_loop()
        async with Producer(cluster.namesrv) as producer:
            instance, sender = producer._instance, producer._sender
            route = await sender.route("T", loop.time() + 5.0)
            connection = await instance.connections.get(broker.address, 5.0)
            while not broker.sends:  # on a busy machine there may be no time left to send at all
                trial = producer._trial(Message("T", b"x"), timeout_s=0.05)
                trial.began -= 4.95
                with pytest.raises(Timeout):
                    await sender.to_queue(trial, queue, route)
            assert instance.connections.holds(connection)
            with pytest.raises(Timeout):
                await producer.send(Message("T", b"x"), timeout_s=0.2)
            assert not is_open(instance.connections, broker.address)

    run(scenario)


@pytest.mark.parametrize(("dials_s", "is_kept"), [(0.36, True), (0.0, False)])
def test_a_question_that_waited_for_its_connection_proves_nothing(
    dials_s: float, is_kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To dial took nearly all of the time: the connection that came is kept, though no answer came by it."""

    async def scenario(cluster: Cluster) -> None:
        broker = await cluster.add("broker-a", T, behave=say_nothing)
        loop = asyncio.get_running_loop()
        async with Producer(cluster.namesrv) as producer:
            instance = producer._instance
            get = instance.connections.get

            async def get_slowly(address: str, timeout_s: float) -> Peer:
                await asyncio.sleep(dials_s)
                return await get(address, timeout_s)

            monkeypatch.setattr(instance.connections, "get", get_slowly)
            question = send_request(
                producer._trial(Message("T", b"x"), None).outgoing,
                MessageQueue("T", "broker-a", 0),
                group="g",
                now_ms=0,
            )
            with pytest.raises(Timeout):
                await instance.invoke(broker.address, question, loop.time() + 0.4)
            assert is_open(instance.connections, broker.address) is is_kept

    run(scenario)
