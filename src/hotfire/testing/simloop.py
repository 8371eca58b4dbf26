"""An asyncio loop without sockets, threads or waiting: when nothing is left to do, it is later.

    loop = SimLoop()
    loop.run_until_complete(main())      an hour of sleeping takes as long as what happens in it

Time goes from timer to timer and stands still while anything is ready, so that a run depends on nothing but
what the program does: the same program with the same random numbers is the same run. Connections are those of
a `SimNetwork`. Each host of it may have its own wall clock; what runs on a host is what was started there.
"""

from __future__ import annotations

import asyncio
import contextvars
import select
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from hotfire.testing.simnet import SimListener, SimNetwork

START_MS = 1_800_000_000_000
RESOLUTION_S = 1e-7
"""More than what is lost to rounding in years."""


@dataclass(eq=False)
class SimHost:
    """A machine: its address, and how far its clock is off."""

    ip: str
    skew_ms: int = 0
    is_up: bool = True

    def __str__(self) -> str:
        return self.ip

    def context(self) -> contextvars.Context:
        """For what runs on this host: `loop.create_task(work, context=host.context())`."""
        context = contextvars.copy_context()
        context.run(_HOST.set, self)
        return context


NOWHERE = SimHost("127.0.0.1")
_HOST: contextvars.ContextVar[SimHost] = contextvars.ContextVar("simulated host", default=NOWHERE)


def current_host() -> SimHost:
    """The host of whatever runs now."""
    return _HOST.get()


class SimLoop(asyncio.BaseEventLoop):
    """Give it a network, then run what is to be simulated.

    >>> loop = SimLoop()
    >>> loop.run_until_complete(asyncio.sleep(3600))  # over at once
    >>> loop.time(), loop.close()
    (3600.0, None)
    """

    network: SimNetwork

    def __init__(self) -> None:
        super().__init__()
        self._now_s = 0.0
        self._clock_resolution = RESOLUTION_S
        self._selector = self
        self._poll = select.poll()
        self._readers: dict[int, asyncio.Handle] = {}
        self.failures: list[BaseException] = []
        """Exceptions nobody caught."""
        self.on_failure: Callable[[BaseException], bool] = lambda error: False
        """Is told of these first; True when it has seen to it."""
        self.set_exception_handler(lambda _, context: self._failed(context))

    # --- time --------------------------------------------------------------------------------------

    def time(self) -> float:
        return self._now_s

    def now_ms(self) -> int:
        """Wall time on the current host."""
        return START_MS + int(self._now_s * 1000) + current_host().skew_ms

    def local_address(self) -> str:
        return current_host().ip

    def select(self, timeout_s: float | None) -> list[asyncio.Handle]:
        """What BaseEventLoop asks when it would wait: ready descriptors, or else it is later now."""
        ready = [self._readers[fd] for fd, _ in self._poll.poll(0)] if self._readers else []
        if ready or timeout_s == 0:
            return ready
        if timeout_s is None:
            raise RuntimeError("nothing is left to happen: whoever waits will wait for ever")
        scheduled: list[asyncio.TimerHandle] = self._scheduled  # type: ignore[attr-defined]
        self._now_s = max(self._now_s, scheduled[0].when())
        return ready

    def _process_events(self, events: list[asyncio.Handle]) -> None:
        ready: Any = self._ready  # type: ignore[attr-defined]
        ready.extend(handle for handle in events if not handle.cancelled())

    def _write_to_self(self) -> None:
        """There is no other thread that could have put something into our hands."""

    def _failed(self, context: dict[str, Any]) -> None:
        error = context.get("exception") or RuntimeError(context["message"])
        if not self.on_failure(error):
            self.failures.append(error)

    # --- descriptors: eventfds, which this very thread rings ------------------------------------------

    def add_reader(  # type: ignore[override]
        self, fd: Any, callback: Callable[..., Any], *args: Any
    ) -> None:
        self._readers[fd] = asyncio.Handle(callback, args, self)
        self._poll.register(fd, select.POLLIN)

    def remove_reader(self, fd: Any) -> bool:
        if self._readers.pop(fd, None) is None:
            return False
        self._poll.unregister(fd)
        return True

    # --- the network ---------------------------------------------------------------------------------

    async def create_connection(  # type: ignore[override]
        self, protocol_factory: Callable[[], Any], host: str, port: int, **options: Any
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        return await self.network.connect(protocol_factory, host, port)

    async def create_server(  # type: ignore[override]
        self, protocol_factory: Callable[[], Any], *, sock: Any, backlog: int = 0, **options: Any
    ) -> SimListener:
        listener = cast("SimListener", sock)
        listener.serve(protocol_factory)
        return listener

    async def getaddrinfo(self, host: Any, port: Any, **options: Any) -> Any:
        options.pop("flags", None)
        return socket.getaddrinfo(host, port, flags=socket.AI_NUMERICHOST, **options)

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> Any:
        raise RuntimeError(f"a simulation has no threads for {func!r}")
