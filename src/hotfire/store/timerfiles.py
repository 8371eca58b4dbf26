"""The timers' files together: timer log, wheel and checkpoint, and how they are made to agree at a start.

All of it follows from the queue of the timer topic: what the checkpoint does not vouch for is taken up from
there again, and so is everything when the files are gone. In order:

    add     units into the timer log, then the heads of their chains into the wheel
    flush   beside the loop: timer log and wheel are synced, then the checkpoint is written and synced

so the checkpoint never says more than is on the disk. The wheel may say more: slots that lead behind the
checkpoint's position are brought back to it at the next start, or at the one after if that is killed too.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace

from hotfire.store.disk import Disk
from hotfire.store.timercheck import TimerCheck, TimerCheckFile
from hotfire.store.timerlog import DELETE, NONE, ROOT, UNIT_BYTES, TimerLog, Unit
from hotfire.store.timerwheel import FILE, Slot, TimerWheel

log = logging.getLogger("hotfire.store")


@dataclass(frozen=True, slots=True)
class Resumed:
    """Where to go on after a start."""

    check: TimerCheck
    last_unit: Unit | None = None
    """Of another's timer log: its message is the last that was taken up, whatever the checkpoint says."""
    is_lost: bool = False
    """The timer log does not reach as far as the checkpoint says: all messages are taken up again."""


