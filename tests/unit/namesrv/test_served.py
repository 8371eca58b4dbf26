"""The name server behind its real socket."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from hotfire.broker.config import BrokerConfig
from hotfire.broker.program import BrokerProgram
from hotfire.model import RouteData, TopicConfig
from hotfire.namesrv.config import NameServerConfig
from hotfire.namesrv.program import NameServerProgram
from hotfire.net.peer import Peer
from hotfire.protocol.bodies import decode_body
from hotfire.protocol.codes import ResponseCode
from hotfire.protocol.command import Command
from hotfire.protocol.connection import FrameReader
from hotfire.protocol.requests import GetBrokerClusterInfo, GetRouteInfoByTopic, UpdateAndCreateTopic
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
        updated, reader = link.buffer_updated, FrameReader()

        def listen(count: int) -> None:
            frames.extend(reader.receive_data(link._shared[:count]))
            updated(count)

        link.buffer_updated = listen  # type: ignore[method-assign]
        await peer.invoke_oneway(GetRouteInfoByTopic(topic="nowhere"))
        await peer.invoke_oneway(Command(9999))
        reply = await peer.invoke(GetBrokerClusterInfo(), 5.0)
        await asyncio.sleep(0.1)  # whatever else was to come would be here by now
        assert [(frame.opaque, frame.code) for frame in frames] == [(reply.opaque, 0)]
        await peer.close()

    serve(scenario)


@pytest.mark.promise(10)
def test_changed_topic_is_routed_within_a_second_and_never_twice(tmp_path: Path) -> None:
    """Made with 4 queues, changed to 8: the route shows 4, then 8, never both, each within 1 s."""

    def change(queue_count: int) -> UpdateAndCreateTopic:
        return UpdateAndCreateTopic(
            topic="changing",
            default_topic="TBW102",
            read_queue_nums=queue_count,
            write_queue_nums=queue_count,
            perm=6,
            topic_filter_type="SINGLE_TAG",
        )

    async def scenario(address: str) -> None:
        program = BrokerProgram(
            BrokerConfig(
                bind_address="127.0.0.1",
                listen_port=0,
                namesrv_addr=address,
                store_path_root_dir=str(tmp_path),
            )
        )
        await program.start()
        try:
            assert await program.wait_registered(5.0) == []
            admin, client = await Peer.connect(program.advertised), await Peer.connect(address)
            shown: list[tuple[tuple[int, int], ...]] = []
            for queue_count in (4, 8):
                await admin.ask(change(queue_count), 5.0)
                deadline = time.monotonic() + 1.0
                while not shown or shown[-1] != ((queue_count, queue_count),):
                    reply = await client.invoke(GetRouteInfoByTopic(topic="changing"), 5.0)
                    if reply.code == ResponseCode.SUCCESS:
                        queues = decode_body(RouteData, reply.body).queues
                        shown.append(tuple((one.read_queues, one.write_queues) for one in queues))
                    assert time.monotonic() < deadline, shown
            assert set(shown) == {((4, 4),), ((8, 8),)}
            await admin.close()
            await client.close()
        finally:
            await program.close()

    serve(scenario)
