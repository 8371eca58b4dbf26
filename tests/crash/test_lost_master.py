"""A synchronous pair of processes: the master is killed and its disk wiped, the slave takes over by hand."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from hotfire import Message, Producer
from hotfire.client.reader import TopicReader
from hotfire.errors import HotfireError
from tests.peers import noon, remoting
from tests.peers.hotfire import executable
from tests.peers.ports import free_port
from tests.peers.process import LineProcess, poll_until

pytestmark = [pytest.mark.crash, pytest.mark.timeout(120)]

READY_TIMEOUT_S = 30.0
TOPIC, NAME, QUEUES = "orders", "pair", 4
ACKNOWLEDGED = 3000
SENDERS = 32
OK = 0


class Pair:
    """A name server, a SYNC_MASTER and its SLAVE, each a process with a directory of its own."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.namesrv = f"127.0.0.1:{free_port()}"
        self.ports = {"master": free_port(-2, 1), "slave": free_port(-2, 1)}
        self.processes: dict[str, LineProcess] = {}
        port = self.namesrv.rpartition(":")[2]
        self._start("namesrv", ["namesrv", "--set", f"listenPort={port}", "--set", "bindAddress=127.0.0.1"])

    def start(self, which: str, **settings: str) -> None:
        chosen = {
            "brokerName": NAME,
            "bindAddress": "127.0.0.1",
            "listenPort": str(self.ports[which]),
            "storePathRootDir": str(self.directory / which),
            "mappedFileSizeCommitLog": str(1 << 20),
            **settings,
        }
        pairs = [word for name, value in chosen.items() for word in ("--set", f"{name}={value}")]
        self._start(which, ["broker", "-n", self.namesrv, *pairs])

    def _start(self, which: str, arguments: list[str]) -> None:
        log = self.directory / f"{which}.err"
        process = LineProcess([str(executable()), *arguments], log=log, env=noon.ENVIRONMENT)
        self.processes[which] = process
        process.wait_line(
            lambda text: text.startswith("hotfire ready "), what="ready line", timeout_s=READY_TIMEOUT_S
        )

    def address(self, which: str) -> str:
        return f"127.0.0.1:{self.ports[which]}"

    def stop(self) -> None:
        for process in self.processes.values():
            if process.alive:
                process.terminate()


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    made = Pair(tmp_path)
    yield made
    made.stop()


async def send_all(pair: Pair, master_dies: asyncio.Event) -> dict[tuple[int, int], bytes]:
    """Send until the master is gone; what was answered SEND_OK, by its place."""
    acknowledged: dict[tuple[int, int], bytes] = {}
    async with Producer(pair.namesrv, retries=0, timeout_s=5.0) as producer:

        async def send(sender: int) -> None:
            number = 0
            while not master_dies.is_set():
                number += 1
                body = b"%d-%d " % (sender, number) + bytes(300)
                try:
                    result = await producer.send(Message(TOPIC, body))
                except HotfireError:
                    return
                if result.code == OK:
                    acknowledged[result.queue.queue_id, result.queue_offset] = body
                if len(acknowledged) >= ACKNOWLEDGED and not master_dies.is_set():
                    master_dies.set()
                    pair.processes["master"].kill()  # while the others' sends are under way
                    shutil.rmtree(pair.directory / "master")

        await asyncio.gather(*(send(sender) for sender in range(SENDERS)))
    return acknowledged


async def contents(pair: Pair) -> dict[tuple[int, int], bytes]:
    async with TopicReader(pair.namesrv, TOPIC, start="earliest", follow=False) as reader:
        return {(message.queue.queue_id, message.queue_offset): message.body async for message in reader}


def is_following(pair: Pair) -> bool | None:
    """Whether a send is answered SEND_OK, which takes the slave."""

    async def send() -> int:
        async with Producer(pair.namesrv) as producer:
            return (await producer.send(Message("probe", b"?"))).code

    return asyncio.run(send()) == OK or None


@pytest.mark.promise(56, 61, 188, 198)
@pytest.mark.parametrize("flush", ["SYNC_FLUSH", "ASYNC_FLUSH"])
def test_a_wiped_master_takes_nothing_acknowledged_along(pair: Pair, flush: str) -> None:
    """kill -9 under sends, rm -rf of its store: the slave, made a master, has every SEND_OK at its place."""
    pair.start("master", brokerRole="SYNC_MASTER", flushDiskType=flush)
    remoting.create_topic(pair.address("master"), TOPIC, QUEUES)
    pair.start("slave", brokerRole="SLAVE", brokerId="1", flushDiskType=flush)
    poll_until(lambda: is_following(pair), what="an acknowledgement of the slave", timeout_s=20.0)
    acknowledged = asyncio.run(send_all(pair, asyncio.Event()))
    assert len(acknowledged) >= ACKNOWLEDGED
    assert pair.processes["slave"].terminate() == 0
    pair.start("slave", brokerRole="ASYNC_MASTER", brokerId="0", flushDiskType=flush)
    poll_until(
        lambda: pair.address("slave") in str(remoting.route(pair.namesrv, TOPIC)) or None,
        what="route to the new master",
        timeout_s=20.0,
    )
    found = asyncio.run(contents(pair))
    lost = [place for place, body in acknowledged.items() if found.get(place) != body]
    assert not lost, f"{len(lost)} of {len(acknowledged)} acknowledged are lost: {lost[:5]}"
