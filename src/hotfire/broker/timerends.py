"""What an orderly end leaves in the timers' files: nothing that was delivered, and a mark.

The reference takes up again what lies in the queue behind the message of the last unit of all. So the last is
a mark: it deletes, but its message, the last taken up, says nothing that is to be deleted.
"""

from __future__ import annotations

from collections.abc import Iterable

from hotfire.broker.timerslots import OpenSlot
from hotfire.core import Queue
from hotfire.model import TIMER_TOPIC
from hotfire.store.store import Store
from hotfire.store.timerfiles import TimerFiles
from hotfire.store.timerlog import DELETE, NONE, Unit


def last_taken_up(store: Store, queue: Queue, position: int) -> tuple[int, int] | None:
    """Where the last message taken up lies and its size; None when it has left."""
    index = position - 1
    if index < queue.min or store.tags_at(TIMER_TOPIC, 0, index) is None:
        return None
    entry = queue.entry(index)
    return None if entry is None else entry[:2]


def leave_the_rest(
    files: TimerFiles,
    slots: Iterable[OpenSlot],
    last: tuple[int, int] | None,
    *,
    now_ms: int,
    marked_s: int | None,
) -> None:
    """Seconds of which some was delivered keep the rest: who goes on here need not look for copies.

    `last` is the last message taken up; with `marked_s` its mark is wanted in any case.
    """
    written_ms = now_ms // 1000 * 1000

    def mark(time_s: int) -> Unit | None:
        return None if last is None else Unit(NONE, 1 | DELETE, written_ms, time_s * 1000, *last, 0)

    for slot in slots:
        if slot.has_dealt and not slot.is_loading:
            files.leave_only(slot.time_s, list(slot.units(written_ms)), mark(slot.time_s))
            marked_s = None
    if marked_s is not None and (unit := mark(marked_s)) is not None:
        files.mark(unit)
