"""Messages with a time of their own: taken up from their queue into the wheel, delivered when they are due.

Each is parked in the topic rmq_sys_wheel_timer, of one queue, its real topic and queue among its properties.
Two positions move, and `config/timercheck` keeps both:

    position  in that queue: messages below it have a unit in the timer log, in the chain of their slot
    read      in time: the first second of which something is not delivered, or not yet surely on the disk

A slot is open from two seconds before its time: what is due in it is at hand (`timerslots`), and goes to
its real topic at its millisecond (`timerdelivery`). All other messages are in files alone. Never early: the
time is held against the clock once more when the copy is made. After a start, what may have been copied
before is looked up by its unique key.

What lasts, step by step, and what a crash behind it leaves (DURABLE_STEPS names where tests cut):

    park        the record in the timer queue            taken up at the next start
    log, wheel  the unit and its slot                    made anew from the queue, behind the checkpoint
    roll        the record parked anew                   found by its key, and not made again
    re-put      the copy in the real topic               found by its key, and not made again
    checkpoint  position and read                        nothing to do
    shift       by how much the clock was set            unless it lasts, delays end as if it had not been

A delay counts from when the message was sent, a time of day by the clock: when the clock is set forward,
delays move along; set back, they may come late by as much.

A plain function of now: `tick` says what time it is, and is wanted again at `due_ms`. Steps are bounded.
"""

from __future__ import annotations

import logging
import os
from concurrent.futures import Future
from dataclasses import replace

from hotfire.broker import timerslots, timing
from hotfire.broker.call import Task
from hotfire.broker.config import BrokerConfig
from hotfire.broker.timerdelivery import Delivery
from hotfire.broker.timerends import last_taken_up, leave_the_rest
from hotfire.broker.timerintake import COUNT_MAX, Taken, take_many
from hotfire.broker.timerkeeping import Keeping
from hotfire.broker.timermetrics import TimerMetrics
from hotfire.broker.timerrecalls import Recalls
from hotfire.broker.timershifts import Shifts
from hotfire.broker.timerslots import Loaded, OpenSlot
from hotfire.broker.timerwindow import KEPT_MS_MIN, Window
from hotfire.errors import BrokerRefused
from hotfire.model import TIMER_TOPIC
from hotfire.protocol.codes import ResponseCode
from hotfire.protocol.record import Record, decode_record, iter_records, parse_properties
from hotfire.store.disk import SyncFailed
from hotfire.store.queries import Looker
from hotfire.store.reading import Read, ReadStatus
from hotfire.store.store import Store
from hotfire.store.timerfiles import TimerFiles
from hotfire.store.timerlog import DELETE, ROLL, Unit, units_in

log = logging.getLogger("hotfire.broker")

DURABLE_STEPS = {
    "park": "the record in the queue of the timer topic",
    "log": "its unit in the timer log",
    "wheel": "its slot in the wheel",
    "roll": "the record parked anew, in the same queue",
    "re-put": "the copy in the real topic",
    "checkpoint": "config/timercheck",
    "shift": "config/timerShifts.json",
}
STEP_COUNT_MAX = 64
STEP_BYTES_MAX = 1 << 20
"""Messages and bytes taken up in one step, one by one: some 2 ms."""
DELIVERED_MAX = 48
"""Messages delivered in one step, one by one: some 3 ms."""
AHEAD_MS = 2000
"""Slots are opened so long before their time: a chain may have to come from the disk, and its messages."""
OPEN_MAX = 64
"""Slots open at once when many are behind."""
EMPTY_PASSED_MAX, RUNS_PASSED_MAX = 20_000, 40
"""Empty slots, and runs of them, passed over in one step after a long rest: some 2 ms."""
BEHIND_MS, RETRY_MS, DROP_PERIOD_MS = 5, 100, 30_000
BEHIND_S = 60
"""Delivery is behind: nothing leaves the log because of its age."""
FOR_EVER_MS = 1 << 62
MARGIN_S = 2
"""Slots before the first that is not delivered, whose messages are looked up all the same."""


