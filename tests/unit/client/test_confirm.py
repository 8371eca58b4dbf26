"""Finding out about a send whose answer never came: stored or not, and never a guess."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

import pytest

from hotfire import Message, Producer
from hotfire.broker.program import BrokerProgram
from hotfire.client.confirm import NotStored, Stored
from hotfire.errors import HotfireError, LocalProtocolError, Timeout, Unreachable
from hotfire.model import SCHEDULE_TOPIC, TopicConfig
from hotfire.namesrv.config import NameServerConfig
from hotfire.namesrv.program import NameServerProgram
from hotfire.net.peer import Peer
from hotfire.protocol.command import decode, frame_size
from hotfire.protocol.requests import SendMessage
from tests.unit.client.real import config
from tests.unit.namesrv.fakes import FakeBroker

SEND_CODES = (310, 320)


class Wire:
    """Between client and broker, frame by frame; a test says what becomes of sends and their answers."""

    def __init__(self, broker: str) -> None:
        self.broker = broker
        self.pass_sends = asyncio.Event()
        self.pass_sends.set()
        self.lose_sends = self.lose_answers = False
        self.held = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, port = self.broker.rsplit(":", 1)
        try:
            to_reader, to_writer = await asyncio.open_connection(host, int(port))
        except OSError:
            writer.close()
            return
        ways = [self._carry(reader, to_writer, self._ask), self._carry(to_reader, writer, self._answer)]
        self._sends: set[int] = set()
        await asyncio.gather(*(asyncio.create_task(way) for way in ways))

    async def _carry(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        look: Callable[[bytes], Awaitable[bool]],
    ) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            while True:
                head = await reader.readexactly(4)
                frame = head + await reader.readexactly(frame_size(head) - 4)
                if not await look(frame):
                    break
                writer.write(frame)
        writer.close()

    async def _ask(self, frame: bytes) -> bool:
        command = decode(frame)
        if command.code not in SEND_CODES:
            return True
        self._sends.add(command.opaque)
        self.held.set()
        await self.pass_sends.wait()
        return not self.lose_sends

    async def _answer(self, frame: bytes) -> bool:
        return not (self.lose_answers and decode(frame).opaque in self._sends)


@asynccontextmanager
async def wired(tmp_path: Path) -> AsyncIterator[tuple[Wire, Producer, BrokerProgram]]:
    """A producer that reaches its real broker over a wire."""
    async with asyncio.timeout(50), AsyncExitStack() as stack:
        names = NameServerProgram(NameServerConfig(bind_address="127.0.0.1", listen_port=0))
        await names.start()
        stack.push_async_callback(names.close)
        broker = BrokerProgram(config(tmp_path, "broker-a", ""))
        await broker.start()
        stack.push_async_callback(broker.close)
        wire = Wire(broker.advertised)
        listener = await asyncio.start_server(wire.accept, "127.0.0.1", 0)
        stack.callback(listener.close)
        registration = await stack.enter_async_context(await Peer.connect(f"127.0.0.1:{names.port}"))
        fake = FakeBroker("broker-a", port=listener.sockets[0].getsockname()[1], host="127.0.0.1")
        topics = [TopicConfig(name, 4, 4) for name in ("TBW102", "U", "V")]
        await registration.ask(fake.registration(topics), 5.0)
        producer = Producer(f"127.0.0.1:{names.port}", timeout_s=0.4, retries=0, retries_async=0)
        await stack.enter_async_context(producer)
        await producer.send(Message("T", b"there is such a topic"), timeout_s=20.0)
        yield wire, producer, broker


def stored_count(broker: BrokerProgram, topic: str = "T") -> int:
    return sum(
        queue.max for n in range(18) if (queue := broker.broker.store.find_queue(topic, n)) is not None
    )


@pytest.mark.promise(197)
def test_answer_lost_message_stored(tmp_path: Path) -> None:
    """The reply is cut: the lookup says where the message is. So it does by id and topic, and for a batch."""

    async def scenario() -> None:
        async with wired(tmp_path) as (wire, producer, broker):
            for send in (
                lambda: producer.send(Message("T", b"x", keys=("k",))),
                lambda: producer.send_soon(Message("T", b"x")),
                lambda: producer.send_batch([Message("T", b"x"), Message("T", b"y")]),
            ):
                wire.lose_answers = True
                with pytest.raises(Unreachable) as caught:
                    await send()
                wire.lose_answers = False
                assert caught.value.outcome_unknown
                found = await producer.confirm(caught.value)
                assert isinstance(found, Stored)
                assert found.queue.broker_name == "broker-a"
                assert found.copies == 1
                queue = broker.broker.store.find_queue("T", found.queue.queue_id)
                assert queue is not None
                assert found.queue_offset < queue.max
                assert await producer.confirm(caught.value.message_id or "", "T") == found

    asyncio.run(scenario())


@pytest.mark.promise(197)
def test_send_lost_message_not_stored(tmp_path: Path) -> None:
    """The request is cut: the lookup says that it is not stored, and it is not."""

    async def scenario() -> None:
        async with wired(tmp_path) as (wire, producer, broker):
            before = stored_count(broker)
            wire.lose_sends = True
            with pytest.raises(Unreachable) as caught:
                await producer.send(Message("T", b"x"))
            wire.lose_sends = False
            assert await producer.confirm(caught.value) == NotStored()
            assert stored_count(broker) == before

    asyncio.run(scenario())


@pytest.mark.promise(197)
def test_send_still_on_its_way_is_waited_for(tmp_path: Path) -> None:
    """A send that arrives long after its deadline: the answer waits for it and is "stored", never "not
    stored" about a message that is stored later. Without an end in sight nothing is claimed."""

    async def scenario() -> None:
        async with wired(tmp_path) as (wire, producer, broker):
            before = stored_count(broker)
            wire.pass_sends.clear()
            with pytest.raises(Timeout) as caught:
                await producer.send(Message("T", b"late"))
            with pytest.raises(Timeout, match="has not ended the connection") as unknown:
                await producer.confirm(caught.value, timeout_s=1.0)
            assert unknown.value.outcome_unknown
            asked = asyncio.create_task(producer.confirm(caught.value))
            await asyncio.sleep(0.7)
            assert not asked.done()
            assert stored_count(broker) == before
            wire.pass_sends.set()
            assert isinstance(await asked, Stored)
            assert stored_count(broker) == before + 1

    asyncio.run(scenario())


