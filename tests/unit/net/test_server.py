"""Sockets for a heart: any chunks in, bounded memory, and a peer that misbehaves harms nobody else."""

import asyncio
import dataclasses
import gc
import itertools
import logging
import random
import socket
import struct
import tracemalloc
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, cast

import pytest
import uvloop

from hotfire import core
from hotfire.broker.broker import Broker
from hotfire.broker.config import BrokerConfig
from hotfire.broker.program import BrokerProgram
from hotfire.errors import ConfigError
from hotfire.net import connection as connection_module
from hotfire.net import server as server_module
from hotfire.net.addresses import bind, local_address, resolve
from hotfire.net.clock import now_ms
from hotfire.net.clock import now_ms as wall_ms
from hotfire.net.connection import ServerConnection
from hotfire.net.heart import CommandHeart, Connection, Heart
from hotfire.net.quiet import AtMost
from hotfire.net.server import Server
from hotfire.net.tls import Tls
from hotfire.protocol.command import FRAME_BYTES_MAX, Command, encode
from hotfire.protocol.connection import FrameReader
from hotfire.protocol.record import Host
from hotfire.protocol.requests import PullMessage, SendMessageV2
from hotfire.store.disk import Disk
from hotfire.store.store import Store

Scenario = Coroutine[Any, Any, None]
LIMIT_S = 20.0
ECHO, BIG, HOLD, FAIL = 1, 2, 3, 4


