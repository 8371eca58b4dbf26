"""Where a timer message waits: in its own slot, or in one before it, to be put into the wheel again there.

A slot is never so far ahead that the wheel comes round before it, nor that the message leaves the log: behind
the window both may be. Knows settings and records, no slots that are open.
"""

from __future__ import annotations

from hotfire.broker import timing
from hotfire.broker.config import BrokerConfig
from hotfire.protocol.record import Record, java_hash
from hotfire.store.timerlog import DELETE, NONE, ROLL, Unit
from hotfire.store.timerwheel import TimerWheel

HOUR_MS = 3_600_000
KEPT_MS_MIN = 20 * 60_000
"""Segments of the log are kept so long while messages wait in them, be fileReservedTime 0."""
LEAD_MS_MAX = 60_000
"""The clock may have been read so long before a message was stored: what the log is kept allows for more."""


class Window:
    """How far ahead slots are used."""

    def __init__(self, config: BrokerConfig, wheel: TimerWheel) -> None:
        self._config = config
        self._wheel = wheel

    @property
    def size_ms(self) -> int:
        kept_ms = max(self._config.file_reserved_time * HOUR_MS, KEPT_MS_MIN)
        slots = min(self._config.timer_roll_window_slot, self._wheel.slots // 2 - 60)
        return min(slots * 1000, kept_ms * 3 // 4)

    def is_far(self, ms: int) -> bool:
        """Whether so long after it was stored a message may have gone through the wheel more than once."""
        return ms >= self.far_ms

    @property
    def far_ms(self) -> int:
        return self.size_ms - 1000  # the second in which it was taken up counts from its beginning

    def unit(self, record: Record, due: int, named: dict[str, str], now_ms: int, read_s: int) -> Unit:
        """Its slot, one before if that is too far away, or the next to come."""
        # not from before it was stored: a start looks for what was rolled only where `is_far` says so
        now_ms = max(now_ms, min(record.store_timestamp, now_ms + LEAD_MS_MAX))
        written_ms = now_ms // 1000 * 1000
        time_ms, magic = due - 1, 1
        window_ms = self.size_ms
        if time_ms - written_ms >= window_ms:
            magic |= ROLL
            # not a short last stretch: enough time for it in any case
            near = time_ms - written_ms - window_ms < window_ms // 3
            step_ms = window_ms // 2000 * 1000 if near else window_ms
            time_ms = written_ms + step_ms + time_ms % 1000
        if timing.DELETES in named:
            magic |= DELETE
        if time_ms // 1000 < read_s:
            time_ms = read_s * 1000
        # the way between them is a word of 32 bits: 24 days, and a broker may have been away for longer
        written_ms = min(written_ms, time_ms // 1000 * 1000)
        real = java_hash(named["REAL_TOPIC"])
        return Unit(NONE, magic, written_ms, time_ms, record.physical_offset, record.size, real)
