"""Ctrl-C and SIGTERM: the first asks a pipeline to end, the second ends it at once.

Until Spark has started there is nothing to end in order, so the first one ends it at once, too.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stop:
    """Which signal came, if one did. A plain field: a lock could be held by whom the handler interrupts."""

    def __init__(self, leave: Callable[[int], object] | None = None) -> None:
        """`leave` ends the process with a code, before Spark has started."""
        self._leave = leave or leave_at_once
        self.number: int | None = None
        self.is_at_once = False
        """Nothing is waited for: someone asked twice, or before Spark had started."""
        self._has_begun = False
        self._before: dict[int, Any] = {}

    @property
    def is_asked(self) -> bool:
        return self.number is not None

    @property
    def exit_code(self) -> int:
        """As a shell tells of who died of it."""
        assert self.number is not None, "nobody asked to stop"
        return 128 + self.number

    def begin(self) -> None:
        """Spark has started, and put a handler of its own in place: from now on a signal is noted first."""
        self._has_begun = True
        self.install()

    def install(self) -> None:
        for number in SIGNALS:
            before = signal.signal(number, self._handle)
            self._before.setdefault(number, before)

    def restore(self) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)
        self._before.clear()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._has_begun and self.number is None:
            self.number = number
            return
        self.number = number
        self.is_at_once = True
        if not self._has_begun:
            self._leave(self.exit_code)
        sys.exit(self.exit_code)


def leave_at_once(code: int) -> None:
    """Not by an exception: in what the signal interrupts, such as a hook of a fork, it may be passed over."""
    kill_children()
    os._exit(code)


def kill_children() -> None:
    """End what this process has started: Spark's own process ends with us once it runs, and not before."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, ValueError):  # it has ended meanwhile
            _, parent = path.read_text().rpartition(")")[2].split()[:2]
            if int(parent) == os.getpid():
                os.kill(int(path.parent.name), signal.SIGKILL)
