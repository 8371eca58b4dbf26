"""Simulated time, network and machines behave as their names say, the same way each time."""

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from hotfire import Message, Producer
from hotfire.errors import ConnectError, ConnectionLost, Timeout
from hotfire.net.addresses import local_address
from hotfire.net.clock import now_ms
from hotfire.net.peer import Peer
from hotfire.protocol.requests import GetBrokerRuntimeInfo
from hotfire.testing import PowerCut, SimLoop, SimNetwork, Simulation

PING = GetBrokerRuntimeInfo()
CLIENT = "10.0.3.1"


def run(scenario: Callable[[Simulation], Coroutine[Any, Any, Any]], seed: int = 1) -> Simulation:
    """A name server, a broker, and the scenario on a client's host."""

    async def main(sim: Simulation) -> None:
        await sim.add_name_server()
        await sim.add_broker()
        await sim.on(sim.network.host(CLIENT), scenario(sim))

    sim = Simulation(seed)
    sim.run(main)
    return sim


# --- time ---


def test_time_goes_from_timer_to_timer() -> None:
    """A year of sleep is over at once, and everyone woke at the time they wanted."""
    loop = SimLoop()
    woken = []

    async def sleep(seconds: float) -> None:
        await asyncio.sleep(seconds)
        woken.append((seconds, loop.time()))

    async def main() -> None:
        await asyncio.gather(*(sleep(seconds) for seconds in (31_536_000.0, 0.5, 60.0)))

    loop.run_until_complete(main())
    loop.close()
    assert woken == [(0.5, 0.5), (60.0, 60.0), (31_536_000.0, 31_536_000.0)]


def test_waiting_for_nothing_is_an_error() -> None:
    """A program that can never go on says so; it does not hang."""
    loop = SimLoop()

    async def main() -> None:
        await asyncio.Event().wait()

    with pytest.raises(RuntimeError, match="wait for ever"):
        loop.run_until_complete(main())
    for task in asyncio.all_tasks(loop):
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            loop.run_until_complete(task)
    loop.close()


def test_hosts_have_addresses_and_clocks_of_their_own() -> None:
    """What runs on a host has its address and its wall clock; setting that one moves no other."""

    async def scenario(sim: Simulation) -> None:
        async def look() -> tuple[str, int]:
            return local_address(), now_ms()

        one, other = sim.network.host("10.0.9.1"), sim.network.host("10.0.9.2")
        other.skew_ms = 5000
        (first, one_ms), (second, other_ms) = await sim.on(one, look()), await sim.on(other, look())
        assert (first, second, other_ms - one_ms) == ("10.0.9.1", "10.0.9.2", 5000)

    run(scenario)


def test_threads_are_refused() -> None:
    """There are none in a simulation: whoever asks for one hears of it."""

    async def scenario(sim: Simulation) -> None:
        with pytest.raises(RuntimeError, match="no threads"):
            await asyncio.to_thread(print)

    run(scenario)


# --- network ---


def test_bytes_arrive_whole_and_in_order() -> None:
    """Whatever pieces it travels in, a stream is what was written, and takes its time."""

    class Sink(asyncio.Protocol):
        def __init__(self) -> None:
            self.data, self.ended = b"", asyncio.Event()

        def data_received(self, data: bytes) -> None:
            self.data += data

        def connection_lost(self, error: Exception | None) -> None:
            self.ended.set()

    loop = SimLoop()
    network = SimNetwork(loop, random.Random(3))

    async def main() -> None:
        sink = Sink()
        await loop.create_server(lambda: sink, sock=network.bind("10.0.0.1", 80))
        transport, _ = await loop.create_connection(asyncio.Protocol, "10.0.0.1", 80)
        for number in range(200):
            transport.write(b"%d," % number)
        transport.close()
        await sink.ended.wait()
        assert sink.data == b"".join(b"%d," % number for number in range(200))
        assert loop.time() > 0

    loop.run_until_complete(main())
    loop.close()


