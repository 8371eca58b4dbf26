"""Several name servers: each complete, none needed for long. Traffic goes on while they come and go."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import pytest

from hotfire import Message, Producer
from hotfire.client import instance as instance_module
from hotfire.client.reader import TopicReader
from hotfire.errors import HotfireError
from tests.broker.programs import Program, broker_config, config_file, running
from tests.peers import remoting
from tests.peers.process import poll_until

REFRESHES = 20
"""Ten minutes of them, at one every 30 s."""
GAP_S_MAX = 3.0
"""Far above what a send takes on a busy machine, far below any timeout that would be waited for."""


class Town:
    """Three name servers and two brokers, each a process."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self._directory = directory
        self._stack = stack
        self.names = [self.start_names(number) for number in range(3)]
        self.addresses = [one.namesrv for one in self.names]
        self.brokers = [
            self._run("broker", "-c", broker_config(directory, name=name), "-n", ";".join(self.addresses))
            for name in ("broker-a", "broker-b")
        ]
        for broker in self.brokers:
            remoting.create_topic(broker.broker, "T", 2)
        self.wait_complete()

    def start_names(self, number: int, port: str = "0") -> Program:
        config = config_file(
            self._directory / f"names-{number}.conf",
            bindAddress="127.0.0.1",
            listenPort=port,
            kvConfigPath=self._directory / f"kv-{number}.json",
        )
        return self._run("namesrv", "-c", config)

    def _run(self, *arguments: str) -> Program:
        return self._stack.enter_context(running(self._directory, *arguments))

    def answers(self, address: str) -> list[bytes]:
        asked = [(remoting.GET_ROUTE_BY_TOPIC, {"topic": "T"}), (106, {}), (206, {})]
        return [remoting.ask(address, code, fields).body for code, fields in asked]

    def wait_complete(self) -> float:
        """Seconds until every name server knows both brokers."""
        started = time.monotonic()
        poll_until(
            lambda: all(
                len((remoting.route(address, "T") or {"brokerDatas": []})["brokerDatas"]) == 2
                for address in self.addresses
            ),
            what="both brokers on every name server",
            timeout_s=30.0,
        )
        return time.monotonic() - started


@pytest.fixture
def town(tmp_path: Path) -> Iterator[Town]:
    with ExitStack() as stack:
        yield Town(tmp_path, stack)


class Traffic:
    """One sends on and on, one reads; failures and gaps are kept."""

    def __init__(self) -> None:
        self.sent = self.read = 0
        self.brokers: set[str] = set()
        self.failures: list[str] = []
        self.refreshes = 0
        self.longest_s = 0.0
        self.moved = asyncio.Event()

    async def more(self, count: int = 50) -> None:
        """Until so many more messages went all the way, some through each broker."""
        goal = self.read + count
        self.brokers.clear()
        while self.read < goal or len(self.brokers) < 2:
            await self._next()

    async def refreshed(self, count: int) -> None:
        """Until the routes were asked for so many more times, with or without an answer."""
        goal = self.refreshes + count
        while self.refreshes < goal:
            await self._next()

    async def _next(self) -> None:
        self.moved.clear()
        await self.moved.wait()

    async def _send(self, producer: Producer) -> None:
        last = time.monotonic()
        while True:
            try:
                result = await producer.send(Message("T", b"%d" % self.sent), timeout_s=5.0)
                self.brokers.add(result.queue.broker_name)
                self.sent += 1
            except HotfireError as error:
                self.failures.append(str(error))
            self.longest_s = max(self.longest_s, time.monotonic() - last)
            last = time.monotonic()
            await asyncio.sleep(0.002)

    async def _receive(self, reader: TopicReader) -> None:
        async for _ in reader:
            self.read += 1
            self.moved.set()


@asynccontextmanager
async def traffic(addresses: list[str], monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Traffic]:
    """A producer and a reader that ask for routes ten times a second instead of every 30 s."""
    monkeypatch.setattr(instance_module, "ROUTE_INTERVAL_S", 0.1)
    going = Traffic()
    async with (
        asyncio.timeout(60),
        Producer(addresses) as producer,
        TopicReader(addresses, "T", start="earliest") as reader,
    ):
        refresh = producer._instance.routes.refresh_all

        async def counted(timeout_s: float) -> None:
            await refresh(timeout_s)
            going.refreshes += 1
            going.moved.set()

        monkeypatch.setattr(producer._instance.routes, "refresh_all", counted)
        tasks = [asyncio.create_task(going._send(producer)), asyncio.create_task(going._receive(reader))]
        try:
            await going.more()
            yield going
            await going.more()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def dialled_ports(pid: int) -> set[int]:
    """Remote ports of the connections a process has."""
    sockets = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        target = str(link.readlink()) if link.is_symlink() else ""
        if target.startswith("socket:["):
            sockets.add(target.removeprefix("socket:[").removesuffix("]"))
    rows = [row.split() for row in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return {int(row[2].rpartition(":")[2], 16) for row in rows if row[9] in sockets and row[3] == "01"}


@pytest.mark.promise(13, 217)
def test_name_servers_die_one_by_one_and_nobody_notices(town: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three name servers answer alike and have no connection among them. Under traffic one is killed, then
    another, then the last: no call fails, no send waits."""
    ports = {int(address.rpartition(":")[2]) for address in town.addresses}
    assert (
        town.answers(town.addresses[0]) == town.answers(town.addresses[1]) == town.answers(town.addresses[2])
    )
    for one in town.names:
        assert not dialled_ports(one.process.pid) & ports

    async def scenario() -> None:
        async with traffic(town.addresses, monkeypatch) as going:
            for one in town.names:
                one.process.kill()
                await asyncio.gather(going.more(), going.refreshed(2))
        assert not going.failures
        assert going.longest_s < GAP_S_MAX

    asyncio.run(scenario())


@pytest.mark.promise(18)
def test_without_any_name_server_traffic_goes_on(town: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    """All down for as many refreshes as ten minutes have: no send fails, no queue stands still. Started
    again with nothing on their disks, they are complete within 30 s, and clients use them again."""

    async def scenario() -> None:
        async with traffic(town.addresses, monkeypatch) as going:
            for one in town.names:
                one.process.kill()
            await asyncio.gather(going.more(), going.refreshed(REFRESHES))
            await going.more()
            assert not going.failures
            for number, address in enumerate(town.addresses):
                port = address.rpartition(":")[2]
                await asyncio.to_thread(town.start_names, number, port)
            assert await asyncio.to_thread(town.wait_complete) < 30.0
            await asyncio.gather(going.more(), going.refreshed(2))
        assert not going.failures

    asyncio.run(scenario())
