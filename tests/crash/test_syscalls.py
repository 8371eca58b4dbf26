"""kill -9 at the doorstep of every kind of system call that changes the disk: nothing promised is lost.

One traced life counts how often each call occurs in each thread, from start-up to shutdown; the kills are
spread over those. The broker is started again after each kill, without strace, and asked for everything.
"""

import asyncio
import sys
from collections import Counter, defaultdict
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path

import pytest

from tests.crash.inject import CLASSES, Point, path_of, target
from tests.crash.lives import LEAVING, QUIET, SEGMENT_BYTES, Lives
from tests.crash.traffic import QUEUES, TOPIC

pytestmark = [pytest.mark.crash, pytest.mark.timeout(240)]

SEED = 2024
KILLS_PER_CLASS = 20
MISSES_MAX = 10
REMOVALS = 16
LEAVING_STEPS = 40
"""A life in which files leave is long enough for every removal to come; the kill ends it."""
FILES_PER_LIFE = 100
BULK = {"commitlog", "commitlog/", "consumequeue", "consumequeue/", "index", "index/"}
"""Files whose names change while it runs; the others are struck by name."""
BULK_SHARE = 4

Points = dict[str, list[Point]]


@pytest.fixture(scope="module")
def points(tmp_path_factory: pytest.TempPathFactory) -> Points:
    """The points of a whole life on a store that was killed before, by class, in the order they occur."""
    lives = Lives(tmp_path_factory.mktemp("count"), SEED)
    found: Points = defaultdict(list)
    for _, point in asyncio.run(count(lives)):
        found[point.kind].append(point)
    return found


async def count(lives: Lives) -> list[tuple[float, Point]]:
    """What a life does after two that were killed, and when."""
    async with lives.running():
        for point in (Point("fdatasync", 30), Point("rename", 25)):
            await lives.kill_at(point)
        await lives.live([])
    root = str(lives.server.store)
    found = []
    counts: Counter[tuple[int, str, str | None]] = Counter()
    for call in lives.server.traced_calls():
        counts[call.pid, call.name, None] += 1
        path = None if target(call) in BULK else path_of(call).removeprefix(root)
        if path is not None:
            counts[call.pid, call.name, path] += 1
        found.append((call.seconds, Point(call.name, counts[call.pid, call.name, path], path)))
    return found


def spread(points: list[Point], count: int) -> list[Point]:
    """So many of them, by turns over calls and files, those of each from its first to its last."""
    groups: dict[tuple[str, str | None], list[Point]] = defaultdict(list)
    for point in dict.fromkeys(points):
        groups[point.name, point.path].append(point)
    shares = []
    for (_, path), group in groups.items():
        share = min(
            len(group), max(1, count * (BULK_SHARE if path is None else 1) // (len(groups) + BULK_SHARE))
        )
        shares.append([group[i * len(group) // share] for i in range(share)])
    return [point for turn in zip_longest(*shares) for point in turn if point is not None]


async def kill_at_each(lives: Lives, points: list[Point], kills: int) -> int:
    """Kill at these points until there were enough; how many."""
    root = str(lives.server.store)
    hits = attempts = 0
    async with lives.running():
        # a life that goes otherwise than the one that was counted may end before its point: then another
        while hits < kills and attempts < kills + max(MISSES_MAX, kills):
            point = points[attempts % len(points)]
            hits += await lives.kill_at(replace(point, path=point.path and root + point.path))
            attempts += 1
            await lives.look_back()
    return hits


def report(capsys: pytest.CaptureFixture[str], kind: str, hits: int, lives: Lives) -> None:
    with capsys.disabled():
        places = ", ".join(f"{where} {times}" for where, times in sorted(lives.where.items()))
        sys.stdout.write(f"\n  {kind:9} {hits:4} kills, {len(lives.traffic.acks)} acknowledged: {places}\n")


def kill_and_report(
    directory: Path, capsys: pytest.CaptureFixture[str], points: Points, kind: str, kills: int
) -> None:
    lives = Lives(directory, SEED + list(CLASSES).index(kind))
    hits = asyncio.run(kill_at_each(lives, spread(points[kind], kills), kills))
    report(capsys, kind, hits, lives)
    assert hits == kills, f"only {hits} kills of {kills} at {kind}"
    log = lives.server.directory / "data" / "commitlog"
    assert len(list(log.iterdir())) > 10, "segments were to roll"
    assert len(list((log.parent / "index").iterdir())) > 3, "index files were to roll"


@pytest.mark.parametrize("kind", list(CLASSES))
def test_kills_at_each_class_of_call_lose_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], points: Points, kind: str
) -> None:
    """Killed before the call at 20 points of a class, each on the store the last one left behind."""
    kill_and_report(tmp_path, capsys, points, kind, KILLS_PER_CLASS)


def test_kills_during_an_orderly_end_lose_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Told to end under load and killed on the way, at each call on tables, checkpoint and `abort`."""
    counted = Lives(tmp_path / "count", SEED, QUIET)
    late = [point for at, point in asyncio.run(count(counted)) if at > counted.told_to_end_at and point.path]
    assert {point.kind for point in late} == {"write", "sync", "rename", "unlink"}
    lives = Lives(tmp_path / "kill", SEED + 1, QUIET)
    hits = asyncio.run(kill_at_each(lives, late, len(late)))
    report(capsys, "shutdown", hits, lives)
    at_the_end = sum(times for place, times in lives.where.items() if place.startswith("shutdown"))
    assert at_the_end >= len(late) * 2 // 3, lives.where


def test_kills_while_expired_files_leave_lose_nothing_that_stays(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Killed at removals of segments, queue and index files: all that is in the segments left is there."""
    lives = Lives(tmp_path, SEED + 2, meanwhile=LEAVING, steps=LEAVING_STEPS)
    kills = asyncio.run(kill_at_removals(lives))
    report(capsys, "leaving", kills, lives)
    assert kills == REMOVALS
    assert min((lives.server.store / "commitlog").iterdir()).name > f"{0:020d}", "segments were to leave"


async def kill_at_removals(lives: Lives) -> int:
    """Kill at the first, the second ... file that leaves, segment or queue file; how often it died of it."""
    kills = 0
    async with lives.running():
        await lives.live([])
        for number in range(REMOVALS):
            kills += await lives.kill_at(Point("unlink", 1 + number % 8), next_files(lives.server.store))
            await lives.look_back()
    return kills


def next_files(root: Path) -> list[str]:
    """Those that can leave in the next life: from the first there is, as many as one can fill."""
    files = []
    folders = [(root / "commitlog", SEGMENT_BYTES)]
    folders += [(root / "consumequeue" / TOPIC / str(queue_id), 1000) for queue_id in range(QUEUES)]
    for folder, size in folders:
        first = min((int(file.name) for file in folder.iterdir()), default=0)
        files += [str(folder / f"{first + number * size:020d}") for number in range(FILES_PER_LIFE)]
    return files


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", list(CLASSES))
def test_many_more_kills_lose_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], points: Points, kind: str
) -> None:
    """The same at 60 points of each class."""
    kill_and_report(tmp_path, capsys, points, kind, 60)
