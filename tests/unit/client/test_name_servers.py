"""Clients and several name servers: spread, moving on, and what an administrator's change does to senders."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from hotfire import Message, Producer
from hotfire.client import instance as instance_module
from hotfire.errors import ConnectError
from hotfire.model import TopicConfig
from hotfire.namesrv.config import NameServerConfig
from hotfire.namesrv.program import NameServerProgram
from hotfire.net.peer import Peer
from hotfire.protocol.requests import WipeWritePermOfBroker
from tests.unit.client.cluster import Cluster, run
from tests.unit.namesrv.fakes import FakeBroker

T = TopicConfig("T", 4, 4)


@asynccontextmanager
async def name_servers(count: int) -> AsyncIterator[list[NameServerProgram]]:
    async with AsyncExitStack() as stack:
        programs = []
        for _ in range(count):
            program = NameServerProgram(NameServerConfig(bind_address="127.0.0.1", listen_port=0))
            await program.start()
            stack.push_async_callback(program.close)
            peer = await Peer.connect(f"127.0.0.1:{program.port}")
            stack.push_async_callback(peer.close)
            await peer.ask(FakeBroker().registration([T, TopicConfig("U")]), 5.0)
            programs.append(program)
        yield programs


def client_count(program: NameServerProgram) -> int:
    return len(program.server.connections) - 1  # one is the broker's


@pytest.mark.promise(14)
def test_clients_spread_over_name_servers_and_move_when_one_dies() -> None:
    """30 clients, 3 name servers: each serves some, one connection per client; the dead one's move on."""

    async def scenario() -> None:
        async with asyncio.timeout(30), name_servers(3) as programs, AsyncExitStack() as stack:
            addresses = [f"127.0.0.1:{program.port}" for program in programs]
            clients = [await stack.enter_async_context(Producer(addresses)) for _ in range(30)]
            for client in clients:
                assert len(await client.queues("T")) == 4
            counts = [client_count(program) for program in programs]
            assert sum(counts) == 30
            assert all(counts), counts

            dead, *alive = programs
            await dead.close()
            for client in clients:
                await client._instance.routes.refresh("T", 3.0)
            assert sum(client_count(program) for program in alive) == 30

    asyncio.run(scenario())


@pytest.mark.promise(11)
def test_wiped_broker_is_chosen_no_more_after_the_next_refresh() -> None:
    """Taking a broker's write permission away: perm 6 becomes 4 on all its topics, and senders leave it."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.add("broker-a", T, TopicConfig("U", 4, 4))
        b = await cluster.add("broker-b", T, TopicConfig("U", 4, 4))
        async with Producer(cluster.namesrv) as producer, await Peer.connect(cluster.namesrv) as admin:
            routes = producer._instance.routes
            for topic in ("T", "U"):
                used = {(await producer.send(Message(topic, b"x"))).queue.broker_name for _ in range(16)}
                assert used == {"broker-a", "broker-b"}
            await admin.ask(WipeWritePermOfBroker(broker_name="broker-a"), 5.0)
            await routes.refresh_all(3.0)
            for topic in ("T", "U"):
                route = await routes.to_write(topic, 3.0)
                assert {one.broker_name: one.perm for one in route.data.queues} == {
                    "broker-a": 4,
                    "broker-b": 6,
                }
                used = {(await producer.send(Message(topic, b"x"))).queue.broker_name for _ in range(16)}
                assert used == {"broker-b"}
        assert b.sends

    run(scenario)


@pytest.mark.promise(15)
def test_running_producer_takes_up_a_new_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker added to the topic is used after the next periodic refresh, which is every 30 seconds."""
    assert instance_module.ROUTE_INTERVAL_S == 30.0
    monkeypatch.setattr(instance_module, "ROUTE_INTERVAL_S", 0.05)

    async def scenario(cluster: Cluster) -> None:
        await cluster.add("broker-a", T)
        async with Producer(cluster.namesrv) as producer:
            await producer.send(Message("T", b"x"))
            b = await cluster.add("broker-b", T)
            while not b.sends:
                await producer.send(Message("T", b"x"))
                await asyncio.sleep(0.01)

    run(scenario)


def test_a_broker_that_cannot_be_reached_is_explained() -> None:
    """The error names the address, who gave it, and the setting by which the broker tells a better one."""

    async def scenario(cluster: Cluster) -> None:
        broker = await cluster.add("broker-a", T)
        await broker.server.close()
        async with Producer(cluster.namesrv, retries=0) as producer:
            with pytest.raises(ConnectError) as raised:
                await producer.send(Message("T", b"x"))
        told = str(raised.value)
        assert told.startswith(f"broker {broker.address}: Connection refused; ")
        assert f"name server {cluster.namesrv} gave this address" in told
        assert "brokerIP1" in told

    run(scenario)
