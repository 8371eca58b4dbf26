"""A thread that questions to a store are answered on, one after the other.

However many wait, they leave most of a processor, and of the interpreter's lock, to those who send: while
messages are stored, the thread rests between two questions for several times what the first has used of a
processor, and for a moment at least, since answers are work for the loop too. Time that a question spent
waiting for the disk counts for nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
REST_TIMES, REST_S_MIN, REST_S_MAX = 3, 0.004, 0.01


class Asker:
    """Started with its first question."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="hotfire-query")
        self._rest_until_s = 0.0

    def submit(self, work: Callable[[], T], *, rests: bool) -> Future[T]:
        return self._thread.submit(self._run, work, rests)

    def _run(self, work: Callable[[], T], rests: bool) -> T:
        rest_s = self._rest_until_s - time.monotonic()
        if rests and rest_s > 0:
            time.sleep(rest_s)
        began_s = time.thread_time()
        try:
            return work()
        finally:
            rest_s = REST_TIMES * (time.thread_time() - began_s)
            self._rest_until_s = time.monotonic() + max(REST_S_MIN, min(rest_s, REST_S_MAX))

    def shutdown(self, *, wait: bool) -> None:
        self._thread.shutdown(wait=wait)