class TimerFiles:
    """Where timer messages wait."""

    def __init__(self, disk: Disk, log_file_bytes: int) -> None:
        self._disk = disk
        self.log = TimerLog(disk, log_file_bytes)
        self.wheel = TimerWheel(disk)
        self._checks = TimerCheckFile(disk)
        self.check = TimerCheck()
        """As it was written last."""
        self._flushing: Future[None] | None = None
        self._owed: set[str] = set()

    # --- start ---

    def open(self, *, was_unclean: bool) -> Resumed:
        check = self._checks.read()
        reach = self.log.load()
        has_wheel = self.wheel.load()
        if check is None or not self._reaches(check.log_end, reach):
            lost = check is not None and check.log_end > 0
            if lost:
                log.warning("timer log is not what its checkpoint says, made anew from the queue of timers")
            self._forget()
            self.check = check or TimerCheck()
            return Resumed(self.check, is_lost=True)
        self.check = check
        if check.is_ours and has_wheel and not was_unclean:
            self.log.end = check.log_end
            return Resumed(check)
        if check.is_ours:
            end = check.log_end
            start = end if has_wheel else self.log.begin
        else:  # its log may be ahead of its checkpoint, and its wheel behind its log
            start = max(self.log.begin, self.log.file_of(max(0, check.log_end - self.log.file_bytes)))
            end = self.log.sound_end(start)
            start = start if has_wheel else self.log.begin
        self.log.cut(end)
        if reach:
            self._repair(start, end, check.read_ms // 1000)
        last = None if check.is_ours else self.log.unit_before(end)
        return Resumed(check, last, is_lost=not check.is_ours and not end)

    def _reaches(self, end: int, reach: int) -> bool:
        return end == 0 or (self.log.begin < end <= reach and self.log.unit_before(end) is not None)

    def _forget(self) -> None:
        self.wheel.remove()
        self.log.remove()

    def _repair(self, start: int, end: int, read_s: int) -> None:
        """Slots that lead to `end` or behind are made anew, and all units from `start` on are in theirs.

        A start may be killed too, and the next one asks the wheel which slots are wrong. So each goes from
        what it was to what it is to be at once; and a wheel that was gone is there when it is whole.
        """
        is_aside = not self.wheel.exists
        if is_aside:
            self.wheel.make_aside()
        heads: dict[int, Slot | None] = {}
        for slot in self.wheel.all():
            if slot.last >= end:
                heads[slot.time_s] = None
                if slot.time_s >= read_s:
                    start = min(start, max(slot.first, self.log.begin))
        start -= (start - self.log.file_of(start)) % UNIT_BYTES
        for at, unit in self.log.units(start, end):
            if unit.slot < read_s:
                continue
            head = heads[unit.slot] if unit.slot in heads else self.wheel.get(unit.slot)
            step = -1 if unit.magic & DELETE else 1
            if head is None:
                head = Slot(unit.slot, at, at, step)
            elif head.last < at:
                head = replace(head, last=at, count=head.count + step)
            else:
                continue
            if is_aside:
                self.wheel.put(head)
            else:
                heads[unit.slot] = head
        for time_s in [time_s for time_s, head in heads.items() if head is None]:
            self.wheel.clear(time_s)
        for head in sorted((head for head in heads.values() if head is not None), key=_last):
            self.wheel.put(head)
        if is_aside:
            self.wheel.put_in_place()

    def close(self) -> None:
        self.log.close()
        self.wheel.close()
        self._checks.close()

    # --- what is added ---

    def has_place(self, time_s: int, read_s: int) -> bool:
        """Whether the place of a second is its own, or of one that is over."""
        holder = self.wheel.holder(time_s)
        return holder is None or holder.time_s == time_s or holder.time_s < read_s

    def add(self, units: Sequence[Unit], *, behind: Slot | None = None) -> None:
        """Put units at the ends of their slots' chains; `previous` is given here. All, or an error.

        With `behind`, that is what is believed of its slot, whatever the wheel says.
        """
        self.wheel.make()
        heads = {} if behind is None else {behind.time_s: behind}
        runs: list[tuple[int, list[bytes]]] = []
        end = self.log.end
        for unit in units:
            at = self.log.place_behind(end)
            before = heads.get(unit.slot) or self.wheel.get(unit.slot)
            if not runs or at != end:
                runs.append((at, []))
            runs[-1][1].append(replace(unit, previous=NONE if before is None else before.last).encode())
            step = -1 if unit.magic & DELETE else 1
            if before is None:
                heads[unit.slot] = Slot(unit.slot, at, at, step)
            else:
                heads[unit.slot] = replace(before, last=at, count=before.count + step)
            end = at + UNIT_BYTES
        for at, data in runs:
            self.log.write(at, b"".join(data))
        for slot in heads.values():
            self.wheel.put(slot)

    def add_made(self, at: int, units: bytes, heads: Iterable[Slot]) -> None:
        """The same of units that were made for this place, one behind the other, and are chained already."""
        self.log.write(at, units)
        for slot in heads:
            self.wheel.put(slot)

    def leave_only(self, time_s: int, units: Sequence[Unit], mark: Unit | None) -> None:
        """Of a second's messages only these are left: for an orderly end, that nobody delivers others again.

        The slot still leads to its first unit: after a crash from there on all are found again. And it is not
        left empty, for the reference makes slots anew from all units of its log at each start.
        """
        before = self.wheel.get(time_s)
        if before is None:
            return
        left = units if mark is None else [*units, mark]
        if (
            left
        ):  # the old chain or the new one, and never none: a crash may keep what the wheel says meanwhile
            self.add(left, behind=Slot(time_s, before.first, NONE, 0 if mark is None else 1))
        else:
            self.wheel.clear(time_s)

    def mark(self, unit: Unit) -> None:
        """Add a unit that stands for no message that waits, and is not counted as one."""
        if not self.has_place(unit.slot, 0):
            return
        before = self.wheel.get(unit.slot) or Slot(unit.slot, self.log.place(), NONE, 0)
        self.add([unit], behind=replace(before, count=before.count + 1))

    # --- what is kept ---

    @property
    def is_flushing(self) -> bool:
        return self._flushing is not None and not self._flushing.done()

    def flush_beside(self, check: TimerCheck) -> None:
        """Sync what was added, then write `check`, on the disk's own thread."""
        self._flushing = self._disk.beside(self._flush_work(check))

    def flushed(self) -> BaseException | None:
        """What went wrong with the last flush, asked once."""
        done, self._flushing = self._flushing, None
        return None if done is None else done.exception()

    def flush(self, check: TimerCheck) -> None:
        """The same, waiting for the disk."""
        if self._flushing is not None:
            self._flushing.exception()
            self._flushing = None
        self._flush_work(check)()

    def _flush_work(self, check: TimerCheck) -> Callable[[], None]:
        self._owed |= self.log.take_dirty()
        owed = set(self._owed)
        has_wheel = self.wheel.exists

        def work() -> None:
            for path in sorted(owed):
                self._disk.sync_file(path)
            if owed:
                self._disk.sync_directory(ROOT)
            if has_wheel:
                self._disk.sync_file(FILE)
            self._checks.write(check)
            self.check = check
            self._owed -= owed

        return work

    def drop_below(self, physical: int) -> None:
        """Beside the loop: files of the timer log whose messages have all left."""
        self._disk.beside(lambda: self.log.drop_below(physical))


def _last(slot: Slot) -> int:
    return slot.last
