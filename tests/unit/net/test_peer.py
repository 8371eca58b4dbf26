"""A dialled connection, against servers that answer late, twice, never, in the wrong order or in garbage."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable

import pytest
import uvloop

from hotfire.errors import (
    BrokerRefused,
    ConfigError,
    ConnectError,
    ConnectionLost,
    HotfireError,
    LocalProtocolError,
    RemoteProtocolError,
    Timeout,
)
from hotfire.net import peer as peer_module
from hotfire.net.peer import Peer, split_address
from hotfire.protocol.codes import ResponseCode, Serialization
from hotfire.protocol.command import RESPONSE_FLAG, Command, encode
from hotfire.protocol.connection import FrameReader
from hotfire.protocol.requests import GetRouteInfoByTopic

OnCommand = Callable[[Command, asyncio.StreamWriter], None]


def reply_to(request: Command, code: int = 0, **rest: object) -> bytes:
    return encode(Command(code, opaque=request.opaque, flag=RESPONSE_FLAG, **rest))  # type: ignore[arg-type]


class Server:
    """A listening socket whose behaviour a test writes down; remembers what it received."""

    def __init__(self, on_command: OnCommand) -> None:
        self.on_command = on_command
        self.received: list[Command] = []
        self.writers: list[asyncio.StreamWriter] = []
        self.arrived = asyncio.Event()

    async def __aenter__(self) -> "Server":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for writer in self.writers:
            writer.transport.abort()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        frames = FrameReader()
        while data := await reader.read(65536):
            for command in frames.receive_data(data):
                self.received.append(command)
                self.on_command(command, writer)
                self.arrived.set()

    async def wait_received(self, count: int) -> None:
        while len(self.received) < count:
            self.arrived.clear()
            await self.arrived.wait()


def silent(_: Command, __: asyncio.StreamWriter) -> None:
    pass


def echo(command: Command, writer: asyncio.StreamWriter) -> None:
    writer.write(reply_to(command, body=command.body))


def run(
    test: Callable[[], Awaitable[None]],
    new_loop: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop,
) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(20):
            await test()

    with asyncio.Runner(loop_factory=new_loop) as loop:
        loop.run(bounded())


@pytest.mark.promise(65)
def test_each_caller_gets_its_own_reply_once() -> None:
    """Replies in reverse order, each twice, and one to a question nobody asked: all find their caller."""
    count = 50

    async def scenario() -> None:
        asked: list[Command] = []

        def answer_all_backwards(command: Command, writer: asyncio.StreamWriter) -> None:
            asked.append(command)
            if len(asked) == count:
                writer.write(encode(Command(0, opaque=999_999, flag=RESPONSE_FLAG)))
                for request in reversed(asked):
                    writer.write(reply_to(request, body=request.body) * 2)
            elif len(asked) > count:
                echo(command, writer)

        async with Server(answer_all_backwards) as server, await Peer.connect(server.address) as peer:
            bodies = [b"%d" % index for index in range(count)]
            replies = await asyncio.gather(*(peer.invoke(Command(1, body=body), 5.0) for body in bodies))
            assert [reply.body for reply in replies] == bodies
            assert len({command.opaque for command in asked}) == count
            # The second copies are behind us on the same stream; the next question gets its own answer.
            assert (await peer.invoke(Command(1, body=b"next"), 5.0)).body == b"next"
            assert peer.in_flight_count == 0

    run(scenario)


@pytest.mark.promise(65)
def test_late_reply_is_dropped() -> None:
    """A reply after the caller's deadline disturbs neither the caller nor the next one."""

    async def scenario() -> None:
        late: list[Command] = []

        def keep_first(command: Command, writer: asyncio.StreamWriter) -> None:
            if not late:
                late.append(command)
                return
            writer.write(reply_to(late[0], body=b"late") + reply_to(command, body=b"in time"))

        async with Server(keep_first) as server, await Peer.connect(server.address) as peer:
            with pytest.raises(Timeout):
                await peer.invoke(Command(1), 0.05)
            assert (await peer.invoke(Command(2), 5.0)).body == b"in time"

    run(scenario)


