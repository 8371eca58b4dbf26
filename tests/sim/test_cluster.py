"""A cluster whose machines, lines and clocks fail keeps its word; a life is told by its seed alone.

Each life: 1 to 3 brokers, 1 or 2 name servers, two producers, a reader and a group of up to three members,
which consumes in order or not, all in one thread; up to nine faults among power cuts, kills, stops, cut
connections, partitions, clocks that are set and members that come, go and die. In the end every acknowledged
message is where its sender was told, none is there that nobody sent, copies come of unknown outcomes only,
and the reader has read just what is there. The group has handled all of it, nothing more often than something
went wrong; in order where it was to, a queue's messages by one member at a time.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator

import pytest

from hotfire.broker.locks import QueueLocks
from hotfire.client.offsets import OffsetStore
from hotfire.model import MessageQueue
from hotfire.store.store import Store
from hotfire.testing.simsystem import SimSystem
from hotfire.testing.simulation import LoopDisk
from tests.sim.cluster import ClusterLife, LifeFailed

SEEDS, BLOCK = 200, 25
GUARDS_FROM = {"acknowledged": 68, "advance": 7}
"""The seed at which to begin: one that notices comes soon then."""


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Hundreds of unclean starts have much to say, and nothing new."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.timeout(240)
@pytest.mark.parametrize("first", range(0, SEEDS, BLOCK))
def test_nothing_acknowledged_is_lost_or_moved(first: int) -> None:
    """Whatever fails in between: all acknowledged messages, each at its place, in order, and readable."""
    tally: Counter[str] = Counter()
    for seed in range(first, first + BLOCK):
        tally += ClusterLife(seed).live()
    assert tally["acknowledged"] > 0.9 * tally["messages"]
    for fault in (
        "brokers lost",
        "stops",
        "connections cut",
        "partitions",
        "name servers killed",
        "clocks set",
        "consumers joined",
        "consumers left",
        "consumers died",
        "orderly",
        "concurrent",
    ):
        assert tally[fault], f"no {fault} in {BLOCK} lives: the test tests less than it says"
    assert tally["failed attempts"]


def test_a_life_is_a_function_of_its_seed() -> None:
    """Two processes that hash differently live the same life, to the byte and the nanosecond."""
    digests = set()
    for hash_seed in ("1", "2"):
        environment = os.environ | {"PYTHONHASHSEED": hash_seed}
        command = [sys.executable, "-m", "tests.sim.cluster", "19"]
        told = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
        digests.add(told.stdout.split()[-1])
    assert len(digests) == 1
    other = ClusterLife(20)
    other.live()
    assert other.sim.digest not in digests


def fails(disk_type: type[LoopDisk] = LoopDisk, *, first: int = 0) -> str | None:
    """What the first of the lives above that fails says."""
    for seed in ((first + number) % SEEDS for number in range(SEEDS)):
        try:
            ClusterLife(seed, disk_type=disk_type).live()
        except LifeFailed as failure:
            return str(failure)
    return None


class Forgetful(SimSystem):
    """Syncs of files that are none."""

    def fdatasync(self, fd: int, /) -> None:
        self._opened(fd)

    def msync(self, mapped: object, start: int, size: int) -> None:
        pass


class ForgetfulDisk(LoopDisk):
    system_type = Forgetful


@pytest.mark.timeout(240)
def test_a_disk_that_does_not_sync_is_noticed() -> None:
    """Lives like those above fail where a sync is none, and say how to see it again."""
    failure = fails(ForgetfulDisk)
    assert failure is not None
    assert failure.startswith("python -m tests.sim.cluster ")


@pytest.mark.timeout(240)
def test_an_early_acknowledgement_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """... and where a broker says yes before the log is safe."""
    monkeypatch.setattr(Store, "acknowledged_end", property(lambda store: store.end))
    failure = fails(first=GUARDS_FROM["acknowledged"])
    assert failure is not None
    assert "was acknowledged at" in failure


@pytest.mark.timeout(240)
def test_a_message_sent_twice_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """... and where a producer sends what it was told is stored."""
    from hotfire import Producer

    send = Producer.send

    async def send_twice(self: Producer, *arguments: object, **named: object) -> object:
        await send(self, *arguments, **named)  # type: ignore[arg-type]
        return await send(self, *arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(Producer, "send", send_twice)
    failure = fails()
    assert failure is not None
    assert "is stored 2 times" in failure


@pytest.mark.timeout(240)
def test_a_commit_too_early_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """... and where a consumer commits one message more than it is done with."""
    advance = OffsetStore.advance

    def too_far(self: OffsetStore, queue: MessageQueue, offset: int) -> None:
        advance(self, queue, offset + 1)

    monkeypatch.setattr(OffsetStore, "advance", too_far)
    failure = fails(first=GUARDS_FROM["advance"])
    assert failure is not None
    assert "never handled" in failure


@pytest.mark.timeout(240)
def test_leases_for_everyone_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """... and where a broker gives a queue that is to be consumed in order to whoever asks."""
    monkeypatch.setattr(QueueLocks, "_lock", lambda self, group, client_id, queue, now_ms: True)
    failure = fails()
    assert failure is not None
    assert "is consumed by" in failure
