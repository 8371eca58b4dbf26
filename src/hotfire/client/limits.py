"""How many sends may be under way, and how many messages may go out in a second."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from hotfire.client.checks import check_callable, check_number
from hotfire.errors import ConfigError, RateLimited, TooManyInFlight
from hotfire.model import Message

IN_FLIGHT_MAX = 65_535
"""Sends that wait for their answers at once: the number of permits a Java client has."""

EARLY_S = 0.02
"""Sends that come together may go together, as many as fit in this time."""

OnLimit = Callable[[Message, float], "bool | None"]
"""Told of a message that must wait so many seconds. False drops it; raising refuses it; else it waits."""


class Permits:
    """Sends under way, counted. Use as a context manager around each."""

    def __init__(self, count_max: int = IN_FLIGHT_MAX) -> None:
        self.count_max = count_max
        self.used = 0

    def __enter__(self) -> None:
        if self.used >= self.count_max:
            raise TooManyInFlight(
                f"{self.used} sends wait for their answers, at most {self.count_max} may; wait for some"
            )
        self.used += 1

    def __exit__(self, *_: object) -> None:
        self.used -= 1


class RateLimit:
    """Spaces messages evenly. Every send has a time before which it may not begin: one step after the last,
    and where that was a batch, one for each of its messages."""

    def __init__(self, per_s: float | None, on_limit: OnLimit | None) -> None:
        check_number("max_rate", per_s, may_be_none=True)
        check_callable("on_limit", on_limit)
        if per_s is not None and per_s <= 0:
            raise ConfigError(f"max_rate is {per_s:g} a second; give more than 0, or None for no limit")
        self._step_s = 0.0 if per_s is None else 1.0 / per_s
        self._on_limit = on_limit
        self._next = 0.0

    def __bool__(self) -> bool:
        return self._step_s > 0

    async def wait(self, message: Message, deadline: float, count: int = 1) -> None:
        """Return when the message may go, or the batch of so many that it begins; RateLimited when it may
        not, or not before the deadline."""
        if not self:
            return
        loop = asyncio.get_running_loop()
        now = loop.time()
        begin = max(self._next, now)
        wait_s = begin - now - EARLY_S
        if wait_s > 0:
            if self._on_limit is not None and self._on_limit(message, wait_s) is False:
                raise RateLimited(
                    f"message to {message.topic}: dropped, {1 / self._step_s:g} a second are allowed"
                )
            if now + wait_s >= deadline:
                raise RateLimited(
                    f"message to {message.topic}: {1 / self._step_s:g} a second are allowed, its turn comes "
                    f"in {wait_s:.3g} s and it has {deadline - now:.3g} s"
                )
        self._next = begin + self._step_s * count
        if wait_s > 0:
            await asyncio.sleep(wait_s)
