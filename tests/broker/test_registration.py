"""Telling the name servers: all of them, at once, again and again, and after every change."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from hotfire.broker.config import BrokerConfig
from hotfire.model import TopicTable
from hotfire.protocol.codes import RequestCode
from hotfire.protocol.command import Command, encode
from hotfire.protocol.connection import FrameReader
from hotfire.protocol.registration import decode_registration
from hotfire.protocol.requests import RegisterBroker, UnregisterBroker
from tests.broker.programs import Program, broker_config, namesrv_config, running
from tests.peers import remoting
from tests.peers.ports import free_port
from tests.peers.process import poll_until

LIMIT_S = 40.0


@dataclass
class Registration:
    at: float
    connection: int
    request: RegisterBroker
    topics: TopicTable


@dataclass
class RecordingNameServer:
    """Takes registrations and writes them down."""

    port: int = 0
    connections: int = 0
    silent: int = 0
    """Connections, from the first on, that are never answered on."""
    registrations: list[Registration] = field(default_factory=list)
    goodbyes: list[UnregisterBroker] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    _writers: list[asyncio.StreamWriter] = field(default_factory=list)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @asynccontextmanager
    async def listening(self) -> AsyncIterator["RecordingNameServer"]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            for writer in self._writers:
                writer.close()
            await server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        number = self.connections
        self._writers.append(writer)
        frames = FrameReader()
        while data := await reader.read(1 << 20):
            for command in frames.receive_data(data):
                self._take(number, command)
                if number > self.silent:
                    writer.write(encode(command.reply(0, fields={})))
        writer.close()

    def _take(self, number: int, command: Command) -> None:
        if command.code == RequestCode.REGISTER_BROKER:
            request = RegisterBroker.from_command(command)
            body = decode_registration(request.body, compressed=request.compressed)
            self.registrations.append(Registration(time.monotonic(), number, request, body.topic_table))
        elif command.code == RequestCode.UNREGISTER_BROKER:
            self.goodbyes.append(UnregisterBroker.from_command(command))
        self.changed.set()

    async def until(self, count: int) -> None:
        """So many registrations have come."""
        while len(self.registrations) < count:
            self.changed.clear()
            await self.changed.wait()


def bounded(scenario: Coroutine[Any, Any, None]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(LIMIT_S):
            await scenario

    asyncio.run(limited())


@asynccontextmanager
async def broker_with(directory: Path, *name_servers: str, **settings: object) -> AsyncIterator[Program]:
    """A broker process that was told these name servers on its command line."""
    config = broker_config(directory, **settings)
    context = running(directory, "broker", "-c", config, "-n", ";".join(name_servers))
    program = await asyncio.to_thread(context.__enter__)
    try:
        yield program
    finally:
        await asyncio.to_thread(context.__exit__, None, None, None)


def test_registers_every_30_s_unless_told_otherwise() -> None:
    """The period is 30 s, between 1 and 60 s by setting."""
    assert BrokerConfig().register_name_server_period == 30_000


@pytest.mark.promise(7)
def test_every_name_server_hears_of_everything_every_period(tmp_path: Path) -> None:
    """Three name servers: each gets its registration at the start and every period after it, on one
    connection that stays, with the broker's address and every topic it has."""

    async def scenario() -> None:
        async with AsyncExitStack() as stack:
            servers = [await stack.enter_async_context(RecordingNameServer().listening()) for _ in range(3)]
            started = time.monotonic()
            program = await stack.enter_async_context(
                broker_with(tmp_path, *(s.address for s in servers), registerNameServerPeriod=1000)
            )
            await asyncio.gather(*(server.until(4) for server in servers))
            file = tmp_path / "broker-a" / "config" / "topics.json"
            topics = set(json.loads(file.read_text())["topicConfigTable"])
            assert {"TBW102", "BenchmarkTest", "DefaultCluster", "broker-a"} <= topics
            for server in servers:
                assert server.connections == 1, "the connection was not kept"
                assert server.registrations[0].at - started < 10.0
                times = [registration.at for registration in server.registrations]
                gaps = [later - earlier for earlier, later in pairwise(times)]
                assert all(0.9 < gap < 2.0 for gap in gaps), gaps
                for registration in server.registrations:
                    request = registration.request
                    assert (request.broker_name, request.broker_id) == ("broker-a", 0)
                    assert (request.broker_addr, request.cluster_name) == (program.broker, "DefaultCluster")
                    assert set(registration.topics.topics) == topics

    bounded(scenario())


