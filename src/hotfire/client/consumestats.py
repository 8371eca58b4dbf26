"""How fast and how well a consumer works, per topic: what Java's client tells administrators.

Counts only; rates come from samples of the counts, taken every few seconds for the last minute and once a
minute for the last hour.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

MINUTE_S = 60.0
HOUR_S = 3600.0


@dataclass(slots=True)
class TopicCounts:
    """Since the consumer started."""

    done: int = 0
    failed: int = 0
    calls: int = 0
    busy_s: float = 0.0
    pulls: int = 0
    pulled: int = 0
    pull_s: float = 0.0

    def minus(self, other: TopicCounts) -> TopicCounts:
        return TopicCounts(
            self.done - other.done,
            self.failed - other.failed,
            self.calls - other.calls,
            self.busy_s - other.busy_s,
            self.pulls - other.pulls,
            self.pulled - other.pulled,
            self.pull_s - other.pull_s,
        )


@dataclass(slots=True, frozen=True)
class TopicStatus:
    """Of the last minute; the failed ones of the last hour. Times are averages, in ms."""

    pull_ms: float = 0.0
    pull_tps: float = 0.0
    consume_ms: float = 0.0
    done_tps: float = 0.0
    failed_tps: float = 0.0
    failed_in_hour: int = 0


Sample = tuple[float, dict[str, TopicCounts]]


class ConsumeStats:
    """Counts by topic."""

    def __init__(self, now_s: float) -> None:
        self.topics: dict[str, TopicCounts] = {}
        self._minute: deque[Sample] = deque([(now_s, {})])
        self._hour: deque[Sample] = deque([(now_s, {})])

    def of(self, topic: str) -> TopicCounts:
        counts = self.topics.get(topic)
        if counts is None:
            counts = self.topics[topic] = TopicCounts()
        return counts

    def sample(self, now_s: float) -> None:
        """To be called every few seconds."""
        self._keep(self._minute, MINUTE_S, now_s)
        if now_s - self._hour[-1][0] >= MINUTE_S:
            self._keep(self._hour, HOUR_S, now_s)

    def _keep(self, samples: deque[Sample], span_s: float, now_s: float) -> None:
        zero = TopicCounts()
        samples.append((now_s, {topic: counts.minus(zero) for topic, counts in self.topics.items()}))
        while len(samples) > 1 and samples[1][0] <= now_s - span_s:
            samples.popleft()

    def status(self, topic: str, now_s: float) -> TopicStatus:
        then_s, before = self._minute[0]
        counts = self.of(topic)
        minute = counts.minus(before.get(topic, TopicCounts()))
        span_s = max(now_s - then_s, 1.0)
        return TopicStatus(
            pull_ms=1000 * minute.pull_s / minute.pulls if minute.pulls else 0.0,
            pull_tps=minute.pulled / span_s,
            consume_ms=1000 * minute.busy_s / minute.calls if minute.calls else 0.0,
            done_tps=minute.done / span_s,
            failed_tps=minute.failed / span_s,
            failed_in_hour=counts.failed - self._hour[0][1].get(topic, TopicCounts()).failed,
        )
