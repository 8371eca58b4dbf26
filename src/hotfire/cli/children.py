"""Brokers as child processes of `hotfire up`: started, kept alive, stopped together.

A child that dies is started again at once, and one line says so; one that serves and dies again and again,
half a second later. One that cannot even start is given more and more time in between: what hinders it needs
a person. Its log lines pass through us, with its name in front; the last of them is the hint when it dies. A
child ends by itself when we are gone, because its standard input closes.

Knows processes and lines, nothing of what a broker does.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from hotfire.errors import ConfigError

log = logging.getLogger("hotfire.up")

READY = "hotfire ready "
STEADY_S = 10.0
"""Who lived this long had started well: its death is the first of a row."""
PAUSES_S = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0)
"""Before a child is started again, by how many deaths in a row it has had."""
SERVED_PAUSE_S_MAX = 0.5
"""Before one is that had been ready: people wait for it."""
STOP_TIMEOUT_S = 8.0
KILLED_WAIT_S = 2.0
LINE_BYTES_MAX = 64 << 10

Command = Callable[[str | None], Sequence[str]]
"""The command line of a child, given the address it had before."""


def pause_s(deaths: int, *, had_served: bool) -> float:
    """
    >>> [pause_s(deaths, had_served=False) for deaths in (1, 2, 3, 99)]
    [0.0, 1.0, 2.0, 30.0]
    >>> [pause_s(deaths, had_served=True) for deaths in (1, 2, 3, 99)]
    [0.0, 0.5, 0.5, 0.5]
    """
    pause = PAUSES_S[min(deaths, len(PAUSES_S)) - 1]
    return min(pause, SERVED_PAUSE_S_MAX) if had_served else pause


def ending(status: int) -> str:
    """
    >>> ending(1), ending(-9)
    ('ended with status 1', 'was killed by SIGKILL')
    """
    if status >= 0:
        return f"ended with status {status}"
    try:
        return f"was killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"was killed by signal {-status}"


@dataclass
class Child:
    """One process after another under one name."""

    name: str
    command: Command
    address: str | None = None
    """Where it serves; the same after every restart, so that clients find it again."""
    last_line: str = ""
    deaths: int = 0
    failures: int = 0
    """Starts in a row that came to nothing."""
    process: asyncio.subprocess.Process | None = None
    ready: asyncio.Event = field(default_factory=asyncio.Event)

    async def run_once(self) -> tuple[int, float | None]:
        """Start it and wait for its end: its status, and how long it had been ready, if ever."""
        loop = asyncio.get_running_loop()
        self.last_line = ""
        process = self.process = await asyncio.create_subprocess_exec(
            *self.command(self.address),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            limit=LINE_BYTES_MAX,
            start_new_session=True,  # Ctrl-C is for us: we stop the children in order
        )
        assert process.stdout is not None
        assert process.stderr is not None
        ready_at: list[float] = []

        def heard(line: str) -> None:
            if line.startswith(READY):
                words = dict(word.partition("=")[::2] for word in line.removeprefix(READY).split())
                self.address = words.get("broker")
                ready_at.append(loop.time())
                self.ready.set()

        await asyncio.gather(_lines(process.stdout, heard), _lines(process.stderr, self._pass_on))
        status = await process.wait()
        self.ready.clear()
        return status, loop.time() - ready_at[0] if ready_at else None

    def _pass_on(self, line: str) -> None:
        self.last_line = line
        sys.stderr.write(f"{self.name}| {line}\n")

    @property
    def hint(self) -> str:
        return f"its last line: {self.last_line}" if self.last_line else "it said nothing"


async def _lines(stream: asyncio.StreamReader, take: Callable[[str], None]) -> None:
    while True:
        try:
            line = await stream.readline()
        except ValueError:  # longer than any line of ours; what is left of it counts as the next
            continue
        if not line:
            return
        take(line.decode("utf-8", "replace").rstrip("\n"))


class Children:
    """Starts all, keeps all, stops all."""

    def __init__(self, children: Sequence[Child]) -> None:
        self.children = tuple(children)
        self._stopping = asyncio.Event()
        self._keepers: list[asyncio.Task[None]] = []

    async def start(self, timeout_s: float) -> None:
        """Start every child; if one cannot, the others are stopped and its last words are the error."""
        self._keepers = [asyncio.create_task(self._keep(child)) for child in self.children]
        for child, keeper in zip(self.children, self._keepers, strict=True):
            ready = asyncio.create_task(child.ready.wait())
            await asyncio.wait({ready, keeper}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            if ready.done():
                continue
            ready.cancel()
            problem = f"{child.name} did not start within {timeout_s:g} s; {child.hint}"
            if keeper.done() and (error := keeper.exception()) is not None:
                problem = str(error)
            await self.stop()
            raise ConfigError(problem)

    async def _keep(self, child: Child) -> None:
        has_been_ready = False
        while not self._stopping.is_set():
            status, steady_s = await child.run_once()
            if self._stopping.is_set():
                return
            has_been_ready = has_been_ready or child.address is not None
            if not has_been_ready:
                raise ConfigError(f"{child.name} could not start: it {ending(status)}; {child.hint}")
            had_served = steady_s is not None
            is_steady = (steady_s or 0.0) >= STEADY_S
            child.deaths = 1 if is_steady else child.deaths + 1
            child.failures = 0 if had_served else child.failures + 1
            pause = pause_s(child.deaths if had_served else child.failures + 1, had_served=had_served)
            when = f"in {pause:g} s" if pause else "at once"
            log.warning(
                "%s %s; starting it again %s (deaths in a row: %d); %s",
                child.name, ending(status), when, child.deaths, child.hint,
            )  # fmt: skip
            await asyncio.sleep(pause)

    async def stop(self) -> list[str]:
        """Ask all to end, and make those who do not; what went wrong, in words."""
        self._stopping.set()
        running = [child for child in self.children if _is_running(child)]
        for child in running:
            assert child.process is not None
            with suppress(ProcessLookupError):
                child.process.terminate()
        problems = await asyncio.gather(*(_end(child) for child in running))
        for keeper in self._keepers:
            keeper.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)
        return [problem for problem in problems if problem]


def _is_running(child: Child) -> bool:
    return child.process is not None and child.process.returncode is None


async def _end(child: Child) -> str | None:
    process = child.process
    assert process is not None
    try:
        status = await asyncio.wait_for(process.wait(), STOP_TIMEOUT_S)
    except TimeoutError:
        process.kill()
        with suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), KILLED_WAIT_S)
        return f"{child.name} did not end within {STOP_TIMEOUT_S:g} s and was killed; {child.hint}"
    return f"{child.name} {ending(status)}; {child.hint}" if status else None
