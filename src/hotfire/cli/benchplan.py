"""A measurement: what is asked for, where it happens, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from hotfire.cli.latencies import Latencies
from hotfire.figures import size_text
from hotfire.model import MessageQueue
from hotfire.protocol.codes import Serialization

DRAIN_S = 5.0
"""For answers, and for messages on their way to readers, after the last send."""


@dataclass(slots=True, frozen=True)
class Plan:
    """What is to be measured."""

    mode: Literal["send", "pull", "e2e"]
    namesrv: str
    topic: str
    connections: int
    window: int
    batch: int
    seconds: float
    warm_up_s: float
    count: int | None = None
    size: int = 0
    queues: int = 0
    rate: int | None = None
    groups: int = 0
    kind: Serialization = Serialization.JSON


@dataclass(slots=True)
class Target:
    """Where the queues are, and what is in them."""

    topic: str
    addresses: dict[str, str]
    writable: tuple[MessageQueue, ...]
    offsets: dict[MessageQueue, tuple[int, int]]


@dataclass(slots=True)
class Outcome:
    """What a run came to. Rates are those of the measured time; counts those of the whole run."""

    plan: Plan
    target: Target
    compiled: bool
    seconds: float = 0.0
    messages: int = 0
    """Within the measured time: acknowledged, or for pulls delivered."""
    arrived: int = 0
    """Within the measured time, at all groups of an end-to-end run."""
    acked: int = 0
    delivered: int = 0
    answers: Latencies = field(default_factory=lambda: Latencies(()))
    deliveries: Latencies = field(default_factory=lambda: Latencies(()))
    samples: list[tuple[float, float]] = field(default_factory=list)
    """Seconds since the start, and messages a second since the sample before."""
    codes: dict[int, int] = field(default_factory=dict)
    refusal: str = ""
    unanswered: int = 0
    lost_connections: int = 0
    missing: int = 0
    missed: int = 0
    repeated: int = 0
    is_interrupted: bool = False

    @property
    def per_second(self) -> float:
        return self.messages / self.seconds if self.seconds else 0.0

    @property
    def troubles(self) -> list[str]:
        """Why the figures are not to be trusted, if so."""
        refused = sum(count for code, count in self.codes.items() if code not in _FINE)
        counted = (
            (refused, f"answers were no success, such as: {self.refusal}"),
            (
                self.lost_connections,
                "connections were lost: the broker closed them, or sent what is no reply",
            ),
            (self.unanswered, "messages were not answered: they may be stored, or not"),
            (self.missing, f"messages did not arrive within {DRAIN_S:g} s of the last"),
            (self.missed, "messages were passed over in a queue"),
            (self.repeated, "messages came twice"),
        )
        return [f"{count} {what}" for count, what in counted if count]


_FINE = (0, 19, 20, 21)
"""Success; and of pulls: nothing there, try again, offset moved."""


def describe(outcome: Outcome) -> str:
    """What was measured, in one line."""
    plan, target = outcome.plan, outcome.target
    parts = [
        f"{plan.mode}: {outcome.messages} messages in {outcome.seconds:.1f} s",
        f"{plan.connections} connections × {plan.window}",
        *([f"bodies of {size_text(plan.size)}"] if plan.size else []),
        *([f"{plan.batch} a request"] if plan.batch > 1 else []),
        *([f"{plan.rate} a second asked for"] if plan.rate else []),
        *([f"{plan.groups} groups"] if plan.groups > 1 else []),
        f"{plan.topic}, {len(target.offsets)} queues on {', '.join(sorted(target.addresses))}",
        *(["broken off"] if outcome.is_interrupted else []),
    ]
    return ", ".join(parts)
