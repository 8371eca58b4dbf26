"""What a slave takes from its master and what not, and what a master believes of a slave."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from ssl import SSLContext
from typing import Any, cast

import pytest

from hotfire.broker import following, metadata
from hotfire.broker.following import Following
from hotfire.broker.metadata import Metadata
from hotfire.errors import ConnectError
from hotfire.model import DataVersion, TopicConfig, TopicTable
from hotfire.net.server import Server
from hotfire.protocol.codes import ResponseCode
from hotfire.protocol.ha import encode_header, encode_report
from hotfire.protocol.requests import DeleteTopicInBroker
from hotfire.store.replica import PLACED_MAX
from tests.unit.broker.conftest import Make
from tests.unit.broker.harness import codes, send_request
from tests.unit.broker.test_copies import OK, Line, Pair

pytestmark = pytest.mark.core


@pytest.fixture
def pair(make: Make) -> Pair:
    return Pair(make)


# --- what the master believes ---


@pytest.mark.promise(56)
def test_a_first_word_is_no_acknowledgement(pair: Pair) -> None:
    """Whose log ends where ours does may hold another's: nobody is told that a message is there."""
    pair.dial()
    pair.master.receive(send_request(body=bytes(3000)))
    pair.master.settle()
    stranger = Line(40_100)
    pair.copies.connected(stranger, pair.master.now_ms)
    end = encode_report(pair.master.store.end)
    pair.copies.receive(stranger, memoryview(end), pair.master.now_ms)
    assert pair.master.connection.take() == []
    assert pair.copies.end == -1
    assert pair.copies.is_available
    pair.copies.receive(stranger, memoryview(end), pair.master.now_ms)
    assert codes(pair.master.connection.take()) == [OK]


class Cold:
    """A store whose log is not in memory, with a thousand clients in the line of questions."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.journal = self.queries = self
        self.asked: list[dict[str, bool]] = []
        self.has_room = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def fetch(self, pieces: object) -> None:
        return None

    def look(self, work: object, token: object, **how: bool) -> None:
        self.asked.append(how)


def test_what_a_slave_needs_does_not_stand_in_the_clients_line(pair: Pair) -> None:
    """Cold bytes are the broker's own work; until they are sent no empty word says that the log ends."""
    pair.master.receive(send_request(body=bytes(3000)))
    pair.master.settle()
    pair.dial()
    pair.copy()
    pair.dial()
    pair.line.take_batches()
    follower = pair.copies._followers[pair.line]
    follower.next = follower.begun
    cold = Cold(pair.master.store)
    pair.copies._store = cast(Any, cold)
    pair.copies.tick(pair.master.now_ms + 6000)
    assert cold.asked == [{"own": True}]
    follower.is_reading = False  # it failed: the next tick tries again
    pair.line.is_clogged = True
    pair.copies.tick(pair.master.now_ms + 12_000)
    assert pair.line.take_batches() == []


# --- what a slave does not do ---


def test_a_slave_deletes_no_topic(pair: Pair) -> None:
    """Its queue would begin anew, and the master's next message of it would not fit."""
    pair.master.receive(send_request())
    pair.master.settle()
    pair.dial()
    pair.copy()
    reply = pair.slave.ask(DeleteTopicInBroker(topic="T"))
    assert reply.code != OK
    assert "at the master" in (reply.remark or "")
    assert pair.slave.broker.topics.get("T") is not None
    pair.master.receive(send_request())
    pair.master.settle()
    pair.copy()
    assert pair.slave.store.end == pair.master.store.end
    pair.acknowledge()
    assert codes(pair.master.connection.take()) == [ResponseCode.SLAVE_NOT_AVAILABLE, OK]
    assert "new copy" in (pair.master.ask(DeleteTopicInBroker(topic="T")).remark or "")


def test_timers_that_rest_keep_nothing_from_leaving(pair: Pair) -> None:
    """A slave's deliver nothing: restarted with a message among them, its log would never get shorter."""
    pair.master.receive(send_request(named={"TIMER_DELAY_SEC": "100"}))
    pair.master.settle()
    pair.dial()
    pair.copy()
    pair.slave.reopen()
    pair.slave.pass_time(200)
    assert pair.slave.broker.timers.queue.max == 1
    assert pair.slave.store.retention.spared_ms == 0


def test_a_topic_stays_as_wide_as_its_messages_reach(pair: Pair) -> None:
    """Whatever the master's table says: who takes over serves what it holds."""
    pair.master.receive(send_request(queue_id=3))
    pair.master.settle()
    pair.dial()
    pair.copy()
    topics, store = pair.slave.broker.topics, pair.slave.store
    told = TopicTable(topics={"T": TopicConfig("T", 1, 1)}, data_version=DataVersion(timestamp=7, counter=7))
    topics.adopt(told, store.queries.widths())
    assert topics.get("T") == TopicConfig("T", 4, 1)
    assert topics.version == told.data_version
    assert topics.get("BenchmarkTest") is None
    pair.slave.reopen()
    assert pair.slave.broker.topics.get("T") == TopicConfig("T", 4, 1)


def test_a_pass_is_bounded(make: Make) -> None:
    """However many small records arrive at once, others have their turn in between."""
    pair = Pair(make, mapped_file_size_commit_log=1 << 20)
    for _ in range(20):
        pair.master.receive(*[send_request(body=b"x") for _ in range(50)])
        pair.master.settle()
    pair.dial()
    pair.copies.pump(pair.master.now_ms)
    pair.master.settle()
    for batch in pair.line.take_batches():
        pair.following.replica.take(batch.offset, batch.data)
    queue, placed = pair.slave.store.queue("T", 0), [0]
    while not pair.following.place(pair.slave.now_ms):
        placed.append(queue.next)
        assert placed[-1] - placed[-2] <= PLACED_MAX
        if pair.following.replica.is_turn_full:
            pair.slave.settle()
    assert len(placed) > 2
    assert queue.next == 1000


