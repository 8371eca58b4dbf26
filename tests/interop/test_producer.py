"""Our producer with Apache's broker, and what it stores read by Apache's client."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from hotfire import Message, Producer
from hotfire.client.choosing import by_key_hash
from hotfire.client.confirm import NotStored, Stored
from hotfire.client.reader import TopicReader
from hotfire.model import ReceivedMessage
from tests.interop.clients import APACHE_SETTINGS, HOTFIRE_ARGUMENTS, Server
from tests.interop.mqadmin import Mqadmin
from tests.peers import jars, remoting
from tests.peers.apache import ApacheCluster
from tests.peers.hotfire import HotfireProcess

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

TEXT = "ten kilobytes of text that says the same again and again. " * 180
KINDS = ("zlib", "lz4", "zstd")


@pytest.fixture(scope="module", params=["apache", "hotfire"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    if missing := jars.missing_tools():
        pytest.fail(f"install {' and '.join(missing)}: these tests run Apache's broker and tools")
    directory = tmp_path_factory.mktemp(request.param)
    made: Server = (
        ApacheCluster(directory, settings=APACHE_SETTINGS)
        if request.param == "apache"
        else HotfireProcess(directory, arguments=HOTFIRE_ARGUMENTS)
    )
    with made:
        yield made


async def read_all(server: Server, topic: str, count: int) -> list[ReceivedMessage]:
    await asyncio.to_thread(remoting.await_stored, server.namesrv, server.broker, topic, count)
    async with TopicReader(server.namesrv, topic, start="earliest", follow=False) as reader:
        return [message async for message in reader]


@pytest.mark.promise(147, 148)
def test_every_way_to_send_is_stored(server: Server) -> None:
    """Waiting, later, oneway, by key and in batches: stored once, where the results say."""

    async def scenario() -> None:
        async with asyncio.timeout(200), Producer(server.namesrv, timeout_s=10.0) as producer:
            results = [await producer.send(Message("Ways", b"%d" % n, tag="a")) for n in range(20)]
            results += [await producer.send_soon(Message("Ways", b"%d" % n, tag="a")) for n in range(20, 40)]
            sends = [producer.send_soon(Message("Ways", b"%d" % n, keys=("k",))) for n in range(40, 1000)]
            assert producer._later.pipelines is not None
            assert any(pipe.core.in_flight for pipe in producer._later.pipelines._pipes.values())
            results += await asyncio.gather(*sends)
            keyed = [
                await producer.send(Message("Ways", b"%d" % n), selector=by_key_hash, arg=f"order-{n % 3}")
                for n in range(1000, 1030)
            ]
            assert all(len({result.queue for result in keyed[n::3]}) == 1 for n in range(3))
            batch = await producer.send_batch([Message("Ways", b"%d" % n) for n in range(1030, 1130)])
            assert len({result.queue for result in batch}) == 1
            results += keyed + batch
            await producer.send_oneway(Message("Ways", b"oneway"))
            await producer.send(Message("Ways", b"last"))  # behind it on the same connection
            stored = {
                message.message_id: message for message in await read_all(server, "Ways", len(results) + 2)
            }
            for n, result in enumerate(results):
                message = stored[result.message_id]
                assert (message.body, message.queue, message.queue_offset) == (
                    b"%d" % n, result.queue, result.queue_offset
                )  # fmt: skip
            assert {message.body for message in stored.values()} >= {b"oneway", b"last"}

    asyncio.run(scenario())


@pytest.mark.promise(87)
def test_compressed_bodies_are_read_by_java(server: Server, tmp_path: Path) -> None:
    """10 KB of text in each kind: flagged, and whole again in Apache's consumer and in ours."""

    async def scenario() -> None:
        for kind in KINDS:
            async with Producer(server.namesrv, compression=kind, timeout_s=10.0) as producer:  # type: ignore[arg-type]
                await producer.send(Message("Packed", f"{kind}: {TEXT}".encode(), keys=(kind,)))
        read = {message.body.decode() for message in await read_all(server, "Packed", len(KINDS))}
        assert read == {f"{kind}: {TEXT}" for kind in KINDS}

    asyncio.run(scenario())
    with Mqadmin(server.namesrv, directory=tmp_path) as admin:
        printed = admin.run("printMsg", "-t", "Packed", "-d", "true")
    for kind in KINDS:
        assert f"{kind}: {TEXT}" in printed


@pytest.mark.promise(197)
def test_unknown_outcomes_are_found_out(server: Server) -> None:
    """What was stored is found by id, what never was is not."""

    async def scenario() -> None:
        async with asyncio.timeout(100), Producer(server.namesrv, timeout_s=10.0) as producer:
            result = await producer.send(Message("Asked", b"x"))
            assert await producer.confirm(result.message_id, "Asked") == Stored(
                result.queue, result.queue_offset
            )
            delayed = await producer.send(Message("Asked", b"x", delay_level=18))
            assert isinstance(await producer.confirm(delayed.message_id, "Asked"), Stored)
            assert await producer.confirm("0" * 32, "Asked") == NotStored()

    asyncio.run(scenario())
