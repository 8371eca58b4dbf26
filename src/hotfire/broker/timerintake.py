"""Messages of the timer queue taken up into the wheel many at once, where nothing about them is in doubt.

The compiled core makes the units of the leading ones; `Timers` goes on with the first that it leaves, message
by message: one that deletes another, was put into the wheel before, or is due beyond the window. Without the
core all go that way.
"""

from __future__ import annotations

from dataclasses import dataclass

from hotfire import core
from hotfire.store.timerfiles import TimerFiles
from hotfire.store.timerwheel import Slot

COUNT_MAX = 1024
"""Messages read at once: below a millisecond of work."""


@dataclass(frozen=True, slots=True)
class Taken:
    """What was added to the files."""

    consumed: int
    """Bytes of the messages, which begin where they were read."""
    units: bytes
    seconds: frozenset[int]
    """Those the units are of."""
    topics: list[tuple[bytes, int]]
    """Real topics of the messages, and how many are of each."""
    position: int
    """The place in the queue behind the last."""
    record_end: int


def take_many(files: TimerFiles, data: bytes, *, now_ms: int, read_s: int, window_ms: int) -> Taken | None:
    """Add the leading messages to the files; None when the first is left."""
    wheel, log = files.wheel, files.log
    if not core.COMPILED:
        return None
    wheel.make()
    at = log.place()
    consumed, units, heads, topics, record_end, position = core.timer_units(
        data, wheel.mapped, now_ms, read_s, window_ms, at, log.file_bytes
    )
    if not units:
        return None
    files.add_made(at, units, [Slot(*head) for head in heads])
    return Taken(consumed, units, frozenset(head[0] for head in heads), topics, position, record_end)
