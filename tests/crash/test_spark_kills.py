"""Spark killed where it hurts, at named points of source and sink: nothing is lost, nothing comes twice."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow.parquet
import pytest

from tests.crash.sparklives import (
    DEAD,
    MORE,
    NEW,
    OLD,
    ROWS_MORE,
    Kill,
    World,
    show,
    state,
    table,
)

pytestmark = [pytest.mark.crash, pytest.mark.spark, pytest.mark.timeout(900)]

ROUNDS = [
    pytest.param(0, id="once"),
    *(pytest.param(number, marks=pytest.mark.slow, id=f"again{number}") for number in (1, 2, 3)),
]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[World]:
    made = World(tmp_path_factory.mktemp("kills"))
    try:
        yield made
    finally:
        made.close()
        show(request.config, table(made.kills))


# --- the driver ----------------------------------------------------------------------------------------

ANYWHERE: tuple[str | None, ...] = (None, "checkpoint", "group")
KNOWN_BY: dict[str, tuple[str | None, ...]] = {
    # before Spark's log has the batch, nobody else knows where it was to begin
    "source.initial-offset": ("checkpoint", "group"),
    "source.latest-offset": ("group", "checkpoint"),
    "source.planned": ANYWHERE,
    "source.read-half": ANYWHERE[1:] + ANYWHERE[:1],
    "source.read": ANYWHERE,
}

DRIVER_POINTS = [
    ("source.initial-offset", "sink.label-written", False),
    ("source.latest-offset", "sink.first-chunk-sent", False),
    ("source.planned", "sink.half-sent", False),
    ("source.read-half", "sink.all-sent-before-return", False),
    ("source.read", "sink.half-sent", True),
    ("source.commit", "sink.commit", False),
]


@pytest.mark.parametrize("round_", ROUNDS)
@pytest.mark.parametrize(("reading", "writing", "is_batch"), DRIVER_POINTS)
def test_driver_killed(
    world: World,
    record_property: Callable[[str, object], None],
    reading: str,
    writing: str,
    is_batch: bool,
    round_: int,
) -> None:
    """kill -9 of Spark, all of it, while a task or the planning of one query stands at a point of the source,
    and another at one of the sink. Both are started again and come to their end, with what was there before
    the kill and what came after it: each message and each row with a key is there once. A query that began
    at the latest messages has all that were sent since it began, also when its first batch died.
    """
    driver, points = world.driver(), world.points
    is_batch ^= round_ % 2 == 1
    sending = world.sending(is_batch=is_batch)
    if reading == "source.commit":  # which is called for the batch before
        archive, batch = world.archive(), 1
        archive.feed(OLD)
        archive.run(driver)
        archive.feed(NEW)
        points.clear()
        points.stop_at(reading, writing)
        archive.begin(driver)
    else:
        known_by = KNOWN_BY[reading]
        archive, batch = world.archive("latest", known_by[round_ % len(known_by)]), 0
        archive.feed(OLD, is_expected=False)
        points.clear()
        points.stop_at("source.initial-offset", reading, writing)
        archive.begin(driver, now=False)
        world.stand("source.initial-offset")
        archive.feed(NEW)
        if reading != "source.initial-offset":
            points.go_on("source.initial-offset")
    sending.begin(driver)
    world.stand(reading, writing)
    assert not archive.is_committed(batch)
    assert not sending.is_committed(0)
    driver.kill()
    for point in (reading, writing):
        points.check_counts(point)
    assert not archive.is_committed(batch)
    assert not sending.is_committed(0)

    points.clear()
    world.start_driver()
    archive.feed(MORE)
    if not is_batch:  # one that is run again under its label has the rows that it had
        sending.feed(ROWS_MORE)
    driver = world.driver()
    archive.begin(driver)
    sending.run(driver)
    driver.ended(archive.name)
    record_property("killed", f"driver at {reading} and {writing}")
    world.judge(archive.outcome(reading, "driver"), sending.outcome(writing, "driver"))


# --- workers -------------------------------------------------------------------------------------------

WORKER_POINTS = [
    ("source.read-half", "sink.label-written"),
    ("source.read", "sink.first-chunk-sent"),
    ("source.read-half", "sink.half-sent"),
    ("source.read", "sink.all-sent-before-return"),
]


@pytest.mark.parametrize("round_", ROUNDS)
@pytest.mark.parametrize(("reading", "writing"), WORKER_POINTS)
def test_worker_killed(
    world: World, record_property: Callable[[str, object], None], reading: str, writing: str, round_: int
) -> None:
    """kill -9 of the process in which a task stands: Spark runs the task again, the query notices nothing."""
    driver, points = world.driver(), world.points
    archive, sending = world.archive(), world.sending(is_batch=round_ % 2 == 1)
    archive.feed(NEW)
    points.clear()
    points.stop_at(reading, writing)
    archive.begin(driver)
    sending.begin(driver)
    for pid in world.stand(reading, writing):
        os.kill(pid, signal.SIGKILL)
        driver.until(lambda pid=pid: state(pid) in DEAD, f"end of worker {pid}")
    driver.ended(archive.name)
    driver.ended(sending.name)
    record_property("killed", f"worker at {reading}, worker at {writing}")
    world.judge(archive.outcome(reading, "worker"), sending.outcome(writing, "worker"))


# --- the broker ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("round_", ROUNDS)
def test_broker_killed(world: World, record_property: Callable[[str, object], None], round_: int) -> None:
    """kill -9 of the broker while one task has half of what it reads, another half of what it writes
    acknowledged; they go on before it is there again, and end well.
    """
    driver, points = world.driver(), world.points
    reading, writing = "source.read-half", "sink.half-sent"
    archive, sending = world.archive(), world.sending(is_batch=round_ % 2 == 1)
    archive.feed(NEW)
    points.clear()
    points.stop_at(reading, writing)
    archive.begin(driver)
    sending.begin(driver)
    world.stand(reading, writing)
    world.server.kill9()
    for point in (reading, writing):
        points.check_counts(point)
        points.go_on(point)
    world.server.restart()
    driver.ended(archive.name)
    driver.ended(sending.name)
    record_property("killed", f"broker at {reading} and {writing}")
    world.judge(archive.outcome(reading, "broker"), sending.outcome(writing, "broker"))


# --- the archive's own files ---------------------------------------------------------------------------

ARCHIVE_POINTS = ("archive.noted", "archive.moved-half", "archive.merged")
ARCHIVED, ARCHIVED_AT_ONCE = 120, 24
"""Messages of each of two topics, and of a batch: enough batches that their files are put together."""


def test_archive_killed(world: World, record_property: Callable[[str, object], None]) -> None:
    """kill -9 of the pipeline `archive` when a batch is noted and nothing of it moved, when half of it is,
    and when files are put together and those they were made of are still there: each next run takes up where
    the one before was, and in the end each message is there once.
    """
    points, topics = world.points, [world.archive(), world.archive()]
    for topic in topics:
        topic.feed(ARCHIVED)
    to, code = topics[0].place / "archived", topics[0].place / "code"
    words = ["--topic", ",".join(topic.name for topic in topics), "--to", str(to)]
    words += ["--namesrv", world.server.namesrv, "--batch-rows", str(ARCHIVED_AT_ONCE)]
    for point in ARCHIVE_POINTS:
        driver = world.driver()
        points.clear()
        points.stop_at(point)
        driver.begin("pipeline", "archive", pipeline="archive", words=words, place=str(code))
        world.stand(point)
        driver.kill()
        points.check_counts(point)
        world.start_driver()
    points.clear()
    driver = world.driver()
    driver.begin("pipeline", "archive", pipeline="archive", words=words, place=str(code))
    driver.ended("archive")
    assert json.loads(code.read_text())["code"] == 0
    found = bodies_below(to)
    expected = topics[0].expected + topics[1].expected
    record_property("killed", f"driver at {', '.join(ARCHIVE_POINTS)}")
    lost, more = (expected - found).total(), (found - expected).total()
    world.judge(*(Kill(point, "driver", lost, more) for point in ARCHIVE_POINTS))


def bodies_below(directory: Path) -> Counter[bytes]:
    """What the files of an archive hold that readers see."""
    files = directory.glob("topic=*/date=*/*.parquet")
    tables = [pyarrow.parquet.read_table(path, columns=["body"], partitioning=None) for path in files]
    return Counter(body for table in tables for body in table["body"].to_pylist())
