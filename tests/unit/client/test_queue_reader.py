"""Queues read by hand from a real broker in this process."""

import asyncio
import logging
from pathlib import Path

import pytest

from hotfire import Message, MessageQueue, Producer
from hotfire.client import reader as reader_module
from hotfire.client.consumersettings import BULK_COUNT_MAX
from hotfire.client.messages import received_messages
from hotfire.client.pulling import PullStatus
from hotfire.client.queuereader import BULK_BYTES_MAX, QueueReader
from hotfire.client.reader import TopicReader
from hotfire.errors import ConfigError, InvalidParameter, NoRoute, NotRunning, Unreachable
from hotfire.net.peer import Peer
from hotfire.protocol.record import Host, Record, SysFlag, encode_record
from hotfire.protocol.requests import SendMessageV2
from tests.unit.client.live import broker, name_server, run, send_all


async def fill(address: str, count: int, topic: str = "T", **fields: object) -> MessageQueue:
    """So many messages in queue 0 of the topic, whose bodies are their offsets."""
    async with Producer(address) as producer:
        queue = (await producer.send(Message(topic, b"first", **fields))).queue  # type: ignore[arg-type]
        queue = MessageQueue(topic, queue.broker_name, 0)
        for index in range(count):
            message = Message(topic, b"%d" % index, **fields)  # type: ignore[arg-type]
            await producer.send(message, queue=queue)
    return queue


@pytest.mark.promise(108)
def test_application_keeps_queues_and_offsets(tmp_path: Path) -> None:
    """Pulls go where the application says, again and again; nothing is committed until it asks for that."""

    async def scenario(address: str) -> None:
        await send_all(address, [b"%d" % index for index in range(40)])  # 10 in each of 4 queues
        async with QueueReader(address, group="mine") as reader:
            queues = await reader.queues("T")
            assert len(queues) == 4
            for queue in queues:
                assert (await reader.min_offset(queue), await reader.max_offset(queue)) == (0, 10)
                for offset in (7, 0, 7):
                    result = await reader.pull(queue, offset)
                    assert result.status is PullStatus.FOUND
                    assert [message.queue_offset for message in result.messages] == list(range(offset, 10))
                    assert (result.next_offset, result.min_offset, result.max_offset) == (10, 0, 10)
                assert (await reader.pull(queue, 3, 2)).next_offset == 5
            assert [await reader.committed(queue) for queue in queues] == [None] * 4
            await reader.commit(queues[1], 5)
            assert [await reader.committed(queue) for queue in queues] == [None, 5, None, None]
            await reader.commit(queues[1], 2)
            assert await reader.committed(queues[1]) == 2
        async with QueueReader(address, group="mine") as reader:
            assert await reader.committed(queues[1]) == 2
        async with QueueReader(address, group="other") as reader:
            assert await reader.committed(queues[1]) is None

    run(tmp_path, scenario)


def test_every_outcome_of_a_pull(tmp_path: Path) -> None:
    """Found, nothing new, nothing wanted, an offset that is not there: results, with where to go on."""

    async def scenario(address: str) -> None:
        queue = await fill(address, 3, tag="A")
        end = 3
        async with QueueReader(address) as reader:
            end = await reader.max_offset(queue)
            assert (await reader.pull(queue, 0, tags="A || B")).status is PullStatus.FOUND
            nothing = await reader.pull(queue, end)
            assert (nothing.status, nothing.next_offset) == (PullStatus.NOTHING_NEW, end)
            other = await reader.pull(queue, 0, tags="B")
            assert (other.status, other.next_offset) == (PullStatus.NOTHING_MATCHED, end)
            beyond = await reader.pull(queue, end + 50)
            assert (beyond.status, beyond.next_offset) == (PullStatus.OFFSET_MOVED, end)
            assert not (nothing.messages + other.messages + beyond.messages)
            with pytest.raises(InvalidParameter, match="queueId"):
                await reader.pull(MessageQueue("T", queue.broker_name, 99), 0)
            with pytest.raises(NoRoute, match="broker nobody"):
                await reader.pull(MessageQueue("T", "nobody", 0), 0)
            with pytest.raises(NoRoute, match="topic nowhere"):
                await reader.queues("nowhere")

    run(tmp_path, scenario)