# --- one connection after the other ---


class Lost:
    """A master that says only that its log ends where the slave wants to begin."""

    def __init__(self) -> None:
        self.dialled = self.hung_up = 0
        self._lines: set[asyncio.Task[None]] = set()

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.dialled += 1
        self._lines.add(asyncio.create_task(self._serve(reader, writer)))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if word := await reader.read(8):
                writer.write(encode_header(int.from_bytes(word), 0))
                await reader.read()
        except ConnectionError:
            pass  # hung up on with our word unread
        finally:
            self.hung_up += 1
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    async def leave(self) -> None:
        """Until the last line is closed: whoever dialled once more while the count was read is among them."""
        for _ in range(3):  # the passes of the loop from an accepted socket to `accept`
            await asyncio.sleep(0)
        while self._lines:
            await self._lines.pop()


def follow(pair: Pair, master: Lost, times: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dial the master until it was hung up on so often."""
    monkeypatch.setattr(following, "REDIAL_S", 0.01)

    async def main() -> None:
        server = await asyncio.start_server(master.accept, "127.0.0.1", 0)
        followed = Following(pair.following, cast(Server, None))
        followed.master_is(f"127.0.0.1:{server.sockets[0].getsockname()[1]}")
        followed.start()
        try:
            async with asyncio.timeout(10):
                while master.hung_up < times:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            assert followed.agreed is None
        finally:
            await followed.close()
            server.close()
            async with asyncio.timeout(10):
                await server.wait_closed()
                await master.leave()

    asyncio.run(main())


def test_the_same_reason_is_told_once(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A master that has lost its log is dialled again and again; the log of this broker is for news."""
    pair.master.receive(send_request())
    pair.master.settle()
    pair.dial()
    pair.copy()
    follow(pair, Lost(), 4, monkeypatch)
    warnings = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert len(warnings) == 1
    assert "it has lost what we have" in warnings[0]


def test_a_log_that_cannot_be_read_leaves_no_line_open(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of ours is read after the master was dialled: it is hung up on when that fails."""

    def fail() -> int:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(pair.following.replica, "begin", fail)
    follow(pair, Lost(), 2, monkeypatch)


# --- tables ---


class Agreeing:
    """A connection over which the master's log was found to be ours, for so many looks."""

    def __init__(self, looks: int = 1000) -> None:
        self._looks = looks
        self._connection = object()

    @property
    def agreed(self) -> object | None:
        self._looks -= 1
        return self._connection if self._looks >= 0 else None


def test_tables_are_asked_for_as_others_are_dialled(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """With TLS where the broker dials with it: a master that enforces it answers nobody else."""
    context = cast(SSLContext, object())
    dialled: list[object] = []

    async def connect(address: str, *, timeout_s: float, tls: SSLContext | None) -> None:
        dialled.append(tls)
        raise ConnectError("not now")

    monkeypatch.setattr(metadata.Peer, "connect", connect)
    tables = Metadata(pair.following, cast(Following, Agreeing()), context)
    with pytest.raises(ConnectError):
        asyncio.run(tables._copy("127.0.0.1:1"))
    assert dialled == [context]


class Asked:
    """A connection to the master's own heart."""

    closed = False

    def __init__(self, pair: Pair) -> None:
        self._pair = pair
        self._connection = pair.master.connect(50_009)

    async def ask(self, request: Any, timeout_s: float) -> Any:
        return self._pair.master.ask(request, self._connection)

    def abort(self) -> None:
        return


def copy_tables(pair: Pair, agreeing: Agreeing) -> None:
    """Ask the master for its tables once."""
    tables = Metadata(pair.following, cast(Following, agreeing), None)
    tables._peer = cast(Any, Asked(pair))

    async def main() -> None:
        task = asyncio.create_task(tables._copy("127.0.0.1:1"))
        async with asyncio.timeout(10):
            while not task.done():
                pair.slave.settle()
                await asyncio.sleep(0.01)
        await task
        await tables.close()

    asyncio.run(main())


def test_tables_are_parsed_beside_the_loop(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of rows take long: others are served meanwhile. Offsets and delays are on the disk then."""
    pair.master.receive(send_request())
    pair.master.settle()
    pair.master.broker.offsets.commit("T", "g", 0, 1)
    pair.dial()
    pair.copy()
    threads: set[int] = set()
    loads = metadata.bodies.loads

    def noted(data: Any) -> Any:
        threads.add(threading.get_ident())
        return loads(data)

    monkeypatch.setattr(metadata.bodies, "loads", noted)
    copy_tables(pair, Agreeing())
    assert threads
    assert threading.get_ident() not in threads
    assert pair.slave.broker.offsets.get("T", "g", 0) == 1
    assert (pair.slave.root / "config/delayOffset.json").exists()


def test_nothing_is_taken_when_the_line_was_lost_meanwhile(pair: Pair) -> None:
    """The answers may be those of a master that was started anew, and with nothing."""
    pair.master.broker.offsets.commit("T", "g", 0, 1)
    before = pair.slave.broker.topics.version
    copy_tables(pair, Agreeing(looks=1))
    assert pair.slave.broker.offsets.get("T", "g", 0) is None
    assert pair.slave.broker.topics.version == before
