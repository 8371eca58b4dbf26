"""How far a pipeline is: rows, lag, rate, estimated end. The arithmetic, and the line that shows it.

On a terminal one line is written over and over; elsewhere a plain line comes now and then. Knows what Spark
tells of itself as plain values only: no session, no thread.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping
from typing import Any, TextIO

from hotfire.figures import duration_text

TERMINAL_EVERY_S = 0.5
LOG_EVERY_S = 10.0
RATE_OVER_S = 30.0
"""Rates are of the last half minute: long enough to be steady, short enough to notice a change."""


class Rate:
    """How fast a growing (or shrinking) figure changes, over the last while."""

    def __init__(self, over_s: float = RATE_OVER_S) -> None:
        self._over_s = over_s
        self._seen: deque[tuple[float, float]] = deque()

    def take(self, now_s: float, value: float) -> None:
        self._seen.append((now_s, value))
        # the one before the window stays: it is where the window's first change began
        while len(self._seen) > 2 and self._seen[1][0] <= now_s - self._over_s:
            self._seen.popleft()

    def per_second(self) -> float | None:
        """None until there are two values some time apart."""
        if len(self._seen) < 2:
            return None
        (first_s, first), (last_s, last) = self._seen[0], self._seen[-1]
        return (last - first) / (last_s - first_s) if last_s > first_s else None


def lag_of(source: Mapping[str, Any]) -> int | None:
    """Messages between a batch's end and the end of its queues, from one source of Spark's progress.

    >>> lag_of({"endOffset": '{"T": {"b": {"0": 5}}}', "latestOffset": '{"T": {"b": {"0": 9, "1": 2}}}'})
    6
    """
    reached, latest = _offsets(source.get("endOffset")), _offsets(source.get("latestOffset"))
    if reached is None or latest is None:
        return None
    return sum(max(end - reached.get(queue, 0), 0) for queue, end in latest.items())


def _offsets(said: object) -> dict[tuple[str, ...], int] | None:
    """Every number in a place that Spark logs, by the names that lead to it; `#` begins what is no queue."""
    if isinstance(said, str):
        try:
            said = json.loads(said)
        except ValueError:
            return None
    if not isinstance(said, dict):
        return None
    found: dict[tuple[str, ...], int] = {}

    def walk(value: object, names: tuple[str, ...]) -> None:
        if isinstance(value, dict):
            for name, inner in value.items():
                if not name.startswith("#"):
                    walk(inner, (*names, name))
        elif isinstance(value, int):
            found[names] = value

    walk(said, ())
    return found


class StreamFigures:
    """The progress of one streaming query, added up."""

    def __init__(self) -> None:
        self.rows = 0
        self.batches = 0
        self.late = 0
        """Messages that came after their window was written, and count nowhere."""
        self.lag: int | None = None
        self._rows_rate, self._lag_rate = Rate(), Rate()
        self._seen: deque[tuple[int, str]] = deque(maxlen=256)

    def has_seen(self, progress: Mapping[str, Any]) -> bool:
        return _which(progress) in self._seen

    def take(self, progress: Mapping[str, Any], now_s: float) -> None:
        """One of Spark's progress reports; the same one again changes nothing."""
        if self.has_seen(progress):
            return
        self._seen.append(_which(progress))
        rows = int(progress.get("numInputRows") or 0)
        self.rows += rows
        self.batches += rows > 0
        for state in progress.get("stateOperators") or ():
            self.late += int(state.get("numRowsDroppedByWatermark") or 0)
        lags = [lag_of(source) for source in progress.get("sources") or ()]
        known = [lag for lag in lags if lag is not None]
        self.lag = sum(known) if known else None
        self._rows_rate.take(now_s, self.rows)
        if self.lag is not None:
            self._lag_rate.take(now_s, self.lag)

    @property
    def rows_per_second(self) -> float | None:
        return self._rows_rate.per_second()

    @property
    def left_s(self) -> float | None:
        """Until the lag is gone, if it goes on shrinking as it does; what arrives meanwhile counts."""
        change = self._lag_rate.per_second()
        if not self.lag or change is None or change >= 0:
            return None
        return self.lag / -change


def _which(progress: Mapping[str, Any]) -> tuple[int, str]:
    """An idle query tells the next batch's id again and again: the trigger's time tells reports apart."""
    return int(progress["batchId"]), str(progress["timestamp"])


class BatchFigures:
    """Rows and tasks of the Spark jobs of one step."""

    def __init__(self, rows_total: int | None = None) -> None:
        self.rows = 0
        self.tasks_done = self.tasks = 0
        self.rows_total = rows_total
        self._rate, self._part_rate = Rate(), Rate()

    def take(self, rows: int, tasks_done: int, tasks: int, now_s: float) -> None:
        # a figure of Spark's may be missing for a moment; what was done stays done
        self.rows = max(rows, self.rows)
        self.tasks_done, self.tasks = tasks_done, tasks
        self._rate.take(now_s, self.rows)
        self._part_rate.take(now_s, self._part)

    @property
    def _part(self) -> float:
        if self.rows_total and self.rows:
            return min(self.rows / self.rows_total, 1.0)
        return self.tasks_done / self.tasks if self.tasks else 0.0

    @property
    def rows_per_second(self) -> float | None:
        return self._rate.per_second()

    @property
    def left_s(self) -> float | None:
        rate = self._part_rate.per_second()
        return (1.0 - self._part) / rate if rate and rate > 0 and self._part < 1.0 else None


def line(what: str, figures: StreamFigures | BatchFigures) -> str:
    """
    >>> figures = BatchFigures(rows_total=1000)
    >>> figures.take(100, 0, 4, now_s=0.0)
    >>> figures.take(500, 2, 4, now_s=2.0)
    >>> line("replay", figures)
    'replay: 500 of 1,000 rows, 200/s, 2 s left'
    """
    shown = f"{what}: {figures.rows:,}"
    if isinstance(figures, BatchFigures):
        shown += f" of {figures.rows_total:,} rows" if figures.rows_total else " rows"
        if figures.tasks and not figures.rows_total:
            shown += f", {figures.tasks_done} of {figures.tasks} tasks"
    else:
        shown += " rows" if figures.lag is None else f" rows, lag {figures.lag:,}"
    rate, left_s = figures.rows_per_second, figures.left_s
    if rate is not None:
        shown += f", {rate:,.0f}/s"
    if left_s is not None:
        shown += f", {duration_text(left_s)} left"
    return shown


class Shown:
    """The status line, and lines that must not run into it. Several threads may use it."""

    def __init__(self, to: TextIO | None = None) -> None:
        self._to = sys.stderr if to is None else to
        self.is_terminal = self._to.isatty()
        self.every_s = TERMINAL_EVERY_S if self.is_terminal else LOG_EVERY_S
        self._lock = threading.Lock()
        self._is_shown = False
        self._at_s = time.monotonic()

    def status(self, text: str) -> None:
        """Shown when the time for it has come."""
        with self._lock:
            now = time.monotonic()
            if now - self._at_s < self.every_s:
                return
            self._at_s = now
            if self.is_terminal:
                self._write(f"\r\x1b[K{text}")
                self._is_shown = True
            else:
                self._write(f"{text}\n")

    def say(self, text: str) -> None:
        with self._lock:
            self._take_off()
            self._write(f"{text}\n")

    def clear(self) -> None:
        with self._lock:
            self._take_off()

    def _take_off(self) -> None:
        if self._is_shown:
            self._write("\r\x1b[K")
            self._is_shown = False

    def _write(self, text: str) -> None:
        self._to.write(text)
        self._to.flush()
