"""Latencies as the generator of load counts them: in buckets as wide as 1/64 of what they hold."""

from __future__ import annotations

from array import array
from dataclasses import dataclass

PERCENTILES = (50.0, 90.0, 99.0, 99.9)


def bucket_ns(index: int) -> tuple[int, int]:
    """From and up to which latency a bucket counts.

    >>> bucket_ns(5), bucket_ns(127), bucket_ns(128), bucket_ns(954)
    ((5, 6), (127, 128), (128, 130), (999424, 1007616))
    """
    above = max(index // 64 - 1, 0)
    low = (index - above * 64) << above
    return low, low + (1 << above)


@dataclass(slots=True, frozen=True)
class Latencies:
    """How many took how long; times are in ms."""

    counts: tuple[tuple[int, int, int], ...]
    """From, up to (in ns), and how many; buckets without any are left out."""

    @classmethod
    def of(cls, raw: bytes) -> Latencies:
        numbers = array("Q", raw)
        return cls(tuple((*bucket_ns(at), count) for at, count in enumerate(numbers) if count))

    @property
    def count(self) -> int:
        return sum(count for _, _, count in self.counts)

    def percentile_ms(self, percent: float) -> float | None:
        """What so many percent took no longer than; None when nothing was counted."""
        wanted, seen = self.count * percent / 100, 0
        for _, high, count in self.counts:
            seen += count
            if seen >= wanted:
                return high / 1e6
        return None

    @property
    def mean_ms(self) -> float | None:
        total = sum((low + high) / 2 * count for low, high, count in self.counts)
        return total / self.count / 1e6 if self.count else None

    @property
    def max_ms(self) -> float | None:
        return self.counts[-1][1] / 1e6 if self.counts else None

    def figures(self) -> dict[str, float | int | None]:
        found: dict[str, float | int | None] = {"count": self.count, "mean": _rounded(self.mean_ms)}
        for percent in PERCENTILES:
            found[f"p{percent:g}"] = _rounded(self.percentile_ms(percent))
        return {**found, "max": _rounded(self.max_ms)}


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
