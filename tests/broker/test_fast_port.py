"""The fast port, two below the broker's: the same broker, for when the other port is busy."""

import asyncio
import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from hotfire.errors import HotfireError
from hotfire.net.peer import Peer
from tests.broker.programs import Program, broker_config, running, up
from tests.broker.test_commands import complaint
from tests.peers.process import poll_until
from tests.unit.broker.harness import bodies, pull_request, send_request

PLACES = 16
FOR_THE_FAST_PORT = 2
TIMEOUT_S = 20.0


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Program]:
    with running(tmp_path, *up(tmp_path, "--set", f"connectionsMax={PLACES}")) as program:
        yield program


def fast(address: str) -> str:
    host, _, port = address.rpartition(":")
    return f"{host}:{int(port) - 2}"


def dial(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=TIMEOUT_S)


def is_hung_up(sock: socket.socket) -> bool:
    sock.settimeout(TIMEOUT_S)
    with suppress(ConnectionResetError):
        return sock.recv(1) == b""
    return True


@pytest.mark.promise(72)
def test_served_while_the_main_port_is_full(server: Program) -> None:
    """Every place of the main port is taken and the next peer there is turned away: through the fast port a
    message is sent and read, into the same store. When a place is free again, the main port serves too."""

    async def send_and_read(address: str, offset: int) -> None:
        async with asyncio.timeout(TIMEOUT_S), await Peer.connect(address) as peer:
            await peer.ask(send_request(body=b"%d" % offset), TIMEOUT_S)
            assert bodies(await peer.ask(pull_request(offset), TIMEOUT_S)) == [b"%d" % offset]

    with ExitStack() as stack:
        for _ in range(PLACES - FOR_THE_FAST_PORT):
            stack.enter_context(dial(server.broker))
        assert is_hung_up(stack.enter_context(dial(server.broker)))
        asyncio.run(send_and_read(fast(server.broker), 0))
        asyncio.run(send_and_read(fast(server.broker), 1))
        assert server.log.count("turned away connections=") == 1, "told once, not for every peer"

    def has_room() -> bool:
        with suppress(HotfireError):
            asyncio.run(send_and_read(server.broker, 2))
            return True
        return False

    poll_until(has_room, what="a free place", timeout_s=TIMEOUT_S)


@pytest.mark.promise(72)
def test_served_while_the_main_port_is_flooded(server: Program) -> None:
    """Eight peers keep thousands of sends under way on the main port: one send after the other through the
    fast port is answered meanwhile."""

    async def scenario() -> None:
        flooding = [await Peer.connect(server.broker) for _ in range(8)]
        flooded = asyncio.Event()

        async def flood(peer: Peer) -> None:
            while True:
                await peer.ask(send_request("Flood", body=bytes(2048)), TIMEOUT_S)
                flooded.set()

        tasks = [asyncio.create_task(flood(peer)) for peer in flooding for _ in range(100)]
        async with asyncio.timeout(60), await Peer.connect(fast(server.broker)) as peer:
            for number in range(20):
                flooded.clear()
                assert (await peer.ask(send_request(body=b"%d" % number), TIMEOUT_S)).code == 0
                await flooded.wait()  # the flood goes on between any two of them
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(one.close() for one in flooding))

    asyncio.run(scenario())


def test_busy_fast_port_is_named(tmp_path: Path) -> None:
    """Two below listenPort somebody else listens: the line names that port and why it is asked for."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        line = complaint(["broker", "-c", broker_config(tmp_path, listenPort=port + 2)], tmp_path)
    for words in (f"port {port} on 127.0.0.1 is in use", "fast port, 2 below", f"listenPort={port + 2}"):
        assert words in line
    assert not (tmp_path / "broker-a" / "abort").exists()
