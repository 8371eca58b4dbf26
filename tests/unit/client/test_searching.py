"""Messages looked for across brokers: by key, by time; what is missing is said; who has consumed one."""

import asyncio
import random
from types import SimpleNamespace

import pytest

from hotfire import Consumer, Message, MessageQueue, Producer, QueueReader, ReceivedMessage
from hotfire.client.admin import Admin
from hotfire.client.adminviews import Fate
from hotfire.client.consumersettings import ConsumeFrom
from hotfire.client.searching import CROWDED_MS, PAGE
from hotfire.errors import ConfigError, HotfireError
from hotfire.testing import Cluster, turned
from tests.unit.client.consuming import run, turn, until


async def send(cluster: Cluster, bodies: list[bytes], **fields: object) -> None:
    async with Producer(cluster.namesrv) as producer:
        for body in bodies:
            await producer.send(Message("T", body, **fields))  # type: ignore[arg-type]


@pytest.mark.promise(157)
def test_a_key_is_looked_for_within_a_span() -> None:
    """Three messages with the key on two brokers, one outside the span: two are found, by their times."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.create_topic("T", queues=1)
        await send(cluster, [b"early"], keys=("k",))
        await turn(cluster, 60)
        async with QueueReader(cluster.namesrv) as reader, Producer(cluster.namesrv) as producer:
            for name in ("broker-0", "broker-1"):
                queue = MessageQueue("T", name, 0)
                await producer.send(Message("T", name.encode(), keys=("k", "l")), queue=queue)
                await turn(cluster, 2)
            every = await reader.find_by_key("T", "k")
            assert ([one.body for one in every.messages], every.is_more) == (
                [b"early", b"broker-0", b"broker-1"],
                False,
            )
            since = every.messages[0].store_timestamp_ms + 1000
            later = await reader.find_by_key("T", "k", begin_ms=since)
            assert [one.body for one in later.messages] == [b"broker-0", b"broker-1"]
            until_ms = every.messages[1].store_timestamp_ms
            assert [one.body for one in (await reader.find_by_key("T", "k", end_ms=until_ms)).messages] == [
                b"early",
                b"broker-0",
            ]
            newest = await reader.find_by_key("T", "k", count_max=1)
            assert ([one.body for one in newest.messages], newest.is_more) == ([b"broker-1"], True)

    run(scenario, brokers=2)


@pytest.mark.promise(159)
def test_keys_of_one_hash_find_their_own_messages_alone() -> None:
    """`Aa` and `BB` hash alike in Java."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.create_topic("T", queues=1)
        for key in ("Aa", "BB"):
            await send(cluster, [key.encode()], keys=(key,))
        async with QueueReader(cluster.namesrv) as reader:
            for key in ("Aa", "BB"):
                found = await reader.find_by_key("T", key)
                assert ([one.body for one in found.messages], found.is_more) == ([key.encode()], False)

    run(scenario)


def test_more_than_a_page_of_a_key_is_found_page_by_page() -> None:
    """Three pages over several seconds; and a second that fills a page is said to hold more."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.create_topic("T", queues=1)
        count = 3 * PAGE
        for first in range(0, count, 16):
            await send(cluster, [b"%d" % n for n in range(first, first + 16)], keys=("k",))
            await turn(cluster, 2)
        async with QueueReader(cluster.namesrv) as reader:
            found = await reader.find_by_key("T", "k", count_max=1000)
            assert [int(one.body) for one in found.messages] == list(range(count))
            assert not found.is_more
            some = await reader.find_by_key("T", "k", count_max=100)
            assert [int(one.body) for one in some.messages] == list(range(count - 100, count))
            assert some.is_more
            await send(cluster, [b"x"] * (PAGE + 1), keys=("crowded",))
            crowded = await reader.find_by_key("T", "crowded", count_max=1000)
            assert crowded.is_more
            assert crowded.crowded_ms == crowded.messages[0].store_timestamp_ms

    run(scenario)


def test_an_answer_that_its_bytes_cut_short_is_not_the_last() -> None:
    """Eight messages of 3 MiB: brokers give three at a time. All are found, or what hides some is said."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.create_topic("T", queues=1)
        noise = random.Random(1).randbytes(3 << 20)  # as large compressed
        for number in range(8):
            await send(cluster, [b"%d" % number + noise], keys=("big",))
            await turn(cluster, 2)
        async with QueueReader(cluster.namesrv) as reader:
            found = await reader.find_by_key("T", "big", count_max=1000)
            assert [one.body[:1] for one in found.messages] == [b"%d" % number for number in range(8)]
            assert (found.is_more, found.crowded_ms) == (False, None)

    run(scenario)


