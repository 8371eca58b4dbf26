"""kill -9 under everything at once: singles, batches, delays, send-backs, a group. The books balance."""

import asyncio
import random
import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Literal

import pytest

from hotfire.broker.offsets import read_offsets
from hotfire.protocol.javajson import loads
from hotfire.protocol.record import Record
from tests.crash.killloop import GROUP, KINDS, QUEUES, RETRY_TOPIC, TOPIC, Books, KillLoop, stored, unique_id
from tests.peers.hotfire import HotfireProcess
from tests.peers.remoting import create_topic

pytestmark = [pytest.mark.crash, pytest.mark.timeout(400)]

SEED = 5151
End = Literal["SIGKILL", "SIGTERM"]
ENDS: tuple[End, ...] = (*["SIGKILL"] * 7, "SIGTERM", *["SIGKILL"] * 7, "SIGTERM", *["SIGKILL"] * 6)
"""Twenty kills, and between them an orderly end: what it leaves must be as good."""
ACKS_BETWEEN_ENDS = 5000
START_SECONDS_MAX = START_CPU_SECONDS_MAX = 2.0
SETTINGS = ["messageDelayLevel=1s 2s", "flushConsumerOffsetInterval=50"]


def persisted(store: Path) -> dict[int, int]:
    """The group's offsets by queue in the file of a dead broker: what a start may not fall behind."""
    (table,) = store.rglob("consumerOffset.json")
    _, offsets, _ = read_offsets(loads(table.read_bytes()))
    return offsets[TOPIC, GROUP]


@dataclass(frozen=True)
class Start:
    """How long one took until the ready line, disk and all, and for how long of that its main thread had no
    processor though it wanted one; and what it took of the processor."""

    wall_s: float
    queued_s: float
    cpu_s: float

    @property
    def own_s(self) -> float:
        return self.wall_s - self.queued_s


async def end_and_go_on(
    server: HotfireProcess, loop: KillLoop, ends: Sequence[End], between: int
) -> list[Start]:
    rng, starts = random.Random(SEED), list[Start]()
    books = loop.books
    async with loop.running():
        loop.cluster.is_up(server.broker)
        for end in ends:
            await loop.acknowledged(len(books.acknowledged) + between + rng.randrange(200))
            loop.cluster.goes_down()
            if end == "SIGTERM":
                assert await asyncio.to_thread(server.terminate) == 0
                assert not (server.store / "abort").exists()
            else:
                await asyncio.to_thread(server.kill9)
            books.persisted = await asyncio.to_thread(persisted, server.store)
            await asyncio.to_thread(server.restart)
            starts.append(Start(server.ready_seconds, server.ready_queued_seconds, server.ready_cpu_seconds))
            loop.cluster.is_up(server.broker)
        await loop.acknowledged(len(books.acknowledged) + 500)
    return starts


async def all_there(server: HotfireProcess, books: Books) -> tuple[list[list[Record]], list[Record]]:
    """Queues and retry queue, once all acknowledged delays have come."""
    while True:
        queues = await stored(server.broker, TOPIC, QUEUES)
        (retried,) = await stored(server.broker, RETRY_TOPIC, 1)
        there = {unique_id(record) for records in queues for record in records}
        back = {unique_id(record) for record in retried}
        late = [id_ for id_, due in books.acknowledged.items() if due and id_ not in there]
        if not late and books.sent_back <= back:
            return queues, retried
        missing = [id_ for id_, due in books.acknowledged.items() if not due and id_ not in there]
        assert not missing, f"{len(missing)} acknowledged and missing: {missing[:5]}"
        await asyncio.sleep(0.2)


def check_copies(books: Books, queues: list[list[Record]], retried: list[Record]) -> int:
    copies = Counter(unique_id(record) for records in queues for record in records)
    assert not books.acknowledged.keys() - copies.keys(), "acknowledged and missing"
    assert copies.keys() <= books.messages_sent, "messages nobody sent"
    assert not books.oneway_passed - copies.keys(), "sent before what was acknowledged, and missing"
    assert max(copies[id_] for id_ in books.oneway) == 1, "sent once and there twice"
    twice = copies.total() - len(copies)
    assert twice <= books.unknown_copies, f"{twice} stored twice, {books.unknown_copies} of unknown outcome"
    again = Counter(unique_id(record) for record in retried)
    assert books.sent_back <= again.keys(), "sent back and missing"
    assert again.total() - len(again) <= books.unknown_backs, "sent back once and there twice"
    return twice


