"""Reading a topic from a real broker in this process: from where, how far, and through its restarts."""

import asyncio
from pathlib import Path

import pytest

from hotfire import Message, MessageQueue, Producer
from hotfire.client import reader as reader_module
from hotfire.client.reader import TopicReader
from hotfire.errors import NoRoute, NotRunning
from hotfire.model import ReceivedMessage
from tests.unit.client.live import broker, name_server, run, send_all


async def read_out(reader: TopicReader) -> list[ReceivedMessage]:
    return [message async for message in reader]


async def take(reader: TopicReader, count: int) -> list[ReceivedMessage]:
    return [await anext(reader) for _ in range(count)]


def test_everything_from_the_beginning(tmp_path: Path) -> None:
    """Every message once, in order within its queue, with all that was sent; then the iteration ends."""

    async def scenario(address: str) -> None:
        bodies = [b"%d" % index for index in range(200)] + [b"long " * 2000]
        await send_all(address, bodies, tag="tag")
        async with TopicReader(address, "T", start="earliest", follow=False) as reader:
            messages = await read_out(reader)
        assert sorted(message.body for message in messages) == sorted(bodies)
        by_queue: dict[MessageQueue, list[int]] = {}
        for message in messages:
            by_queue.setdefault(message.queue, []).append(message.queue_offset)
            assert (message.topic, message.tag, message.compression) == ("T", "tag", None)
            assert message.properties["UNIQ_KEY"] == message.message_id
            assert "__CRC32#" not in message.properties
        assert all(offsets == list(range(len(offsets))) for offsets in by_queue.values())

    run(tmp_path, scenario)


def test_only_what_comes_from_now_on(tmp_path: Path) -> None:
    """From the latest place: nothing old, and all that is sent after the reader is there."""

    async def scenario(address: str) -> None:
        await send_all(address, [b"old"] * 10)
        async with TopicReader(address, "T") as reader:
            await send_all(address, [b"new %d" % index for index in range(10)])
            assert {message.body for message in await take(reader, 10)} == {b"new %d" % i for i in range(10)}

    run(tmp_path, scenario)


def test_from_an_offset_in_every_queue(tmp_path: Path) -> None:
    """A number is an offset in each queue; beyond the end means the end."""

    async def scenario(address: str) -> None:
        await send_all(address, [b"x"] * 40)  # a new topic has 4 queues: 10 each
        for start, count in ((0, 40), (7, 12), (10, 0), (1000, 0)):
            async with TopicReader(address, "T", start=start, follow=False) as reader:
                messages = await read_out(reader)
            assert len(messages) == count
            assert all(message.queue_offset >= start for message in messages)

    run(tmp_path, scenario)


def test_only_wanted_tags(tmp_path: Path) -> None:
    """An expression filters by tag, also where two tags have the same hash."""

    async def scenario(address: str) -> None:
        for tag in ("Aa", "BB", "c"):  # Java's hash of Aa and BB is the same
            await send_all(address, [tag.encode()] * 3, tag=tag)
        for expression, expected in (
            ("Aa", {b"Aa"}),
            ("BB || c", {b"BB", b"c"}),
            ("*", {b"Aa", b"BB", b"c"}),
        ):
            async with TopicReader(
                address, "T", start="earliest", follow=False, expression=expression
            ) as reader:
                messages = await read_out(reader)
            assert {message.body for message in messages} == expected
            assert len(messages) == 3 * len(expected)

    run(tmp_path, scenario)


def test_reading_outlives_a_restart_of_the_broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While following, a broker that goes and comes back is waited for; nothing is missed or repeated."""
    monkeypatch.setattr(reader_module, "RETRY_S", 0.05)

    async def scenario() -> None:
        async with asyncio.timeout(40), name_server() as names:
            address = f"127.0.0.1:{names.port}"
            async with broker(tmp_path, names) as first:
                port = first.port
                await send_all(address, [b"1", b"2"])
                reader = TopicReader(address, "T", start="earliest")
                await reader.__aenter__()
                assert {message.body for message in await take(reader, 2)} == {b"1", b"2"}
            async with broker(tmp_path, names, port):
                await send_all(address, [b"3", b"4"])
                assert {message.body for message in await take(reader, 2)} == {b"3", b"4"}
                await reader.__aexit__()

    asyncio.run(scenario())


def test_failure_without_following_is_raised(tmp_path: Path) -> None:
    """Reading what is there and no more: a broker that dies on the way is an error, not a short answer."""

    async def scenario() -> None:
        async with asyncio.timeout(40), name_server() as names:
            address = f"127.0.0.1:{names.port}"
            async with broker(tmp_path, names):
                async with Producer(address, timeout_s=30.0) as producer:
                    await asyncio.gather(*(producer.send(Message("T", b"x")) for _ in range(5000)))
                reader = TopicReader(address, "T", start="earliest", follow=False)
                await reader.__aenter__()
                await anext(reader)
            with pytest.raises(Exception, match="connection"):
                await read_out(reader)
            await reader.__aexit__()

    asyncio.run(scenario())


def test_unknown_topic_is_an_error(tmp_path: Path) -> None:
    """Reading makes no topic: an unknown one is named."""

    async def scenario(address: str) -> None:
        with pytest.raises(NoRoute, match="topic nowhere does not exist"):
            async with TopicReader(address, "nowhere"):
                pass

    run(tmp_path, scenario)


def test_reader_that_does_not_run_refuses() -> None:
    """Iterating before the context is entered says what to do."""

    async def scenario() -> None:
        reader = TopicReader("127.0.0.1:9876", "T")
        with pytest.raises(NotRunning):
            aiter(reader)

    asyncio.run(scenario())
