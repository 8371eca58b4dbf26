"""The name server behind its real socket."""

import asyncio
import time
from collections.abc import Awaitable, Callable

import pytest

from hotfire.model import TopicConfig
from hotfire.namesrv.config import NameServerConfig
from hotfire.namesrv.program import NameServerProgram
from hotfire.net.peer import Peer
from hotfire.protocol.codes import ResponseCode
from hotfire.protocol.command import Command
from hotfire.protocol.connection import FrameReader
from hotfire.protocol.requests import GetBrokerClusterInfo, GetRouteInfoByTopic
from tests.unit.namesrv.fakes import FakeBroker

TOPICS = [TopicConfig("T", 4, 4), TopicConfig("U", 4, 4)]


def serve(test: Callable[[str], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(20):
            program = NameServerProgram(NameServerConfig(bind_address="127.0.0.1", listen_port=0))
            await program.start()
            try:
                await test(f"127.0.0.1:{program.port}")
            finally:
                await program.close()

    asyncio.run(bounded())


@pytest.mark.promise(9)
def test_broker_whose_connection_breaks_leaves_the_route_within_a_second() -> None:
    """The kernel resets the connection of a killed process: the route is without the broker in < 1 s."""

    async def scenario(address: str) -> None:
        broker = await Peer.connect(address)
        client = await Peer.connect(address)
        await broker.ask(FakeBroker().registration(TOPICS), 5.0)
        assert (await client.ask(GetRouteInfoByTopic(topic="T"), 5.0)).body
        assert broker._link.transport is not None
        broker._link.transport.abort()
        killed = time.monotonic()
        while (await client.invoke(GetRouteInfoByTopic(topic="T"), 5.0)).code != ResponseCode.TOPIC_NOT_EXIST:
            pass
        assert time.monotonic() - killed < 1.0
        await client.close()

    serve(scenario)


@pytest.mark.promise(68)
def test_oneway_request_gets_no_reply_even_when_it_fails() -> None:
    """A oneway question about an unknown topic: the only frame on the wire answers the question after it."""

    async def scenario(address: str) -> None:
        peer = await Peer.connect(address)
        frames: list[Command] = []
        link = peer._link
        received, reader = link.data_received, FrameReader()

        def listen(data: bytes) -> None:
            frames.extend(reader.receive_data(data))
            received(data)

        link.data_received = listen  # type: ignore[method-assign]
        await peer.invoke_oneway(GetRouteInfoByTopic(topic="nowhere"))
        await peer.invoke_oneway(Command(9999))
        reply = await peer.invoke(GetBrokerClusterInfo(), 5.0)
        await asyncio.sleep(0.1)  # whatever else was to come would be here by now
        assert [(frame.opaque, frame.code) for frame in frames] == [(reply.opaque, 0)]
        await peer.close()

    serve(scenario)
