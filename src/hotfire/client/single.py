"""One piece of work per key at a time; who asks while it runs shares its outcome.

Keeps a crowd of callers from dialling one broker, or asking for one route, once each.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, Generic, TypeVar

from hotfire.errors import NotRunning

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class SingleFlight(Generic[Key, Value]):
    """Work goes on when one of those who share it gives up; `close` ends it."""

    def __init__(self) -> None:
        self._running: dict[Key, asyncio.Task[Value]] = {}

    async def do(self, key: Key, work: Callable[[], Coroutine[Any, Any, Value]]) -> Value:
        task = self._running.get(key)
        if task is None:
            task = self._running[key] = asyncio.create_task(work())
            task.add_done_callback(lambda done: self._finished(key, done))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            waiting = asyncio.current_task()
            if task.cancelled() and waiting is not None and not waiting.cancelling():
                raise NotRunning(f"the client was closed before it reached {key}") from None
            raise  # it is we who are to end

    def _finished(self, key: Key, task: asyncio.Task[Value]) -> None:
        if self._running.get(key) is task:
            del self._running[key]
        if not task.cancelled():
            task.exception()  # those who share it have it, or nobody is left to be told

    async def close(self) -> None:
        tasks = list(self._running.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