def test_a_cut_is_heard_of_at_both_ends() -> None:
    """Whoever waits is told that the connection is lost, and may dial again."""

    async def scenario(sim: Simulation) -> None:
        async with await Peer.connect(sim.brokers[0].address) as peer:
            asking = asyncio.create_task(peer.ask(PING, 3.0))
            await asyncio.sleep(0)
            assert sim.network.cut([sim.network.host(CLIENT)], [sim.brokers[0].host]) == 1
            with pytest.raises(ConnectionLost):
                await asking
        async with await Peer.connect(sim.brokers[0].address) as peer:
            await peer.ask(PING, 3.0)

    run(scenario)


def test_a_partition_holds_everything_back_until_it_heals() -> None:
    """Requests wait on the way, dialling takes until the timeout; afterwards what was sent arrives."""

    async def scenario(sim: Simulation) -> None:
        broker = sim.brokers[0]
        async with await Peer.connect(broker.address) as peer:
            sim.network.partition([broker.host], [sim.network.host(CLIENT)])
            with pytest.raises(Timeout):
                await peer.ask(PING, 3.0)
            with pytest.raises(ConnectError):
                await Peer.connect(broker.address, timeout_s=3.0)
            asking = asyncio.create_task(peer.ask(PING, 60.0))
            await asyncio.sleep(30)
            assert not asking.done()
            sim.network.heal()
            await asking

    run(scenario)


def test_a_killed_process_is_heard_of_and_a_dead_machine_is_not() -> None:
    """A kill resets connections at once; a power cut leaves them hanging until the machine is back."""

    async def scenario(sim: Simulation) -> None:
        broker = sim.brokers[0]
        peer = await Peer.connect(broker.address)
        broker.kill()
        await asyncio.wait_for(peer.wait_closed(), 1.0)
        with pytest.raises(ConnectError, match="refused"):
            await Peer.connect(broker.address)
        await broker.start()
        peer = await Peer.connect(broker.address)
        broker.power_off()
        with pytest.raises(Timeout):
            await peer.ask(PING, 3.0)
        assert not peer.closed
        await broker.start()
        await asyncio.wait_for(peer.wait_closed(), 1.0)

    run(scenario)


# --- machines ---


def test_what_was_acknowledged_outlives_a_power_cut() -> None:
    """A broker that lost its power in the middle of its work comes back with what it had acknowledged."""

    async def scenario(sim: Simulation) -> None:
        broker = sim.brokers[0]
        stored = 0
        async with Producer(sim.namesrv, instance_name="p", retries=0, rng=sim.fork()) as producer:
            await producer.send(Message("orders", b"first"))
            broker.disk.cut_after(broker.disk.operations + 20)
            while broker.is_running:
                try:
                    await producer.send(Message("orders", b"x"), timeout_s=1.0)
                    stored += 1
                except (Timeout, ConnectionLost):
                    assert not broker.is_running
        await broker.start()
        assert broker.program is not None
        queues = broker.program.broker.store
        found = sum(queue.max for n in range(8) if (queue := queues.find_queue("orders", n)) is not None)
        assert found >= stored + 1

    sim = run(scenario)
    assert any("lost its power: at operation" in line for line in sim.story)


def test_power_may_go_while_a_broker_starts() -> None:
    """PowerCut is raised to whoever starts it; the next start is as good as any."""

    async def scenario(sim: Simulation) -> None:
        broker = sim.brokers[0]
        broker.kill()
        broker.disk.cut_after(broker.disk.operations + 3)
        with pytest.raises(PowerCut):
            await broker.start()
        assert not broker.is_running
        await broker.start()

    run(scenario)


def test_a_run_is_its_seeds() -> None:
    """The same seed, the same digest; another seed, another."""

    async def scenario(sim: Simulation) -> None:
        async with Producer(sim.namesrv, instance_name="p", rng=sim.fork()) as producer:
            for _ in range(20):
                await producer.send(Message("orders", b"x"))

    assert run(scenario, 5).digest == run(scenario, 5).digest != run(scenario, 6).digest


def test_what_nobody_caught_fails_the_run() -> None:
    """An exception in a callback is no line in a log here: the run raises it."""

    async def scenario(sim: Simulation) -> None:
        sim.loop.call_soon(lambda: 1 // 0)
        await asyncio.sleep(1)

    with pytest.raises(ZeroDivisionError):
        run(scenario)
