"""A clock that a test turns: an asyncio loop whose time runs as usual, and ahead when told to.

    clock = TurnedClock.of(asyncio.get_running_loop())
    await clock.turn(3600)       an hour has passed for all that lives in this loop

Owns the loop's `time()`, which timers go by, and its `now_ms()`, the wall clock of servers and clients that
run in it. A turn goes from timer to timer, and after each waits until nothing is left to do, so what happens
every ten seconds happens 360 times in an hour. Servers tick at least once a second of it. Threads, other
loops and other processes keep their own time; a turn does not wait for them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from hotfire.errors import ConfigError
from hotfire.net.server import Server

STEP_S_MAX = 1.0
QUIET_PASSES = 3
"""Passes of the loop in which nothing happened: what was written to a socket here has been read."""
RESTLESS_S_MAX = 1.0
"""Of real time. A loop that is never quiet, or a disk that is slow, does not stop the clock."""


class TurnedClock:
    """The clock of one loop. `of` makes it, or finds the one the loop has already.

    >>> async def test_an_hour_later() -> None:
    ...     loop = asyncio.get_running_loop()
    ...     begun_s = loop.time()
    ...     await TurnedClock.of(loop).turn(3600)
    ...     assert loop.time() >= begun_s + 3600
    """

    def __init__(self, loop: Any) -> None:
        """Not for callers: use `of`."""
        self._loop = loop
        self._real_s: Callable[[], float] = loop.time
        self._ahead_s = 0.0
        self._servers: list[Server] = []
        self._workers: list[Callable[[], bool]] = []
        loop.time = self._time_s
        loop.now_ms = self.now_ms

    @classmethod
    def of(cls, loop: asyncio.AbstractEventLoop) -> TurnedClock:
        """ConfigError for a loop that keeps its timers out of our reach."""
        own = getattr(loop, "now_ms", None)
        governor = getattr(own, "__self__", None)
        if isinstance(governor, TurnedClock):
            return governor
        if own is not None or not isinstance(loop, asyncio.BaseEventLoop) or not hasattr(loop, "_scheduled"):
            raise ConfigError(
                f"the time of a {type(loop).__module__}.{type(loop).__qualname__} cannot be turned: it has a "
                "clock of its own; run the test on asyncio's own loop (asyncio.SelectorEventLoop)"
            )
        return cls(loop)

    def now_ms(self) -> int:
        """Wall time in the loop."""
        return time.time_ns() // 1_000_000 + round(self._ahead_s * 1000)

    async def turn(self, seconds: float) -> None:
        """Let so much time pass, and all that falls due in it happen."""
        if seconds < 0:
            raise ValueError(f"clock turned by {seconds:g} s: time only goes forward")
        end_s = self._loop.time() + seconds
        await self.settle()
        while (left_s := end_s - self._loop.time()) > 0:
            self._ahead_s += max(0.0, min(left_s, self._next_due_s(), STEP_S_MAX))
            await self.settle()

    async def settle(self) -> None:
        """Wait until the loop has nothing to do at this time, nor the threads of its brokers."""
        real_s, quiet = self._real_s, 0
        until_s = real_s() + RESTLESS_S_MAX
        while quiet < QUIET_PASSES and real_s() < until_s:
            await asyncio.sleep(0)
            # Whoever was woken by this pass of the loop stands in line behind this task.
            is_quiet = not self._loop._ready and not any(is_working() for is_working in self._workers)
            quiet = quiet + 1 if is_quiet else 0

    # --- what it knows of the loop -----------------------------------------------------------------

    def watch(self, server: Server, is_working: Callable[[], bool] = lambda: False) -> None:
        """Its ticks are no timers to stop at; what its heart has due, is. It may have threads that work."""
        self._servers.append(server)
        self._workers.append(is_working)

    def unwatch(self, server: Server) -> None:
        at = self._servers.index(server)
        del self._servers[at], self._workers[at]

    def _next_due_s(self) -> float:
        """Seconds until something is to happen."""
        now_s, now_ms = self._loop.time(), self.now_ms()
        ticks = {id(server.ticker) for server in self._servers}
        timers = (handle for handle in self._loop._scheduled if not handle.cancelled())
        dues = [handle.when() - now_s for handle in timers if id(handle) not in ticks]
        dues += [
            (due_ms - now_ms) / 1000
            for server in self._servers
            if (due_ms := server.heart.due_ms()) is not None
        ]
        return min((due_s for due_s in dues if due_s > 0), default=STEP_S_MAX)

    def _time_s(self) -> float:
        return self._real_s() + self._ahead_s
