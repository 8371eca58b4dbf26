"""Both twins of the compiled core serve as the running broker: the same traffic, the same answers."""

import asyncio
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from hotfire import core
from hotfire.model import MessageQueue
from hotfire.net.peer import Peer
from hotfire.protocol.command import Command
from hotfire.protocol.requests import QueryConsumerOffset, UpdateConsumerOffset
from tests.broker.programs import Program, running, up
from tests.peers.remoting import create_topic
from tests.unit.broker.harness import SUBSCRIPTION, SUSPEND, bodies, pull_request, send_request

TIMEOUT_S = 20.0
COUNT = 300


@pytest.fixture(params=["compiled", "plain"])
def env(request: pytest.FixtureRequest) -> dict[str, str]:
    if request.param == "compiled":
        assert core.COMPILED, f"these tests are about the compiled core: {core.WHY_PLAIN}"
        return {"HOTFIRE_CORE": ""}
    return {"HOTFIRE_CORE": "plain"}


def talk(address: str, conversation: Callable[[Peer], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(30.0), await Peer.connect(address) as peer:
            await conversation(peer)

    asyncio.run(bounded())


def body(number: int) -> bytes:
    return b"%d:" % number + bytes(number % 1000)


async def read(peer: Peer, queue: MessageQueue, count: int) -> list[bytes]:
    received: list[bytes] = []
    while len(received) < count:
        request = pull_request(len(received), queue.topic, queue_id=queue.queue_id)
        received += bodies(await peer.ask(request, TIMEOUT_S))
    return received


def serves(program: Program, env: dict[str, str]) -> None:
    is_plain = "running on plain Python, several times slower: HOTFIRE_CORE=plain" in program.log
    assert is_plain == (env["HOTFIRE_CORE"] == "plain"), "not the twin that was asked for"


def test_ordinary_traffic_and_restarts(tmp_path: Path, env: dict[str, str]) -> None:
    """Sends of many sizes to four queues come back whole and in order; a pull that waits is answered by the
    message it waits for; all of it is there again after an orderly end, and after a kill."""
    queues = [MessageQueue("T", "broker-a", queue_id) for queue_id in range(4)]
    expected = {queue: [body(number) for number in range(COUNT)[queue.queue_id :: 4]] for queue in queues}

    async def produce(peer: Peer) -> None:
        requests = [send_request("T", number % 4, body=body(number)) for number in range(COUNT)]
        await asyncio.gather(*(peer.ask(request, TIMEOUT_S) for request in requests))
        await peer.ask(pull_request(0, "T"), TIMEOUT_S)  # the group's first request makes it
        done = UpdateConsumerOffset(consumer_group="CG", topic="T", queue_id=1, commit_offset=7)
        await peer.ask(done, TIMEOUT_S)

    async def consume(peer: Peer) -> None:
        for queue in queues:
            assert await read(peer, queue, len(expected[queue])) == expected[queue]
        kept = QueryConsumerOffset(consumer_group="CG", topic="T", queue_id=1)
        assert (await peer.ask(kept, TIMEOUT_S)).fields["offset"] == "7"

    async def wait(peer: Peer) -> None:
        for queue in queues:
            offset = len(expected[queue])
            held = pull_request(offset, "T", queue_id=queue.queue_id, flag=SUBSCRIPTION | SUSPEND)
            pull = asyncio.create_task(peer.ask(held, TIMEOUT_S))
            await peer.invoke(Command(9999), TIMEOUT_S)  # answered after the pull was taken
            assert not pull.done()
            await peer.ask(send_request("T", queue.queue_id, body=b"awaited"), TIMEOUT_S)
            assert bodies(await pull) == [b"awaited"]
            expected[queue].append(b"awaited")

    with running(tmp_path, *up(tmp_path), env=env, log="1.err") as program:
        serves(program, env)
        create_topic(program.broker, "T", 4)
        for conversation in (produce, consume, wait):
            talk(program.broker, conversation)
        program.process.signal(signal.SIGTERM)
        assert program.process.wait(TIMEOUT_S) == 0
    with running(tmp_path, *up(tmp_path), env=env, log="2.err") as program:
        for conversation in (consume, wait):
            talk(program.broker, conversation)
        program.process.kill()
    with running(tmp_path, *up(tmp_path), env=env, log="3.err") as program:
        talk(program.broker, consume)


def test_one_goes_on_with_the_others_store(tmp_path: Path) -> None:
    """Written by the compiled broker and killed, gone on with by the plain one, and back: nothing is lost."""
    queue = MessageQueue("T", "broker-a", 0)
    expected: list[bytes] = []

    async def more(peer: Peer) -> None:
        for number in range(50):
            await peer.ask(send_request("T", body=body(number)), TIMEOUT_S)
            expected.append(body(number))
        assert await read(peer, queue, len(expected)) == expected

    for kind in ("", "plain", ""):
        with running(tmp_path, *up(tmp_path), env={"HOTFIRE_CORE": kind}, log="one.err") as program:
            talk(program.broker, more)
            program.process.kill()
