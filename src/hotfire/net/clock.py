"""Wall time as the running loop has it.

A loop with a method `now_ms` is its own source: it is turned by a test, or simulated, and its `time()` goes
along. All others have the system's clocks.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any


def now_ms() -> int:
    """Milliseconds since 1970; without a running loop, the system's."""
    own = getattr(asyncio._get_running_loop(), "now_ms", None)
    return _system_ms() if own is None else int(own())


def clocks_of(loop: Any) -> tuple[Callable[[], int], Callable[[], int]]:
    """The loop's wall clock and the clock that is never set, in ms: for those who ask too often to look."""
    own = getattr(loop, "now_ms", None)
    if own is None:  # a loop's time() may stand still for a whole pass, which would look like a clock set
        return _system_ms, _monotonic_ms
    return own, lambda: int(loop.time() * 1000)


def time_of(loop: asyncio.AbstractEventLoop) -> Callable[[], float]:
    """The loop's `time`, without the detour that asyncio's own takes to the system's clock.

    A clock that a test turns has taken its place on the loop before anyone who asks this is made.
    """
    is_asyncios_own = getattr(loop.time, "__func__", None) is asyncio.BaseEventLoop.time
    return time.monotonic if is_asyncios_own else loop.time


def _system_ms() -> int:
    return time.time_ns() // 1_000_000


def _monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000