@pytest.fixture(
    params=["asyncio", "uvloop", *(["asyncio, one set", "uvloop, one set"] if core.COMPILED else [])]
)
def run(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[[Scenario], None]:
    """Runs a scenario on one of the loops programs run on, peers read by their transports or by the set."""
    loop, _, is_set = request.param.partition(",")
    factory = uvloop.new_event_loop if loop == "uvloop" else asyncio.new_event_loop
    monkeypatch.setattr(Heart, "has_lane", bool(is_set))

    def runner(scenario: Scenario) -> None:
        async def bounded() -> None:
            async with asyncio.timeout(LIMIT_S):
                await scenario

        with asyncio.Runner(loop_factory=factory) as loop:
            loop.run(bounded())

    return runner


@pytest.fixture(autouse=True)
def _every_line_is_told() -> None:
    """What the log left out because of an earlier test is not missing in this one."""
    for one in server_module.log.filters:
        if isinstance(one, AtMost):
            one._kinds.clear()


class EchoHeart(CommandHeart):
    """Answers with what it got; or with a lot, or by holding, or not at all."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0
        self.gone: list[Connection] = []
        self.late: list[tuple[Connection, Command]] = []

    def handle(self, connection: Connection, command: Command, now_ms: int) -> Command | None:
        self.count += 1
        if command.code == FAIL:
            raise ZeroDivisionError("a mistake of ours")
        if command.code in (BIG, HOLD):
            size = int((command.fields or {})["size"])
            if command.code == HOLD:
                connection.write(encode(command.reply(0, body=bytes(size))))
                connection.hold()
                self.held.append(connection)
                return None
            return command.reply(0, body=bytes(size))
        return command.reply(0, fields=command.fields, body=command.body)

    def disconnected(self, connection: Connection, now_ms: int) -> None:
        self.gone.append(connection)


@asynccontextmanager
async def served(heart: Any, tls: Tls | None = None) -> AsyncIterator[tuple[Server, int]]:
    server = Server(heart, tls=tls)
    listener = bind("127.0.0.1", 0)
    port = listener.getsockname()[1]
    await server.listen(listener)
    server.start()
    try:
        yield server, port
    finally:
        await server.close()


class Client:
    """A peer with nothing between it and its socket."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._reader = FrameReader()

    @classmethod
    async def dial(cls, port: int, *, receive_buffer: int | None = None) -> "Client":
        sock = socket.socket()
        if receive_buffer is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        sock.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
        except BaseException:
            sock.close()
            raise
        return cls(sock)

    async def __aenter__(self) -> "Client":
        return self

    async def __aexit__(self, *_: object) -> None:
        self.sock.close()

    async def send(self, data: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self.sock, data)

    async def receive(self, count: int) -> list[Command]:
        """So many commands; fewer when the server hangs up before."""
        commands: list[Command] = []
        while len(commands) < count:
            data = await self.recv()
            if not data:
                break
            commands.extend(self._reader.receive_data(data))
        return commands

    async def recv(self) -> bytes:
        with suppress(ConnectionError):
            return await asyncio.get_running_loop().sock_recv(self.sock, 1 << 20)
        return b""

    async def ask(self, command: Command) -> Command | None:
        await self.send(encode(command))
        replies = await self.receive(1)
        return replies[0] if replies else None

    async def is_closed(self) -> bool:
        """Waits until the server hangs up."""
        while await self.recv():
            pass
        return True

    def reset(self) -> None:
        """Go without a goodbye."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()


async def until(done: Callable[[], object]) -> None:
    while not done():  # noqa: ASYNC110  # the server under test has no events for tests to wait on
        await asyncio.sleep(0.002)


def only(server: Server) -> ServerConnection:
    (connection,) = server.connections
    return connection


def of(server: Server, client: Client) -> ServerConnection:
    return next(c for c in server.connections if c.peer == client.sock.getsockname())


def big(size: int, opaque: int = 0, code: int = BIG) -> bytes:
    return encode(Command(code, opaque=opaque, fields={"size": str(size)}))


# --- frames ---


@pytest.mark.parametrize("seed", range(4))
def test_frames_arrive_in_any_chunks(run: Callable[[Scenario], None], seed: int) -> None:
    """Many peers share one read buffer; each gets exactly its own frames back, however they were cut."""
    rng = random.Random(seed)

    async def talk(port: int, number: int) -> None:
        sent = {
            opaque: rng.randbytes(rng.choice([0, 1, 100, 5000, 300_000]))
            for opaque in range(number * 1000, number * 1000 + 20)
        }
        data = b"".join(encode(Command(ECHO, opaque=opaque, body=body)) for opaque, body in sent.items())
        async with await Client.dial(port) as client:
            reading = asyncio.create_task(client.receive(len(sent)))
            at = 0
            while at < len(data):
                size = rng.choice([1, 2, 3, 5, 100, 7000, 200_000])
                await client.send(data[at : at + size])
                at += size
                if rng.random() < 0.5:
                    await asyncio.sleep(0)
            assert {reply.opaque: reply.body for reply in await reading} == sent

    async def scenario() -> None:
        async with served(EchoHeart()) as (server, port):
            await asyncio.gather(*(talk(port, number) for number in range(8)))
            await until(lambda: not server.connections)

    run(scenario())


def test_a_frame_byte_by_byte(run: Callable[[Scenario], None]) -> None:
    """The slowest of peers is understood, and keeps nobody waiting meanwhile."""

    async def scenario() -> None:
        async with (
            served(EchoHeart()) as (_, port),
            await Client.dial(port) as slow,
            await Client.dial(port) as fast,
        ):
            frame = encode(Command(ECHO, opaque=7, body=b"abc"))
            for byte in frame[:-1]:
                await slow.send(bytes([byte]))
                reply = await fast.ask(Command(ECHO, opaque=1))
                assert reply is not None
                assert reply.opaque == 1
            await slow.send(frame[-1:])
            (reply,) = await slow.receive(1)
            assert (reply.opaque, reply.body) == (7, b"abc")

    run(scenario())


def test_largest_frame_is_taken(run: Callable[[Scenario], None]) -> None:
    """16 MiB, the most the protocol allows, in and out."""

    async def scenario() -> None:
        body = random.Random(1).randbytes(FRAME_BYTES_MAX - 200)
        async with served(EchoHeart()) as (_, port), await Client.dial(port) as client:
            sending = asyncio.create_task(client.send(encode(Command(ECHO, body=body))))
            (reply,) = await client.receive(1)
            await sending
            assert reply.body == body

    run(scenario())


@pytest.mark.parametrize("announced", [0, 3, -1, -(2**31), FRAME_BYTES_MAX - 3, 2**31 - 1])
def test_impossible_length_closes_that_peer_only(
    run: Callable[[Scenario], None], announced: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Hung up on as soon as the four bytes are there, after what came before them was answered."""

    async def scenario() -> None:
        async with (
            served(EchoHeart()) as (server, port),
            await Client.dial(port) as bad,
            await Client.dial(port) as good,
        ):
            assert await good.ask(Command(ECHO)) is not None
            await bad.send(encode(Command(ECHO, opaque=5)) + struct.pack(">i", announced))
            assert [reply.opaque for reply in await bad.receive(2)] == [5]
            assert await bad.is_closed()
            assert await good.ask(Command(ECHO)) is not None
            await until(lambda: len(server.connections) == 1)

    with caplog.at_level(logging.WARNING):
        run(scenario())
    assert str(announced + 4) in caplog.text


@pytest.mark.parametrize(
    "frame",
    [
        struct.pack(">iI", 8, 5 << 24 | 4) + b"{}{}",  # a serialisation nobody knows
        struct.pack(">iI", 8, 200) + b"{}{}",  # a header longer than its frame
        struct.pack(">iI", 8, 4) + b"\xff\xfe{}",
        b"GET / HTTP/1.1\r\nHost: here\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # somebody speaks TLS
    ],
)
def test_bytes_that_are_no_frame_close_that_peer(run: Callable[[Scenario], None], frame: bytes) -> None:
    """Whatever else connects is hung up on; the port goes on serving."""

    async def scenario() -> None:
        async with served(EchoHeart()) as (_, port), await Client.dial(port) as bad:
            await bad.send(frame)
            assert await bad.is_closed()
            async with await Client.dial(port) as good:
                assert await good.ask(Command(ECHO)) is not None

    run(scenario())


def test_our_own_mistake_closes_one_peer(
    run: Callable[[Scenario], None], caplog: pytest.LogCaptureFixture
) -> None:
    """A handler that raises loses the connection it served, says so in the log, and nothing more."""

    async def scenario() -> None:
        async with (
            served(EchoHeart()) as (_, port),
            await Client.dial(port) as unlucky,
            await Client.dial(port) as other,
        ):
            await unlucky.send(encode(Command(FAIL)))
            assert await unlucky.is_closed()
            assert await other.ask(Command(ECHO)) is not None

    run(scenario())
    assert "a mistake of ours" in caplog.text


# --- answers ---


def test_small_answers_leave_together_and_in_order(
    run: Callable[[Scenario], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a peer asked in one go is answered in one write, but for what is too large to be copied."""
    sizes: list[int] = []
    send = ServerConnection._send

    def noted(connection: ServerConnection, data: bytes) -> None:
        sizes.append(len(data))
        send(connection, data)

    monkeypatch.setattr(ServerConnection, "_send", noted)

    async def scenario() -> None:
        async with served(EchoHeart()) as (_, port), await Client.dial(port) as client:
            await client.ask(Command(ECHO))  # the first bytes decide who reads
            sizes.clear()
            asked = [Command(ECHO, opaque=opaque, body=b"x") for opaque in range(30)]
            asked[20] = dataclasses.replace(asked[20], body=bytes(connection_module.GATHERED_PART_MAX + 1))
            await client.send(b"".join(map(encode, asked)))
            replies = await client.receive(len(asked))
            assert [(reply.opaque, reply.body) for reply in replies] == [
                (command.opaque, command.body) for command in asked
            ]
            assert len(sizes) < len(asked) / 2

    run(scenario())


def test_answers_before_a_mistake_are_not_lost(run: Callable[[Scenario], None]) -> None:
    """A peer that is hung up on gets the answers to what it asked before."""

    async def scenario() -> None:
        async with served(EchoHeart()) as (_, port), await Client.dial(port) as client:
            asked = [Command(ECHO, opaque=opaque) for opaque in range(5)]
            await client.send(b"".join(map(encode, [*asked, Command(FAIL)])))
            assert [reply.opaque for reply in await client.receive(len(asked))] == list(range(5))
            assert await client.is_closed()

    run(scenario())


def test_answers_before_a_goodbye_are_not_lost(
    run: Callable[[Scenario], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The heart may hang up on a peer in the middle of what it sent."""

    def bye(self: EchoHeart, connection: Connection, command: Command, now_ms: int) -> Command | None:
        if command.code == HOLD:
            connection.close()
            return None
        return command.reply(0)

    monkeypatch.setattr(EchoHeart, "handle", bye)

    async def scenario() -> None:
        async with served(EchoHeart()) as (_, port), await Client.dial(port) as client:
            await client.send(b"".join(map(encode, [Command(ECHO, opaque=7), Command(HOLD)])))
            assert [reply.opaque for reply in await client.receive(1)] == [7]
            assert await client.is_closed()

    run(scenario())


# --- memory ---


def test_announced_bytes_cost_nothing(run: Callable[[Scenario], None]) -> None:
    """200 peers announce 16 MiB each and send 1 KiB: less than 64 KiB for each of them."""
    peers, part = 200, 1024

    async def scenario() -> None:
        async with served(EchoHeart()) as (server, port):
            clients = [await Client.dial(port) for _ in range(peers)]
            await until(lambda: len(server.connections) == peers)
            gc.collect()
            tracemalloc.start()
            try:
                before, _ = tracemalloc.get_traced_memory()
                for client in clients:
                    await client.send(struct.pack(">i", FRAME_BYTES_MAX - 4) + bytes(part - 4))
                await until(lambda: sum(len(c._aside or b"") for c in server.connections) == peers * part)
                after, _ = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
            assert (after - before) / peers <= 64 << 10
            assert (after - before) / peers >= part, "the measurement sees nothing"
            async with await Client.dial(port) as good:
                assert await good.ask(Command(ECHO)) is not None
            for client in clients:
                client.sock.close()
            await until(lambda: not server.connections)

    run(scenario())


def test_idle_peers_keep_nothing_aside(run: Callable[[Scenario], None]) -> None:
    """After its frames are answered a connection holds no bytes of them."""

    async def scenario() -> None:
        async with served(EchoHeart()) as (server, port), await Client.dial(port) as client:
            frame = encode(Command(ECHO, body=bytes(300_000)))
            await until(lambda: server.connections)
            for cut in (1, 1000, len(frame) - 1):
                await client.send(frame[:cut])
                await until(lambda cut=cut: len(only(server)._aside or b"") == cut)  # type: ignore[misc]
                await client.send(frame[cut:])
                assert len(await client.receive(1)) == 1
                assert only(server)._aside is None

    run(scenario())


# --- peers that do not read ---


def test_who_does_not_read_is_not_read_from(
    run: Callable[[Scenario], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Replies pile up to the high-water mark, then requests wait; once the peer reads, all are served."""
    monkeypatch.setattr(connection_module, "WRITE_HIGH_BYTES", 1 << 20)
    monkeypatch.setattr(connection_module, "WRITE_LOW_BYTES", 1 << 18)

    async def scenario() -> None:
        heart = EchoHeart()
        async with (
            served(heart) as (server, port),
            await Client.dial(port, receive_buffer=64 << 10) as lazy,
            await Client.dial(port) as other,
        ):
            await other.ask(Command(ECHO))
            await lazy.send(big(1 << 18, 0))
            await until(lambda: heart.count == 2)
            connection = of(server, lazy)
            sent = 1
            while connection.is_reading:
                await lazy.send(big(1 << 18, sent))
                sent += 1
                await until(lambda n=sent: heart.count > n or not connection.is_reading)
            assert (1 << 20) <= connection._transport.get_write_buffer_size() <= (1 << 20) + (1 << 19)
            served_before = heart.count
            for opaque in range(sent, sent + 20):
                await lazy.send(big(1 << 18, opaque))
            for _ in range(20):
                assert await other.ask(Command(ECHO)) is not None, "others wait for the lazy one"
            assert heart.count == served_before + 20, "read on although nobody takes the replies"
            replies = await lazy.receive(sent + 20)
            assert [reply.opaque for reply in replies] == list(range(sent + 20))

    run(scenario())


def test_who_does_not_read_is_not_answered_on(run: Callable[[Scenario], None]) -> None:
    """Forty replies of a megabyte, none of them read: a few are made, the rest waits, others are served."""

    async def scenario() -> None:
        heart = EchoHeart()
        async with (
            served(heart) as (server, port),
            await Client.dial(port, receive_buffer=64 << 10) as lazy,
            await Client.dial(port) as other,
        ):
            await lazy.send(b"".join(big(1 << 20, opaque) for opaque in range(40)))
            await until(lambda: any(connection.is_clogged for connection in server.connections))
            assert await other.ask(Command(ECHO)) is not None
            assert heart.count <= 12
            assert len(server.connections) == 2

    run(scenario())


def test_notices_to_a_peer_that_does_not_read_are_bounded_too(
    run: Callable[[Scenario], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the heart writes unasked counts like replies."""
    monkeypatch.setattr(connection_module, "WRITE_BYTES_MAX", 4 << 20)

    async def scenario() -> None:
        async with served(EchoHeart()) as (server, port), await Client.dial(port, receive_buffer=4096):
            await until(lambda: server.connections)
            connection = only(server)
            for _ in range(100):
                connection.write(bytes(1 << 20))
                connection._transport.get_write_buffer_size()
            assert connection.closed
            await until(lambda: not server.connections)

    run(scenario())


def test_the_heart_is_told_who_has_drained(run: Callable[[Scenario], None]) -> None:
    """Once for each time a peer was clogged, when it is no more, before what it sent meanwhile is served."""

    async def scenario() -> None:
        told: list[object] = []

        class Watchful(EchoHeart):
            def handle(self, connection: Connection, command: Command, now_ms: int) -> Command | None:
                told.append(command.opaque)
                return super().handle(connection, command, now_ms)

            def drained(self, connection: Connection, now_ms: int) -> None:
                told.append((connection.peer, connection.is_clogged))

        async with served(Watchful()) as (_, port), await Client.dial(port, receive_buffer=4096) as client:
            expected: list[object] = []
            for opaque in (0, 2):
                await client.send(big(12 << 20, opaque) + encode(Command(ECHO, opaque=opaque + 1)))
                replies = await client.receive(2)
                assert [reply.opaque for reply in replies] == [opaque, opaque + 1]
                expected += [opaque, (client.sock.getsockname(), False), opaque + 1]
                assert told == expected

    run(scenario())


def test_a_heart_that_fails_at_the_drained_harms_one_peer(
    run: Callable[[Scenario], None], caplog: pytest.LogCaptureFixture
) -> None:
    """Our mistake there is told and ends that connection; others are served."""

    async def scenario() -> None:
        class Clumsy(EchoHeart):
            def drained(self, connection: Connection, now_ms: int) -> None:
                raise ZeroDivisionError("a mistake of ours")

        async with (
            served(Clumsy()) as (_, port),
            await Client.dial(port, receive_buffer=4096) as client,
            await Client.dial(port) as other,
        ):
            await client.send(big(12 << 20))
            assert await client.is_closed()
            assert await other.ask(Command(ECHO)) is not None

    run(scenario())
    assert "a mistake of ours" in caplog.text


def test_after_the_end_no_heart_is_told(run: Callable[[Scenario], None]) -> None:
    """What is still read while a server ends is nobody's business: the store behind the heart is closed."""

    async def scenario() -> None:
        told: list[Connection] = []

        class Ended(EchoHeart):
            def drained(self, connection: Connection, now_ms: int) -> None:
                told.append(connection)

        async with served(Ended()) as (server, port), await Client.dial(port, receive_buffer=4096) as client:
            await client.send(big(12 << 20))
            await until(lambda: any(connection.is_clogged for connection in server.connections))
            server.stop()
            assert len(await client.receive(1)) == 1
            await until(lambda: not only(server).is_clogged)
        assert told == []

    run(scenario())


def test_what_all_leave_unread_is_bounded(
    run: Callable[[Scenario], None], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Beyond it they are hung up on, one after the other, until the others' fits; it is told."""
    monkeypatch.setattr(server_module, "UNREAD_BYTES_MAX", 20 << 20)

    async def scenario() -> None:
        async with served(EchoHeart()) as (server, port):
            lazy = [await Client.dial(port, receive_buffer=4096) for _ in range(4)]
            for number, client in enumerate(lazy):
                await client.send(big(8 << 20))
                await until(lambda n=number: len(server.heart.gone) == max(0, n - 1))
                await until(lambda n=number: len(server._behind) == min(n + 1, 2))
            answered = [len(await client.receive(1)) for client in lazy]
            assert sorted(answered) == [0, 0, 1, 1]
            await until(lambda: not server._behind)
            assert server._unread_bytes == 0
            for client in lazy:
                client.sock.close()

    run(scenario())
    assert caplog.text.count("left unread by all") == 2


def test_those_who_read_are_the_last_to_go(
    run: Callable[[Scenario], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind for longest but reading: one that came later and reads nothing is hung up on before it."""
    monkeypatch.setattr(server_module, "TICK_S", 1000.0)

    async def scenario() -> None:
        async with (
            served(EchoHeart()) as (server, port),
            await Client.dial(port, receive_buffer=4096) as slow,
            await Client.dial(port, receive_buffer=4096) as lazy,
        ):
            for client in (slow, lazy):
                await client.send(big(12 << 20))
                await until(lambda c=client: of(server, c).is_clogged)
            server._tick()
            connection = of(server, slow)
            before = connection.unread_bytes
            while connection.unread_bytes == before:
                await slow.recv()
            monkeypatch.setattr(server_module, "UNREAD_BYTES_MAX", 13 << 20)
            server._tick()
            assert await lazy.is_closed()
            assert list(server.connections) == [connection]
            assert not connection.closed

    run(scenario())


def test_a_little_unread_of_many_counts_too(
    run: Callable[[Scenario], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Peers that stop short of the high-water mark, and are many, are bounded as well."""
    monkeypatch.setattr(server_module, "UNREAD_BYTES_MAX", 1 << 20)

    async def scenario() -> None:
        async with served(EchoHeart()) as (server, port):
            lazy = [await Client.dial(port, receive_buffer=4096) for _ in range(12)]
            for client in lazy:
                assert await client.ask(Command(ECHO)) is not None
            while len(server.connections) == 12:
                for connection in list(server.connections):
                    if connection.unread_bytes < 200 << 10:
                        connection.write(bytes(100 << 10))
                    assert not connection.is_clogged
                await asyncio.sleep(0)
            for client in lazy:
                client.sock.close()

    run(scenario())


def test_a_flood_is_told_until_it_is_over(
    run: Callable[[Scenario], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """So much more unread since the last tick: every connection says so, until it is read or a tick was."""
    monkeypatch.setattr(server_module, "UNREAD_GROWTH_MAX", 6 << 20)
    monkeypatch.setattr(server_module, "TICK_S", 1000.0)

    async def scenario() -> None:
        async with (
            served(EchoHeart()) as (server, port),
            await Client.dial(port, receive_buffer=4096) as lazy,
            await Client.dial(port, receive_buffer=4096) as lazier,
            await Client.dial(port) as other,
        ):
            await other.ask(Command(ECHO))
            bystander = of(server, other)
            for client in (lazy, lazier):
                assert not bystander.is_flooded
                await client.send(big(4 << 20))
                await until(lambda c=client: of(server, c).is_clogged)
            assert bystander.is_flooded
            assert await other.ask(Command(ECHO)) is not None, "what is small is served all the same"
            of(server, lazier).write(bytes(1 << 20))
            assert len(await lazy.receive(1)) == 1
            await until(lambda: not bystander.is_flooded)
            of(server, lazy).write(bytes(4 << 20))
            assert bystander.is_flooded
            server._tick()
            assert not bystander.is_flooded
            lazy.reset()
            await until(lambda: len(server.connections) == 2)
            assert server._unread_bytes == of(server, lazier).unread_bytes

    run(scenario())


# --- held ---


def test_held_peer_goes_on_where_it_stopped(run: Callable[[Scenario], None]) -> None:
    """What came with the request that was held, and after it, is served once the heart lets go."""

    async def scenario() -> None:
        heart = EchoHeart()

        def receive(connection: Connection, data: memoryview, now: int) -> int:
            if heart.count < 3:
                return CommandHeart.receive(heart, connection, data, now)
            if not heart.held:
                connection.hold()
                heart.held.append(connection)
            return 0

        heart.receive = receive  # type: ignore[method-assign, assignment]
        async with served(heart) as (server, port), await Client.dial(port) as client:
            for opaque in range(3):
                await client.send(encode(Command(ECHO, opaque=opaque)))
            assert len(await client.receive(3)) == 3
            for opaque in range(3, 9):
                await client.send(encode(Command(ECHO, opaque=opaque)))
            await until(lambda: heart.held)
            assert not only(server).is_reading
            heart.count = 0
            del heart.receive
            server._ring(lambda now: None)
            assert [reply.opaque for reply in await client.receive(6)] == [3, 4, 5, 6, 7, 8]
            assert only(server).is_reading

    run(scenario())


def test_letting_go_does_not_open_a_peer_that_does_not_read(
    run: Callable[[Scenario], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Held and over the high-water mark: both must end before the peer is read from again."""
    monkeypatch.setattr(connection_module, "WRITE_HIGH_BYTES", 1 << 20)
    monkeypatch.setattr(connection_module, "WRITE_LOW_BYTES", 1 << 10)

    async def scenario() -> None:
        heart = EchoHeart()
        async with (
            served(heart) as (server, port),
            await Client.dial(port, receive_buffer=4096) as client,
        ):
            await client.send(big(12 << 20, 1, HOLD))
            await until(lambda: heart.held)
            connection = only(server)
            assert connection.unread_bytes > 1 << 20
            server._release_held()
            assert not connection.is_reading
            await client.send(encode(Command(ECHO, opaque=2)))
            replies = await client.receive(2)
            assert [reply.opaque for reply in replies] == [1, 2]
            assert connection.is_reading

    run(scenario())


def test_held_peers_that_went_or_fail_do_not_stop_the_others(
    run: Callable[[Scenario], None], caplog: pytest.LogCaptureFixture
) -> None:
    """Of several held peers one is gone, one sends nonsense, one meets our mistake: the last is served."""

    async def scenario() -> None:
        heart = EchoHeart()
        async with served(heart) as (server, port):
            clients = [await Client.dial(port) for _ in range(4)]
            for client in clients:
                await client.send(big(1, 0, HOLD))
                await client.receive(1)
            gone, nonsense, unlucky, good = clients
            held = [c for c in heart.held if isinstance(c, ServerConnection)]
            gone.reset()
            held[0].abort()
            held[1]._keep(bytearray(struct.pack(">i", -5)))
            held[2]._keep(bytearray(encode(Command(FAIL))))
            held[3]._keep(bytearray(encode(Command(ECHO, opaque=9))))
            server._release_held()
            assert [reply.opaque for reply in await good.receive(1)] == [9]
            assert await nonsense.is_closed()
            assert await unlucky.is_closed()
            for client in (nonsense, unlucky, good):
                client.sock.close()

    run(scenario())
    assert "a mistake of ours" in caplog.text


def small_turns(directory: Path) -> Broker:
    """A broker whose turn of the log takes 4 KiB."""
    config = BrokerConfig(
        broker_name="b", store_path_root_dir=str(directory), mapped_file_size_commit_log=4 << 20
    )
    store = Store(Disk(directory), dataclasses.replace(config.store(), turn_bytes_max=4096))
    store.open()
    return Broker(config, store, Host.parse("127.0.0.1", 10911), now_ms())


def send_frame(opaque: int, queue_id: int = 0, body: bytes = b"body") -> bytes:
    request = SendMessageV2(
        producer_group="PG",
        topic="BenchmarkTest",
        default_topic="TBW102",
        default_topic_queue_nums=4,
        queue_id=queue_id,
        sys_flag=0,
        born_timestamp=1,
        flag=0,
        properties=f"UNIQ_KEY\x01{opaque:032X}\x02",
        body=body,
    )
    return encode(request.to_command(opaque=opaque))


def test_full_turns_hold_and_release_real_peers(run: Callable[[Scenario], None], tmp_path: Path) -> None:
    """Peers that send far more than a turn takes are all answered, each in its order."""

    async def scenario() -> None:
        broker = small_turns(tmp_path / "store")
        async with served(broker) as (_, port):
            clients = [await Client.dial(port) for _ in range(5)]
            for number, client in enumerate(clients):
                await client.send(b"".join(send_frame(opaque, number) for opaque in range(300)))
            for client in clients:
                replies = await client.receive(300)
                assert [(reply.opaque, reply.code) for reply in replies] == [(n, 0) for n in range(300)]
                client.sock.close()
        broker.close(now_ms())

    run(scenario())


# --- endings ---


class Clock:
    """The server's clock, moved by hand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1_800_000_000_000
        self.set_by = 0
        clocks = (lambda: self.now, lambda: self.now - self.set_by)
        monkeypatch.setattr(server_module, "clocks_of", lambda loop: clocks)


def test_a_clock_that_is_set_closes_nobody(
    run: Callable[[Scenario], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wall clock jumps an hour ahead or back: the heart is told, and nobody counts as idle."""
    clock, moved = Clock(monkeypatch), []

    async def scenario() -> None:
        heart = EchoHeart()
        heart.clock_moved = moved.append  # type: ignore[method-assign]
        async with served(heart) as (server, port), await Client.dial(port) as client:
            await until(lambda: server.connections)
            for by_ms in (3_600_000, -7_200_000):
                clock.now += by_ms
                clock.set_by += by_ms
                await until(lambda by_ms=by_ms: by_ms in moved)  # type: ignore[misc]
                await asyncio.sleep(0.12)  # two ticks, in which an idle peer would be closed
                assert await client.ask(Command(ECHO)) is not None

    run(scenario())


def test_who_asks_for_more_than_it_reads_is_answered_by_and_by(run: Callable[[Scenario], None]) -> None:
    """Sixty replies of a megabyte asked for at once: never more than a few wait, and all come."""
    most = 0

    async def scenario() -> None:
        nonlocal most

        class Generous(EchoHeart):
            def handle(self, connection: Connection, command: Command, now_ms: int) -> Command | None:
                nonlocal most
                size = cast(ServerConnection, connection)._transport.get_write_buffer_size()
                most = max(most, size)
                return command.reply(0, body=bytes(1 << 20))

        async with served(Generous()) as (_, port), await Client.dial(port) as client:
            await client.send(b"".join(encode(Command(ECHO, opaque=i)) for i in range(60)))
            replies = await client.receive(60)
            assert [reply.opaque for reply in replies] == list(range(60))

    run(scenario())
    assert most <= connection_module.WRITE_HIGH_BYTES


def test_what_comes_is_given_the_time_of_its_receipt(
    run: Callable[[Scenario], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two peers read in one pass over the sockets: the second one's request is later than the first one's."""
    times: list[int] = []

    class TimedHeart(EchoHeart):
        def handle(self, connection: Connection, command: Command, now_ms: int) -> Command | None:
            times.append(now_ms)
            return super().handle(connection, command, now_ms)

    async def scenario() -> None:
        async with (
            served(TimedHeart()) as (server, port),
            await Client.dial(port) as first,
            await Client.dial(port) as second,
        ):
            for client in (first, second):
                assert await client.ask(Command(ECHO)) is not None
            clock = itertools.count(now_ms())
            monkeypatch.setattr(server, "now_ms", lambda: next(clock))
            for client in (first, second):
                client.sock.send(encode(Command(ECHO)))
            for client in (first, second):
                assert len(await client.receive(1)) == 1
            assert times[2] < times[3]

    run(scenario())


@pytest.mark.promise(69)
def test_idle_peers_are_closed_after_120_s(
    run: Callable[[Scenario], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither read from nor written to for 120 s: closed. A word in either direction is life."""
    clock = Clock(monkeypatch)

    async def scenario() -> None:
        async with served(EchoHeart()) as (server, port):
            idle, asking, told = [await Client.dial(port) for _ in range(3)]
            await told.send(encode(Command(ECHO)))
            await told.receive(1)
            await until(lambda: len(server.connections) == 3)
            clock.now += 120_000
            await asyncio.sleep(0.15)
            assert len(server.connections) == 3, "closed before its time"
            assert await asking.ask(Command(ECHO)) is not None
            of(server, told).write(encode(Command(40, flag=2)))
            await told.receive(1)
            clock.now += 1000
            await until(lambda: len(server.connections) == 2)
            assert await idle.is_closed()
            assert await asking.ask(Command(ECHO)) is not None
            assert await told.ask(Command(ECHO)) is not None
            for client in (idle, asking, told):
                client.sock.close()

    run(scenario())


def test_reply_to_a_peer_that_just_went_stops_nobody(
    run: Callable[[Scenario], None], caplog: pytest.LogCaptureFixture
) -> None:
    """Replies become due for many peers at once, some of them gone: all others get theirs."""

    async def scenario() -> None:
        heart = EchoHeart()
        waiting: list[tuple[Connection, Command]] = []

        def later(connection: Connection, command: Command, now_ms: int) -> None:
            waiting.append((connection, command))

        heart.handle = later  # type: ignore[method-assign, assignment]
        async with served(heart) as (_, port):
            clients = [await Client.dial(port) for _ in range(9)]
            for opaque, client in enumerate(clients):
                await client.send(encode(Command(ECHO, opaque=opaque)))
            await until(lambda: len(waiting) == 9)
            for number in (0, 3, 6):
                clients[number].reset()
            waiting[1][0].close()
            waiting[4][0].abort()  # type: ignore[attr-defined]
            for connection, command in waiting:
                connection.write(encode(command.reply(0)))
                connection.write(encode(command.reply(0)))
            for number in (2, 5, 7, 8):
                assert [reply.opaque for reply in await clients[number].receive(2)] == [number] * 2
            await until(lambda: len(heart.gone) == 5)
            for client in clients:
                client.sock.close()

    run(scenario())
    assert "ERROR" not in caplog.text


def test_what_was_taken_is_answered_before_the_end(
    run: Callable[[Scenario], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program is told to stop with sends taken and not yet synced: they are synced and answered first."""

    async def scenario() -> None:
        config = BrokerConfig(
            broker_name="b",
            bind_address="127.0.0.1",
            listen_port=0,
            store_path_root_dir=str(tmp_path / "store"),
            mapped_file_size_commit_log=1 << 20,
        )
        program = BrokerProgram(config)
        await program.start()
        async with await Client.dial(program.port) as client, await Client.dial(program.port) as puller:
            pull = PullMessage(
                consumer_group="CG", topic="BenchmarkTest", queue_id=5, queue_offset=0, max_msg_nums=32,
                sys_flag=6, commit_offset=0, suspend_timeout_millis=15_000, subscription="*", sub_version=0,
            )  # fmt: skip
            await puller.send(encode(pull.to_command(opaque=1)))
            monkeypatch.setattr(program.broker, "turn", lambda now_ms: None)  # the flusher gets nothing yet
            await client.send(b"".join(send_frame(opaque) for opaque in range(100)))
            await until(lambda: program.broker.messages_stored == 100 and len(program.broker.parked) == 1)
            assert program.broker.store.readable_end == 0
            await program.close()
            replies = await client.receive(101)
            assert [(reply.opaque, reply.code) for reply in replies] == [(n, 0) for n in range(100)]
            assert await puller.is_closed()
        assert not (tmp_path / "store" / "abort").exists()

    run(scenario())


class SlowHeart(EchoHeart):
    """Takes its time for each command, and keeps when it was asked and when it was done."""

    def __init__(self) -> None:
        super().__init__()
        self.times: list[tuple[int, int]] = []

    def handle(self, connection: Connection, command: Command, now_ms: int) -> Command | None:
        while (done_ms := wall_ms()) < now_ms + 20:
            pass
        self.times.append((now_ms, done_ms))
        return super().handle(connection, command, now_ms)


def test_who_waited_for_others_is_served_at_its_own_time(run: Callable[[Scenario], None]) -> None:
    """What came in one pass of the loop is dated when it is looked at: a message that was made while another
    was served is not stored, and so not due, as if it had come before."""
    heart = SlowHeart()

    async def scenario() -> None:
        async with served(heart) as (_, port):
            peers = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
            for _ in range(2):  # by the second time the set reads both of them
                for _, writer in peers:
                    writer.write(encode(Command(ECHO, opaque=1)))
                for reader, _ in peers:
                    (size,) = struct.unpack(">i", await reader.readexactly(4))
                    await reader.readexactly(size)
            for _, writer in peers:
                writer.close()

    run(scenario())
    (_, done_ms), (now_ms, _) = heart.times[2:]
    assert now_ms >= done_ms


def test_after_the_end_nobody_is_let_in(run: Callable[[Scenario], None]) -> None:
    """A closed server refuses connections and has none left."""

    async def scenario() -> None:
        async with served(EchoHeart()) as (server, port), await Client.dial(port) as client:
            await until(lambda: server.connections)
            await server.close()
            assert await client.is_closed()
            with pytest.raises(ConnectionRefusedError):
                await Client.dial(port)
            assert not server.connections

    run(scenario())


def test_end_does_not_wait_for_a_peer_that_does_not_read(
    run: Callable[[Scenario], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A peer that never takes its replies delays the end by a moment, not for ever."""
    monkeypatch.setattr(server_module, "CLOSE_TIMEOUT_S", 0.2)

    async def scenario() -> None:
        heart = EchoHeart()
        async with served(heart) as (server, port), await Client.dial(port, receive_buffer=4096) as lazy:
            await lazy.send(big(12 << 20))
            await until(lambda: heart.count == 1)
            started = asyncio.get_running_loop().time()
            await server.close()
            assert asyncio.get_running_loop().time() - started < 1.0
            await until(lambda: not server.connections)

    run(scenario())


# --- addresses ---


def test_peers_are_known_by_their_address(run: Callable[[Scenario], None]) -> None:
    """A connection carries the peer's address as records keep it, over IPv4 and IPv6."""

    async def scenario() -> None:
        server = Server(EchoHeart())
        for host in ("127.0.0.1", "::1"):
            try:
                listener = bind(host, 0)
            except ConfigError:
                assert host == "::1", "loopback is always there"
                continue
            await server.listen(listener)
            with socket.create_connection(listener.getsockname()[:2]) as sock:
                await until(lambda: server.connections)
                connection = only(server)
                peer = Host.parse(*sock.getsockname()[:2])
                assert connection.peer == sock.getsockname()[:2]
                assert connection.born_host == peer.address + peer.port.to_bytes(4)
            await until(lambda: not server.connections)
        await server.close()

    run(scenario())


def test_ports_that_cannot_be_had_are_told_plainly() -> None:
    """In use, not ours, not an address: the error names host and port and what to do."""
    with bind("127.0.0.1", 0) as taken:
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"port {port} on 127.0.0.1 is in use: choose another"):
            bind("127.0.0.1", port)
    with pytest.raises(ConfigError, match=r"cannot listen on 192\.0\.2\.1:0: .*; choose an address of this"):
        bind("192.0.2.1", 0)
    with pytest.raises(ConfigError, match=r"no-such-host\.invalid"):
        bind("no-such-host.invalid", 0)
    with pytest.raises(ConfigError, match=r"no-such-host\.invalid"):
        resolve("no-such-host.invalid")
    assert resolve("127.0.0.1") == "127.0.0.1"
    assert Host.parse(local_address(), 1).address


def test_what_is_due_before_the_next_tick_has_one_of_its_own(
    run: Callable[[Scenario], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A heart that names a moment is ticked then, not before and not when the period is over."""

    class Due(EchoHeart):
        def __init__(self) -> None:
            super().__init__()
            self.ticks: list[int] = []
            self.ticked = asyncio.Event()

        def tick(self, now_ms: int) -> None:
            self.ticks.append(now_ms)
            if self.ticks[-1] >= self.ticks[0] + 20:
                self.ticked.set()

        def due_ms(self) -> int | None:
            return None if self.ticked.is_set() else self.ticks[0] + 20

    async def scenario() -> None:
        heart = Due()
        async with served(heart):
            monkeypatch.setattr(server_module, "TICK_S", 3600.0)  # the first is on its way
            await asyncio.wait_for(heart.ticked.wait(), 10)
        assert len(heart.ticks) <= 5, "it is not asked again and again meanwhile"

    run(scenario())


def test_no_reply_waits_for_the_one_before_to_be_acknowledged() -> None:
    """Connections of a listener send at once, whichever loop has them: TCP_NODELAY."""
    with bind("127.0.0.1", 0) as listener:
        listener.setblocking(True)
        listener.listen()
        with socket.create_connection(listener.getsockname()), listener.accept()[0] as accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
