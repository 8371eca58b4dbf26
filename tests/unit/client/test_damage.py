"""Messages that came damaged: no consumer is held up, none is lost in silence, nothing else is lost."""

import asyncio
import logging
from collections.abc import Callable, Collection
from typing import Any

import pytest

from hotfire import ConsumeFrom, Consumer, Message, MessageQueue, Producer, PullConsumer, QueueReader
from hotfire.cli import main
from hotfire.client import pulling
from hotfire.client.damage import Damage, Damages
from hotfire.client.reader import TopicReader
from hotfire.client.unpacking import unpack_messages
from hotfire.errors import MessageDamaged
from hotfire.protocol.command import Buffer
from hotfire.protocol.record import Host, Record, encode_record
from hotfire.testing import Cluster
from tests.unit.client.consuming import Seen, until

QUEUE = MessageQueue("T", "b", 0)
HOST = Host.parse("10.1.2.3", 1234)
BODY_AT, SIZE_AT = 88, 0

Harm = Callable[[bytearray, int], None]


def harm_body(data: bytearray, at: int) -> None:
    data[at + BODY_AT] ^= 1


def harm_size(data: bytearray, at: int) -> None:
    """It ends in the middle of the next one, or behind the end."""
    data[at + 3] ^= 0x40


def harm_magic(data: bytearray, at: int) -> None:
    data[at + 4] ^= 1


def harm_all(data: bytearray, at: int) -> None:
    data[at : at + 40] = bytes(40)


HARMS = [harm_body, harm_size, harm_magic, harm_all]


def records(count: int, first: int = 0) -> list[bytes]:
    return [
        encode_record(
            Record(
                topic="T", queue_id=0, queue_offset=offset, body=b"%d" % offset,
                properties=b"TAGS\x01even\x02" if offset % 2 == 0 else b"",
                born_timestamp=0, born_host=HOST, store_timestamp=0, store_host=HOST,
            ),
            append_crc=False,
        )
        for offset in range(first, first + count)
    ]  # fmt: skip


def harmed(body: Buffer, offsets: Collection[int], harm: Harm) -> bytes:
    """What was pulled, with the records at these offsets harmed."""
    data, at = bytearray(body), 0
    places = []
    while at < len(data):
        if int.from_bytes(data[at + 20 : at + 28], "big") in offsets:
            places.append(at)
        at += int.from_bytes(data[at : at + 4], "big")
    for place in places:
        harm(data, place)
    return bytes(data)


@pytest.mark.core
@pytest.mark.parametrize("harm", HARMS)
@pytest.mark.parametrize("tags", [(), ("even",)])
@pytest.mark.parametrize("bad", [{0}, {9}, {4}, {4, 5}, {0, 9}, {2, 3, 4}, set(range(10))])
def test_everything_sound_arrives_once_and_everything_else_is_counted(
    harm: Harm, tags: tuple[str, ...], bad: set[int]
) -> None:
    """Wherever the damage is and whatever it is: a consumer gets all the others, in order, and comes to the
    end; who reads by hand does so too, by going on where each error says."""
    whole = records(10)
    wanted = [offset for offset in range(10) if not tags or offset % 2 == 0]
    expected = [offset for offset in wanted if offset not in bad]
    for may_pass in (True, False):
        damages, offset, got, errors = Damages("g", may_pass=may_pass), 0, [], []
        for _ in range(100):
            if offset >= 10:
                break
            body = b"".join(one for number, one in enumerate(whole) if number >= offset and number in wanted)
            found: list[Damage] = []
            messages = unpack_messages(harmed(body, bad, harm), QUEUE, tags, found)
            try:
                messages, offset = damages.sound(QUEUE, offset, 10, messages, found)
                got += [message.queue_offset for message in messages]
            except MessageDamaged as error:
                errors.append(error.queue_offset)
                offset = offset if may_pass else error.next_offset
        assert offset == 10
        assert got == expected
        if not may_pass and not tags:
            assert errors == sorted(bad)
        assert damages.passed_count >= len(bad & set(wanted)) * may_pass
        if not tags:
            assert damages.passed_count == len(bad) * may_pass


def test_what_was_harmed_on_its_way_is_not_lost() -> None:
    """Asked for again it is sound: nothing is passed over."""
    damages = Damages("g", may_pass=True)
    body = b"".join(records(3))
    found: list[Damage] = []
    messages = unpack_messages(harmed(body, {1}, harm_body), QUEUE, (), found)
    messages, offset = damages.sound(QUEUE, 0, 3, messages, found)
    assert ([message.queue_offset for message in messages], offset) == ([0], 1)
    found = []
    assert len(unpack_messages(b"".join(records(2, first=1)), QUEUE, (), found)) == 2
    assert (found, damages.passed_count) == ([], 0)


