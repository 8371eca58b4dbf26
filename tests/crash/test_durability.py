"""An acknowledgement waits for the disk: shown by the system calls of a running broker, not by its word."""

import asyncio
import json
import os
import random
import signal
from itertools import pairwise
from pathlib import Path

import pytest

from hotfire.protocol.record import decode_record
from hotfire.store.checkpoint import Checkpoint
from hotfire.store.config import StoreConfig
from hotfire.store.disk import Disk
from hotfire.store.store import Store
from tests.crash.trace import STRACE, Trace
from tests.crash.traffic import QUEUES, TOPIC, Ack, Traffic
from tests.peers.hotfire import HotfireProcess
from tests.peers.process import poll_until
from tests.peers.remoting import call, create_topic

pytestmark = [pytest.mark.crash, pytest.mark.timeout(180)]

MESSAGES = 10_000
CONNECTIONS, IN_FLIGHT = 8, 8
SEGMENT_BYTES = 1 << 20
POWER_CUTS = 6
GET_BROKER_RUNTIME_INFO = 28
SEED = 99
FLUSH_SECONDS = 0.5


class TracedHotfire(HotfireProcess):
    """`hotfire up` with every write and sync of it written down."""

    @property
    def calls(self) -> Path:
        return self.directory / "strace.out"

    def _command(self) -> list[str]:
        return [*STRACE, "-o", str(self.calls), *super()._command()]

    def terminate(self) -> int:
        """The signal is for the broker; strace ends with it, its output complete."""
        ready = next(line for line in self.process.lines() if line.startswith("hotfire ready "))
        told = dict(word.split("=", 1) for word in ready.removeprefix("hotfire ready ").split())
        os.kill(int(told["pid"]), signal.SIGTERM)
        return self.process.wait(20.0)


def traced(
    directory: Path, flush: str, *, queue_flush_ms: int, seconds: float = 0.0
) -> tuple[Trace, list[Ack]]:
    """A broker under load for at least so long, then one message alone; its trace, and the replies."""
    settings = {"mappedFileSizeCommitLog": SEGMENT_BYTES, "flushIntervalConsumeQueue": queue_flush_ms}
    server = TracedHotfire(
        directory,
        arguments=["--flush", flush, *(f"--set={name}={value}" for name, value in settings.items())],
    )
    traffic = Traffic(SEED, connections=CONNECTIONS, in_flight=IN_FLIGHT)

    async def load() -> None:
        loop = asyncio.get_running_loop()
        enough = loop.time() + seconds
        async with traffic.running():
            traffic.broker_is_up(server.broker)
            await traffic.acknowledged(MESSAGES)
            while loop.time() < enough:
                await traffic.acknowledged(len(traffic.acks) + 100)

    with server:
        create_topic(server.broker, TOPIC, QUEUES)
        asyncio.run(load())
        asyncio.run(traffic.one_more(server.broker))
        poll_until(lambda: to_flush(server.broker) == "0 B", what="flush of the last message", timeout_s=20.0)
        assert server.terminate() == 0
    with server.calls.open() as lines:
        trace = Trace.read(lines, broker=server.broker, segment_bytes=SEGMENT_BYTES)
    return trace, traffic.acks


def to_flush(broker: str) -> str:
    table: dict[str, str] = json.loads(call(broker, GET_BROKER_RUNTIME_INFO).body)["table"]
    return table["remainHowManyDataToFlush"]


@pytest.mark.promise(47, 54, 216, 228)
def test_no_acknowledgement_leaves_before_its_record_is_on_the_disk(tmp_path: Path) -> None:
    """64 senders, SYNC_FLUSH: every reply after a sync that began after its write; a sync serves many."""
    # long enough for several flushes of the queues on a slow disk, where they come less often
    trace, acks = traced(tmp_path, "SYNC_FLUSH", queue_flush_ms=200, seconds=4.0)
    assert len(acks) >= MESSAGES
    assert sorted(reply.physical for reply in trace.replies) == sorted(ack.physical for ack in acks)
    early = trace.too_early()
    assert not early, f"{len(early)} of {len(acks)} replies left before the sync: {early[:3]}"
    assert len(trace.syncs) < len(acks) / 8, f"{len(trace.syncs)} syncs for {len(acks)} messages"
    assert trace.writes[-1].end > 2 * SEGMENT_BYTES, "segments were to end under this load"
    assert trace.blanks, "zeros are written ahead of small turns"
    assert not trace.wiped()
    power_cuts_keep_what_was_acknowledged(trace, acks, tmp_path)
    queues_follow_beside_the_sends(trace)
    (tmp_path / "strace.out").unlink()  # kept only when something was found in it