class Timers:
    """The wheel of one store, and what is on its way through it."""

    def __init__(self, store: Store, config: BrokerConfig, metrics: TimerMetrics) -> None:
        self._store = store
        self.config = config
        self.metrics = metrics
        self.files = TimerFiles(store.queries.disk, config.mapped_file_size_timer_log)
        self.queue = store.queue(TIMER_TOPIC, 0)
        self.delivery = Delivery(store, self)
        self.window = Window(config, self.files.wheel)
        self._keeping = Keeping(store, self.files)
        self.recalls = Recalls()
        self.shifts = Shifts(store.table("timerShifts.json"))
        self.position = 0
        self.read_s = 0
        self.open: dict[int, OpenSlot] = {}
        self._opened_s = 0
        """Slots from `read_s` up to this one are open."""
        self._mark = 0, 0
        """A second, and the end of the queue when it was noted: what came later is due then or later."""
        self._taken_up_s = 0
        """No message is still to be taken up that is due in a second before this one."""
        self._anew: tuple[int, int] = 0, 0
        """The files were gone: messages below a position due before a second were delivered."""
        self._unknown_below = 0
        """Messages up to this position were there at the start: recalls may be among them."""
        self._is_held = False
        """The wheel has not come round to take up the next message."""
        self._is_unordered = False
        """The last unit was put off, and is not of the message taken up last."""
        self.now_ms = self._flushed_ms = self._dropped_ms = self._retry_ms = 0
        self._record_end, self._count_max = 0, STEP_COUNT_MAX
        self._reading: Read | None = None
        self._complaint = ""

    # --- start and end ---

    def load(self, now_ms: int) -> None:
        self.now_ms = self._flushed_ms = self._dropped_ms = now_ms
        store = self._store
        resumed = self.files.open(was_unclean=store.was_unclean)
        check = resumed.check
        self.position = min(check.queue_offset, check.master_offset)
        last = resumed.last_unit
        if last is not None:
            data = store.queries.record_now(last.physical)
            self.position = 0 if data is None else min(self.position, decode_record(data).queue_offset + 1)
        if resumed.is_lost:
            self._anew = self.position, check.read_ms // 1000 - MARGIN_S
            self.position = 0
        self.position = min(max(self.position, self.queue.min), self.queue.max)
        self.read_s = check.read_ms // 1000 or now_ms // 1000
        # a clock that was set back must not make new messages wait for the old time
        self.read_s = min(self.read_s, now_ms // 1000)
        self._opened_s = self.read_s - 1
        self._mark = self.read_s, self.position
        self._taken_up_s = self.read_s
        self._unknown_below = self.queue.max
        self.shifts.load(self.queue.min, self.queue.max)
        self.delivery.start()
        self._spare()
        self.metrics.load(now_ms)

    def close(self) -> None:
        """The store is closed: what was taken up stays as it is."""
        self.files.close()

    def save(self, now_ms: int) -> None:
        """Write how far delivery is. Call it when all that was appended is on the disk."""
        self.now_ms = max(now_ms, self.now_ms)
        self._settle()
        if self.is_used:
            self.delivery.stop()
            marked_s = self.read_s if self._is_unordered else None
            slots, last = self.open.values(), last_taken_up(self._store, self.queue, self.position)
            leave_the_rest(self.files, slots, last, now_ms=self.now_ms, marked_s=marked_s)
            self._keeping.note(self.position, self._record_end, self.read_s)
            self.files.flush(self._keeping.check(self.now_ms))
        self.metrics.save(now_ms)
        self.shifts.save()
        self.close()

    @property
    def is_used(self) -> bool:
        """Whether there ever was a message with a time."""
        return self.files.wheel.exists or self.queue.max > 0

    # --- time ---

    def tick(self, now_ms: int) -> None:
        self.now_ms = now_ms
        self.advance()
        if not self.is_used:
            return
        self._spare()
        self.shifts.save_beside()
        if now_ms - self._flushed_ms >= self.config.timer_flush_interval_ms:
            self._flush_beside(now_ms)
        if now_ms - self._dropped_ms >= DROP_PERIOD_MS:
            self._dropped_ms = now_ms
            self.files.drop_below(self._store.min_offset)
            self.shifts.drop_below(self.queue.min)

    def _spare(self) -> None:
        """Have what waits stay in the log: as long as it may wait for its slot, or until we are there."""
        if self.is_used and not self.config.is_slave:  # a slave's rest: nothing would ever end it
            is_behind = self.read_s < self.now_ms // 1000 - BEHIND_S or self.position < self._unknown_below
            self._store.retention.spared_ms = FOR_EVER_MS if is_behind else KEPT_MS_MIN

    def due_ms(self) -> int | None:
        """When the next tick is wanted at the latest; None when nothing is parked."""
        if not self.is_used:
            return None
        soonest = max(self._retry_ms, self.now_ms + BEHIND_MS)
        if (self.position < self.queue.max and self._reading is None) or self.delivery.is_ready:
            return soonest
        due = [(self._opened_s + 1) * 1000 - AHEAD_MS]
        if not self.delivery.is_busy:
            due += [at for slot in self.open.values() if (at := slot.due_ms()) is not None]
        return max(min(due), soonest)

    def clock_moved(self, by_ms: int) -> None:
        """The clock was set. Delays of what is parked move along when it was set forward."""
        self.now_ms += by_ms
        self._flushed_ms += by_ms
        self._dropped_ms += by_ms
        self._retry_ms += by_ms
        self.delivery.clock_moved(by_ms)
        if by_ms > 0:
            self.shifts.add(self.queue.next, by_ms)
            if self.is_used:
                self.shifts.save_beside()
        elif self.is_used and self.read_s > self.now_ms // 1000:
            self.read_s = self._taken_up_s = self.now_ms // 1000
            self._opened_s = self.read_s - 1
            self._mark = self.read_s, self.queue.next

    def advance(self) -> None:
        """One step: take up some messages, open slots whose time comes, deliver some that are due."""
        if not self.is_used:
            self.read_s = self._taken_up_s = self.now_ms // 1000
            self._opened_s = self.read_s - 1
            return
        taken_up = self._take_up() if self._retry_ms <= self.now_ms else 0
        self._note_mark()
        self._open_slots()
        if self.position >= self._unknown_below or self._is_held:  # every recall is known by now
            self.delivery.step(DELIVERED_MAX // 3 if taken_up > STEP_COUNT_MAX // 4 else DELIVERED_MAX)
        self._settle()

    # --- what is put ---

    def check_room(self, due: int, named: dict[str, str]) -> None:
        """Refuse a message when too many are due in the same second, or to be taken back."""
        if timing.DELETES in named:
            self.recalls.check_room()
        most, slot = self.config.timer_congest_num_each_slot, self.files.wheel.get((due - 1) // 1000)
        if slot is not None and slot.count >= most:
            raise BrokerRefused(
                ResponseCode.SYSTEM_ERROR,
                f"timer message is under flow control, max num limit is {most}: {slot.count} are due in the "
                "same second, choose another or try again later",
            )

    def parked(self, named: dict[str, str], due: int, queue_offset: int) -> None:
        """A message was parked. One that deletes another does so from now on, wherever that is."""
        if timing.DELETES in named:
            self.recalls.add((due - 1) // 1000, named[timing.DELETES], queue_offset)

    # --- taking up ---

    def _note_mark(self) -> None:
        second, position = self._mark
        if self.position >= position:
            self._taken_up_s = max(self._taken_up_s, second)
            self._mark = self.now_ms // 1000, self.queue.next

    def _take_up(self) -> int:
        """Take up a step's messages from the queue into the wheel; how many one by one."""
        if self.position >= self.queue.max or self._reading is not None:
            return 0
        if self.position < self.queue.min:
            log.error(
                "timer messages have left the log before they were taken up from=%d to=%d",
                self.position, self.queue.min,
            )  # fmt: skip
            self.position = self.queue.min
        found = self._store.read(
            TIMER_TOPIC, 0, self.position, count_max=self._count_max, bytes_max=STEP_BYTES_MAX, bulk=True
        )
        if found.status is not ReadStatus.FOUND:
            self._pass_over(found)
            return 1
        if found.data is None:
            self._reading = found
            self._store.fetch_beside(found, (TIMER_TOPIC, 0), self)
            return 0
        return self._take_in(found)

    def fetched(self, error: int) -> None:
        """Messages of the queue came from the disk, or an error number."""
        found, self._reading = self._reading, None
        assert found is not None
        if error:
            log.error("timer messages not read reason=%s", os.strerror(error))
            self._retry_ms = self.now_ms + RETRY_MS
        elif found.status is ReadStatus.FOUND:
            self._take_in(found)
        else:
            self._pass_over(found)

    def _pass_over(self, found: Read) -> None:
        """Nothing sound there; the store has said so."""
        if found.next_offset > self.position:
            self.position = found.next_offset
        else:
            self._retry_ms = self.now_ms + RETRY_MS

    def _take_in(self, found: Read) -> int:
        """Many at once, and behind those some one by one; how many of these."""
        assert found.data is not None
        at = 0
        try:
            if self.position >= self._anew[0] and (taken := self._take_many(found.data)):
                at = taken.consumed
            behind = None if at == len(found.data) else self._take_some(found.data, at)
        except OSError as error:
            self._complain(f"timer messages wait to be taken up: {error}")
            self._retry_ms = self.now_ms + RETRY_MS
            return 0
        self._complaint = ""
        self._count_max = STEP_COUNT_MAX if at < len(found.data) else COUNT_MAX
        one_by_one, self.position = self.position, found.next_offset if behind is None else behind
        self.recalls.taken_up(self.position)
        return self.position - one_by_one

    def _take_many(self, data: bytes) -> Taken | None:
        taken = take_many(
            self.files, data, now_ms=self.now_ms, read_s=self.read_s, window_ms=self.window.size_ms
        )
        if taken is None:
            return None
        self._is_unordered = self._is_held = False
        if not self.open.keys().isdisjoint(taken.seconds):
            for unit in units_in(taken.units):
                self._show(unit, "")
        for topic, count in taken.topics:
            self.metrics.count(topic.decode(), count, self.now_ms)
        self.position, self._record_end = taken.position, taken.record_end
        return taken

    def _take_some(self, data: bytes, at: int) -> int | None:
        """The next place of the queue, or None when these were all."""
        units: list[tuple[Unit, dict[str, str]]] = []
        behind, is_held, end = None, False, self._record_end
        for count, record in enumerate(iter_records(data, at, check_crc=False)):
            if count == STEP_COUNT_MAX:
                behind = record.queue_offset
                break
            named = parse_properties(record.properties)
            due = self._due_ms(record, named)
            if due is not None:
                unit = self.window.unit(record, due, named, self.now_ms, self.read_s)
                if not self.files.has_place(unit.slot, self.read_s):
                    behind, is_held = record.queue_offset, True  # its place is still another's
                    break
                units.append((unit, named))
            end = record.physical_offset + record.size
        if units:
            self.files.add([unit for unit, _ in units])
            self._is_unordered = False
        for unit, named in units:
            self._show(unit, named.get(timing.DELETES, ""))
            self.metrics.count(named["REAL_TOPIC"], -1 if unit.magic & DELETE else 1, self.now_ms)
        self._is_held, self._record_end = is_held, end
        if is_held:
            self._retry_ms = self.now_ms + RETRY_MS
        return behind

    def _due_ms(self, record: Record, named: dict[str, str]) -> int | None:
        """When a message of the queue is due; None when it never is, or was delivered."""
        due = timing.parked_due_ms(named, record.store_timestamp)
        if due is None or "REAL_TOPIC" not in named:
            log.error(
                "message in the timer queue has no time or no topic, not delivered offset=%d log_offset=%d",
                record.queue_offset, record.physical_offset,
            )  # fmt: skip
            return None
        (below, before_s), over = self._anew, due + self.delivery.shift_ms(record, named)
        if record.queue_offset < below and (over - 1) // 1000 < before_s:
            return None  # delivered before the files were lost
        return due

    def _show(self, unit: Unit, deletes: str) -> None:
        """What was added to the files is added to the open slot, if it is of one."""
        slot = self.open.get(unit.slot)
        if slot is None:
            return
        slot.shown_end = self.files.log.end
        if unit.magic & DELETE and not unit.magic & ROLL:
            slot.deleted.add(deletes)
            slot.deleting.append((unit.physical, unit.size))
            slot.has_held = True
        else:
            slot.add(unit.time_ms % 1000, (unit.physical, -unit.size if unit.magic & ROLL else unit.size))

    def put_off(self, slot: OpenSlot, record: Record, due: int, named: dict[str, str]) -> None:
        """A message whose time was moved is put into a later slot; OSError when that cannot be."""
        unit = self.window.unit(record, due, named, self.now_ms, self.read_s)
        while not self.files.has_place(unit.slot, self.read_s):  # it is put off once more from an earlier one
            if unit.slot <= self._opened_s:
                raise BlockingIOError(f"no slot is free before {unit.slot}")
            unit = replace(unit, magic=1, time_ms=unit.slot * 1000 - 1)
        target = self.open.get(unit.slot)
        if target is None or not target.holds(unit.physical):  # it may have been put off before a crash
            self.files.add([unit])
            self._is_unordered = True
            self._show(unit, named.get(timing.DELETES, ""))
        slot.units_end = self.files.log.end

    # --- slots ---

    def _open_slots(self) -> None:
        """Open the slots whose time is near; empty ones that are over are passed over."""
        wheel, near_s = self.files.wheel, (self.now_ms + AHEAD_MS) // 1000
        if not self.open:
            last_s = min(self._over_s(), self.read_s + EMPTY_PASSED_MAX)
            for _ in range(RUNS_PASSED_MAX):
                self.read_s += wheel.empty_run(self.read_s, max(0, last_s - self.read_s))
                if self.read_s >= last_s or wheel.get(self.read_s) is not None:
                    break
                self.read_s += 1
            self._opened_s = self.read_s - 1
        while self._opened_s < near_s and len(self.open) < OPEN_MAX:
            self._opened_s += 1
            if self._opened_s not in self.open:
                self._open(self._opened_s)
        if self._opened_s < near_s:  # those that are open wait for the log to be synced
            self._store.hurry()

    def _open(self, time_s: int) -> None:
        slot = self.open[time_s] = OpenSlot(time_s, shown_end=self.files.log.end)
        head = self.files.wheel.get(time_s)
        if head is None:
            return
        slot.is_loading = slot.has_held = True
        chain = self.files.log.chain

        def work(look: Looker) -> tuple[Loaded, list[str]]:
            loaded = timerslots.load(chain(time_s, head.last))
            deleted = []
            for physical, _ in loaded.deleting:
                data = look.record(physical)
                if data is not None:
                    named = parse_properties(decode_record(data, check_crc=False).properties)
                    deleted += [named[timing.DELETES]] if timing.DELETES in named else []
            return loaded, deleted

        self._store.queries.look(work, Task(lambda done: self._loaded(slot, done)), own=True)

    def _loaded(self, slot: OpenSlot, done: Future[tuple[Loaded, list[str]]]) -> None:
        failure = done.exception()
        if failure is not None:
            self._complain(f"slot {slot.time_s} of the timer log not read, tried again: {failure}")
            if self.open.get(slot.time_s) is slot:
                del self.open[slot.time_s]
                self._opened_s = min(self._opened_s, slot.time_s - 1)
            return
        slot.take_in(*done.result())
        self.delivery.warm(slot)

    def _over_s(self) -> int:
        """Seconds before this are over; while a message waits for its place, whoever holds that must go."""
        return self.now_ms // 1000 if self._is_held else min(self._taken_up_s, self.now_ms // 1000)

    def _settle(self) -> None:
        """Seconds that are over, all of whose copies are safe, are done with."""
        safe, sure = self._store.flushed_end, self.files.check.log_end
        while self.read_s < self._over_s():
            slot = self.open.get(self.read_s)
            if slot is None or not slot.is_done(safe, sure):
                break
            del self.open[self.read_s]
            if slot.has_held:
                self._keeping.has_progress = True
                self.files.wheel.clear(self.read_s)
            self.read_s += 1

    # --- what is kept ---

    def _flush_beside(self, now_ms: int) -> None:
        if self.files.is_flushing:
            return
        failure = self.files.flushed()
        if isinstance(failure, SyncFailed):
            self._store.fail(f"sync of the timers' files failed: {failure.strerror}")
            return
        if failure is not None:
            self._complain(f"timers' files not synced, tried again: {failure}")
        self._flushed_ms = now_ms
        self._keeping.note(self.position, self._record_end, self.read_s)
        if not self._keeping.is_due:
            return
        self._keeping.has_progress = False
        self.files.flush_beside(self._keeping.check(now_ms))
        self.metrics.save_beside(now_ms)

    def _complain(self, text: str) -> None:
        if text != self._complaint:
            self._complaint = text
            log.error("%s", text)
