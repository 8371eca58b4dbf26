"""Each fault of the proxy is what its name says, as a client and a broker see it."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from hotfire import Message, Producer
from hotfire.client.reader import TopicReader
from hotfire.errors import ConnectError, ConnectionLost, Timeout, Unreachable
from hotfire.net.peer import Peer
from hotfire.protocol.codes import RequestCode
from hotfire.protocol.requests import GetAllTopicConfig, GetBrokerRuntimeInfo
from hotfire.testing import ChaosProxy, Cluster

SEND = RequestCode.SEND_MESSAGE_V2
PING = GetBrokerRuntimeInfo()
SOON_S, LONG_S = 0.3, 20.0


def run(scenario: Callable[[Cluster, ChaosProxy], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        async with Cluster(proxied=True) as cluster:
            await cluster.create_topic("orders", queues=1)
            proxy = cluster.brokers[0].proxy
            assert proxy is not None
            await scenario(cluster, proxy)

    asyncio.run(main())


async def bodies(cluster: Cluster) -> list[bytes]:
    async with TopicReader(cluster.namesrv, "orders", start="earliest", follow=False) as reader:
        return [message.body async for message in reader]


def test_without_faults_everything_passes() -> None:
    """Clients find the proxies by the routes, and a message of many frames' size goes through whole."""

    async def scenario(cluster: Cluster, proxy: ChaosProxy) -> None:
        async with Producer(cluster.namesrv) as producer:
            await producer.send(Message("orders", b"small"))
            await producer.send(Message("orders", bytes(3 << 20)))
        assert await bodies(cluster) == [b"small", bytes(3 << 20)]
        assert proxy.passed["requests", SEND] == proxy.passed["replies", SEND] == 2
        names = cluster.name_servers[0].proxy
        assert names is not None
        assert names.passed["requests", RequestCode.REGISTER_BROKER]

    run(scenario)


def test_a_cut_ends_connections_and_only_those_there_are() -> None:
    """Who waits is told at once; who dials again is served."""

    async def scenario(cluster: Cluster, proxy: ChaosProxy) -> None:
        proxy.hold("requests")
        async with await Peer.connect(proxy.address) as peer:
            asking = asyncio.create_task(peer.ask(PING, LONG_S))
            await cluster.clock.settle()
            assert peer.in_flight_count == 1
            proxy.cut()
            with pytest.raises(ConnectionLost):
                await asking
        proxy.flow()
        async with await Peer.connect(proxy.address) as peer:
            await peer.ask(PING, LONG_S)

    run(scenario)


def test_refusing_and_accepting() -> None:
    """New connections are refused while those there are go on; then they are taken again."""

    async def scenario(cluster: Cluster, proxy: ChaosProxy) -> None:
        async with await Peer.connect(proxy.address) as peer:
            await peer.ask(PING, LONG_S)
            proxy.refuse()
            with pytest.raises(ConnectError):
                await Peer.connect(proxy.address)
            await peer.ask(PING, LONG_S)
        proxy.accept()
        async with await Peer.connect(proxy.address) as peer:
            await peer.ask(PING, LONG_S)

    run(scenario)


@pytest.mark.parametrize("way", ["requests", "replies"])
def test_half_open(way: Any) -> None:
    """Requests or replies do not arrive; they do when they flow again. The other way is not held."""

    async def scenario(cluster: Cluster, proxy: ChaosProxy) -> None:
        async with await Peer.connect(proxy.address) as peer:
            proxy.hold(way)
            with pytest.raises(Timeout):
                await peer.ask(PING, SOON_S)
            assert proxy.passed["requests", PING.code] == (way == "replies")
            asking = asyncio.create_task(peer.ask(PING, LONG_S))
            proxy.flow()
            await asking
            assert proxy.passed["requests", PING.code] == proxy.passed["replies", PING.code] == 2

    run(scenario)


def test_a_lost_reply_leaves_the_message_stored() -> None:
    """The reply to one send is dropped: the sender does not know, and the broker has it. Others pass."""

    async def scenario(cluster: Cluster, proxy: ChaosProxy) -> None:
        async with Producer(cluster.namesrv, retries=0) as producer:
            proxy.drop("replies", SEND, times=1)
            with pytest.raises(Unreachable):
                await producer.send(Message("orders", b"unknown"), timeout_s=SOON_S)
            await producer.send(Message("orders", b"known"))
        assert await bodies(cluster) == [b"unknown", b"known"]

    run(scenario)


