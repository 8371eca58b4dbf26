"""kill -9 at the doorstep of every kind of system call that changes the disk: nothing promised is lost.

One traced life counts how often each call occurs in each thread, from start-up to shutdown; the kills are spread
over those. The broker is started again after each kill, without strace, and asked for everything.
"""

import asyncio
import sys
from collections import Counter, defaultdict
from pathlib import Path

import pytest

from tests.crash.inject import CLASS_OF, CLASSES, Point
from tests.crash.lives import Lives

pytestmark = [pytest.mark.crash, pytest.mark.timeout(240)]

SEED = 2024
KILLS_PER_CLASS, KILLS_PER_CLASS_MIN = 22, 20
MISSES_MAX = 12


async def count_calls(lives: Lives) -> dict[str, list[Point]]:
    """The points of a whole life on a store that was killed before, by class, in the order they occur."""
    for _ in range(2):
        await lives.live([])
        await lives.look_back()
    await lives.live([])
    points: dict[str, list[Point]] = defaultdict(list)
    counts: Counter[tuple[int, str]] = Counter()
    for call in lives.server.traced_calls():
        counts[call.pid, call.name] += 1
        points[CLASS_OF[call.name]].append(Point(call.name, counts[call.pid, call.name]))
    return points


def spread(points: list[Point], count: int) -> list[Point]:
    """So many of them, evenly: each name of a call in the class has its share, from its first to its last."""
    by_name: dict[str, list[Point]] = defaultdict(list)
    for point in dict.fromkeys(points):
        by_name[point.name].append(point)
    chosen = []
    for of_name in by_name.values():
        share = max(1, min(len(of_name), round(count / len(by_name))))
        chosen += [of_name[i * len(of_name) // share] for i in range(share)]
    return chosen


async def kill_at_each(lives: Lives, kind: str, kills: int) -> int:
    """Kill at points of one class until there were enough; how many."""
    async with lives.traffic.running():
        points = spread((await count_calls(lives))[kind], kills)
        hits = attempts = 0
        while hits < kills and attempts < kills + MISSES_MAX:
            hits += await lives.kill_at(points[attempts % len(points)])
            attempts += 1
            await lives.look_back()
    return hits


def kill_and_report(directory: Path, capsys: pytest.CaptureFixture[str], kind: str, kills: int) -> None:
    lives = Lives(directory, SEED + list(CLASSES).index(kind))
    hits = asyncio.run(kill_at_each(lives, kind, kills))
    with capsys.disabled():
        places = ", ".join(f"{where} {count}" for where, count in sorted(lives.where.items()))
        sys.stdout.write(f"\n  {kind:9} {hits:4} kills, {len(lives.traffic.acks)} acknowledged: {places}\n")
    assert hits >= min(kills, KILLS_PER_CLASS_MIN), f"only {hits} kills at {kind}"
    log = lives.server.directory / "data" / "commitlog"
    assert len(list(log.iterdir())) > 20, "segments were to roll"
    assert len(list((log.parent / "index").iterdir())) > 3, "index files were to roll"


@pytest.mark.parametrize("kind", list(CLASSES))
def test_kills_at_each_class_of_call_lose_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    """Killed before the call at 22 points of a class, each on the store the last one left behind."""
    kill_and_report(tmp_path, capsys, kind, KILLS_PER_CLASS)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", list(CLASSES))
def test_many_more_kills_lose_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str) -> None:
    """The same at 200 points of each class."""
    kill_and_report(tmp_path, capsys, kind, 200)