def power_cuts_keep_what_was_acknowledged(trace: Trace, acks: list[Ack], directory: Path) -> None:
    """Give a store only what was synced when a reply left: that reply's message and all before are there."""
    bodies = {ack.physical: ack.body for ack in acks}
    for number, last in enumerate(sorted(random.Random(SEED).sample(range(len(acks)), POWER_CUTS))):
        root = directory / f"cut-{number}"
        trace.cut_power(trace.replies[last].left, root)
        store = Store(Disk(root), StoreConfig(segment_bytes=SEGMENT_BYTES))
        store.open()
        log = b"".join(path.read_bytes() for path in sorted((root / "commitlog").iterdir()))
        for reply in trace.replies[: last + 1]:
            assert reply.physical < store.recovered.end, f"seed {SEED}, power cut {number}: lost {reply}"
            assert decode_record(log, reply.physical).body == bodies[reply.physical]
        store.close()


def queues_follow_beside_the_sends(trace: Trace) -> None:
    """Queue files are synced by neither the thread that answers nor the one that writes the log; each time
    a checkpoint follows, and it claims no more than was on the disk and names the time of its last record."""
    first, last = trace.replies[0].left, trace.replies[-1].left
    beside = [each for each in trace.queue_syncs if first < each.begin < last]
    files = {
        each.target
        for each in beside
        if Path(each.target).name.isdigit() and len(Path(each.target).name) == 20
    }
    assert len(files) == QUEUES
    directories = {each.target for each in beside} - files
    assert {str(Path(file).parent) for file in files} <= directories, "a file whose name is not on the disk"
    assert {each.pid for each in beside}.isdisjoint({trace.loop_pid, *trace.log_pids})
    checkpoints = [each for each in trace.checkpoints if first < each.begin < last]
    assert len(checkpoints) >= 2
    assert len({each.pid for each in checkpoints}) == 1
    pids = {each.pid for each in beside} | {each.pid for each in checkpoints}
    order = sorted(
        [(each.begin, "queue") for each in trace.queue_syncs if each.pid in pids]
        + [(each.begin, "checkpoint") for each in trace.checkpoints if each.pid in pids]
    )
    kinds = [kind for _, kind in order]
    assert kinds[-1] == "checkpoint"
    assert ("checkpoint", "checkpoint") not in pairwise(kinds), "a checkpoint without a queue flush"
    for written in checkpoints:
        claimed = Checkpoint.decode(written.data)
        assert claimed.derived <= claimed.durable <= trace.durable_end(written.begin)
        assert claimed.log_timestamp == claimed.queue_timestamp == trace.store_time_before(claimed.durable)


@pytest.mark.promise(49, 216)
def test_without_waiting_the_disk_follows_twice_a_second(tmp_path: Path) -> None:
    """ASYNC_FLUSH: replies do not wait (so the test above can fail); one sync in 500 ms carries them all."""
    trace, acks = traced(tmp_path, "ASYNC_FLUSH", queue_flush_ms=1_000_000, seconds=3.0)
    assert len(trace.replies) == len(acks)
    assert len(trace.too_early()) > len(acks) / 2
    times = [sync.seconds for sync in trace.syncs if sync.begin > trace.replies[0].left]
    rounds = [b for a, b in pairwise(times) if b - a > 0.2]  # a round syncs each segment written to
    # A round begun late by a busy machine is followed by one on time, so single gaps say nothing; that no
    # tick comes early is shown with a given clock in tests/unit/store/test_turns.py.
    assert 3 <= len(rounds) <= (times[-1] - times[0]) / FLUSH_SECONDS + 1, times
    alone = trace.writes[-1]
    synced = next(sync for sync in trace.syncs if sync.begin > alone.done)
    assert synced.seconds - alone.seconds <= 10.0
    (tmp_path / "strace.out").unlink()