@pytest.fixture
def damage(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """Offsets of topic T at which what is pulled comes damaged."""
    offsets: set[int] = set()

    def unpack(body: Buffer, queue: MessageQueue, *rest: Any) -> Any:
        return unpack_messages(harmed(body, offsets if queue.topic == "T" else (), harm_body), queue, *rest)

    monkeypatch.setattr(pulling, "unpack_messages", unpack)
    return offsets


async def send_ten(cluster: Cluster) -> MessageQueue:
    await cluster.create_topic("T", queues=1)
    async with Producer(cluster.namesrv) as producer:
        for number in range(10):
            result = await producer.send(Message("T", b"%d" % number))
    return result.queue


@pytest.mark.parametrize("orderly", [False, True])
def test_a_consumer_goes_past_a_damaged_message(
    damage: set[int], orderly: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The others come, each once; the lost one is told with topic, queue and offset, and counted; the group
    is done with all of them."""
    damage |= {0, 4, 9}

    async def scenario() -> None:
        async with Cluster() as cluster:
            queue = await send_ten(cluster)
            seen = Seen()
            async with Consumer(
                cluster.namesrv, group="g", consume_from=ConsumeFrom.FIRST, orderly=orderly
            ) as consumer:
                consumer.subscribe("T", seen)
                await until(lambda: len(seen.messages) == 7 and consumer.damaged_count == 3)
            assert [message.queue_offset for message in seen.messages] == [1, 2, 3, 5, 6, 7, 8]
            async with QueueReader(cluster.namesrv, group="g") as reader:
                assert await reader.committed(queue) == 10

    asyncio.run(scenario())
    told = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert len(told) == 3
    for offset, line in zip((0, 4, 9), told, strict=True):
        assert f"group=g topic=T queue=broker-0/0 offset={offset} came damaged twice" in line


def test_a_pull_consumer_goes_past_a_damaged_message(damage: set[int]) -> None:
    """As one that is given its messages."""
    damage |= {4}

    async def scenario() -> None:
        async with Cluster() as cluster:
            await send_ten(cluster)
            async with PullConsumer(cluster.namesrv, group="g", consume_from=ConsumeFrom.FIRST) as consumer:
                consumer.subscribe("T")
                offsets = [(await anext(consumer)).queue_offset for _ in range(9)]
                assert offsets == [0, 1, 2, 3, 5, 6, 7, 8, 9]
                assert consumer.damaged_count == 1

    asyncio.run(scenario())


def test_who_reads_by_hand_is_told_where_and_how_to_go_on(damage: set[int]) -> None:
    """What is before it comes; then an error names topic, queue and offset, and where to go on."""
    damage |= {4}

    async def scenario() -> None:
        async with Cluster() as cluster, QueueReader(cluster.namesrv) as reader:
            queue = await send_ten(cluster)
            before = await reader.pull(queue, 0)
            assert ([one.queue_offset for one in before.messages], before.next_offset) == ([0, 1, 2, 3], 4)
            for _ in range(2):
                told = "topic T broker broker-0 queue 0 offset 4: the message .* damaged: .*go on at offset 5"
                with pytest.raises(MessageDamaged, match=told) as damaged:
                    await reader.pull(queue, before.next_offset)
                assert (damaged.value.queue, damaged.value.queue_offset) == (queue, 4)
            after = await reader.pull(queue, damaged.value.next_offset)
            assert [one.queue_offset for one in after.messages] == [5, 6, 7, 8, 9]

            async with TopicReader(cluster.namesrv, "T", start="earliest", follow=False) as topic:
                offsets = [(await anext(topic)).queue_offset for _ in range(4)]
                with pytest.raises(MessageDamaged, match="offset 4"):
                    await anext(topic)
                offsets += [message.queue_offset async for message in topic]
            assert offsets == [0, 1, 2, 3, 5, 6, 7, 8, 9]

    asyncio.run(scenario())


def test_tail_prints_on_past_a_damaged_message(damage: set[int], capsys: pytest.CaptureFixture[str]) -> None:
    """It is told on stderr; the others are printed."""
    damage |= {4}
    with Cluster() as cluster:
        cluster.create_topic("T", queues=1)
        for number in range(10):
            assert main(["send", "T", str(number), "-q", "-n", cluster.namesrv]) == 0
        capsys.readouterr()
        assert main(["tail", "T", "--from", "earliest", "--no-follow", "-n", cluster.namesrv]) == 0
    printed = capsys.readouterr()
    assert len(printed.out.splitlines()) == 9
    assert "topic T broker broker-0 queue 0 offset 4: the message there is damaged" in printed.err
