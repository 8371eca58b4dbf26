"""Unique message ids: made once per message by its producer, or by the broker for a producer that made none.

    4 or 16  address of this machine
    2        process id
    4        any constant of this process
    4        milliseconds since the month began, local time
    2        counter

Written as upper-case hex. The clock is passed in.
"""

from __future__ import annotations

import struct
from datetime import datetime, timedelta

_FIXED = struct.Struct(">HI")
_MOVING = struct.Struct(">IH")


class UniqueIds:
    """The ids of one process."""

    def __init__(self, address: bytes, process_id: int, salt: int) -> None:
        self.prefix = (address + _FIXED.pack(process_id & 0xFFFF, salt & 0xFFFFFFFF)).hex().upper()
        self._counter = 0
        self._month_ms = self._next_month_ms = 0

    def next(self, now_ms: int) -> str:
        month_ms = self.month_ms(now_ms)
        self._counter = (self._counter + 1) & 0xFFFF
        return self.prefix + _MOVING.pack(now_ms - month_ms, self._counter).hex().upper()

    def month_ms(self, now_ms: int) -> int:
        """When this month began."""
        if not self._month_ms <= now_ms < self._next_month_ms:
            self._enter_month(now_ms)
        return self._month_ms

    def _enter_month(self, now_ms: int) -> None:
        now = datetime.fromtimestamp(now_ms / 1000).astimezone()
        first = now.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
        following = (first + timedelta(days=32)).replace(day=1)
        self._month_ms = int(first.timestamp() * 1000)
        self._next_month_ms = int(following.timestamp() * 1000)
