"""When the machine did not run those who were to run: what no program on it can be blamed for.

One thread for each processor, bound to it, sleeps a little again and again; how late it wakes is how long its
processor ran nothing of ours. A test process that computes beside it is late by itself for some milliseconds,
and that counts as nothing.
"""

from __future__ import annotations

import os
import threading
import time
from types import TracebackType
from typing import Self

NAP_MS = 10.0
LATE_MS_MIN = 20.0
"""What threads of one Python process wait for each other is less."""
PROCESSORS_MAX = 8


def now_ms() -> float:
    return time.time_ns() / 1e6


class Stalls:
    """Those of a block's time."""

    def __init__(self) -> None:
        self.found: list[tuple[float, float]] = []
        self._over = threading.Event()
        processors = sorted(os.sched_getaffinity(0))[:PROCESSORS_MAX]
        self._threads = [threading.Thread(target=self._watch, args=(number,)) for number in processors]

    def _watch(self, processor: int) -> None:
        os.sched_setaffinity(0, {processor})  # of this thread alone
        asleep = now_ms()
        while not self._over.is_set():
            time.sleep(NAP_MS / 1e3)
            woke = now_ms()
            if woke - asleep - NAP_MS >= LATE_MS_MIN:
                self.found.append((asleep, woke))
            asleep = woke

    def within_ms(self, begin_ms: float, end_ms: float) -> float:
        """How much of this time some processor stood still."""
        stalled, at = 0.0, begin_ms
        for begin, end in sorted(self.found):
            begin, end = max(begin, at), min(end, end_ms)
            if end > begin:
                stalled, at = stalled + end - begin, end
        return stalled

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()
