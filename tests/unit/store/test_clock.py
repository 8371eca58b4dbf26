"""A clock that is set forward or back, by an hour or by ten years, costs nothing that was stored."""

import logging
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hotfire.protocol.record import Record, decode_record, iter_records
from hotfire.store.config import RetentionConfig
from tests.unit.store.driven import NOW_MS, Driven, ring

CASES, CASES_LONG = 200, 1000
HOUR_MS = 3_600_000
YEARS_MS = 10 * 365 * 24 * HOUR_MS
MOVES_MS = (HOUR_MS, -HOUR_MS, YEARS_MS, -YEARS_MS, -1, -1500)
SEGMENT = 4096


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Crash images have much to say, and nothing new."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def answer(driven: Driven) -> Any:
    ring(driven.store.queries.fileno())
    ((_, future),) = driven.store.queries.answers()
    return future.result()


class Case:
    """A store whose clock is set again and again, noticed while it is open or not while it is closed."""

    def __init__(self, seed: int, root: Path) -> None:
        self._chance = random.Random(seed)
        retention = RetentionConfig(
            hours=()
        )  # by age nothing goes here: the files' times are the real clock's
        self.driven = Driven(root / "0", segment_bytes=SEGMENT, index_entries=9, retention=retention).open()
        self._root, self._images = root, 0

    def live(self) -> None:
        for _ in range(self._chance.randrange(3, 7)):
            self._send()
            move_ms = self._chance.choice(MOVES_MS)
            how = self._chance.choice(("noticed", "closed", "killed"))
            if how == "noticed":
                self.driven.store.clock_moved(move_ms)
                self.driven.now_ms += move_ms
            else:
                self._reopen(killed=how == "killed")
                self.driven.now_ms += move_ms
            self.driven.tick(60)
        self._send()
        self._hold()
        self.driven.store.close()

    def _send(self) -> None:
        driven = self.driven
        for n in range(self._chance.randrange(1, 6)):
            driven.send("t", 0, bytes(self._chance.randrange(900)), KEYS=f"k{n}")
            driven.turn()
            driven.tick(self._chance.choice((1, 500, 1000)))

    def _reopen(self, *, killed: bool) -> None:
        driven = self.driven
        if killed:
            self._images += 1
            self.driven = driven.crash_image(self._root / str(self._images))
            driven.store.close()
        else:
            driven.store.close()
            self.driven = driven.on(driven.root)
        self.driven.open()

    def _hold(self) -> None:
        driven = self.driven
        assert driven.store.min_offset == 0
        driven.check(driven.sent)
        log = driven.log_bytes()
        records = [decode_record(log, sent.physical) for sent in driven.sent]
        times = [record.store_timestamp for record in records]
        assert times == sorted(times)
        names = sorted(path.name for path in (driven.root / "index").iterdir())
        assert all(len(name) == 17 and name.isdecimal() for name in names), names
        driven.store.queries.by_key("t", "k0", 64, 0, 1 << 60, None)
        expected = [sent.body for sent in driven.sent if sent.properties.startswith(b"KEYS\x01k0\x02")]
        assert [record.body for record in iter_records(answer(driven))] == expected[-64:]
        self._hold_times(records)

    def _hold_times(self, records: list[Record]) -> None:
        times = [record.store_timestamp for record in records]
        for at in sorted({*times, times[0] - 1, times[-1] + 1}):
            lower = next((i for i, stored in enumerate(times) if stored >= at), len(times))
            self.driven.store.offset_by_time("t", 0, at, upper=False, token=None)
            assert answer(self.driven) == lower


def test_nothing_is_lost_whatever_the_clock_says(in_memory: Path) -> None:
    """An hour or ten years forward or back, while it runs, over restarts and crashes: all is there, store
    times never decrease, keys and times find what they should."""
    for seed in range(CASES):
        Case(seed, in_memory / str(seed)).live()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_nothing_is_lost_whatever_the_clock_says_long(in_memory: Path) -> None:
    """The same, a thousand times."""
    for seed in range(CASES, CASES + CASES_LONG):
        Case(seed, in_memory / str(seed)).live()


def aged(root: Path, hours: int, reserved_hours: int = 72) -> Driven:
    """Six segments, each written so long ago."""
    retention = RetentionConfig(
        hours=tuple(range(24)), reserved_hours=reserved_hours, period_ms=50, pause_ms=0
    )
    driven = Driven(root, segment_bytes=SEGMENT, retention=retention).open()
    while driven.store.end < 5 * SEGMENT:
        driven.send("t", 0, bytes(700))
        driven.turn()
    at = (NOW_MS - hours * HOUR_MS) / 1000
    for path in (root / "commitlog").iterdir():
        os.utime(path, (at, at))
    driven.store._disk.used_ratio = lambda: 0.5  # type: ignore[method-assign]
    return driven


def pass_time(driven: Driven, ms: int) -> None:
    for _ in range(20):
        driven.tick(ms // 20)


@pytest.mark.parametrize("moves_ms", [[YEARS_MS], [HOUR_MS] * 100, [YEARS_MS, -YEARS_MS], [-YEARS_MS]])
def test_a_clock_that_leaps_expires_nothing(in_memory: Path, moves_ms: list[int]) -> None:
    """Segments of an hour ago, kept for 72, are there ten hours later, however the clock was set."""
    driven = aged(in_memory / "store", hours=1)
    driven.tick(50)
    for move_ms in moves_ms:
        driven.store.clock_moved(move_ms)
        driven.now_ms += move_ms
        driven.tick(50)
    pass_time(driven, 10 * HOUR_MS)
    assert driven.store.min_offset == 0
    driven.check(driven.sent)
    driven.store.close()


@pytest.mark.parametrize("moves_ms", [[], [YEARS_MS], [YEARS_MS, -YEARS_MS], [YEARS_MS, -HOUR_MS]])
def test_what_expires_after_a_leap_still_goes(in_memory: Path, moves_ms: list[int]) -> None:
    """The age of a segment goes on from what it was: 71 of 72 hours, and two hours later it is gone."""
    driven = aged(in_memory / "store", hours=71)
    driven.tick(50)
    for move_ms in moves_ms:
        driven.store.clock_moved(move_ms)
        driven.now_ms += move_ms
        driven.tick(50)
    assert driven.store.min_offset == 0
    pass_time(driven, 2 * HOUR_MS)
    assert driven.store.min_offset == 5 * SEGMENT
    driven.store.close()