def test_a_lost_request_is_never_stored() -> None:
    """Every send is dropped until the faults are cleared; other requests pass."""

    async def scenario(cluster: Cluster, proxy: ChaosProxy) -> None:
        proxy.drop("requests", SEND)
        async with Producer(cluster.namesrv, retries=0) as producer:
            for _ in range(2):
                with pytest.raises(Unreachable):
                    await producer.send(Message("orders", b"lost"), timeout_s=SOON_S)
            assert await bodies(cluster) == []
            proxy.clear()
            await producer.send(Message("orders", b"stored"))
        assert await bodies(cluster) == [b"stored"]

    run(scenario)


@pytest.mark.parametrize(("way", "stored"), [("requests", []), ("replies", [b"half"])])
def test_a_cut_within_a_frame(way: Any, stored: list[bytes]) -> None:
    """Half a request is none, half a reply is none: the sender hears of a lost connection at once."""

    async def scenario(cluster: Cluster, proxy: ChaosProxy) -> None:
        async with Producer(cluster.namesrv, retries=0) as producer:
            proxy.cut_within(way, SEND)
            with pytest.raises(ConnectionLost):
                await producer.send(Message("orders", b"half"), timeout_s=LONG_S)
            await producer.send(Message("orders", b"whole"))
        assert await bodies(cluster) == [*stored, b"whole"]

    run(scenario)


def test_slow_lines() -> None:
    """A delay comes on top of each reply, pipelined ones share it; a throttled line takes its time."""

    async def scenario(cluster: Cluster, proxy: ChaosProxy) -> None:
        loop = asyncio.get_running_loop()
        async with await Peer.connect(proxy.address) as peer:
            proxy.delay(SOON_S)
            began_s = loop.time()
            await asyncio.gather(*(peer.ask(PING, LONG_S) for _ in range(10)))
            assert loop.time() - began_s >= 2 * SOON_S
            proxy.clear()
            table = await peer.ask(GetAllTopicConfig(), LONG_S)
            size = len(table.body)
            proxy.throttle(2 * size, "replies")
            began_s = loop.time()
            await peer.ask(GetAllTopicConfig(), LONG_S)
            assert loop.time() - began_s >= 0.4

    run(scenario)


def test_a_partition_is_seen_by_the_clock() -> None:
    """A broker cut off from its name server is forgotten in time, and known again after."""

    async def scenario(cluster: Cluster, proxy: ChaosProxy) -> None:
        names = cluster.name_servers[0]
        assert names.program is not None
        assert names.proxy is not None
        routes = names.program.name_server.state.routes
        names.proxy.hold()
        await cluster.clock.turn(150)
        assert not routes.cluster_info().brokers
        names.proxy.flow()
        await cluster.clock.turn(35)
        assert routes.cluster_info().brokers

    run(scenario)


def test_what_is_no_frame_passes_as_it_is() -> None:
    """An echo server behind the proxy gets bytes that begin with no possible length."""

    async def scenario() -> None:
        async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while data := await reader.read(100):
                writer.write(data)
            writer.close()

        server = await asyncio.start_server(echo, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with asyncio.timeout(30), server, ChaosProxy(f"127.0.0.1:{port}") as proxy:
            reader, writer = await asyncio.open_connection(*proxy.address.split(":"))
            writer.write(b"GET / HTTP/1.1\r\n")
            assert await reader.readexactly(16) == b"GET / HTTP/1.1\r\n"
            writer.close()
            await writer.wait_closed()

    asyncio.run(scenario())


def test_faults_from_another_thread() -> None:
    """A cluster on its own thread: its proxies are told from the test's."""
    with Cluster(proxied=True) as cluster:
        proxy = cluster.brokers[0].proxy
        assert proxy is not None
        proxy.refuse()
        with pytest.raises(ConnectError):
            asyncio.run(Peer.connect(proxy.address))
        proxy.clear()
        proxy.cut()
        cluster.create_topic("orders")
