"""A loop of our own on a thread of its own, for programs that have none: calls go in, results come out.

One per process, started by the first who needs it. It is a daemon thread: a program that forgets to close its
clients still ends. A fork leaves the thread behind, so a child gets a bridge of its own.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from functools import partial
from typing import Any, ClassVar, TypeVar

from hotfire.errors import NotRunning

T = TypeVar("T")


WAITS_FOR_ITSELF = (
    "the synchronous client was called from a coroutine on its own loop and would wait for itself for ever; "
    "use the asyncio one there"
)


class _LoopThread(threading.Thread):
    """A bridge's own."""


def check_thread() -> None:
    """NotRunning on a thread that runs a bridge's loop: who waits there may wait for that very loop."""
    if isinstance(threading.current_thread(), _LoopThread):
        raise NotRunning(WAITS_FOR_ITSELF)


class Bridge:
    """Runs coroutines on its loop for callers on other threads."""

    _lock: ClassVar[threading.Lock] = threading.Lock()
    _shared: ClassVar[Bridge | None] = None

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        """`loop` must not run yet; it is the bridge's from now on."""
        self._loop = asyncio.new_event_loop() if loop is None else loop
        self._pid = os.getpid()
        self._thread = _LoopThread(target=self._loop.run_forever, name="hotfire-client", daemon=True)
        self._thread.start()

    @classmethod
    def shared(cls) -> Bridge:
        with cls._lock:
            if cls._shared is None or cls._shared._pid != os.getpid():
                cls._shared = cls()
            return cls._shared

    def _check_caller(self) -> None:
        if os.getpid() != self._pid:
            raise NotRunning(
                f"this client was started in process {self._pid} and this is {os.getpid()}, forked from it: "
                "connections cannot be shared; make a new one here"
            )
        if threading.current_thread() is self._thread:
            raise NotRunning(WAITS_FOR_ITSELF)

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Begin `work`; its future may be waited for on any thread but the bridge's own."""
        try:
            self._check_caller()
        except NotRunning:
            work.close()
            raise
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def begin(
        self, start: Callable[[], asyncio.Future[T]], on_done: Callable[[Future[T]], object] | None = None
    ) -> Future[T]:
        """Have `start` begin something on the loop: what it raises is raised here, and what it began has the
        outcome. To cancel that is to cancel what began. `on_done` is called on the loop's thread, or by who
        cancels."""
        self._check_caller()
        begun: Future[None] = Future()
        outcome: Future[T] = Future()
        self._loop.call_soon_threadsafe(self._start, start, begun, outcome, on_done)
        try:
            begun.result()
        except BaseException:
            outcome.cancel()  # Ctrl-C while we waited: nobody will hear of it
            raise
        return outcome

    def _start(
        self,
        start: Callable[[], asyncio.Future[T]],
        begun: Future[None],
        outcome: Future[T],
        on_done: Callable[[Future[T]], object] | None,
    ) -> None:
        if outcome.cancelled():
            return
        try:
            work = start()
        except BaseException as error:  # noqa: BLE001  # it is raised where it was asked for
            begun.set_exception(error)
            return

        def given_up(outcome: Future[T]) -> None:
            if outcome.cancelled():
                self.soon(work.cancel)

        outcome.add_done_callback(given_up)
        if on_done is not None:  # before it can end: who adds it later may have to call it himself
            outcome.add_done_callback(on_done)
        work.add_done_callback(partial(_hand_over, outcome))
        begun.set_result(None)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """The outcome of `work`. Ctrl-C while waiting cancels it."""
        future = self.submit(work)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def call(self, function: Callable[..., T], *arguments: Any, **named: Any) -> T:
        """A plain function, on the loop: what it touches is the loop's alone."""

        async def once() -> T:
            return function(*arguments, **named)

        return self.run(once())

    def soon(self, function: Callable[..., object], *arguments: Any) -> None:
        """The same, not waited for."""
        self._loop.call_soon_threadsafe(function, *arguments)

    def close(self) -> None:
        """For a bridge of one's own; the shared one lives as long as the process."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def _hand_over(outcome: Future[T], work: asyncio.Future[T]) -> None:
    if work.cancelled():
        outcome.cancel()
    error = None if work.cancelled() else work.exception()
    if not outcome.set_running_or_notify_cancel():
        return
    if error is not None:
        outcome.set_exception(error)
    else:
        outcome.set_result(work.result())
