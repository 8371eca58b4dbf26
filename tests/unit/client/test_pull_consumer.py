"""Consumers that are polled, on a real broker in this process."""

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from hotfire import Message, MessageQueue, Producer
from hotfire.client import fetching, instance, sharing, topicwatch
from hotfire.client.consumer import Consumer
from hotfire.client.consumersettings import ConsumeFrom
from hotfire.client.fetching import FetchLimits
from hotfire.client.pullconsumer import PullConsumer
from hotfire.client.pulling import Pulled, Puller
from hotfire.client.queuereader import QueueReader
from hotfire.errors import ConfigError, NotAssigned, NotRunning
from hotfire.model import ReceivedMessage
from hotfire.net.clock import now_ms
from hotfire.net.peer import Peer
from hotfire.protocol.bodies import decode_body
from hotfire.protocol.members import ConsumerConnection
from hotfire.protocol.requests import (
    GetConsumerConnectionList,
    LitePullMessage,
    PullMessage,
    ResetOffset,
    UpdateAndCreateTopic,
)
from hotfire.testing import Cluster
from tests.unit.client.consuming import Seen, until
from tests.unit.client.consuming import run as run_consuming
from tests.unit.client.live import broker, name_server, run, send_all

FIRST = ConsumeFrom.FIRST