@pytest.mark.promise(66)
def test_silent_peer_is_a_timeout_at_the_given_time() -> None:
    """Nothing answers: the caller hears so after the time it gave, not before and not much later."""

    async def scenario() -> None:
        async with Server(silent) as server, await Peer.connect(server.address) as peer:
            for given_ms in (100, 300):
                started = time.perf_counter()
                with pytest.raises(Timeout, match=f"request 105 within {given_ms} ms"):
                    await peer.invoke(GetRouteInfoByTopic(topic="T"), given_ms / 1000)
                took_ms = (time.perf_counter() - started) * 1000
                assert given_ms <= took_ms < given_ms + 600, took_ms
            assert peer.in_flight_count == 0

    run(scenario)


@pytest.mark.promise(66)
def test_dead_peer_is_an_error_at_once() -> None:
    """The peer hangs up while two callers wait an hour: both are told now, and so is who calls after."""

    async def scenario() -> None:
        async with Server(silent) as server, await Peer.connect(server.address) as peer:
            started = time.perf_counter()
            waiting = [asyncio.create_task(peer.invoke(Command(1), 3600.0)) for _ in range(2)]
            await server.wait_received(2)
            server.writers[0].transport.abort()
            for outcome in await asyncio.gather(*waiting, return_exceptions=True):
                assert isinstance(outcome, ConnectionLost), outcome
            with pytest.raises(ConnectionLost):
                await peer.invoke(Command(1), 3600.0)
            with pytest.raises(ConnectionLost):
                await peer.invoke_oneway(Command(1))
            await peer.wait_closed()
            assert peer.closed
            assert time.perf_counter() - started < 2.0

    run(scenario)


