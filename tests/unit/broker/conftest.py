"""The heart in its three shapes: with the compiled lane, without it, and on the plain twins alone."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hotfire import core
from hotfire.core import plain, plain_halves, plain_sql92
from tests.unit.broker.harness import Harness

LANE, HANDLERS, PLAIN = "lane", "handlers", "plain"
sync_for_real = os.fdatasync

Make = Callable[..., Harness]


@pytest.fixture(params=[LANE, HANDLERS, PLAIN])
def shape(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    chosen: str = request.param
    if chosen == PLAIN:
        monkeypatch.setattr(core, "COMPILED", False)
        for name in ("Journal", "KeyIndex", "Queue", "Reader"):
            monkeypatch.setattr(core, name, getattr(plain, name))
        monkeypatch.setattr(core, "Halves", plain_halves.Halves)
        compiled_only = ("Lane", "scan_records", "sound_records", "derive_records", "encode_record")
        for name in (*compiled_only, "read_frame", "java_hash", "records_by_key", "timer_units"):
            monkeypatch.setattr(core, name, None)
        for name in ("sift_records", "sql_verdict"):
            monkeypatch.setattr(core, name, getattr(plain_sql92, name))
    else:
        assert core.COMPILED, core.WHY_PLAIN
    return chosen


@pytest.fixture
def stores_directory(shape: str, in_memory: Path, tmp_path: Path) -> Path:
    """Where `make` puts them. What a power cut leaves is shown elsewhere; on a disk its time would be most of
    the tests'. The plain twins have none of it (`make`), and read by a call that files in memory do not know.
    """
    return tmp_path if shape == PLAIN else in_memory


@pytest.fixture
def make(shape: str, stores_directory: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """Brokers with settings of the test's own, closed at its end."""
    made: list[Harness] = []
    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, name, lambda fd: None)

    def start(name: str | Path = "store", **settings: Any) -> Harness:
        harness = Harness(stores_directory / name, fast_lane_enable=shape == LANE, **settings)
        made.append(harness)
        return harness

    yield start
    for harness in made:
        harness.close()


@pytest.fixture
def heart(make: Make) -> Harness:
    """A broker with topic T of four queues."""
    harness = make()
    harness.create_topic("T")
    return harness
