"""A child process whose output lines are events that can be awaited.

Owns starting, reading, signalling and reaping; what a line means is the caller's business.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
STOP_TIMEOUT_S = 20.0
LOG_TAIL_CHARS = 3000
POLL_INTERVAL_S = 0.02


class ProcessFailed(Exception):
    """A child ended, or did not do what was awaited in time; the message carries the end of its log."""


class LineProcess:
    """Runs `command`; standard output is collected line by line, standard error goes to `log`."""

    def __init__(self, command: Sequence[str], *, log: Path, env: Mapping[str, str] | None = None) -> None:
        self.log = log
        self.started_at = time.monotonic()
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as errors:
            self._child = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env={**os.environ, **(env or {})},
                cwd=log.parent,
            )
        self._lines: list[str] = []
        self._changed = threading.Condition()
        self._ended = False
        self._reader = threading.Thread(target=self._read, name=f"lines-of-{self.pid}", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def alive(self) -> bool:
        return self._child.poll() is None

    @property
    def returncode(self) -> int | None:
        return self._child.poll()

    def _read(self) -> None:
        assert self._child.stdout is not None
        with self._child.stdout as output:
            for raw in output:
                with self._changed:
                    self._lines.append(raw.decode(errors="replace").rstrip("\n"))
                    self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def lines(self) -> list[str]:
        """Everything written so far."""
        with self._changed:
            return list(self._lines)

    def wait_line(self, accept: Callable[[str], bool], *, what: str, timeout_s: float, after: int = 0) -> str:
        """The first line from number `after` on that is accepted."""
        deadline = time.monotonic() + timeout_s
        position = after
        while True:
            with self._changed:
                while position == len(self._lines) and not self._ended:
                    if not self._changed.wait(deadline - time.monotonic()):
                        raise ProcessFailed(
                            f"no {what} within {timeout_s} s from pid {self.pid}{self._story()}"
                        )
                fresh, ended = self._lines[position:], self._ended
            for line in fresh:
                if accept(line):
                    return line
            position += len(fresh)
            if ended and not fresh:
                raise ProcessFailed(f"pid {self.pid} ended without {what}{self._story()}")

    def _story(self) -> str:
        errors = self.log.read_text(errors="replace")[-LOG_TAIL_CHARS:] if self.log.exists() else ""
        return f"\nlast lines: {self._lines[-5:]}\n{self.log}: {errors}"

    def tell(self, line: str) -> None:
        assert self._child.stdin is not None
        self._child.stdin.write(line.encode() + b"\n")
        self._child.stdin.flush()

    def kill(self) -> None:
        """SIGKILL, then reap: the process gets no chance to say goodbye."""
        self.signal(signal.SIGKILL)
        self.wait(STOP_TIMEOUT_S)

    def terminate(self, timeout_s: float = STOP_TIMEOUT_S) -> int:
        """SIGTERM and the exit status; a process that ignores it is killed and reported."""
        self.signal(signal.SIGTERM)
        try:
            return self.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise ProcessFailed(f"pid {self.pid} ignored SIGTERM for {timeout_s} s{self._story()}") from None

    def end(self, timeout_s: float = STOP_TIMEOUT_S) -> int:
        """Nothing more to tell it: the exit status of a process that ends for that."""
        assert self._child.stdin is not None
        with suppress(BrokenPipeError):
            self._child.stdin.close()
        try:
            return self.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise ProcessFailed(
                f"pid {self.pid} goes on {timeout_s} s after its end{self._story()}"
            ) from None

    def signal(self, number: signal.Signals) -> None:
        if self.alive:
            self._child.send_signal(number)

    def wait(self, timeout_s: float) -> int:
        """The exit status; all output has been read when this returns."""
        status = self._child.wait(timeout_s)
        self._reader.join(timeout_s)
        if self._child.stdin is not None and not self._child.stdin.closed:
            self._child.stdin.close()
        return status


def poll_until(question: Callable[[], T | None], *, what: str, timeout_s: float) -> T:
    """Ask a server that sends no events until the answer is truthy. OSError counts as not yet."""
    deadline = time.monotonic() + timeout_s
    while True:
        answer: T | None = None
        try:
            answer = question()
        except OSError as error:
            last: object = error
        else:
            last = answer
        if answer:
            return answer
        if time.monotonic() > deadline:
            raise ProcessFailed(f"no {what} within {timeout_s} s; last answer: {last}")
        time.sleep(POLL_INTERVAL_S)


def queued_seconds(*pids: int) -> float:
    """How long the main threads of these processes were ready to run and others had the processor instead:
    time that passed because of this machine's other work, not because of theirs."""
    return sum(int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) for pid in pids) / 1e9