@pytest.mark.promise(66)
def test_nobody_listening_is_an_error_at_once() -> None:
    """A port without a listener: ConnectError names the address."""

    async def scenario() -> None:
        async with Server(silent) as server:
            address = server.address
        started = time.perf_counter()
        with pytest.raises(ConnectError, match=address):
            await Peer.connect(address, timeout_s=30.0)
        assert time.perf_counter() - started < 5.0

    run(scenario)


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_long_replies_come_whole_among_short_ones(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    """Each caller gets its own, whatever lies before and behind it; two connections do not mix."""

    async def scenario() -> None:
        async with (
            Server(echo) as server,
            await Peer.connect(server.address) as one,
            await Peer.connect(server.address) as other,
        ):
            sizes = [0, 3 << 20, 1, 200_000, 262_144, 5 << 20, 300_000, 64]
            bodies = [random.Random(size).randbytes(size) for size in sizes]
            replies = await asyncio.gather(
                *(peer.invoke(Command(1, body=body), 20.0) for body in bodies for peer in (one, other))
            )
            for reply, body in zip(replies, [body for body in bodies for _ in range(2)], strict=True):
                assert reply.body == body  # not in one comparison: its difference would be megabytes

    run(scenario, new_loop)


def test_a_reply_that_breaks_off_is_a_loss() -> None:
    """The peer dies in the middle of a long body: no part of it is taken for a reply."""

    async def scenario() -> None:
        def half(command: Command, writer: asyncio.StreamWriter) -> None:
            frame = reply_to(command, body=bytes(3 << 20))
            writer.write(frame[: len(frame) // 2])
            writer.close()

        async with Server(half) as server, await Peer.connect(server.address) as peer:
            with pytest.raises(ConnectionLost):
                await peer.invoke(Command(1), 20.0)

    run(scenario)


class Listener:
    """A rider that has sent nothing; he reads frames from where he is given them on."""

    def __init__(self) -> None:
        self.frames = FrameReader()
        self.read: list[int] = []

    def receive(self, data: bytes | memoryview) -> bytes:
        commands = list(self.frames.receive_data(data))
        self.read += [command.opaque for command in commands]
        return b"".join(map(encode, commands))

    def answered(self, reply: Command) -> None: ...

    def has_room(self) -> None: ...

    def lost(self, error: HotfireError) -> None: ...


@pytest.mark.parametrize("size", [200_000, 3 << 20])
def test_a_rider_who_comes_amid_a_reply_disturbs_nobody(size: int) -> None:
    """He is given frames from their beginning on, not the end of one that began before him."""

    async def scenario() -> None:
        frames: list[bytes] = []

        def half(command: Command, writer: asyncio.StreamWriter) -> None:
            frames.append(reply_to(command, body=bytes(size)))
            writer.write(frames[0][: size // 2] if len(frames) == 1 else frames[-1])

        async with Server(half) as server, await Peer.connect(server.address) as peer:
            link, has_half = peer._link, asyncio.Event()
            updated = link.buffer_updated

            def watch(count: int) -> None:
                updated(count)
                if link._reader.buffered >= size // 2:
                    has_half.set()

            link.buffer_updated = watch  # type: ignore[method-assign]
            waiting = asyncio.create_task(peer.invoke(Command(1), 20.0))
            await has_half.wait()
            peer.rider = rider = Listener()
            server.writers[0].write(frames[0][size // 2 :])
            assert (await waiting).body == bytes(size)
            assert not rider.read
            second = await peer.invoke(Command(1), 20.0)
            assert second.body == bytes(size)
            assert rider.read == [second.opaque]

    run(scenario)


@pytest.mark.parametrize("serialization", Serialization)
def test_oneway_is_flagged_and_not_waited_for(serialization: Serialization) -> None:
    """A oneway request carries flag 2 and leaves nothing in the response table, even if answered."""

    async def scenario() -> None:
        async with (
            Server(echo) as server,
            await Peer.connect(server.address, serialization=serialization) as peer,
        ):
            await peer.invoke_oneway(GetRouteInfoByTopic(topic="T"))
            assert peer.in_flight_count == 0
            assert (await peer.invoke(Command(1, body=b"x"), 5.0)).body == b"x"
            oneway, ordinary = server.received
            assert (oneway.flag, ordinary.flag) == (2, 0)
            assert oneway.serialization is serialization
            assert oneway.opaque != ordinary.opaque

    run(scenario)


def test_ask_raises_what_the_peer_refused() -> None:
    """invoke hands any code back, ask turns it into the error that stands for it."""

    async def scenario() -> None:
        def refuse(command: Command, writer: asyncio.StreamWriter) -> None:
            writer.write(reply_to(command, ResponseCode.TOPIC_NOT_EXIST, remark="no topic T"))

        async with Server(refuse) as server, await Peer.connect(server.address) as peer:
            assert (await peer.invoke(Command(105), 5.0)).code == 17
            with pytest.raises(BrokerRefused, match="no topic T") as caught:
                await peer.ask(Command(105), 5.0)
            assert (caught.value.code, caught.value.refresh_route) == (17, True)

    run(scenario)


def test_server_requests_reach_the_callback_and_are_answered() -> None:
    """A request of the server goes to on_request; its answer goes back under the server's opaque, unless
    the server wanted none."""

    async def scenario() -> None:
        replies: list[Command] = []
        answered = asyncio.Event()

        def collect(command: Command, writer: asyncio.StreamWriter) -> None:
            if command.is_response:
                replies.append(command)
                answered.set()
                return
            writer.write(encode(Command(40, opaque=8, flag=2)))
            writer.write(encode(Command(307, opaque=9)))
            writer.write(reply_to(command))

        seen: list[int] = []

        def on_request(command: Command) -> Command:
            seen.append(command.code)
            return Command(0, body=b"info")

        async with (
            Server(collect) as server,
            await Peer.connect(server.address, on_request=on_request) as peer,
        ):
            await peer.invoke(Command(34), 5.0)
            await answered.wait()
            assert seen == [40, 307]
            assert [(reply.opaque, reply.code, reply.body) for reply in replies] == [(9, 0, b"info")]

        replies.clear()
        answered.clear()
        async with Server(collect) as server, await Peer.connect(server.address) as peer:
            await peer.invoke(Command(34), 5.0)
            await answered.wait()
            assert [(reply.opaque, reply.code) for reply in replies] == [(9, 3)]

    run(scenario)


def test_garbage_from_the_peer_ends_the_connection() -> None:
    """Bytes that are no frame: who waits hears RemoteProtocolError, and the connection is closed."""

    async def scenario() -> None:
        def babble(_: Command, writer: asyncio.StreamWriter) -> None:
            writer.write(b"HTTP/1.1 400 Bad Request\r\n")

        async with Server(babble) as server, await Peer.connect(server.address) as peer:
            with pytest.raises(RemoteProtocolError):
                await peer.invoke(Command(1), 5.0)
            await peer.wait_closed()

    run(scenario)


def test_writers_wait_while_the_peer_takes_nothing() -> None:
    """A peer that does not read fills its socket, not our memory; the deadline holds meanwhile."""

    async def scenario() -> None:
        never = asyncio.Event()

        async def deaf(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await never.wait()
            writer.close()

        listener = await asyncio.start_server(deaf, "127.0.0.1", 0, limit=1024)
        peer = await Peer.connect(f"127.0.0.1:{listener.sockets[0].getsockname()[1]}")
        body = bytes(256 * 1024)

        async def write_on() -> None:
            for _ in range(1000):
                await peer.invoke_oneway(Command(1, body=body), 0.1)
                await asyncio.sleep(0)  # the flush runs at the end of this turn

        with pytest.raises(Timeout, match="not sent"):
            await write_on()
        assert peer._link.transport is not None
        copied = peer._link.transport.get_write_buffer_size()
        assert copied <= peer_module.WRITE_PIECE_BYTES
        assert peer._unsent_bytes + copied <= peer_module.WRITE_HIGH_WATER_BYTES + 2 * len(body)

        started = time.perf_counter()
        await peer.close(timeout_s=0.1)
        assert time.perf_counter() - started < 1.0
        never.set()
        listener.close()
        await listener.wait_closed()
        await peer.wait_closed()

    run(scenario)


@pytest.mark.parametrize("closes_first", [False, True])
def test_large_and_small_frames_arrive_whole_and_in_order(closes_first: bool) -> None:
    """What the kernel does not take at once goes in pieces as it takes more, also when we hang up."""

    async def scenario() -> None:
        may_read, ended = asyncio.Event(), asyncio.Event()
        commands: list[Command] = []

        async def late(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await may_read.wait()
            frames = FrameReader()
            while len(commands) < len(bodies) and (data := await reader.read(1 << 20)):
                commands.extend(frames.receive_data(data))
            writer.close()
            ended.set()

        sizes = (10, 3 << 20, 0, 200_000, 131_072, 7, 1 << 20)
        bodies = [bytes([n]) * size for n, size in enumerate(sizes)]
        listener = await asyncio.start_server(late, "127.0.0.1", 0, limit=1024)
        peer = await Peer.connect(f"127.0.0.1:{listener.sockets[0].getsockname()[1]}")
        sends = [asyncio.create_task(peer.invoke_oneway(Command(1, body=body))) for body in bodies]
        await asyncio.wait(sends)
        if closes_first:
            closing = asyncio.create_task(peer.close(timeout_s=30.0))
            await asyncio.sleep(0)
        may_read.set()
        await ended.wait()
        assert [command.body for command in commands] == bodies
        if closes_first:
            await closing
        else:
            await peer.close()
        listener.close()
        await listener.wait_closed()

    run(scenario)


def test_close_tells_those_who_wait() -> None:
    """Closing our side ends every pending call with ConnectionLost; closing twice is fine."""

    async def scenario() -> None:
        async with Server(silent) as server:
            peer = await Peer.connect(server.address)
            waiting = asyncio.create_task(peer.invoke(Command(1), 60.0))
            await server.wait_received(1)
            await peer.close()
            with pytest.raises(ConnectionLost, match="we closed"):
                await waiting
            await peer.close()

    run(scenario)


def test_what_was_written_before_close_is_sent() -> None:
    """A oneway right before close still arrives."""

    async def scenario() -> None:
        async with Server(silent) as server:
            peer = await Peer.connect(server.address)
            await peer.invoke_oneway(Command(37, body=b"commit"))
            await peer.close()
            await server.wait_received(1)
            assert server.received[0].body == b"commit"

    run(scenario)


def test_cancelled_caller_leaves_nothing_behind() -> None:
    """Cancelling a call frees its place in the response table."""

    async def scenario() -> None:
        async with Server(silent) as server, await Peer.connect(server.address) as peer:
            waiting = asyncio.create_task(peer.invoke(Command(1), 60.0))
            await server.wait_received(1)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            assert peer.in_flight_count == 0

    run(scenario)


def test_opaque_wraps_and_skips_those_still_waiting() -> None:
    """After the largest id comes 0, unless 0 still waits for its reply."""

    async def scenario() -> None:
        async with Server(silent) as server, await Peer.connect(server.address) as peer:
            first = asyncio.create_task(peer.invoke(Command(1), 60.0))
            await server.wait_received(1)
            peer._opaque = 0x3FFF_FFFF
            rest = [asyncio.create_task(peer.invoke(Command(1), 60.0)) for _ in range(2)]
            await server.wait_received(3)
            assert [command.opaque for command in server.received] == [0, 0x3FFF_FFFF, 1]
            for task in (first, *rest):
                task.cancel()

    run(scenario)


@pytest.mark.promise(67)
@pytest.mark.parametrize("ending", ["reply", "deadline", "loss"])
def test_requests_need_a_permit_and_each_caller_hears_once(
    monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    """A silent peer takes as many requests as there are permits; one more is a typed error at once, and
    nothing of it is sent or kept. However the others end, each callback runs once and its permit is free."""
    permits = 500
    exhausted = f"{permits} requests wait for a reply; slow down"
    monkeypatch.setattr(peer_module, "IN_FLIGHT_MAX", permits)

    async def scenario() -> None:
        heard: list[int] = []
        endings: set[type[HotfireError] | int] = set()

        async with Server(silent) as server, await Peer.connect(server.address) as peer:

            def call(number: int) -> asyncio.Task[Command]:
                task = asyncio.create_task(peer.invoke(Command(1), 1.0 if ending == "deadline" else 60.0))
                task.add_done_callback(lambda done: hear(number, done))
                return task

            def hear(number: int, done: asyncio.Task[Command]) -> None:
                heard.append(number)
                error = done.exception()
                endings.add(done.result().code if error is None else type(error))  # type: ignore[arg-type]

            tasks = [call(number) for number in range(permits)]
            await server.wait_received(permits)
            for _ in range(permits):
                with pytest.raises(LocalProtocolError, match=exhausted):
                    await peer.invoke(Command(1), 60.0)
            assert peer.in_flight_count == permits
            assert not peer._unsent
            assert heard == []
            if ending == "reply":
                for command in server.received:
                    server.writers[0].write(reply_to(command) * 2)
            elif ending == "loss":
                server.writers[0].transport.abort()
            await asyncio.wait(tasks)
            await asyncio.sleep(0)
            assert sorted(heard) == list(range(permits))
            assert endings == {{"reply": 0, "deadline": Timeout, "loss": ConnectionLost}[ending]}
            assert peer.in_flight_count == 0
            assert len(server.received) == permits
            if ending == "reply":
                server.on_command = echo
                assert (await peer.invoke(Command(1), 60.0)).code == 0

    run(scenario)


@pytest.mark.parametrize("address", ["", "host", "host:", ":9876", "host:x", "host:0", "host:65536", "h:²"])
def test_bad_address_is_a_config_error(address: str) -> None:
    """An address that is not host:port says so."""
    with pytest.raises(ConfigError, match="host:port"):
        split_address(address)