def test_a_pull_that_waits_is_answered_on_arrival(tmp_path: Path) -> None:
    """A message ends the wait of those who asked for its place; the others' goes on."""

    async def scenario(address: str) -> None:
        queue = await fill(address, 0)
        async with QueueReader(address) as reader, Producer(address) as producer:
            end = await reader.max_offset(queue)
            waits = asyncio.create_task(reader.pull(queue, end, wait_s=30.0))
            others = asyncio.create_task(reader.pull(queue, end, tags="other", wait_s=30.0))
            await asyncio.sleep(0.05)
            assert not waits.done()
            await producer.send(Message("T", b"there"), queue=queue)
            assert [message.body for message in (await waits).messages] == [b"there"]
            assert not others.done()
            others.cancel()

    run(tmp_path, scenario)


def test_offsets_by_time(tmp_path: Path) -> None:
    """A store time finds its message, the first of several or the last; an empty queue has none."""

    async def scenario(address: str) -> None:
        queue = await fill(address, 5)
        async with QueueReader(address) as reader:
            messages = (await reader.pull(queue, 0)).messages
            times = [message.store_timestamp_ms for message in messages]
            assert await reader.earliest_store_time_ms(queue) == times[0]
            for time in times:
                assert await reader.search(queue, time) == times.index(time)
                assert await reader.search(queue, time, "upper") == len(times) - 1 - times[::-1].index(time)
            assert await reader.search(queue, times[-1] + 1000) == len(times)
            empty = MessageQueue("T", queue.broker_name, 1)
            if await reader.max_offset(empty) == 0:
                assert await reader.earliest_store_time_ms(empty) is None

    run(tmp_path, scenario)


def test_messages_by_id_and_by_key(tmp_path: Path) -> None:
    """A message is found again by the id of its place, by its keys and by its producer's id."""

    async def scenario(address: str) -> None:
        async with Producer(address) as producer:
            sent = await producer.send(Message("T", b"wanted", keys=("order-1", "order-2")))
            await producer.send(Message("T", b"other", keys=("order-3",)))
        async with QueueReader(address) as reader:
            found = await reader.messages_by_key("T", "order-2")
            assert [message.body for message in found] == [b"wanted"]
            again = await reader.message_by_id(found[0].offset_message_id, "T")
            assert again == found[0]
            assert again.message_id == sent.message_id
            assert await reader.messages_by_key("T", "order-9") == []
            nowhere = found[0].offset_message_id[:-4] + "FFFF"
            assert await reader.message_by_id(nowhere) is None
            with pytest.raises(ConfigError, match="message id"):
                await reader.message_by_id("0A")
            with pytest.raises(ConfigError, match="is a producer's, not of a place"):
                await reader.message_by_id(sent.message_id)

    run(tmp_path, scenario)


def test_bulk_pulls(tmp_path: Path) -> None:
    """Who says that it takes more bytes gets more than 32 messages in one answer."""

    async def scenario(address: str) -> None:
        async with Producer(address) as producer:
            queue = (await producer.send(Message("T", b"x"))).queue
            sends = (producer.send(Message("T", b"x"), queue=queue) for _ in range(299))
            await asyncio.gather(*sends)
        async with QueueReader(address) as reader:
            assert len((await reader.pull(queue, 0, BULK_COUNT_MAX)).messages) == 32
            bulk = await reader.pull(queue, 0, BULK_COUNT_MAX, bytes_max=BULK_BYTES_MAX)
            assert [message.queue_offset for message in bulk.messages] == list(range(300))
            assert bulk.next_offset == 300

    run(tmp_path, scenario)


def test_a_reader_finds_its_broker_again(tmp_path: Path) -> None:
    """While the broker is away a pull fails and says so; when it is back the next one works."""

    async def scenario() -> None:
        async with (
            asyncio.timeout(40),
            name_server() as names,
            QueueReader(f"127.0.0.1:{names.port}") as reader,
        ):
            async with broker(tmp_path, names) as first:
                queue = await fill(f"127.0.0.1:{names.port}", 3)
                before = await reader.pull(queue, 0)
            with pytest.raises(Unreachable):
                await reader.pull(queue, 0)
            async with broker(tmp_path, names, first.port):
                assert await reader.pull(queue, 0) == before

    asyncio.run(scenario())


