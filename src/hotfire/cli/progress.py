"""How far long work is, on stderr: bytes done, rate, time left. On a terminal one line, written over."""

from __future__ import annotations

import sys
import time

from hotfire.figures import duration_text, size_text

TERMINAL_EVERY_S = 0.2
LOG_EVERY_S = 5.0


class Progress:
    """Called with the position reached between `start` and `end`; shows it now and then."""

    def __init__(self, what: str, start: int, end: int) -> None:
        self._what, self._start, self._total = what, start, max(end - start, 0)
        self._is_terminal = sys.stderr.isatty()
        self._every = TERMINAL_EVERY_S if self._is_terminal else LOG_EVERY_S
        self._began = self._shown_at = time.monotonic()
        self._is_shown = self._is_quiet = False

    def be_quiet(self) -> None:
        self._is_quiet = True

    def __call__(self, position: int) -> None:
        now = time.monotonic()
        if self._is_quiet or now - self._shown_at < self._every:
            return
        self._shown_at = now
        line = self._line(position - self._start, now - self._began)
        if self._is_terminal:
            print(f"\r\x1b[K{line}", end="", file=sys.stderr, flush=True)
            self._is_shown = True
        else:
            print(line, file=sys.stderr, flush=True)

    def _line(self, done: int, elapsed_s: float) -> str:
        rate = done / elapsed_s if elapsed_s > 0 else 0.0
        left = f", {duration_text((self._total - done) / rate)} left" if rate and done < self._total else ""
        return f"{self._what}: {size_text(done)} of {size_text(self._total)}, {size_text(int(rate))}/s{left}"

    def clear(self) -> None:
        """Take the line off the terminal, so that other lines do not run into it."""
        if self._is_shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
            self._is_shown = False
