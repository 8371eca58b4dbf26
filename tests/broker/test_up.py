"""`hotfire up`, from outside: send, pull, wait for a message, create a topic, ask for a route."""

import asyncio
import socket
import struct
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hotfire.net.peer import Peer
from hotfire.protocol.command import Command, encode
from hotfire.protocol.record import parse_offset_message_id
from hotfire.protocol.requests import SendReply
from tests.broker.programs import Program, running, up
from tests.peers import remoting
from tests.peers.process import poll_until
from tests.unit.broker.harness import SUBSCRIPTION, SUSPEND, bodies, next_offset, pull_request, send_request

TIMEOUT_S = 10.0
HELD = SUBSCRIPTION | SUSPEND


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    directory = tmp_path_factory.mktemp("up")
    with running(directory, *up(directory)) as program:
        yield program


def talk(address: str, conversation: Callable[[Peer], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(30.0), await Peer.connect(address) as peer:
            await conversation(peer)

    asyncio.run(bounded())


def queue_datas(namesrv: str, topic: str) -> list[dict[str, Any]]:
    found = remoting.route(namesrv, topic)
    return found["queueDatas"] if found else []


def test_what_is_sent_is_pulled(server: Program) -> None:
    """A hundred messages into a fresh topic come back whole and in order, and their ids name this broker."""

    async def conversation(peer: Peer) -> None:
        requests = [send_request("Round", body=b"%03d" % number) for number in range(100)]
        replies = await asyncio.gather(*(peer.ask(request, TIMEOUT_S) for request in requests))
        told = [SendReply.from_command(reply) for reply in replies]
        assert [reply.queue_offset for reply in told] == list(range(100))
        hosts = {parse_offset_message_id(reply.msg_id)[0] for reply in told}
        assert [f"{host.ip}:{host.port}" for host in hosts] == [server.broker]
        received: list[bytes] = []
        while len(received) < 100:
            reply = await peer.ask(pull_request(len(received), "Round"), TIMEOUT_S)
            received.extend(bodies(reply))
        assert received == [b"%03d" % number for number in range(100)]

    talk(server.broker, conversation)


def test_held_pull_is_answered_within_milliseconds(server: Program) -> None:
    """A consumer that waits has the message as soon as its producer has the acknowledgement."""
    remoting.create_topic(server.broker, "Waited", 4)

    async def conversation(consumer: Peer) -> None:
        delays = []
        async with await Peer.connect(server.broker) as producer:
            for offset in range(10):
                request = pull_request(offset, "Waited", flag=HELD)
                pull = asyncio.create_task(consumer.invoke(request, 30.0))
                await consumer.invoke(Command(9999), TIMEOUT_S)  # answered after the pull was taken
                assert not pull.done()
                await producer.ask(send_request("Waited", body=b"%d" % offset), TIMEOUT_S)
                acknowledged = time.monotonic()
                reply = await pull
                delays.append(time.monotonic() - acknowledged)
                assert (bodies(reply), next_offset(reply)) == ([b"%d" % offset], offset + 1)
        assert sorted(delays)[5] < 0.05, delays
        assert max(delays) < 1.0, delays

    talk(server.broker, conversation)


def test_idle_queue_is_asked_once_per_hold_time(server: Program) -> None:
    """Nothing arrives: the pull is held as long as the client asked, and answered then."""
    remoting.create_topic(server.broker, "Idle", 1)

    async def conversation(peer: Peer) -> None:
        for hold_ms in (300, 1200):
            started = time.monotonic()
            request = pull_request(0, "Idle", flag=HELD, suspend_timeout_millis=hold_ms)
            reply = await peer.invoke(request, TIMEOUT_S)
            held_ms = (time.monotonic() - started) * 1000
            assert reply.code == 19
            assert hold_ms - 5 <= held_ms < hold_ms + 500

    talk(server.broker, conversation)


# --- topics and routes ---


@pytest.mark.promise(12)
def test_route_of_a_topic_is_whole_and_of_no_topic_an_error(server: Program) -> None:
    """A known topic: its queues, its broker and the address it really answers on. An unknown one: code 17."""
    remoting.create_topic(server.broker, "Known", 4)
    route = poll_until(
        lambda: remoting.route(server.namesrv, "Known"), what="route of the new topic", timeout_s=5.0
    )
    assert route["queueDatas"] == [
        {"brokerName": "broker-a", "perm": 6, "readQueueNums": 4, "topicSysFlag": 0, "writeQueueNums": 4}
    ]
    (broker,) = route["brokerDatas"]
    assert (broker["brokerName"], broker["cluster"]) == ("broker-a", "DefaultCluster")
    assert broker["brokerAddrs"] == {"0": server.broker}
    assert remoting.max_offsets(broker["brokerAddrs"]["0"], "Known", 1) == [0]
    answer = remoting.ask(server.namesrv, remoting.GET_ROUTE_BY_TOPIC, {"topic": "Unknown"})
    assert (answer.code, answer.body) == (17, b"")
    assert "Unknown" in (answer.remark or "")


@pytest.mark.promise(10)
def test_topic_changes_reach_the_route_within_a_second(server: Program) -> None:
    """Created with 4 queues, changed to 8: the route shows 4, then 8, never both, each within 1 s."""
    seen: list[list[int]] = []

    def watch(wanted: int, timeout_s: float = 1.0) -> None:
        changed = time.monotonic()
        while not seen or seen[-1] != [wanted]:
            counts = [queue["writeQueueNums"] for queue in queue_datas(server.namesrv, "Growing")]
            assert len(counts) <= 1, f"old and new side by side: {counts}"
            if not seen or counts != seen[-1]:
                seen.append(counts)
            assert time.monotonic() - changed < timeout_s, seen

    assert queue_datas(server.namesrv, "Growing") == []
    remoting.create_topic(server.broker, "Growing", 4)
    watch(4)
    remoting.create_topic(server.broker, "Growing", 8)
    watch(8)
    assert [counts for counts in seen if counts] == [[4], [8]]


@pytest.mark.promise(39)
def test_first_message_creates_and_routes_its_topic(server: Program, tmp_path: Path) -> None:
    """TBW102 is routed for senders of unknown topics; the first message makes the topic and its route.
    With autoCreateTopicEnable=false there is no such route and the send is refused with code 17."""
    (template,) = queue_datas(server.namesrv, "TBW102")
    assert (template["perm"], template["writeQueueNums"]) == (7, 8)
    assert queue_datas(server.namesrv, "Auto") == []

    async def send(peer: Peer) -> None:
        assert (await peer.invoke(send_request("Auto", 3), TIMEOUT_S)).code == 0

    talk(server.broker, send)
    (made,) = poll_until(lambda: queue_datas(server.namesrv, "Auto"), what="route of Auto", timeout_s=5.0)
    assert (made["perm"], made["readQueueNums"], made["writeQueueNums"]) == (6, 4, 4)
    assert remoting.max_offsets(server.broker, "Auto", 4) == [0, 0, 0, 1]

    async def refused(peer: Peer) -> None:
        reply = await peer.invoke(send_request("Auto"), TIMEOUT_S)
        assert reply.code == 17
        assert "Auto" in (reply.remark or "")

    with running(tmp_path, *up(tmp_path, "--set", "autoCreateTopicEnable=false")) as strict:
        assert queue_datas(strict.namesrv, "BenchmarkTest"), "it is registered"
        assert queue_datas(strict.namesrv, "TBW102") == []
        talk(strict.broker, refused)
        assert queue_datas(strict.namesrv, "Auto") == []


# --- the wire ---


def frames(sock: socket.socket) -> Iterator[bytes]:
    """Every frame until the peer hangs up."""
    data = b""
    while True:
        while len(data) >= 4 and len(data) >= 4 + struct.unpack(">i", data[:4])[0]:
            size = 4 + struct.unpack(">i", data[:4])[0]
            yield data[:size]
            data = data[size:]
        more = sock.recv(65536)
        if not more:
            assert not data
            return
        data += more


@pytest.mark.promise(68)
def test_oneway_is_never_answered_on_the_wire(server: Program) -> None:
    """Oneway sends to a wrong topic, to a wrong queue and to a good one: not one frame comes back."""
    remoting.create_topic(server.broker, "Oneway", 4)
    host, _, port = server.broker.rpartition(":")
    oneway = [send_request("no such topic!"), send_request("Oneway", 99), send_request("Oneway", 0)]
    requests = [request.to_command(opaque=50 + n, oneway=True) for n, request in enumerate(oneway)]
    with socket.create_connection((host, int(port)), timeout=TIMEOUT_S) as sock:
        for command in [*requests, Command(9999, opaque=60, flag=2)]:
            sock.sendall(encode(command))
        sock.sendall(encode(send_request("Oneway", 1).to_command(opaque=99)))
        received = frames(sock)
        first = next(received)  # its sync came after theirs: their answers would be here before
        assert b'"opaque":99,' in first
        sock.shutdown(socket.SHUT_WR)
        assert list(received) == []
    assert remoting.max_offsets(server.broker, "Oneway", 4) == [1, 1, 0, 0]


@pytest.mark.promise(73)
def test_unknown_codes_are_answered(server: Program) -> None:
    """Code 9999 gets code 3 from broker and name server, and the connection goes on."""

    async def conversation(peer: Peer) -> None:
        for _ in range(2):
            reply = await peer.invoke(Command(9999), TIMEOUT_S)
            assert (reply.code, reply.remark) == (3, " request type 9999 not supported")

    talk(server.broker, conversation)
    talk(server.namesrv, conversation)


@pytest.mark.promise(71)
def test_runs_on_either_event_loop_and_says_which(server: Program, tmp_path: Path) -> None:
    """With uvloop and, where it cannot be imported, on asyncio's own loop: the log says which, both serve."""
    assert "event loop uvloop" in server.log
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "uvloop.py").write_text("raise ImportError('hidden by a test')\n")

    async def conversation(peer: Peer) -> None:
        assert (await peer.ask(send_request("Plain"), TIMEOUT_S)).code == 0
        assert bodies(await peer.ask(pull_request(0, "Plain"), TIMEOUT_S)) == [b"body"]

    with running(tmp_path, *up(tmp_path), env={"PYTHONPATH": str(hidden)}) as plain:
        assert "event loop asyncio" in plain.log
        talk(plain.broker, conversation)
