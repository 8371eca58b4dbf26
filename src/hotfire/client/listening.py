"""Calling an application's listener: what it may look like, what its result means, threads for plain ones.

A coroutine function is awaited in the loop; a plain function runs in one of a bounded number of threads. The
threads are daemons: one that never returns keeps neither `close()` nor the end of the process waiting.
"""

from __future__ import annotations

import asyncio
import enum
import inspect
import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from hotfire.errors import ConfigError
from hotfire.model import MessageQueue, ReceivedMessage

PARAMETERS_MAX = 2


class ConsumeResult(enum.Enum):
    """What a listener makes of a message. Returning None or True is DONE, raising is RETRY.

    >>> async def handle(message: ReceivedMessage) -> ConsumeResult:
    ...     return ConsumeResult.RETRY if message.body == b"not yet" else ConsumeResult.DONE
    """

    DONE = "done"
    RETRY = "retry"
    """Later again: by way of the group's retry topic, or in order: here, after a moment."""
    COMMIT = "commit"
    """In order, with `auto_commit` off: this and all before it since the last commit are done."""
    ROLLBACK = "rollback"
    """In order, with `auto_commit` off: all since the last commit come again."""


@dataclass(slots=True)
class ConsumeContext:
    """What a listener with a second parameter gets, and may change.

    >>> async def handle(message: ReceivedMessage, context: ConsumeContext) -> ConsumeResult:
    ...     context.delay_level = 3  # again in 10 seconds
    ...     return ConsumeResult.RETRY
    """

    queue: MessageQueue
    delay_level: int = 0
    """Of the next try: 1 to 18, 0 for the broker to choose, -1 for none: the dead letters at once."""
    done_count: int | None = None
    """So many messages from the front of the batch are done although the rest is not; None for all."""
    suspend_ms: int | None = None
    """In order: how long the queue rests before the next try."""
    auto_commit: bool = True


Listener = Callable[..., Any]


@dataclass(slots=True, frozen=True)
class Calling:
    """How a listener wants to be called."""

    function: Listener
    is_async: bool
    takes_context: bool
    takes_batch: bool

    def arguments(self, messages: Sequence[ReceivedMessage], context: ConsumeContext) -> tuple[Any, ...]:
        what = list(messages) if self.takes_batch else messages[0]
        return (what, context) if self.takes_context else (what,)


def calling(function: Listener, *, takes_batch: bool) -> Calling:
    """Look at a listener; ConfigError unless it takes messages and perhaps a context."""
    if not callable(function):
        raise ConfigError(
            f"listener {function!r:.80} cannot be called; give a function or a coroutine function"
        )
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        needed = 1
    else:
        positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        needed = sum(one.kind in positional and one.default is inspect.Parameter.empty for one in parameters)
        if not needed and any(one.kind is inspect.Parameter.VAR_POSITIONAL for one in parameters):
            needed = 1  # such as print
    if not 1 <= needed <= PARAMETERS_MAX:
        name = getattr(function, "__qualname__", repr(function))
        raise ConfigError(
            f"listener {name} needs {needed} arguments; it gets a message, and a context if it wants"
        )
    is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004  # an object with an async __call__ is one, too
    )
    return Calling(function, is_async, needed == PARAMETERS_MAX, takes_batch)


def meaning(result: object) -> ConsumeResult:
    """What a listener's return value stands for; TypeError for one that stands for nothing."""
    if result is None or result is True or result is ConsumeResult.DONE:
        return ConsumeResult.DONE
    if isinstance(result, ConsumeResult):
        return result
    if result is False:
        return ConsumeResult.RETRY
    if inspect.iscoroutine(result):
        result.close()
    raise TypeError(
        f"the listener returned {type(result).__name__}; None, True and ConsumeResult.DONE mean done, "
        "False and ConsumeResult.RETRY mean later again"
    )


class ListenerThread(threading.Thread):
    """Where plain listeners run: no loop is here, and nothing is awaited."""


class Threads:
    """At most so many threads, started when there is something to do, that run functions for the loop."""

    def __init__(self, count_max: int, name: str) -> None:
        self._count_max = count_max
        self._name = name
        self._jobs: queue.SimpleQueue[tuple[asyncio.Future[Any], Callable[[], Any]] | None] = (
            queue.SimpleQueue()
        )
        self._count = 0
        self._busy = 0
        self._loop = asyncio.get_running_loop()

    async def run(self, function: Callable[[], Any]) -> Any:
        """What the function returns or raises. Cancelled, we stop waiting; the function goes on."""
        done = self._loop.create_future()
        self._busy += 1
        if self._busy > self._count < self._count_max:
            self._count += 1
            ListenerThread(target=self._serve, name=f"{self._name}-{self._count}", daemon=True).start()
        self._jobs.put((done, function))
        return await done

    def close(self) -> None:
        """Idle threads end; busy ones when they are done."""
        for _ in range(self._count):
            self._jobs.put(None)

    def _serve(self) -> None:
        while (job := self._jobs.get()) is not None:
            done, function = job
            value: Any = None
            failure: BaseException | None = None
            try:
                value = function()
            except BaseException as error:  # noqa: BLE001  # handed to who awaits it
                failure = error
            try:
                self._loop.call_soon_threadsafe(self._finish, done, value, failure)
            except RuntimeError:  # the loop is closed: nobody waits any more
                return

    def _finish(self, done: asyncio.Future[Any], value: Any, failure: BaseException | None) -> None:
        self._busy -= 1
        if done.done():
            return
        if failure is None:
            done.set_result(value)
        else:
            done.set_exception(RuntimeError(repr(failure)) if isinstance(failure, StopIteration) else failure)