@pytest.mark.promise(197)
def test_taken_and_not_yet_on_the_disk_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the disk is slow a message the broker has taken is in no index; the answer waits for the disk."""

    async def scenario() -> None:
        async with wired(tmp_path) as (_, producer, broker):
            store = broker.broker.store
            complete = store.complete
            monkeypatch.setattr(store, "complete", lambda *_: [])
            with pytest.raises(Timeout) as caught:
                await producer.send(Message("T", b"slow"))
            asked = asyncio.create_task(producer.confirm(caught.value))
            await asyncio.sleep(1.0)
            assert not asked.done()
            monkeypatch.setattr(store, "complete", complete)
            asyncio.create_task(producer.send(Message("T", b"next"), timeout_s=10.0))  # noqa: RUF006
            assert isinstance(await asked, Stored)

    asyncio.run(scenario())


def test_delayed_message_is_found_where_it_waits(tmp_path: Path) -> None:
    """A delayed message lies elsewhere until it is due; it is stored all the same."""

    async def scenario() -> None:
        async with wired(tmp_path) as (wire, producer, _):
            wire.lose_answers = True
            with pytest.raises(Unreachable) as caught:
                await producer.send(Message("T", b"x", delay_level=18))
            wire.lose_answers = False
            found = await producer.confirm(caught.value)
            assert isinstance(found, Stored)
            assert found.queue.topic == SCHEDULE_TOPIC

    asyncio.run(scenario())


def test_broker_that_cannot_be_asked_leaves_it_unknown(tmp_path: Path) -> None:
    """Dead, it cannot say: an error. One that says by itself that nothing was stored needs none."""

    async def scenario() -> None:
        async with wired(tmp_path) as (wire, producer, _):
            wire.lose_answers = True
            with pytest.raises(Unreachable) as caught:
                await producer.send(Message("T", b"x"))
            address, wire.broker = wire.broker, "127.0.0.1:1"
            for connection in list(producer._instance.connections._peers.values()):
                producer._instance.connections.drop(connection)
            with pytest.raises(Timeout, match="may be stored or not: broker broker-a"):
                await producer.confirm(caught.value, timeout_s=2.0)
            wire.broker, wire.lose_answers = address, False
            assert isinstance(await producer.confirm(caught.value), Stored)
            refused = HotfireError("nothing of a send")
            with pytest.raises(LocalProtocolError, match="no send failed"):
                await producer.confirm(refused)
            refused.topic, refused.message_id = "T", "0" * 32
            assert await producer.confirm(refused) == NotStored()
            with pytest.raises(LocalProtocolError, match="its topic too"):
                await producer.confirm("0" * 32)

    asyncio.run(scenario())


def test_requests_of_sends_are_what_the_wire_looks_for() -> None:
    """The codes above are those of all sends a producer makes."""
    from hotfire.protocol.requests import SendBatchMessage, SendMessageV2

    assert {SendMessageV2.code, SendBatchMessage.code} == set(SEND_CODES)
    assert issubclass(SendMessageV2, SendMessage)