@pytest.fixture(autouse=True)
def swift(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits of a second or more between tries, cut short."""
    monkeypatch.setattr(fetching, "PULL_RETRY_S", 0.02)
    monkeypatch.setattr(fetching, "START_RETRY_S", 0.02)
    monkeypatch.setattr(sharing, "FIRST_PULL_S", 0.1)


async def poll_all(consumer: PullConsumer, count: int) -> list[ReceivedMessage]:
    got: list[ReceivedMessage] = []
    while len(got) < count:
        got += await consumer.poll(30.0)
    return got


async def admin(address: str, request: object) -> bytes:
    async with await Peer.connect(address) as peer:
        return bytes((await peer.ask(request, 5.0)).body)  # type: ignore[arg-type]


async def make_topic(program_address: str, topic: str = "T", queues: int = 4) -> None:
    request = UpdateAndCreateTopic(
        topic=topic, default_topic="TBW102", read_queue_nums=queues, write_queue_nums=queues, perm=6,
        topic_filter_type="SINGLE_TAG",
    )  # fmt: skip
    await admin(program_address, request)


async def one_queue(address: str, count: int, queue_id: int = 0) -> MessageQueue:
    """So many messages in one queue of T."""
    async with Producer(address) as producer:
        route = await producer._instance.routes.to_write("T", 5.0)
        queue = MessageQueue("T", route.write_queues[0].broker_name, queue_id)
        for index in range(count):
            await producer.send(Message("T", b"%d" % index), queue=queue)
    return queue


async def committed(address: str, group: str, topic: str = "T") -> list[int | None]:
    async with QueueReader(address, group=group) as reader:
        return [await reader.committed(queue) for queue in await reader.queues(topic)]


def bodies(messages: Sequence[ReceivedMessage]) -> set[bytes]:
    return {message.body for message in messages}


def numbers(first: int, behind: int) -> list[bytes]:
    return [b"%d" % index for index in range(first, behind)]


# --- polling -------------------------------------------------------------------------------------------


@pytest.mark.promise(93)
def test_messages_are_pulled_and_polled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every message once and in order of its queue, by pulls of code 361 alone; brokers know who polls."""
    asked: list[object] = []
    real_invoke = Peer.invoke

    async def noted(self: Peer, request: object, timeout_s: float) -> object:
        asked.append(request)
        return await real_invoke(self, request, timeout_s)  # type: ignore[arg-type]

    monkeypatch.setattr(Peer, "invoke", noted)

    async def scenario() -> None:
        async with asyncio.timeout(40), name_server() as names, broker(tmp_path, names) as program:
            address = f"127.0.0.1:{names.port}"
            await send_all(address, numbers(0, 100), tag="A")
            async with PullConsumer(address, group="g", consume_from=FIRST) as consumer:
                consumer.subscribe("T", tags="A")
                messages = await poll_all(consumer, 100)
                told = await admin(program.advertised, GetConsumerConnectionList(consumer_group="g"))
                assert await consumer.poll(0) == []
            assert sorted(message.body for message in messages) == sorted(numbers(0, 100))
            places: dict[MessageQueue, list[int]] = {}
            for message in messages:
                places.setdefault(message.queue, []).append(message.queue_offset)
            assert all(offsets == list(range(25)) for offsets in places.values())
            connection = decode_body(ConsumerConnection, told)
            assert (connection.consume_type, connection.message_model) == ("CONSUME_ACTIVELY", "CLUSTERING")
            assert connection.subscriptions["T"].expression == "A"

    asyncio.run(scenario())
    pulls = [request for request in asked if isinstance(request, PullMessage)]
    assert pulls
    for pull in pulls:
        assert isinstance(pull, LitePullMessage)
        assert (pull.sys_flag, pull.subscription, pull.suspend_timeout_millis) == (22, "A", 20_000)


def test_iterating_and_what_ends_it(tmp_path: Path) -> None:
    """`async for` waits for messages to come and ends when the consumer is closed."""

    async def scenario(address: str) -> None:
        await send_all(address, [b"1"])
        consumer = PullConsumer(address, group="g", consume_from=FIRST)
        consumer.subscribe("T")
        await consumer.start()
        seen: asyncio.Queue[bytes] = asyncio.Queue()

        async def read() -> None:
            async for message in consumer:
                seen.put_nowait(message.body)

        reading = asyncio.create_task(read())
        assert await seen.get() == b"1"
        await send_all(address, [b"2"])
        assert await seen.get() == b"2"
        await consumer.close()
        await reading
        with pytest.raises(NotRunning):
            await consumer.poll()

    run(tmp_path, scenario)


def test_a_poll_that_waits_is_ended_by_a_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting costs one pull per queue, which the broker answers when there is something."""
    pulls: list[MessageQueue] = []
    real_pull = Puller.pull

    async def noted(self: Puller, queue: MessageQueue, *args: object, **options: object) -> Pulled:
        pulls.append(queue)
        return await real_pull(self, queue, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Puller, "pull", noted)

    async def scenario(address: str) -> None:
        await send_all(address, [b"old"] * 4)
        async with PullConsumer(address, group="g", consume_from=FIRST) as consumer:
            consumer.subscribe("T")
            await poll_all(consumer, 4)
            polling = asyncio.create_task(consumer.poll(30.0))
            await until(lambda: len(pulls) >= 8)
            assert await consumer.poll(0.05) == []
            count = len(pulls)
            assert not polling.done()
            await send_all(address, [b"new"])
            assert bodies(await polling) == {b"new"}
            assert count == 8

    run(tmp_path, scenario)


def test_where_a_new_reader_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """First, last or a time decide where nothing was committed; afterwards what was committed does."""
    monkeypatch.setenv("ROCKETMQ_CLIENT_LOCALOFFSETSTOREDIR", str(tmp_path / "offsets"))

    async def positions(address: str, group: str, **choice: Any) -> list[int | None]:
        # broadcasting: a broker says 0 to any new group of a young queue
        async with PullConsumer(address, group=group, broadcasting=True, **choice) as consumer:
            consumer.subscribe("T")
            await until(lambda: len(consumer.assignment()) == 4)
            queues = consumer.assignment()
            await until(lambda: all(consumer.position(queue) is not None for queue in queues))
            return [consumer.position(queue) for queue in queues]

    async def scenario(address: str) -> None:
        await send_all(address, numbers(0, 8))
        soon_ms = now_ms() + 60_000
        assert await positions(address, "first", consume_from=FIRST) == [0, 0, 0, 0]
        assert await positions(address, "last") == [2, 2, 2, 2]
        by_time = ConsumeFrom.TIMESTAMP
        assert await positions(address, "soon", consume_from=by_time, consume_timestamp_ms=soon_ms) == [2] * 4
        assert await positions(address, "half", consume_from=by_time) == [0, 0, 0, 0]  # half an hour ago
        await send_all(address, numbers(8, 12))
        assert await positions(address, "last") == [2, 2, 2, 2]

    run(tmp_path / "store", scenario)


# --- offsets -------------------------------------------------------------------------------------------


@pytest.mark.promise(108)
def test_nothing_is_committed_unless_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without auto commit brokers learn what `commit` says and nothing else, also when the consumer ends."""
    monkeypatch.setattr(instance, "PERSIST_FIRST_S", 0.01)
    monkeypatch.setattr(instance, "PERSIST_INTERVAL_S", 0.01)

    async def scenario(address: str) -> None:
        await send_all(address, numbers(0, 40))
        async with PullConsumer(address, group="g", auto_commit=False, consume_from=FIRST) as consumer:
            consumer.subscribe("T")
            await poll_all(consumer, 40)
            await asyncio.sleep(0.1)  # some rounds of the timer
            assert await committed(address, "g") == [None] * 4
            first, second, *_ = consumer.assignment()
            await consumer.commit({first: 7})
            assert [await consumer.committed(queue) for queue in (first, second)] == [7, None]
            await consumer.commit({second: 3}, persist=False)
            await until(lambda: has_committed(consumer, second, 3))
        assert await committed(address, "g") == [7, 3, None, None]
        async with PullConsumer(address, group="g", auto_commit=False, consume_from=FIRST) as consumer:
            consumer.subscribe("T")
            assert len(await poll_all(consumer, 3 + 7 + 10 + 10)) == 30
            await consumer.commit()
        assert await committed(address, "g") == [10, 10, 10, 10]

    async def has_committed(consumer: PullConsumer, queue: MessageQueue, offset: int) -> bool:
        return await consumer.committed(queue) == offset

    run(tmp_path, scenario)


def test_what_was_polled_is_committed_by_the_timer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Polling again says that the messages before are done: those are committed, those in hand are not."""
    monkeypatch.setattr(instance, "PERSIST_FIRST_S", 0.01)
    monkeypatch.setattr(instance, "PERSIST_INTERVAL_S", 0.01)

    async def scenario(address: str) -> None:
        queue = await one_queue(address, 20)
        async with PullConsumer(address, group="g", consume_from=FIRST) as consumer:
            consumer.assign(queue)  # type: ignore[arg-type]  # one alone is understood, too
            assert len(await consumer.poll(30.0, count_max=4)) == 4
            await until(lambda: has_committed(consumer, queue, 0))
            assert len(await consumer.poll(30.0, count_max=4)) == 4
            await until(lambda: has_committed(consumer, queue, 4))
            await asyncio.sleep(0.05)
            assert await consumer.committed(queue) == 4
            assert consumer.position(queue) == 8

    async def has_committed(consumer: PullConsumer, queue: MessageQueue, offset: int) -> bool:
        return await consumer.committed(queue) == offset

    run(tmp_path, scenario)


@pytest.mark.promise(173)
def test_close_commits_what_was_polled(tmp_path: Path) -> None:
    """The next consumer goes on behind what was polled; behind what was handled when the last one failed."""

    async def scenario(address: str) -> None:
        queue = await one_queue(address, 30)
        seen: list[int] = []

        async def handle(fail_at: int | None, count: int) -> None:
            async with PullConsumer(address, group="g", consume_from=FIRST) as consumer:
                consumer.assign([queue])
                async for message in consumer:
                    if message.queue_offset == fail_at:
                        raise ZeroDivisionError
                    seen.append(message.queue_offset)
                    if len(seen) == count:
                        return

        await handle(None, 10)
        with pytest.raises(ZeroDivisionError):
            await handle(15, 30)
        await handle(None, 30)
        assert seen == list(range(30))

    run(tmp_path, scenario)


@pytest.mark.promise(167)
def test_groups_are_independent(tmp_path: Path) -> None:
    """What one group has read and committed another one reads, later, all of it."""

    async def scenario(address: str) -> None:
        await send_all(address, numbers(0, 40))
        for group in ("one", "two"):
            async with PullConsumer(address, group=group, consume_from=FIRST) as consumer:
                consumer.subscribe("T")
                assert bodies(await poll_all(consumer, 40)) == set(numbers(0, 40))
        assert await committed(address, "one") == await committed(address, "two") == [10] * 4

    run(tmp_path, scenario)


def test_filtered_messages_are_passed_for_good(tmp_path: Path) -> None:
    """A group that wants few of many messages commits behind the others too."""

    async def scenario(address: str) -> None:
        queue = await one_queue(address, 50)
        async with Producer(address) as producer:
            await producer.send(Message("T", b"wanted", tag="A"), queue=queue)
            await producer.send(Message("T", b"other"), queue=queue)
        async with PullConsumer(address, group="g", consume_from=FIRST) as consumer:
            consumer.assign([queue], tags="A")
            assert bodies(await consumer.poll(30.0)) == {b"wanted"}
            await until(lambda: consumer.position(queue) == 52)
        async with QueueReader(address, group="g") as reader:
            assert await reader.committed(queue) == 52

    run(tmp_path, scenario)


def test_a_group_is_moved_from_outside(tmp_path: Path) -> None:
    """A reset reaches a consumer that is polling: what it had pulled ahead is dropped, it goes on there."""

    async def scenario() -> None:
        async with asyncio.timeout(40), name_server() as names, broker(tmp_path, names) as program:
            address = f"127.0.0.1:{names.port}"
            queue = await one_queue(address, 30)
            async with PullConsumer(address, group="g", consume_from=FIRST) as consumer:
                consumer.subscribe("T")
                assert len(await poll_all(consumer, 10)) == 10
                await until(lambda: len(consumer._fetching[queue].messages) == 20)
                await consumer.commit()
                await admin(
                    program.advertised,
                    ResetOffset(topic="T", group="g", timestamp=0, queue_id=queue.queue_id, offset=25),
                )
                await until(lambda: (consumer.position(queue) or 0) >= 25)
                assert [message.queue_offset for message in await consumer.poll(30.0)] == list(range(25, 30))
                await admin(
                    program.advertised,
                    ResetOffset(topic="T", group="g", timestamp=0, queue_id=queue.queue_id, offset=5),
                )
                again = await poll_all(consumer, 25)
                assert [message.queue_offset for message in again] == list(range(5, 30))
            assert (await committed(address, "g"))[queue.queue_id] == 30

    asyncio.run(scenario())


def test_a_group_that_is_sent_to_where_it_is_goes_on_without_a_word(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A reset that changes nothing is no line of the log; one that does is."""

    async def scenario() -> None:
        async with asyncio.timeout(40), name_server() as names, broker(tmp_path, names) as program:
            address = f"127.0.0.1:{names.port}"
            queue = await one_queue(address, 5)
            async with PullConsumer(address, group="g", consume_from=FIRST) as consumer:
                consumer.subscribe("T")
                assert len(await poll_all(consumer, 5)) == 5

                async def reset(offset: int) -> None:
                    await consumer.commit()
                    request = ResetOffset(
                        topic="T", group="g", timestamp=0, queue_id=queue.queue_id, offset=offset
                    )
                    await admin(program.advertised, request)
                    await until(lambda: not program.broker.offsets.has_resets("T", "g"))

                await reset(5)
                await one_queue(address, 1)
                assert [one.queue_offset for one in await poll_all(consumer, 1)] == [5]
                assert "going on at" not in caplog.text
                await reset(4)
                assert [one.queue_offset for one in await poll_all(consumer, 2)] == [4, 5]
                assert "offset 6 is not there, or the group was moved: going on at 4" in caplog.text

    asyncio.run(scenario())


# --- moving --------------------------------------------------------------------------------------------


def test_seeking(tmp_path: Path) -> None:
    """Polling goes on where it was told to; a place that is not in the queue is refused, with its ends."""

    async def scenario(address: str) -> None:
        queue = await one_queue(address, 20)
        async with PullConsumer(address, group="g", consume_from=FIRST) as consumer:
            consumer.assign([queue])
            for move, first in (
                (lambda: consumer.seek(queue, 15), 15),
                (lambda: consumer.seek_to_begin(queue), 0),
                (lambda: consumer.seek(queue, 5), 5),
            ):
                await consumer.poll(0)
                await move()
                assert consumer.position(queue) == first
                assert (await consumer.poll(30.0))[0].queue_offset == first
            await consumer.seek_to_end(queue)
            assert await consumer.poll(0.05) == []
            await consumer.commit()
            assert await consumer.committed(queue) == 20
            for offset in (21, -1):
                with pytest.raises(ConfigError, match=f"offset {offset} is not within 0 to 20"):
                    await consumer.seek(queue, offset)
            elsewhere = MessageQueue("T", queue.broker_name, 3)
            with pytest.raises(NotAssigned, match="queue 3 is not assigned"):
                await consumer.seek(elsewhere, 0)
            found = await consumer.offset_for_timestamp(queue, 0)
            assert found == 0

    run(tmp_path, scenario)


def test_no_message_of_the_old_place_after_a_seek(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer that arrives while one seeks, or right after, brings nothing of where we were."""
    real_pull = Puller.pull
    answered, let_on = asyncio.Event(), asyncio.Event()

    async def held(
        self: Puller, queue: MessageQueue, offset: int, *args: object, **options: object
    ) -> Pulled:
        pulled = await real_pull(self, queue, offset, *args, **options)  # type: ignore[arg-type]
        if offset == 10:
            answered.set()
            await let_on.wait()
        return pulled

    monkeypatch.setattr(Puller, "pull", held)

    async def scenario(address: str) -> None:
        queue = await one_queue(address, 30)
        async with PullConsumer(address, group="g", consume_from=FIRST) as consumer:
            consumer.assign([queue])
            assert len(await consumer.poll(30.0, count_max=10)) == 10
            await answered.wait()  # offsets 10 to 19 are here and not yet in our hands
            seeking = asyncio.create_task(consumer.seek(queue, 25))
            polling = asyncio.create_task(consumer.poll(30.0))
            await seeking
            let_on.set()
            assert [message.queue_offset for message in await polling] == list(range(25, 30))
            assert await consumer.poll(0.05) == []

    run(tmp_path, scenario)


@pytest.mark.promise(105)
def test_a_paused_queue_rests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a paused queue nothing is polled and nothing pulled; resumed, it goes on without loss."""
    pulls: list[MessageQueue] = []
    real_pull = Puller.pull

    async def noted(self: Puller, queue: MessageQueue, *args: object, **options: object) -> Pulled:
        pulls.append(queue)
        return await real_pull(self, queue, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Puller, "pull", noted)

    async def scenario(address: str) -> None:
        first = await one_queue(address, 30, queue_id=0)
        second = await one_queue(address, 30, queue_id=1)
        async with PullConsumer(address, group="g", consume_from=FIRST) as consumer:
            consumer.assign([first, second])
            await until(lambda: min(pulls.count(first), pulls.count(second)) == 4)  # tens, and a wait behind
            await consumer.poll(30.0, count_max=1)
            consumer.pause([first])
            at = consumer.position(first)
            assert at is not None
            of_second: list[int] = []
            while consumer.position(second) != 30:
                of_second += [one.queue_offset for one in await consumer.poll(30.0) if one.queue == second]
            count = pulls.count(first)
            async with Producer(address) as producer:
                await producer.send(Message("T", b"more"), queue=first)
                await producer.send(Message("T", b"more"), queue=second)
            assert [message.queue for message in await consumer.poll(30.0)] == [second]
            await until(lambda: consumer._fetching[first].next_offset == 31)  # what was under way came
            assert await consumer.poll(0.05) == []
            assert pulls.count(first) == count
            assert consumer.position(first) == at
            consumer.resume([first])
            rest = await poll_all(consumer, 31 - at)
            assert [message.queue_offset for message in rest] == list(range(at, 31))

    run(tmp_path, scenario)


def test_no_more_is_pulled_ahead_than_allowed(tmp_path: Path) -> None:
    """Pulling stops at the limits and goes on as messages are polled; nothing is lost by it."""

    async def scenario(address: str) -> None:
        await send_all(address, numbers(0, 400))
        limits = FetchLimits(all_count_max=100, queue_count_max=40)
        async with PullConsumer(address, group="g", consume_from=FIRST, limits=limits) as consumer:
            consumer.subscribe("T")
            await until(lambda: sum(len(one.messages) for one in consumer._fetching.all()) >= 100)
            await asyncio.sleep(0.2)  # enough to get all the rest
            got: list[ReceivedMessage] = []
            while len(got) < 400:
                got += await consumer.poll(30.0, count_max=3)
                waiting = [len(one.messages) for one in consumer._fetching.all()]
                assert max(waiting) < 50
                assert sum(waiting) < 140
            assert len({message.message_id for message in got}) == 400

    run(tmp_path, scenario)


# --- which queues --------------------------------------------------------------------------------------


def test_subscribing_and_assigning_exclude_each_other(tmp_path: Path) -> None:
    """A consumer shares topics or reads the queues it was given; not both."""
    queue = MessageQueue("T", "broker-a", 0)
    by_hand = PullConsumer("127.0.0.1:9876", group="g")
    by_hand.assign([queue])
    with pytest.raises(ConfigError, match="assigned by hand"):
        by_hand.subscribe("T")
    shares = PullConsumer("127.0.0.1:9876", group="g")
    shares.subscribe("T")
    with pytest.raises(ConfigError, match="subscribes to topics"):
        shares.assign([queue])


def test_assigning_anew(tmp_path: Path) -> None:
    """Queues that are named no more are let go with what was read of them; others stay where they are."""

    async def scenario(address: str) -> None:
        first = await one_queue(address, 10, queue_id=0)
        second = await one_queue(address, 10, queue_id=1)
        async with PullConsumer(address, group="g", consume_from=FIRST) as consumer:
            consumer.assign([first])
            assert len(await poll_all(consumer, 10)) == 10
            assert await consumer.poll(0) == []
            consumer.assign([second])
            assert consumer.assignment() == (second,)
            assert {message.queue for message in await poll_all(consumer, 10)} == {second}
            async with QueueReader(address, group="g") as reader:
                await until(lambda: has_committed(reader, first, 10))
            consumer.assign([first, second])
            assert await consumer.poll(0.1) == []
            await send_more(address, first)
            assert len(await poll_all(consumer, 1)) == 1
            assert await consumer.poll(0) == []
            consumer.assign([])
        assert (await committed(address, "g"))[:2] == [11, 10]

    async def send_more(address: str, queue: MessageQueue) -> None:
        async with Producer(address) as producer:
            await producer.send(Message("T", b"more"), queue=queue)

    async def has_committed(reader: QueueReader, queue: MessageQueue, offset: int) -> bool:
        return await reader.committed(queue) == offset

    run(tmp_path, scenario)


def test_other_tags_while_running(tmp_path: Path) -> None:
    """Subscribing again with other tags counts from where the consumer is."""

    async def scenario(address: str) -> None:
        await send_all(address, [b"a"] * 4, tag="A")
        async with PullConsumer(address, group="g", consume_from=FIRST) as consumer:
            consumer.subscribe("T", tags="A")
            await poll_all(consumer, 4)
            consumer.subscribe("T", tags=["B", "C"])
            await until(lambda: all(one.wanted.tags == ("B", "C") for one in consumer._fetching.all()))
            await send_all(address, [b"a"] * 4, tag="A")
            await send_all(address, [b"b"] * 4, tag="B")
            assert bodies(await poll_all(consumer, 4)) == {b"b"}
            consumer.unsubscribe("T")
            await until(lambda: consumer.assignment() == ())

    run(tmp_path, scenario)


def test_two_share_and_the_one_left_takes_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Members share a topic's queues; the queues of one that leaves go to the other, from where it was."""
    monkeypatch.setattr(instance, "REBALANCE_GAP_S", 0.05)
    monkeypatch.setattr(instance, "REBALANCE_AGAIN_S", 0.05)
    told: list[tuple[str, Sequence[MessageQueue]]] = []

    async def assigned(queues: Sequence[MessageQueue]) -> None:
        told.append(("assigned", queues))

    def revoked(queues: Sequence[MessageQueue]) -> None:
        told.append(("revoked", queues))
        raise ZeroDivisionError  # the application's mistake is not the group's

    async def scenario(address: str) -> None:
        await send_all(address, numbers(0, 40))
        first = PullConsumer(address, group="g", consume_from=FIRST, on_assigned=assigned, on_revoked=revoked)
        first.subscribe("T")
        await first.start()
        got = await poll_all(first, 40)
        await first.poll(0)
        everything = first.assignment()
        assert len(everything) == 4
        second = PullConsumer(address, group="g", consume_from=FIRST)
        second.subscribe("T")
        await second.start()
        await until(lambda: len(first.assignment()) == len(second.assignment()) == 2)
        assert sorted(first.assignment() + second.assignment()) == sorted(everything)
        assert told == [("assigned", list(everything)), ("revoked", list(second.assignment()))]
        await until(lambda: all(second.position(queue) is not None for queue in second.assignment()))
        await send_all(address, numbers(40, 80))
        halves = await asyncio.gather(poll_all(first, 20), poll_all(second, 20))
        assert all(len(half) == 20 for half in halves)
        await second.close()
        await until(lambda: len(first.assignment()) == 4)
        await send_all(address, numbers(80, 120))
        rest = await poll_all(first, 40)
        all_bodies = [one.body for part in (got, *halves, rest) for one in part]
        assert sorted(all_bodies) == sorted(numbers(0, 120))
        await first.close()

    run(tmp_path, scenario)


def test_polled_and_called_groups_do_not_disturb_each_other(tmp_path: Path) -> None:
    """A group that polls and one whose listeners are called each get everything, on two brokers."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.create_topic("T", queues=2)
        seen = Seen()
        async with (
            PullConsumer(cluster.namesrv, group="polls", consume_from=FIRST) as consumer,
            Consumer(cluster.namesrv, group="is-called", consume_from=FIRST) as called,
        ):
            consumer.subscribe("T")
            called.subscribe("T", seen)
            await send_all(cluster.namesrv, numbers(0, 40))
            polled = await poll_all(consumer, 40)
            await seen.count(40)
            assert len(consumer.assignment()) == 4
        assert sorted(message.body for message in polled) == sorted(seen.bodies) == sorted(numbers(0, 40))
        assert await committed(cluster.namesrv, "polls") == await committed(cluster.namesrv, "is-called")

    run_consuming(scenario, brokers=2)


def test_seeking_when_queues_are_assigned(tmp_path: Path) -> None:
    """A callback that seeks is before the first pull: nothing of another place is ever polled."""

    async def scenario(address: str) -> None:
        await send_all(address, numbers(0, 40))

        async def to_five(queues: Sequence[MessageQueue]) -> None:
            for queue in queues:
                await consumer.seek(queue, 5)

        consumer = PullConsumer(address, group="g", consume_from=FIRST, on_assigned=to_five)
        async with consumer:
            consumer.subscribe("T")
            messages = await poll_all(consumer, 20)
            assert sorted(message.queue_offset for message in messages) == sorted(list(range(5, 10)) * 4)
            assert await consumer.poll(0.05) == []

    run(tmp_path, scenario)


def test_a_topic_that_grows_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who watches a topic is told its queues when they are others than before, and only then."""
    monkeypatch.setattr(topicwatch, "WATCH_INTERVAL_S", 0.02)

    async def scenario() -> None:
        async with asyncio.timeout(40), name_server() as names, broker(tmp_path, names) as program:
            await make_topic(program.advertised, queues=2)
            told: asyncio.Queue[tuple[str, int]] = asyncio.Queue()
            async with PullConsumer(f"127.0.0.1:{names.port}", group="g") as consumer:
                consumer.watch("T", lambda topic, queues: told.put_nowait((topic, len(queues))))
                await until(lambda: bool(consumer._watch._seen))
                await make_topic(program.advertised, queues=5)
                assert await told.get() == ("T", 5)
                assert told.empty()

    asyncio.run(scenario())


# --- trouble -------------------------------------------------------------------------------------------


def test_polling_outlives_a_restart_of_the_broker(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """While the broker is away polls are empty; when it is back they go on, nothing lost or repeated."""

    async def scenario() -> None:
        async with asyncio.timeout(40), name_server() as names:
            address = f"127.0.0.1:{names.port}"
            consumer = PullConsumer(address, group="g", consume_from=FIRST)
            consumer.subscribe("T")
            async with broker(tmp_path, names) as first:
                await send_all(address, numbers(0, 8))
                await consumer.start()
                got = await poll_all(consumer, 8)
            assert await consumer.poll(0.3) == []
            async with broker(tmp_path, names, first.port) as second:
                await send_all(address, numbers(8, 16))
                got += await poll_all(consumer, 8)
                assert sorted(message.body for message in got) == sorted(numbers(0, 16))
                await until(lambda: "g" in second.broker.clients.consumers)  # it was told who we are
                assert len(consumer.assignment()) == 4
                await consumer.close()
                assert await committed(address, "g") == [4] * 4

    with caplog.at_level(logging.WARNING, "hotfire.client"):
        asyncio.run(scenario())
    told = [record.getMessage() for record in caplog.records if "tried again until" in record.getMessage()]
    assert 4 <= len(told) <= 8  # by kind of trouble: the connection lost, then refused


def test_starting_before_the_broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A consumer may be there first: it finds topic and broker when they come."""
    monkeypatch.setattr(instance, "REBALANCE_GAP_S", 0.05)
    monkeypatch.setattr(instance, "REBALANCE_AGAIN_S", 0.05)

    async def scenario() -> None:
        async with asyncio.timeout(40), name_server() as names:
            address = f"127.0.0.1:{names.port}"
            async with PullConsumer(address, group="g", consume_from=FIRST) as consumer:
                consumer.subscribe("T")
                assert await consumer.poll(0.1) == []
                async with broker(tmp_path, names):
                    await send_all(address, numbers(0, 4))
                    assert len(await poll_all(consumer, 4)) == 4

    asyncio.run(scenario())


def test_close_ends_though_the_broker_is_gone(tmp_path: Path) -> None:
    """With nobody to commit to, closing gives up and says what will come again."""

    async def scenario() -> None:
        async with asyncio.timeout(40), name_server() as names:
            address = f"127.0.0.1:{names.port}"
            consumer = PullConsumer(address, group="g", consume_from=FIRST)
            consumer.subscribe("T")
            async with broker(tmp_path, names):
                await send_all(address, numbers(0, 8))
                await consumer.start()
                await poll_all(consumer, 8)
            async with asyncio.timeout(10):
                await consumer.close()

    asyncio.run(scenario())


def test_consumer_that_does_not_run_refuses() -> None:
    """Polling before the start, or a group without a name, says what to do."""

    async def scenario() -> None:
        with pytest.raises(NotRunning, match="start"):
            await PullConsumer("127.0.0.1:9876", group="g").poll()
        with pytest.raises(ConfigError, match="group is blank"):
            PullConsumer("127.0.0.1:9876", group="")

    asyncio.run(scenario())
