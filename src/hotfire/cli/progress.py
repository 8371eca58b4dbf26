"""How far long work is, on stderr: bytes done, rate, time left. On a terminal one line, written over."""

from __future__ import annotations

import sys
import time

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


def size_text(size: int) -> str:
    """
    >>> size_text(1536), size_text(262144), size_text(3 << 30)
    ('1.5 KiB', '256 KiB', '3 GiB')
    """
    value, unit = float(size), "bytes"
    for unit in ("bytes", "KiB", "MiB", "GiB", "TiB"):
        if value < 1023.95 or unit == "TiB":  # 1024 of a unit is one of the next
            break
        value /= 1024
    return f"{value:.1f}".removesuffix(".0") + f" {unit}"


def duration_text(seconds: float) -> str:
    """
    >>> duration_text(5.2), duration_text(400), duration_text(8000)
    ('5 s', '6 min 40 s', '2 h 13 min')
    """
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