@pytest.mark.parametrize(("earlier", "found"), [(0, [2, 3, 4]), (3, [0, 1, 2, 3, 4]), (2, [2, 3, 4])])
def test_what_a_second_full_of_bytes_may_hide_is_said(
    earlier: int, found: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five messages of 3 MiB, of which an answer holds three, so many of them a second before the others.

    Three of one moment fill an answer: of what else lies in their second a key tells nothing. So there may be
    more, and the moment is said, also where all were found; a search by time finds them all.
    """

    async def scenario(cluster: Cluster) -> None:
        await cluster.create_topic("T", queues=1)
        noise = random.Random(1).randbytes(3 << 20)  # as large compressed
        at_ms = cluster.clock.now_ms()
        bodies = [b"%d" % number + noise for number in range(5)]
        for when_ms, part in ((at_ms, bodies[:earlier]), (at_ms + CROWDED_MS, bodies[earlier:])):
            with monkeypatch.context() as stopped:  # however long these take, it is one moment
                stopped.setattr(
                    turned, "time", SimpleNamespace(time_ns=lambda at_ms=when_ms: at_ms * 1_000_000)
                )
                await send(cluster, part, keys=("k",))
        async with QueueReader(cluster.namesrv) as reader:
            some = await reader.find_by_key("T", "k", count_max=1000)
            assert [int(one.body[:1]) for one in some.messages] == found
            assert some.is_more
            assert some.crowded_ms == some.messages[0].store_timestamp_ms
            every = await reader.find_by_time("T", at_ms, at_ms + CROWDED_MS)
            assert [int(one.body[:1]) for one in every.messages] == list(range(5))
            assert not every.is_more

    run(scenario)


@pytest.mark.promise(158)
def test_a_span_of_time_over_all_queues() -> None:
    """Exactly the messages of the span, oldest first, over all queues of two brokers; or some and `more`."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.create_topic("T", queues=3)
        for second in range(10):
            await send(cluster, [b"%d-%d" % (second, n) for n in range(8)])
            await turn(cluster, 1)
        async with QueueReader(cluster.namesrv) as reader:
            every = (await reader.find_by_time("T", 0, 1 << 60, count_max=1000)).messages
            assert len(every) == 80
            assert len({one.queue for one in every}) == 6
            times = [one.store_timestamp_ms for one in every]
            assert times == sorted(times)
            begin, end = times[17], times[57]
            span = await reader.find_by_time("T", begin, end, count_max=1000)
            wanted = {one.message_id for one in every if begin <= one.store_timestamp_ms <= end}
            assert {one.message_id for one in span.messages} == wanted
            assert not span.is_more
            some = await reader.find_by_time("T", begin, end, count_max=10)
            assert (len(some.messages), some.is_more) == (10, True)
            assert [one.store_timestamp_ms for one in some.messages] == [
                one.store_timestamp_ms for one in span.messages[:10]
            ]
            assert (await reader.find_by_time("T", times[-1] + 1, 1 << 60)).messages == []
            with pytest.raises(ConfigError, match="the end is before the beginning"):
                await reader.find_by_time("T", 2, 1)

    run(scenario, brokers=2)


def test_a_broker_that_cannot_be_asked_is_named() -> None:
    """What the other has is shown; with none to ask it is an error."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.create_topic("T", queues=1)
        async with QueueReader(cluster.namesrv) as reader, Producer(cluster.namesrv) as producer:
            for name in ("broker-0", "broker-1"):
                await producer.send(Message("T", b"x", keys=("k",)), queue=MessageQueue("T", name, 0))
            await reader.queues("T")
            await cluster.brokers[0].kill()
            found = await reader.find_by_key("T", "k")
            assert [one.queue.broker_name for one in found.messages] == ["broker-1"]
            assert list(found.failures) == ["broker-0"]
            await cluster.brokers[1].kill()
            with pytest.raises(HotfireError):
                await reader.find_by_key("T", "k")

    run(scenario, brokers=2)


@pytest.mark.promise(160)
def test_who_consumed_a_message() -> None:
    """Each group of the topic: consumed, passed over by its tags, or not yet; there now or not."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.create_topic("T", queues=1)
        seen: list[ReceivedMessage] = []
        may_end = asyncio.Event()

        async def quick(message: ReceivedMessage) -> None:
            seen.append(message)

        async def slow(message: ReceivedMessage) -> None:
            seen.append(message)
            await may_end.wait()

        def member(group: str, listener: object, tags: str = "*") -> Consumer:
            consumer = Consumer(cluster.namesrv, group=group, consume_from=ConsumeFrom.FIRST)
            consumer.subscribe("T", listener, tags)  # type: ignore[arg-type]
            return consumer

        async with (
            Producer(cluster.namesrv) as producer,
            Admin(cluster.namesrv) as admin,
            QueueReader(cluster.namesrv) as reader,
        ):
            sent = await producer.send(Message("T", b"x", tag="a", keys=("k",)))
            await producer.send(Message("T", b"y", tag="b"))
            async with member("left", quick):
                await until(lambda: len(seen) == 2)
            async with (
                member("done", quick) as done,
                member("filters", quick, "b") as filters,
                member("waits", slow),
            ):
                await until(lambda: len(seen) == 7)
                for consumer in (done, filters):
                    await until(
                        lambda consumer=consumer: consumer._running.offsets.get(sent.queue) == 2  # type: ignore[misc]
                    )
                    await consumer.persist_offsets()
                (message,) = (await reader.find_by_key("T", "k")).messages
                told = {one.group: (one.fate, one.is_online) for one in await admin.consumed_by(message)}
                by_id = await reader.message_by_id(sent.offset_message_id)
                may_end.set()
        assert told == {
            "left": (Fate.CONSUMED, False),
            "done": (Fate.CONSUMED, True),
            "filters": (Fate.FILTERED, True),
            "waits": (Fate.NOT_YET, True),
        }
        assert by_id is not None
        assert (by_id.queue.broker_name, by_id.message_id) == ("broker-0", sent.message_id)

    run(scenario)
