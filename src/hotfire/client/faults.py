"""Brokers that were slow or failed, and for how long senders keep away from them.

    answered after   50 ms   100 ms   550 ms   1.8 s   3 s   5 s    15 s
    kept away from       -        -      2 s     5 s   6 s   10 s   30 s

A failure counts as 10 s. Off by default, as in Java's producer.
"""

from __future__ import annotations

from collections.abc import Callable

_CLASSES_S = ((15.0, 30.0), (5.0, 10.0), (3.0, 6.0), (1.8, 5.0), (0.55, 2.0))
FAILURE_COUNTS_AS_S = 10.0


class Faults:
    """Which brokers to keep away from. `clock` is the event loop's."""

    def __init__(self, *, enabled: bool, clock: Callable[[], float]) -> None:
        self.enabled = enabled
        self._clock = clock
        self._until: dict[str, float] = {}
        self._unreachable: set[str] = set()

    def answered(self, broker: str, took_s: float) -> None:
        self._note(broker, took_s, reachable=True)

    def failed(self, broker: str, *, reachable: bool) -> None:
        self._note(broker, FAILURE_COUNTS_AS_S, reachable=reachable)

    def _note(self, broker: str, took_s: float, *, reachable: bool) -> None:
        if not self.enabled:
            return
        away_s = next((away for latency, away in _CLASSES_S if took_s >= latency), 0.0)
        if away_s:
            self._until[broker] = max(self._until.get(broker, 0.0), self._clock() + away_s)
        if reachable:
            self._unreachable.discard(broker)
        else:
            self._unreachable.add(broker)

    def is_available(self, broker: str) -> bool:
        return self._clock() >= self._until.get(broker, 0.0)

    def is_reachable(self, broker: str) -> bool:
        return broker not in self._unreachable