# --- bodies that are not what they say -----------------------------------------------------------------

POISON = (
    (SysFlag.COMPRESSED | SysFlag.ZLIB, "ZLIB"),
    (SysFlag.COMPRESSED | SysFlag.LZ4, "LZ4"),
    (SysFlag.COMPRESSED | SysFlag.ZSTD, "ZSTD"),
    (SysFlag.INNER_BATCH | SysFlag.NEED_UNWRAP, "BATCH"),
)


@pytest.mark.parametrize(("sys_flag", "marker"), POISON)
def test_garbage_is_marked_and_not_an_error(sys_flag: int, marker: str) -> None:
    """A body that does not unpack arrives as it was stored, marked; those behind it arrive too."""
    host = Host(b"\x7f\0\0\1", 1)

    def record(body: bytes, flag: int) -> bytes:
        return encode_record(
            Record("T", 0, body, born_timestamp=1, born_host=host, store_timestamp=2, store_host=host,
                   properties=b"TAGS\x01A", sys_flag=flag),
            append_crc=True,
        )  # fmt: skip

    harmed, sound = received_messages(record(b"not packed", sys_flag) + record(b"sound", 0), "broker-a")
    assert (harmed.body, harmed.compression, harmed.tag) == (b"not packed", marker, "A")
    assert (sound.body, sound.compression) == (b"sound", None)


async def send_poison(program_port: int, queue: MessageQueue) -> None:
    async with await Peer.connect(f"127.0.0.1:{program_port}") as peer:
        request = SendMessageV2(
            producer_group="p", topic=queue.topic, default_topic="TBW102", default_topic_queue_nums=4,
            queue_id=queue.queue_id, sys_flag=SysFlag.COMPRESSED, born_timestamp=1, flag=0, properties="",
            body=b"garbage",
        )  # fmt: skip
        await peer.ask(request, 5.0)


def test_reading_a_topic_outlives_poison(tmp_path: Path) -> None:
    """One producer's garbage does not end the reading of a topic."""

    async def scenario() -> None:
        async with asyncio.timeout(40), name_server() as names, broker(tmp_path, names) as program:
            address = f"127.0.0.1:{names.port}"
            async with Producer(address) as producer:
                queue = (await producer.send(Message("T", b"before"))).queue
                await send_poison(program.port, queue)
                await producer.send(Message("T", b"after"), queue=queue)
            async with TopicReader(address, "T", start="earliest", follow=False) as reader:
                seen = [(message.body, message.compression) async for message in reader]
            assert seen == [(b"before", None), (b"garbage", "ZLIB"), (b"after", None)]

    asyncio.run(scenario())


def test_an_outage_is_told_once_per_queue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """However often a reader tries during an outage, each queue's trouble is one line."""
    monkeypatch.setattr(reader_module, "RETRY_S", 0.01)
    tries: asyncio.Queue[None] = asyncio.Queue()
    real_pull = QueueReader.pull

    async def counted(self: QueueReader, *args: object, **options: object) -> object:
        tries.put_nowait(None)
        return await real_pull(self, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(QueueReader, "pull", counted)

    async def scenario() -> None:
        async with asyncio.timeout(40), name_server() as names:
            address = f"127.0.0.1:{names.port}"
            async with broker(tmp_path, names) as first:
                await send_all(address, [b"1"])
                reader = TopicReader(address, "T", start="earliest")
                await reader.__aenter__()
                assert (await anext(reader)).body == b"1"
            for _ in range(40):
                await tries.get()
            async with broker(tmp_path, names, first.port):
                await send_all(address, [b"2"])
                assert (await anext(reader)).body == b"2"
                await reader.__aexit__()

    with caplog.at_level(logging.WARNING, "hotfire.client"):
        asyncio.run(scenario())
    told = [record for record in caplog.records if "goes on shortly" in record.getMessage()]
    assert len(told) == 4


def test_reader_that_does_not_run_refuses() -> None:
    """Pulling before it is started says what to do."""

    async def scenario() -> None:
        with pytest.raises(NotRunning, match="async with"):
            await QueueReader("127.0.0.1:9876").queues("T")

    asyncio.run(scenario())