def check_order(books: Books, queues: list[list[Record]]) -> None:
    """The first copies of each producer's messages are in its order, in its queue; delayed ones when due."""
    for queue_id, records in enumerate(queues):
        newest: dict[str, int] = {}
        seen: set[str] = set()
        for record in records:
            id_ = unique_id(record)
            due = books.acknowledged.get(id_)
            if due:
                assert record.store_timestamp >= due, f"{id_} early by {due - record.store_timestamp} ms"
            if due or due is None or id_ in seen:
                continue
            seen.add(id_)
            producer, _, sequence = id_.partition("-")
            assert int(producer) % QUEUES == queue_id
            assert int(sequence) > newest.get(producer, -1), f"{id_} behind {newest[producer]}"
            newest[producer] = int(sequence)


def check_deliveries(books: Books, queues: list[list[Record]]) -> int:
    """What came is what is stored there, and came again only where no persisted offset covered it."""
    for queue_id, offset, id_ in books.delivered:
        assert unique_id(queues[queue_id][offset]) == id_, f"queue {queue_id} offset {offset} is another now"
    times = Counter((queue_id, offset) for queue_id, offset, _ in books.delivered)
    twice = times.total() - len(times)
    assert twice <= books.uncovered, f"{twice} delivered again, {books.uncovered} not covered"
    return twice


def run_loop(directory: Path, ends: Sequence[End], between: int) -> str:
    server = HotfireProcess(directory, arguments=[part for text in SETTINGS for part in ("--set", text)])
    loop = KillLoop(SEED)
    books = loop.books
    with server:
        create_topic(server.broker, TOPIC, QUEUES)
        starts = asyncio.run(end_and_go_on(server, loop, ends, between))
        queues, retried = asyncio.run(all_there(server, books))
        copied = check_copies(books, queues, retried)
        check_order(books, queues)
        again = check_deliveries(books, queues)
        assert max(start.cpu_s for start in starts) < START_CPU_SECONDS_MAX, starts
        assert median(start.own_s for start in starts) <= START_SECONDS_MAX, starts
        assert set(books.kinds) == set(KINDS)
        assert books.sent_back, "nothing was sent back"
        assert server.terminate() == 0
    shutil.rmtree(server.store)
    return (
        f"{ends.count('SIGKILL')} kills, {ends.count('SIGTERM')} stops, "
        f"{len(books.acknowledged)} acknowledged, 0 missing; {copied} stored twice of "
        f"{books.unknown_copies} unknown; {len(books.delivered)} delivered, {again} again of "
        f"{books.uncovered} uncovered; {len(books.sent_back)} sent back; "
        f"{len(books.oneway)} oneway, {len(books.oneway_passed)} of them surely there; "
        f"starts {median(start.wall_s for start in starts):.2f} s (median, "
        f"{median(start.queued_s for start in starts):.2f} s of it without a processor, "
        f"{max(start.wall_s for start in starts):.2f} s at most), "
        f"{max(start.cpu_s for start in starts):.2f} s CPU at most"
    )


def test_twenty_kills_of_everything_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Five thousand acknowledgements of every kind between kills, twice an orderly end among them: nothing
    acknowledged is missing, nor a oneway send that was followed by an acknowledged one.

    Stored twice is only what was of unknown outcome, delivered twice only what no persisted offset covered,
    each queue keeps its producers' order, and a delayed message never comes early. A start takes no more than
    two seconds by the clock, half of them at least: a disk that others use may hold up one.
    """
    said = run_loop(tmp_path, ENDS, ACKS_BETWEEN_ENDS)
    with capsys.disabled():
        print(f"\nkill loop: {said}")  # noqa: T201  # the figures are the result
