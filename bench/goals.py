"""What is to be reached, as one table: each line is a figure of a case, beside whom, and the bound.

`required` ones must hold; the others are aims. A line without a bound is reported, no more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Figure = Literal["rate", "cpu_us", "per_cpu_s", "p50_ms", "p99_ms"]
FIGURE_NAMES: dict[Figure, str] = {
    "rate": "rate", "cpu_us": "CPU per message", "per_cpu_s": "rows per CPU second", "p50_ms": "p50",
    "p99_ms": "p99",
}  # fmt: skip


@dataclass(frozen=True)
class Goal:
    """A ratio to `rival` (in `rival_case`, unless it is the same), or without a rival the figure itself."""

    case: str
    figure: Figure
    rival: str | None = "apache"
    rival_case: str | None = None
    at_least: float | None = None
    at_most: float | None = None
    required: bool = False


def _send_goals(flush: str) -> tuple[Goal, ...]:
    pipelined, single = f"send-128-8x64-{flush}", f"send-128-64x1-{flush}"
    return (
        Goal(pipelined, "cpu_us", at_most=0.2, required=True),
        Goal(pipelined, "rate", at_least=5.0),
        Goal(pipelined, "cpu_us", at_most=0.1),
        Goal(pipelined, "p99_ms", at_most=0.2),
        Goal(single, "rate", at_least=2.0),
        Goal(single, "cpu_us", at_most=0.25),
        *((Goal("send-128-1x1-sync", "p50_ms", at_most=0.5),) if flush == "sync" else ()),
        Goal(f"send-1024-8x64-{flush}", "rate", at_least=3.0),
        Goal(f"send-4096-8x64-{flush}", "rate", at_least=2.0),
        Goal(pipelined, "cpu_us", "floor", at_most=2.5),
        Goal(single, "cpu_us", "floor", at_most=2.5),
        Goal(f"batch-64-{flush}", "cpu_us", None, at_most=1.0),
    )


GOALS: tuple[Goal, ...] = (
    *_send_goals("sync"),
    *_send_goals("async"),
    Goal("send-128-8x64-sync", "rate", "apache", "send-128-8x64-async", at_least=3.0),
    Goal("send-128-8x64-sync", "rate", "redis", at_least=1.0),
    Goal("send-128-8x64-sync", "cpu_us", "redis", at_most=1.0),
    Goal("send-128-64x1-sync", "rate", "redis", at_least=1.0),
    Goal("send-128-64x1-sync", "cpu_us", "redis", at_most=1.0),
    Goal("pull-32", "cpu_us", at_most=0.5, required=True),
    Goal("pull-32", "rate", at_least=1.5),
    Goal("pull-32", "cpu_us", at_most=0.25),
    Goal("pull-1", "cpu_us", at_most=0.5, required=True),
    Goal("pull-1", "rate", at_least=3.0),
    Goal("pull-1", "cpu_us", at_most=0.2),
    Goal("tails-8", "rate"),
    Goal("tails-8", "p99_ms"),
    Goal("tails-8", "rate", "fresh"),
    Goal("tails-8-paced", "p99_ms"),
    Goal("tails-8-paced", "p99_ms", "fresh"),
    Goal("queues-10000", "rate"),
    Goal("queues-10000", "rate", "fresh", at_least=0.9),
    Goal("java-producer", "rate"),
    Goal("java-producer", "cpu_us"),
    Goal("backlog-send", "rate", "empty", at_least=0.9),
    Goal("backlog-tail", "p99_ms", "empty", at_most=1.1),
    Goal("backlog-drain", "rate", "newest", at_least=0.8),
    Goal("backlog-drain-cold", "rate", None),
    Goal("beside-queries", "p99_ms", "alone", at_most=1.5),
    Goal("beside-queries-normal", "p99_ms", "alone"),
    Goal("beside-drain", "p99_ms", "alone", at_most=2.0),
    Goal("beside-siege", "p99_ms", "alone", at_most=2.0),
    Goal("filters-raises", "p99_ms", "alone", at_most=2.0),
    Goal("filters-hangs", "p99_ms", "alone", at_most=2.0),
    Goal("filters-spins", "p99_ms", "alone", at_most=2.0),
    Goal("filters-eats", "p99_ms", "alone", at_most=2.0),
    Goal("transactions-sync", "rate", at_least=1.5),
    Goal("transactions-sync", "cpu_us", at_most=0.5),
    Goal("transactions-async", "rate", at_least=1.5),
    Goal("transactions-async", "cpu_us", at_most=0.5),
    Goal("sql92-pull", "rate", at_least=1.0),
    Goal("sql92-pull", "cpu_us", at_most=1.0),
    Goal("key-queries", "rate", at_least=1.0),
    Goal("key-queries", "cpu_us", at_most=1.0),
    Goal("timers-intake", "rate", at_least=1.0),
    Goal("timers-intake", "cpu_us", at_most=1.0),
    Goal("timers-intake", "p99_ms", None, at_most=100.0),
    Goal("timers-burst", "rate", at_least=1.0),
    Goal("timers-burst", "p99_ms", None),
    Goal("client-produce", "cpu_us", "grpc", at_most=0.1),
    Goal("client-produce", "cpu_us", "kafka", at_most=1.0),
    Goal("client-consume", "cpu_us", "grpc", at_most=0.1),
    Goal("client-consume", "cpu_us", "kafka", "client-iterate"),
    Goal("client-iterate", "cpu_us", "kafka", at_most=1.0),
    Goal("client-idle", "p50_ms", "java", at_most=0.7),
    Goal("client-idle", "p99_ms", "java", at_most=0.7),
    Goal("client-idle", "p50_ms", "java-here"),
    Goal("client-idle", "p99_ms", "java-here"),
    Goal("client-pipeline", "rate", "loadgen", at_least=0.5),
    Goal("spark-store", "per_cpu_s", "ceiling", at_least=0.6),
    Goal("spark-store", "per_cpu_s", "parquet"),
    Goal("spark-batch", "per_cpu_s", "kafka", at_least=1.0),
    Goal("spark-batch-all", "per_cpu_s", "kafka", "spark-batch"),
    Goal("spark-now", "per_cpu_s", "kafka", at_least=1.0),
    Goal("spark-sink", "per_cpu_s", "kafka", at_least=1.0),
    Goal("spark-trigger", "p50_ms", None, at_most=250.0),
    Goal("spark-trigger", "p50_ms", "rate"),
)
