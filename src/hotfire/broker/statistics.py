"""What the broker has done: messages and bytes by topic, by topic and group, and in all, over spans of time.

The names and spans are those Apache's tools ask for. Nothing samples on a timer: a count remembers what it
was when each tick began in which it grew, which tells what it was at every other tick too, so that every
answer is a function of the given time. What was stored is counted where queue entries become visible, one
place for the lane and the handlers; what was delivered, by whoever answers the pull. Knows no clock, no
store and no wire.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from hotfire.model import is_system_topic

GROUP_COUNTS_MAX = 65_536
"""Counts by topic and group; of more the oldest are forgotten."""
SECONDS_KEPT = 601
"""Totals by the second, for rates over ten minutes."""
RATE_SPANS_S = (10, 60, 600)
TIME_BUCKETS: tuple[tuple[int, str], ...] = (
    (0, "[<=0ms]"), (10, "[0~10ms]"), (50, "[10~50ms]"), (100, "[50~100ms]"), (200, "[100~200ms]"),
    (500, "[200~500ms]"), (1000, "[500ms~1s]"), (2000, "[1~2s]"), (3000, "[2~3s]"), (4000, "[3~4s]"),
    (5000, "[4~5s]"), (10_000, "[5~10s]"), (1 << 62, "[10s~]"),
)  # fmt: skip
"""Time spent storing: upper bounds in ms, and how the reference prints them."""
_BOUNDS = [bound for bound, _ in TIME_BUCKETS]


class Span(NamedTuple):
    """A window of so many ticks."""

    tick_ms: int
    ticks: int


MINUTE, HOUR, DAY = Span(10_000, 6), Span(600_000, 6), Span(3_600_000, 24)
SPANS = (MINUTE, HOUR, DAY)


class Mark(NamedTuple):
    """What a count was when a tick began."""

    tick: int
    times: int
    messages: int
    bytes: int


class Sum(NamedTuple):
    """What came in over a window, how much of it by the second, and by the time something came."""

    sum: int
    per_second: float
    average: float


class Count:
    """Times, messages and bytes since it was made; and over the last minute, hour and day."""

    __slots__ = ("_born_ms", "_marks", "bytes", "messages", "times")

    def __init__(self, since_start_ms: int) -> None:
        """Times here and below are those since the broker's start, when every tick is 0."""
        self.times = self.messages = self.bytes = 0
        self._born_ms = since_start_ms
        self._marks: tuple[deque[Mark], ...] = tuple(deque(maxlen=span.ticks + 1) for span in SPANS)

    def add(self, since_start_ms: int, times: int, messages: int, size: int) -> None:
        for span, marks in zip(SPANS, self._marks, strict=True):
            tick = since_start_ms // span.tick_ms
            if not marks or marks[-1].tick < tick:
                marks.append(Mark(tick, self.times, self.messages, self.bytes))
        self.times += times
        self.messages += messages
        self.bytes += size

    def over(self, span: Span, since_start_ms: int, *, of_bytes: bool = False, timed: bool = True) -> Sum:
        """From tick to tick: a window ends where the present tick begins, and is shorter for young counts."""
        last = since_start_ms // span.tick_ms
        first = max(self._born_ms // span.tick_ms, last - span.ticks)
        if first >= last:
            return Sum(0, 0.0, 0.0)
        begin, end = self._at(span, first), self._at(span, last)
        total = end.bytes - begin.bytes if of_bytes else end.messages - begin.messages
        times = end.times - begin.times if timed else 0
        seconds = (last - first) * span.tick_ms / 1000
        return Sum(total, total / seconds, total / times if times else 0.0)

    def _at(self, span: Span, tick: int) -> Mark:
        """What it was when a tick began: the first mark not before it, or else what it is."""
        for mark in tuple(self._marks[SPANS.index(span)]):  # at once: answers are made beside the loop
            if mark.tick >= tick:
                return mark
        return Mark(tick, self.times, self.messages, self.bytes)


@dataclass(slots=True, frozen=True)
class Totals:
    """Of the whole broker since its start."""

    stored: int = 0
    stored_bytes: int = 0
    delivered: int = 0
    found: int = 0
    missed: int = 0


class Statistics:
    """Every count of one broker."""

    def __init__(self, cluster: str, now_ms: int) -> None:
        self._cluster = cluster
        self._started_ms = now_ms
        self._stored: dict[str, Count] = {}
        self._delivered: dict[tuple[str, str], Count] = {}
        self._sent_back: dict[tuple[str, str], Count] = {}
        self._fresh: dict[tuple[str, str], list[int]] = {}
        self._all_stored, self._all_delivered = Count(0), Count(0)
        self._own_stored, self._own_delivered = Count(0), Count(0)
        """Without system topics."""
        self.found = self.missed = 0
        self.longest_store_ms = self.longest_read_ms = self.failed = 0
        self.store_times = [0] * len(TIME_BUCKETS)
        self._day = _day(now_ms)
        self.stored_mornings = self.delivered_mornings = (0, 0)
        """What had come in at the beginnings of yesterday and of today."""
        self._seconds: deque[tuple[int, Totals]] = deque([(now_ms, Totals())], maxlen=SECONDS_KEPT)

    # --- counting ---

    def stored(self, shown: Iterable[tuple[tuple[str, int], int, int]], now_ms: int) -> None:
        """Entries that became visible, as ((topic, queue id), messages, bytes)."""
        since = now_ms - self._started_ms
        for (topic, _), messages, size in shown:
            count = self._stored.get(topic)
            if count is None:
                count = self._stored[topic] = Count(since)
            count.add(since, messages, messages, size)
            self._all_stored.add(since, 0, messages, size)
            if not is_system_topic(topic):
                self._own_stored.add(since, 0, messages, size)

    def delivered(self, token: tuple[str, str], messages: int, size: int) -> None:
        """One pull's messages to (topic, group); `settle` says when. Called for each, so it does little."""
        if not messages:
            self.missed += 1
            return
        fresh = self._fresh.get(token)
        if fresh is None:
            fresh = self._fresh[token] = [0, 0, 0]
        fresh[0] += 1
        fresh[1] += messages
        fresh[2] += size

    def settle(self, now_ms: int) -> None:
        """What was delivered since the last call was delivered now."""
        since, fresh, self._fresh = now_ms - self._started_ms, self._fresh, {}
        for token, (pulls, messages, size) in fresh.items():
            count = self._delivered.get(token)
            if count is None:
                count = self._count_of(self._delivered, token, since)
            count.add(since, pulls, messages, size)
            self.found += pulls
            self._all_delivered.add(since, 0, messages, size)
            if not is_system_topic(token[0]):
                self._own_delivered.add(since, 0, messages, size)

    def sent_back(self, topic: str, group: str, now_ms: int) -> None:
        """A group could not consume a message and had it stored again."""
        since = now_ms - self._started_ms
        count = self._sent_back.get((topic, group)) or self._count_of(self._sent_back, (topic, group), since)
        count.add(since, 1, 1, 0)

    def _count_of(
        self, counts: dict[tuple[str, str], Count], token: tuple[str, str], since_start_ms: int
    ) -> Count:
        if len(counts) >= GROUP_COUNTS_MAX:
            del counts[next(iter(counts))]
        count = counts[token] = Count(since_start_ms)
        return count

    def took(self, store_ms: int, count: int = 1) -> None:
        """Messages of so many replies were safe so long after they came."""
        self.longest_store_ms = max(self.longest_store_ms, store_ms)
        self.store_times[bisect_left(_BOUNDS, store_ms)] += count

    def forget_topic(self, topic: str) -> None:
        self._stored.pop(topic, None)
        for counts in (self._delivered, self._sent_back):
            for token in [token for token in counts if token[0] == topic]:
                del counts[token]

    def forget_group(self, group: str) -> None:
        for counts in (self._delivered, self._sent_back):
            for token in [token for token in counts if token[1] == group]:
                del counts[token]

    # --- time ---

    def tick(self, now_ms: int) -> None:
        """Settle; keep the totals of this second, and of the morning when a day begins."""
        self.settle(now_ms)
        if now_ms - self._seconds[-1][0] >= 1000:
            self._seconds.append((now_ms, self.totals))
        day = _day(now_ms)
        if day != self._day:
            self._day = day
            self.stored_mornings = self.stored_mornings[1], self._own_stored.messages
            self.delivered_mornings = self.delivered_mornings[1], self._own_delivered.messages

    def clock_moved(self, by_ms: int) -> None:
        self._started_ms += by_ms
        self._seconds = deque(((at + by_ms, totals) for at, totals in self._seconds), maxlen=SECONDS_KEPT)

    # --- answers ---

    @property
    def totals(self) -> Totals:
        return Totals(
            self._all_stored.messages,
            self._all_stored.bytes,
            self._all_delivered.messages,
            self.found,
            self.missed,
        )

    @property
    def own_stored(self) -> int:
        """Messages of topics that are not the system's."""
        return self._own_stored.messages

    @property
    def own_delivered(self) -> int:
        return self._own_delivered.messages

    def rates(self, *names: str) -> str:
        """Totals by the second over 10 s, 1 min and 10 min, or as much of it as there was."""
        at, last = self._seconds[-1]
        shown = []
        for span_s in RATE_SPANS_S:
            since, first = self._seconds[max(0, len(self._seconds) - 1 - span_s)]
            grown = sum(getattr(last, name) - getattr(first, name) for name in names)
            shown.append(str(grown * 1000 / (at - since) if at > since else 0.0))
        return " ".join(shown)

    def store_times_text(self) -> str:
        pairs = zip(TIME_BUCKETS, self.store_times, strict=True)
        return "".join(f"{name}:{count} " for (_, name), count in pairs)

    def store_time_below(self, share: float) -> float:
        """The bound in ms below which so large a share of the store times lies."""
        left = share * sum(self.store_times)
        for (bound, _), count in zip(TIME_BUCKETS, self.store_times, strict=True):
            left -= count
            if left <= 0:
                return float(min(bound, self.longest_store_ms))
        return float(self.longest_store_ms)

    def stored_per_second(self, topic: str, now_ms: int) -> float:
        return self._per_second(self._stored.get(topic), now_ms)

    def delivered_per_second(self, topic: str, group: str, now_ms: int) -> float:
        return self._per_second(self._delivered.get((topic, group)), now_ms)

    def _per_second(self, count: Count | None, now_ms: int) -> float:
        return 0.0 if count is None else count.over(MINUTE, now_ms - self._started_ms).per_second

    def windows(self, name: str, key: str, now_ms: int) -> tuple[Sum, Sum, Sum] | None:
        """Minute, hour and day of a count as Apache names it; None when there is no such count."""
        count = self._named(name, key)
        if count is None or not count.messages:  # the reference's begin with the first message
            return None
        since = now_ms - self._started_ms
        of_bytes, timed = name.endswith("_SIZE"), not name.startswith("BROKER")
        minute, hour, day = (count.over(span, since, of_bytes=of_bytes, timed=timed) for span in SPANS)
        return minute, hour, day

    def _named(self, name: str, key: str) -> Count | None:
        topic, _, group = key.rpartition("@")
        match name:
            case "TOPIC_PUT_NUMS" | "TOPIC_PUT_SIZE":
                return self._stored.get(key)
            case "GROUP_GET_NUMS" | "GROUP_GET_SIZE":
                return self._delivered.get((topic, group))
            case "SNDBCK_PUT_NUMS":
                return self._sent_back.get((topic, group))
        of_broker = {
            "BROKER_PUT_NUMS": self._all_stored,
            "BROKER_GET_NUMS": self._all_delivered,
            "BROKER_PUT_NUMS_WITHOUT_SYSTEM_TOPIC": self._own_stored,
            "BROKER_GET_NUMS_WITHOUT_SYSTEM_TOPIC": self._own_delivered,
        }
        return of_broker.get(name) if key == self._cluster else None


def _day(now_ms: int) -> tuple[int, int]:
    """The local day: totals of a day begin at midnight where the broker runs."""
    local = time.localtime(now_ms / 1000)
    return local.tm_year, local.tm_yday
