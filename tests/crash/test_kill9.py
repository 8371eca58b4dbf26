"""kill -9 under load, again and again: every acknowledged message is where its reply said it is."""

import asyncio
import random
import shutil
from pathlib import Path

import pytest

from tests.crash.traffic import QUEUES, TOPIC, Traffic, missing, read_back
from tests.peers.hotfire import HotfireProcess
from tests.peers.remoting import create_topic

pytestmark = [pytest.mark.crash, pytest.mark.timeout(180)]

SEED = 4242
START_CPU_SECONDS_MAX = 2.0
ACKS_BETWEEN_KILLS_MAX = 1500


async def kill_again_and_again(
    server: HotfireProcess, traffic: Traffic, *, kills: int, seed: int
) -> list[float]:
    """Kill after a random number of acknowledgements; what each start took of the processor."""
    rng = random.Random(seed)
    starts = []
    async with traffic.running():
        traffic.broker_is_up(server.broker)
        for _ in range(kills):
            await traffic.acknowledged(len(traffic.acks) + rng.randrange(1, ACKS_BETWEEN_KILLS_MAX))
            traffic.broker_goes_down()
            await asyncio.to_thread(server.kill9)
            assert (server.store / "abort").exists()
            await asyncio.to_thread(server.restart)
            starts.append(server.ready_cpu_seconds)
            traffic.broker_is_up(server.broker)
        await traffic.acknowledged(len(traffic.acks) + 200)
    return starts


def crash_and_count(
    server: HotfireProcess, traffic: Traffic, *, kills: int, seed: int, segments: int = 1
) -> None:
    async def run() -> None:
        starts = await kill_again_and_again(server, traffic, kills=kills, seed=seed)
        found = await read_back(server.broker)
        lost = missing(traffic.acks, found)
        assert not lost, f"seed {seed}: {len(lost)} of {len(traffic.acks)} lost: {lost[:5]}"
        assert {record.body for record in found.values()} <= traffic.bodies, "messages nobody sent"
        assert max(starts) < START_CPU_SECONDS_MAX, starts

    with server:
        create_topic(server.broker, TOPIC, QUEUES)
        asyncio.run(run())
        assert server.terminate() == 0
    assert not (server.store / "abort").exists()
    assert segments <= len(list((server.store / "commitlog").iterdir()))
    shutil.rmtree(server.store)  # a gigabyte; kept only when something went wrong


def test_twenty_kills_lose_nothing_acknowledged(tmp_path: Path) -> None:
    """SYNC_FLUSH, killed twenty times in the middle of everything: nothing acknowledged is lost or moved."""
    traffic = Traffic(SEED)
    crash_and_count(HotfireProcess(tmp_path), traffic, kills=20, seed=SEED)
    assert len(traffic.acks) > 20 * ACKS_BETWEEN_KILLS_MAX / 4


def test_kills_at_the_ends_of_segments_lose_nothing(tmp_path: Path) -> None:
    """Segments of 64 KiB, so that one ends every few turns: the same, over dozens of files."""
    sizes = ["--set", "mappedFileSizeCommitLog=65536", "--set", "mappedFileSizeConsumeQueue=2000"]
    server = HotfireProcess(tmp_path, arguments=sizes)
    crash_and_count(server, Traffic(SEED + 1, body_bytes_max=3000), kills=8, seed=SEED + 1, segments=20)


def test_a_killed_process_loses_nothing_even_without_syncing(tmp_path: Path) -> None:
    """ASYNC_FLUSH acknowledges what the kernel has, and the kernel outlives the process."""
    server = HotfireProcess(tmp_path, flush_disk_type="ASYNC_FLUSH")
    crash_and_count(server, Traffic(SEED + 2), kills=5, seed=SEED + 2)


@pytest.mark.promise(34)
def test_abort_tells_a_crash_from_an_orderly_end(tmp_path: Path) -> None:
    """`abort` stays after kill -9, and the next start says it recovers; SIGTERM removes it."""
    server = HotfireProcess(tmp_path)
    traffic = Traffic(SEED + 3)

    async def some_traffic() -> None:
        async with traffic.running():
            traffic.broker_is_up(server.broker)
            await traffic.acknowledged(len(traffic.acks) + 300)

    abort = server.store / "abort"
    with server:
        create_topic(server.broker, TOPIC, QUEUES)
        asyncio.run(some_traffic())
        assert abort.exists()
        server.kill9()
        assert abort.exists()
        assert "not closed cleanly" not in server.log.read_text()
        server.restart()
        assert "store was not closed cleanly" in server.log.read_text()
        assert "recovered records=" in server.log.read_text()
        assert server.terminate() == 0
        assert not abort.exists()
        before = server.log.read_text().count("not closed cleanly")
        server.restart()
        assert server.log.read_text().count("not closed cleanly") == before
        found = asyncio.run(read_back(server.broker))
        assert not missing(traffic.acks, found)
