"""Timer messages on their way out of the wheel: read, looked up after a start, copied to their real topics.

One batch is under way at a time. The lane copies what is in memory and in no doubt; the rest goes message by
message, some in a step. Their records are in memory as a rule, for those that are not are read ahead when
their slot is opened; else the batch waits for a thread beside the loop. A message goes one of five ways: it
was taken back, its time was moved, it was copied before a crash, it is put into the wheel again, or it is
copied to its real topic.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hotfire import core
from hotfire.broker import timing
from hotfire.broker.call import Task
from hotfire.broker.put import Undeliverable, unparked
from hotfire.broker.schedule import is_same
from hotfire.broker.timerslots import Entry, OpenSlot
from hotfire.errors import LocalProtocolError, RecordInvalid, StoreError
from hotfire.model import TIMER_TOPIC
from hotfire.protocol.recall import number
from hotfire.protocol.record import Record, decode_record, parse_properties
from hotfire.store.queries import Looker
from hotfire.store.store import Store

if TYPE_CHECKING:
    from hotfire.broker.timers import Timers

log = logging.getLogger("hotfire.broker")

BYTES_MAX = 1 << 20
LANE_COUNT_MAX = 512
"""Messages taken out at once for the lane: some 1 ms."""
WARM_MAX = 5000
"""Messages of a slot read ahead."""
RETRY_MS = 100
INDEX_MS = 1000
"""The index of keys knows times to the second."""


@dataclass(slots=True)
class Batch:
    """Messages of one slot, taken out to be delivered."""

    slot: OpenSlot
    entries: list[Entry]
    records: list[Record | None] = field(default_factory=list)
    """Of the next entries: those that go one by one."""
    copied: set[int] = field(default_factory=set)
    """Places of messages whose copy was found in the log."""
    at: int = 0
    is_waiting: bool = False


class Delivery:
    """What is due, batch by batch."""

    def __init__(self, store: Store, timers: Timers) -> None:
        self._store = store
        self._timers = timers
        self.lane: core.Lane | None = None
        self._batch: Batch | None = None
        self._retry_ms = 0
        self._doubt_end = self._doubt_ms = 0
        self._dealt: dict[int, int] = {}
        """Messages whose time was moved, and the second in which they were delivered or rolled: a crash may
        have left them in two slots, and the index of keys does not know yet."""
        self.moved = 0
        """Messages delivered since the start."""

    def start(self) -> None:
        """What was due when the log ended may have been copied; what is in the log from now on was not."""
        self._doubt_end, self._doubt_ms = self._store.end, self._store.journal.last_timestamp

    @property
    def is_busy(self) -> bool:
        return self._batch is not None

    @property
    def is_ready(self) -> bool:
        """Whether a step would go on with something now."""
        return self._batch is not None and not self._batch.is_waiting

    def clock_moved(self, by_ms: int) -> None:
        self._retry_ms += by_ms

    def step(self, count_max: int) -> None:
        """Deliver some of what is due."""
        if self._retry_ms > self._timers.now_ms:
            return
        while self._dealt and (first := next(iter(self._dealt.items())))[1] < self._timers.read_s:
            del self._dealt[first[0]]
        if self._batch is None:
            self._begin(count_max if self.lane is None else LANE_COUNT_MAX)
        batch = self._batch
        if batch is None or batch.is_waiting:
            return
        if not batch.records:
            self._copy_by_lane(batch)
            if batch.at < len(batch.entries):
                self._load(batch, batch.entries[batch.at : batch.at + count_max])
        if not batch.is_waiting:
            self._copy(batch)

    def _begin(self, count_max: int) -> None:
        timers = self._timers
        for time_s in sorted(timers.open):
            slot = timers.open[time_s]
            entries = slot.take(timers.now_ms, count_max, BYTES_MAX)
            if entries:
                self._batch = Batch(slot, entries)
                break

    # --- by the lane ---

    def _copy_by_lane(self, batch: Batch) -> None:
        """Those before the first that is in doubt; none while recalls are on their way into the wheel."""
        timers, slot = self._timers, batch.slot
        if self.lane is None or timers.recalls or self._dealt:
            return
        if not self._store.is_writeable:  # who goes one by one is told why
            return
        begun = batch.at
        batch.at, topics = self.lane.deliver(
            batch.entries, begun, slot.deleted, timers.now_ms,
            self._doubt_end, self._doubt_ms, timers.window.far_ms, timers.shifts.below,
        )  # fmt: skip
        count = batch.at - begun
        if not count:
            return
        for topic, copies in topics:
            timers.metrics.count(topic.decode(), -copies, timers.now_ms)
        self.moved += count
        slot.end, slot.has_dealt = self._store.end, True
        slot.under_way -= count

    # --- reading ---

    def _load(self, batch: Batch, entries: list[Entry]) -> None:
        pieces = [(physical, abs(size)) for physical, size in entries]
        data = self._store.queries.in_memory(pieces)
        if data is None:
            self._wait(lambda look: [look.record(physical) for physical, _ in pieces], self._read)
            return
        found: list[bytes | None] = []
        at = 0
        for _, size in pieces:
            found.append(data[at : at + size])
            at += size
        self._decode(batch, found)

    def _wait(self, work: Callable[[Looker], Any], then: Callable[[Any], None]) -> None:
        assert self._batch is not None
        self._batch.is_waiting = True
        self._store.queries.look(work, Task(lambda done: self._came(done, then)), own=True)

    def _came(self, done: Future[Any], then: Callable[[Any], None]) -> None:
        batch = self._batch
        assert batch is not None
        batch.is_waiting = False
        failure = done.exception()
        if failure is not None:  # back into their lines, to be tried again
            log.error("timer messages not read, tried again slot=%d reason=%s", batch.slot.time_s, failure)
            self._give_back(batch)
            return
        then(done.result())
        if not batch.is_waiting:
            self._copy(batch)

    def stop(self) -> None:
        """What was taken out and not delivered goes back: the store is closed."""
        if self._batch is not None:
            self._give_back(self._batch)

    def _give_back(self, batch: Batch) -> None:
        for entry in batch.entries[batch.at :]:
            batch.slot.under_way -= 1
            batch.slot.add(0, entry)
        self._batch = None
        self._retry_ms = self._timers.now_ms + RETRY_MS

    def _read(self, found: list[bytes | None]) -> None:
        assert self._batch is not None
        self._decode(self._batch, found)

    def _decode(self, batch: Batch, found: list[bytes | None]) -> None:
        entries = batch.entries[batch.at : batch.at + len(found)]
        batch.records = [
            _timer_record(data, physical) for (physical, _), data in zip(entries, found, strict=True)
        ]
        self._look_up(batch, entries)

    def _look_up(self, batch: Batch, entries: list[Entry]) -> None:
        """Of those that were in the log at the start, which were copied before: delivered, or rolled."""
        doubtful: list[tuple[int, Record]] = []
        keys: list[tuple[str, str, int]] = []
        for (physical, size), record in zip(entries, batch.records, strict=True):
            if record is None or physical >= self._doubt_end:
                continue
            named = parse_properties(record.properties)
            due = timing.parked_due_ms(named, record.store_timestamp) or 0
            shift = self.shift_ms(record, named)
            # while the clock is behind the log's newest record, messages are stored at the time of that one
            waited_ms = due + shift - min(record.store_timestamp, record.born_timestamp)
            wanted = [record] if size < 0 or self._timers.window.is_far(waited_ms) else []
            if (size > 0 or shift) and due <= self._doubt_ms:
                wanted += _copies(record)
            for copy in wanted if named.get("UNIQ_KEY") else []:
                doubtful.append((physical, copy))
                keys.append((copy.topic, named["UNIQ_KEY"], record.store_timestamp - INDEX_MS))
        if not doubtful:
            return
        batch.is_waiting = True

        def then(done: list[list[bytes]]) -> None:
            for (physical, wanted), found in zip(doubtful, done, strict=True):
                if any(_is_copy(wanted, decode_record(copy)) for copy in found):
                    batch.copied.add(physical)

        self._store.queries.by_keys(keys, Task(lambda done: self._came(done, then)))

    def warm(self, slot: OpenSlot) -> None:
        """Have the messages of a slot in memory by the time they are due, if they are not."""
        lines = [slot.lines[at] for at in sorted(slot.lines)]
        if not lines:
            return
        offset, size = min((line.offsets[0], abs(line.sizes[0])) for line in lines)
        if self._store.queries.in_memory([(offset, size)]) is not None:
            return
        wanted: list[int] = []
        for line in lines:
            wanted.extend(line.offsets[: WARM_MAX - len(wanted)])

        def work(look: Looker) -> None:
            for physical in wanted:
                look.record(physical)

        self._store.queries.look(work, Task(lambda done: None), own=True)

    # --- copying ---

    def _copy(self, batch: Batch) -> None:
        while batch.records:
            entry, record = batch.entries[batch.at], batch.records[0]
            try:
                end = self._deliver(batch, entry, record)
            except (Undeliverable, LocalProtocolError) as error:
                log.error("timer message not delivered log_offset=%d reason=%s", entry[0], error)
                end = 0
            except BlockingIOError:  # the turn is full; its end takes this up again
                return
            except (StoreError, OSError):  # who sends is told why
                self._retry_ms = self._timers.now_ms + RETRY_MS
                return
            batch.slot.end = max(batch.slot.end, end)
            batch.slot.has_dealt = True
            batch.slot.under_way -= 1
            batch.at += 1
            batch.records.pop(0)
        if batch.at == len(batch.entries):
            self._batch = None

    def _deliver(self, batch: Batch, entry: Entry, record: Record | None) -> int:
        """Deal with one message: where its copy ends in the log, 0 when none was made."""
        timers, slot = self._timers, batch.slot
        if record is None:
            log.error("timer message cannot be read, not delivered log_offset=%d", entry[0])
            return 0
        named = parse_properties(record.properties)
        due = timing.parked_due_ms(named, record.store_timestamp)
        if due is None:
            raise Undeliverable("it does not say when it is due")
        real, key = named.get("REAL_TOPIC", ""), named.get("UNIQ_KEY", "")
        if entry[1] >= 0 and self._is_deleted(slot, timing.delete_key(real, key), due):
            return 0  # counted when it was taken back
        if entry[0] in self._dealt:
            return 0
        if entry[0] in batch.copied:
            timers.metrics.count(real, -1, timers.now_ms)
            return 0
        if entry[1] < 0:
            return self._roll(slot, record, named, due)
        shift = self.shift_ms(record, named)
        due += shift
        if due > timers.now_ms:
            if (due - 1) // 1000 == slot.time_s:
                slot.add((due - 1) % 1000, entry)
            else:
                timers.put_off(slot, record, due, named)
            return 0
        if timing.DELETES in named:
            raise Undeliverable("it only deletes another")
        copy = unparked(record)
        try:
            end = self._store.append(timing.stamped(copy, timers.now_ms), timers.now_ms).end
        except LocalProtocolError:  # no room among its properties: it comes without the times of its way
            end = self._store.append(copy, timers.now_ms).end
        self.moved += 1
        if shift:
            self._dealt[entry[0]] = timers.now_ms // 1000
        timers.metrics.count(real, -1, timers.now_ms)
        return end

    def shift_ms(self, record: Record, named: dict[str, str]) -> int:
        if not timing.is_relative(named):
            return 0
        return timing.shift_ms(named) + self._timers.shifts.of(record.queue_offset)

    def _is_deleted(self, slot: OpenSlot, key: str, due: int) -> bool:
        return key in slot.deleted or self._timers.recalls.holds((due - 1) // 1000, key)

    def _roll(self, slot: OpenSlot, record: Record, named: dict[str, str], due: int) -> int:
        """Park a message anew that waits for longer than the wheel is."""
        timers, shift = self._timers, self.shift_ms(record, named)
        if due + shift <= timers.now_ms:  # its own slot is at hand, and whatever takes it back is there
            timers.put_off(slot, record, due, named)
            return 0
        try:
            copy = timing.rolled(record, named, due, shift, timers.now_ms)
            placed = self._store.append(copy, timers.now_ms)
        except LocalProtocolError:  # no room among its properties to say so: the old record goes on waiting
            timers.put_off(slot, record, due, named)
            return 0
        if shift:
            self._dealt[record.physical_offset] = timers.now_ms // 1000
        timers.parked(named, due, placed.queue_offset)
        timers.metrics.count(named.get("REAL_TOPIC", ""), 1 if timing.DELETES in named else -1, timers.now_ms)
        return placed.end


def _timer_record(data: bytes | None, physical: int) -> Record | None:
    """The record a unit of the timer log means; None when it is another, or none."""
    if data is None:
        return None
    try:
        record = decode_record(data)
    except RecordInvalid:
        return None
    return record if (record.topic, record.physical_offset) == (TIMER_TOPIC, physical) else None


def _copies(record: Record) -> list[Record]:
    """The copy that would have been made of a record in its real topic, if one can be."""
    try:
        return [unparked(record)]
    except Undeliverable:
        return []


def _is_copy(wanted: Record, found: Record) -> bool:
    if not is_same(wanted, found):
        return False
    if found.topic != TIMER_TOPIC:
        return True
    before, after = parse_properties(wanted.properties), parse_properties(found.properties)
    times = number(before.get(timing.ROLL_TIMES)) or 0
    return number(after.get(timing.ROLL_TIMES)) == times + 1