def test_a_connection_without_answers_is_given_up(tmp_path: Path) -> None:
    """A connection on which nobody answers leads nowhere, though nobody closed it: another is made."""

    async def scenario() -> None:
        async with (
            RecordingNameServer(silent=1).listening() as server,
            broker_with(tmp_path, server.address, registerBrokerTimeoutMills=200),
        ):
            await server.until(2)
            assert [registration.connection for registration in server.registrations[:2]] == [1, 2]

    bounded(scenario())


def test_a_new_topic_is_told_at_once_and_goodbye_at_the_end(tmp_path: Path) -> None:
    """With the period at 30 s every name server hears of a topic within 1 s, and of the end before it."""

    async def scenario() -> None:
        async with AsyncExitStack() as stack:
            servers = [await stack.enter_async_context(RecordingNameServer().listening()) for _ in range(2)]
            program = await stack.enter_async_context(broker_with(tmp_path, *(s.address for s in servers)))
            await asyncio.gather(*(server.until(1) for server in servers))
            for count, queues in ((2, 4), (3, 8)):
                await asyncio.to_thread(remoting.create_topic, program.broker, "T", queues)
                created = time.monotonic()
                await asyncio.gather(*(server.until(count) for server in servers))
                assert time.monotonic() - created < 1.0
                for server in servers:
                    assert server.registrations[-1].topics.topics["T"].write_queues == queues
                    editions = [r.topics.data_version.counter for r in server.registrations]
                    assert editions == sorted(set(editions)), "a change without a new edition"
            assert await asyncio.to_thread(program.process.terminate) == 0
            for server in servers:
                (goodbye,) = server.goodbyes
                assert (goodbye.broker_name, goodbye.broker_addr) == ("broker-a", program.broker)

    bounded(scenario())


def test_a_dead_name_server_keeps_no_other_waiting(tmp_path: Path) -> None:
    """One of two is unreachable: the other is told at once. When the dead one comes, so is it."""

    async def scenario() -> None:
        late = RecordingNameServer(port=free_port())
        async with (
            RecordingNameServer().listening() as alive,
            broker_with(tmp_path, late.address, alive.address) as program,
        ):
            await alive.until(1)
            async with late.listening():
                came = time.monotonic()
                await late.until(1)
                assert time.monotonic() - came < 2.5
            assert "trying on" in program.log
            assert program.log.count("trying on") == 1, "once, not every second"

    bounded(scenario())


@pytest.mark.promise(19)
def test_a_restarted_name_server_knows_everything_again(tmp_path: Path) -> None:
    """Killed and started with nothing on its disk: within 30 s all routes of two brokers are back."""
    port = free_port()
    config = namesrv_config(tmp_path, listenPort=port)
    address = f"127.0.0.1:{port}"

    def routes() -> dict[str, Any]:
        answers = {topic: remoting.route(address, topic) for topic in ("T", "U", "TBW102", "BenchmarkTest")}
        for answer in answers.values():
            for part in ("brokerDatas", "queueDatas"):
                if answer:
                    answer[part].sort(key=lambda row: row["brokerName"])
        return answers

    def both_brokers() -> bool:
        return all(answer and len(answer["brokerDatas"]) == 2 for answer in (routes()["TBW102"],))

    with (
        running(tmp_path, "broker", "-c", broker_config(tmp_path), "-n", address, log="a.err") as a,
        running(
            tmp_path, "broker", "-c", broker_config(tmp_path, name="broker-b"), "-n", address, log="b.err"
        ) as b,
    ):
        remoting.create_topic(a.broker, "T", 4)
        remoting.create_topic(b.broker, "U", 2)
        with running(tmp_path, "namesrv", "-c", config, log="names-1.err") as names:
            poll_until(both_brokers, what="both brokers", timeout_s=10.0)
            before = routes()
            names.process.kill()
        with running(tmp_path, "namesrv", "-c", config, log="names-2.err"):
            started = time.monotonic()
            poll_until(lambda: routes() == before, what="the routes as they were", timeout_s=30.0)
            assert time.monotonic() - started < 5.0, "dialled again every second, so it should be quick"
    assert before["T"] is not None
    assert [queue["readQueueNums"] for queue in before["T"]["queueDatas"]] == [4]
