"""Many peers that do the same wrong thing are told of a few times a second, and counted beyond that.

Whoever can connect can make us write a line; a log that fills the disk would stop the broker that shares it.
"""

from __future__ import annotations

import logging

LINES_PER_S_MAX = 20


class AtMost(logging.Filter):
    """Lets some lines of each kind pass in a second; the first one later says how many did not."""

    def __init__(self, lines_max: int = LINES_PER_S_MAX) -> None:
        super().__init__()
        self._lines_max = lines_max
        self._kinds: dict[str, tuple[int, int]] = {}  # kind: second, lines in it; kinds are our own few texts

    def filter(self, record: logging.LogRecord) -> bool:
        kind, second = str(record.msg), int(record.created)
        since, lines = self._kinds.get(kind, (second, 0))
        if since != second:
            if lines > self._lines_max:
                record.msg = f"{kind} (and {lines - self._lines_max} more like it before)"
            since, lines = second, 0
        self._kinds[kind] = since, lines + 1
        return lines < self._lines_max
