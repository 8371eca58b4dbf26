"""Delayed messages: those that are due go from the queue of their level to their real topic, in order.

Each level is a queue of the topic SCHEDULE_TOPIC_XXXX, whose entries hold the time of delivery where others
hold tags. A level has two positions:

    next  the first message not yet copied to its real topic
    done  the first whose copy is not yet known to be on the disk; this is what delayOffset.json keeps

What lasts, step by step, is in DURABLE_STEPS, and docs/durability.md says what a crash at each means.
So a crash never loses one. What was copied and is not yet in that file would be copied again: a start looks
up the messages that were due when the log ended by their unique keys, and passes over those that are there
(without an index of keys, or beyond so many, they come twice). Nothing is moved before its time: the time is
held against the clock once more when the copy is made. When the clock is set, what is parked moves along.

A plain function of now: `tick` says what time it is, and is wanted again at `due_ms`. A step moves a bounded
number of messages; while more are due the end of each turn makes the next step. Cold records are read beside
the loop.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from dataclasses import dataclass, field

from hotfire import core
from hotfire.broker.put import Undeliverable, unparked
from hotfire.errors import LocalProtocolError, RecordInvalid, StoreError
from hotfire.model import SCHEDULE_TOPIC, DataVersion
from hotfire.protocol import bodies
from hotfire.protocol.bodies import from_json, to_json
from hotfire.protocol.record import Record, decode_record, parse_properties
from hotfire.store.reading import Read, ReadStatus
from hotfire.store.store import Appended, Store
from hotfire.store.tables import Table

log = logging.getLogger("hotfire.broker")

DURABLE_STEPS = {
    "park": "the record in the queue of its level",
    "re-put": "the copy in the real topic",
    "progress": "config/delayOffset.json",
}
STEP_COUNT_MAX = 64
STEP_BYTES_MAX = 1 << 20
"""Messages and bytes moved in one step, all levels together: some 3 ms."""
BEHIND_MS = 5
"""Between two steps while messages are due, should no turn end in between."""
RETRY_MS = 100
"""After the store took nothing, or a read failed."""
LEAD_MS_MIN, LEADS_MAX = 500, 100_000
"""A smaller lead is the time a request took; more messages of a larger one are delivered late by it."""
LOOKED_UP_MAX = 20_000
"""Messages looked up at a start: about a second. After an orderly end hardly any were due and not moved."""
CLOCK_BEHIND_MS = 1000
"""A log whose newest record is that much ahead of the clock says that the clock was set back."""

_OFFSET_TABLE = bodies.table(bodies.int32, bodies.int64)


@dataclass(slots=True, eq=False)
class Level:
    """One delay level and how far its queue is delivered."""

    number: int
    delay_ms: int
    queue: core.Queue
    next: int = 0
    done: int = 0
    copies: deque[tuple[int, int]] = field(default_factory=deque)
    """Position behind each message copied, and the end of the log its copy needs."""
    copied: set[int] = field(default_factory=set)
    """Messages whose copy was found in the log at the start."""
    is_reading: bool = False
    retry_ms: int = 0
    ticked: int = 0
    """Messages parked by the last tick: a clock that is set is noticed at the next one."""
    shifts: list[tuple[int, int]] = field(default_factory=list)
    """Messages below a position are due so much later, for the clock was set by as much."""
    leads: dict[int, int] = field(default_factory=dict)
    """Messages parked while the log's time, which never goes back, was ahead of the clock: by how much."""
    cap: tuple[int, int] = 0, 0
    """Messages below a position are due at the latest then: the clock was set back while we were away."""

    @property
    def queue_id(self) -> int:
        return self.number - 1

    def passed(self, position: int, end: int) -> None:
        """Everything below `position` is dealt with once the log is safe up to `end`."""
        if self.leads:
            for index in range(self.next, position):
                self.leads.pop(index, None)
        self.next = position
        self.copies.append((position, end))
        self.shifts = [shift for shift in self.shifts if shift[0] > position]


@dataclass(slots=True, frozen=True)
class Fetch:
    """A cold read under way, as the store's reader hands it back."""

    level: Level
    found: Read


class Schedule:
    """All levels of one store."""

    def __init__(self, store: Store, delays_ms: tuple[int, ...], table: Table, save_period_ms: int) -> None:
        self._store = store
        self._delays_ms = delays_ms
        self._table = table
        self._save_period_ms = save_period_ms
        self._levels: list[Level] = []
        self._first = 0
        self._now_ms = self._saved_ms = 0
        self._version = DataVersion()
        self._saved: dict[int, int] = {}
        self.level_max = len(delays_ms)
        """Higher levels are brought down to it."""
        self.moved = 0
        """Messages delivered since the start."""

    # --- start and end ---

    def load(self, now_ms: int) -> None:
        self._now_ms = self._saved_ms = now_ms
        stored = self._table.load_as(_read)
        self._version, offsets = stored or (DataVersion(), {})
        store = self._store
        # A ladder may have become shorter: what was parked on its upper steps is delivered all the same
        count = max([self.level_max, *(queue_id + 1 for queue_id in store.queue_ids(SCHEDULE_TOPIC))])
        behind = store.journal.last_timestamp > now_ms + CLOCK_BEHIND_MS
        for number in range(1, count + 1):
            delay_ms = self._delays_ms[min(number, self.level_max) - 1]
            level = Level(number, delay_ms, store.queue(SCHEDULE_TOPIC, number - 1))
            low, high = level.queue.min, level.queue.max
            position = offsets.get(number, low)
            level.next = level.done = min(max(position, low), high)
            if level.next != position:
                log.error(
                    "progress of delay level %d corrected from %d to %d: its queue has %d to %d",
                    number, position, level.next, low, high,
                )  # fmt: skip
            if behind:
                level.cap = high, now_ms + delay_ms
            level.ticked = high
            self._levels.append(level)
        # after an orderly end too: it may have come before all that the start before it found was passed over
        self._find_copies()
        self._saved = dict(offsets)
        if stored is None:  # the reference's broker expects to find it
            self._table.save(_tree(self._version, {}))

    def _find_copies(self) -> None:
        """Of those whose time had come when the log ended, which are in their real topic already."""
        newest, room = self._store.journal.last_timestamp, LOOKED_UP_MAX
        for level in self._levels:
            for index in range(level.next, min(level.queue.max, level.next + room)):
                due = self._store.tags_at(SCHEDULE_TOPIC, level.queue_id, index)
                if due is not None and due > newest:
                    break
                room -= 1
                if self._is_copied(level, index):
                    level.copied.add(index)
        if count := sum(len(level.copied) for level in self._levels):
            log.info("delayed messages delivered before the crash, and not again count=%d", count)

    def _is_copied(self, level: Level, index: int) -> bool:
        found = self._store.read(SCHEDULE_TOPIC, level.queue_id, index, count_max=1, bytes_max=STEP_BYTES_MAX)
        if found.status is not ReadStatus.FOUND or found.pieces[0][2] != index:
            return False
        data = found.data or self._store.queries.record_now(found.pieces[0][0])
        if data is None:
            return False
        parked = decode_record(data)
        try:
            wanted = unparked(parked)
        except Undeliverable:
            return False
        key = parse_properties(parked.properties).get("UNIQ_KEY")
        if not key:
            return False
        copies = self._store.queries.by_key_now(wanted.topic, key, parked.store_timestamp)
        return any(is_same(wanted, decode_record(copy)) for copy in copies)

    def save(self, now_ms: int) -> None:
        """Write how far delivery is. Call it when what was copied is on the disk, or it is copied again."""
        self._settle()
        self._table.save(_tree(self._next_version(now_ms), self._progress()))

    def _save_beside(self, now_ms: int) -> None:
        if self._table.is_writing:
            return  # the next tick looks again
        self._saved_ms = now_ms
        if not self._table.settle():
            self._saved = {}
        progress = self._progress()
        if progress != self._saved:
            self._saved, version = progress, self._next_version(now_ms)
            self._table.save_beside(lambda: _tree(version, progress))

    def _progress(self) -> dict[int, int]:
        return {level.number: level.done for level in self._levels if level.queue.next or level.done}

    def _next_version(self, now_ms: int) -> DataVersion:
        self._version = self._version.next(now_ms)
        return self._version

    @property
    def version(self) -> DataVersion:
        return self._version

    def progress(self) -> dict[int, tuple[int, int]]:
        """Level -> messages delivered and messages parked so far."""
        return {level.number: (level.done, level.queue.max) for level in self._levels}

    # --- time ---

    def tick(self, now_ms: int) -> None:
        """Move what is due by now."""
        self._now_ms = now_ms
        self.advance()
        for level in self._levels:
            level.ticked = level.queue.next
        if now_ms - self._saved_ms >= self._save_period_ms:
            self._save_beside(now_ms)

    def due_ms(self) -> int | None:
        """When the next tick is wanted at the latest; None when nothing is parked."""
        soonest = None
        for level in self._levels:
            if level.is_reading or level.next >= level.queue.max:
                continue
            due = self._due(level, level.next) or self._now_ms
            due = max(due, level.retry_ms, self._now_ms + BEHIND_MS)
            if soonest is None or due < soonest:
                soonest = due
        return soonest

    def clock_moved(self, by_ms: int) -> None:
        """The clock was set. What was parked between the last tick and now may be late by it, never early."""
        self._now_ms += by_ms
        self._saved_ms += by_ms
        for level in self._levels:
            level.retry_ms += by_ms
            level.cap = level.cap[0], level.cap[1] + by_ms
            end = level.queue.next if by_ms > 0 else level.ticked
            if end > level.next:
                level.shifts.append((end, by_ms))

    def parked(self, number: int, placed: Appended, now_ms: int) -> None:
        """A message was parked. Its entry counts from its time in the log; the clock may be behind that."""
        level = self._levels[number - 1]
        lead_ms = placed.store_timestamp - now_ms
        if lead_ms >= LEAD_MS_MIN and len(level.leads) < LEADS_MAX:
            level.leads[placed.queue_offset] = lead_ms

    def _due(self, level: Level, index: int) -> int | None:
        """Time of delivery of a parked message; None when its entry does not tell."""
        tags = self._store.tags_at(SCHEDULE_TOPIC, level.queue_id, index)
        if tags is None:
            return None
        due = tags - level.leads.get(index, 0) + sum(by_ms for end, by_ms in level.shifts if index < end)
        return min(due, level.cap[1]) if index < level.cap[0] else due

    # --- delivery ---

    def advance(self) -> None:
        """One step: move some of the messages that were due at the last tick."""
        self._settle()
        room, size = STEP_COUNT_MAX, STEP_BYTES_MAX
        levels = self._levels[self._first :] + self._levels[: self._first]
        for level in levels:
            if level.next >= level.queue.max or level.is_reading or level.retry_ms > self._now_ms:
                continue
            count, moved_bytes = self._step(level, room)
            room, size = room - count, size - moved_bytes
            if room <= 0 or size <= 0:
                self._first = level.number % len(self._levels)  # others first, next time
                break

    def _settle(self) -> None:
        safe = self._store.flushed_end
        for level in self._levels:
            while level.copies and level.copies[0][1] <= safe:
                level.done = level.copies.popleft()[0]

    def _step(self, level: Level, room: int) -> tuple[int, int]:
        """Messages and bytes moved, of one level."""
        if level.next < level.queue.min:
            log.error(
                "delayed messages have left the log before they were due level=%d from=%d to=%d",
                level.number, level.next, level.queue.min,
            )  # fmt: skip
            level.passed(level.queue.min, 0)
        count = self._due_count(level, room)
        if not count:
            return 0, 0
        found = self._store.read(
            SCHEDULE_TOPIC, level.queue_id, level.next, count_max=count, bytes_max=STEP_BYTES_MAX
        )
        if found.status is not ReadStatus.FOUND:
            return self._pass_over(level, found)
        if found.data is None:
            level.is_reading = True
            self._store.fetch_beside(found, (SCHEDULE_TOPIC, level.queue_id), Fetch(level, found))
            return 0, 0
        return self._copy(level, found)

    def _due_count(self, level: Level, room: int) -> int:
        """Messages at the front that are due, or do not tell before they are read."""
        count, most = 0, min(room, level.queue.max - level.next)
        while count < most and (self._due(level, level.next + count) or 0) <= self._now_ms:
            count += 1
        return count

    def _pass_over(self, level: Level, found: Read) -> tuple[int, int]:
        """Nothing sound there; the store has said so."""
        if found.next_offset > level.next:
            level.passed(found.next_offset, 0)
            return 1, 0
        level.retry_ms = self._now_ms + RETRY_MS
        return 0, 0

    def fetched(self, fetch: Fetch, error: int) -> None:
        """Parked messages came from the disk, or an error number."""
        level, found = fetch.level, fetch.found
        level.is_reading = False
        if error:
            log.error("delayed messages not read level=%d reason=%s", level.number, os.strerror(error))
            level.retry_ms = self._now_ms + RETRY_MS
            return
        if found.status is ReadStatus.FOUND:
            self._copy(level, found)
        else:
            self._pass_over(level, found)

    def _copy(self, level: Level, found: Read) -> tuple[int, int]:
        assert found.data is not None
        count = at = 0
        for _, size, index in found.pieces:
            try:
                record = decode_record(found.data, at, check_crc=False)  # the store has checked it
            except RecordInvalid as error:  # and all the same: one message must not hold up the others
                log.error(
                    "delayed message cannot be read level=%d offset=%d reason=%s", level.number, index, error
                )
                level.passed(index + 1, 0)
                at += size
                count += 1
                continue
            due = self._due(level, index)
            if due is None:
                due = record.store_timestamp + level.delay_ms
            if due > self._now_ms:  # entries between were none: this one was not among those counted
                level.retry_ms = min(due, self._now_ms + RETRY_MS)
                break
            if index in level.copied:
                level.copied.discard(index)
                level.passed(index + 1, 0)
                at += size
                count += 1
                continue
            end = 0
            try:
                end = self._store.append(unparked(record), self._now_ms).end
            except (Undeliverable, LocalProtocolError) as error:
                log.error(
                    "delayed message not delivered level=%d offset=%d log_offset=%d reason=%s",
                    level.number, index, record.physical_offset, error,
                )  # fmt: skip
            except BlockingIOError:  # the turn is full; its end takes this up again
                break
            except (StoreError, OSError):  # who sends is told why
                level.retry_ms = self._now_ms + RETRY_MS
                break
            level.passed(index + 1, end)
            at += size
            count += 1
        self.moved += count
        return count, at


def is_same(wanted: Record, found: Record) -> bool:
    """Whether `found` is the copy: the same attempt of the same message, stored behind the parked one."""
    return found.physical_offset > wanted.physical_offset and (
        (found.topic, found.queue_id, found.born_timestamp, found.reconsume_times, found.body)
        == (wanted.topic, wanted.queue_id, wanted.born_timestamp, wanted.reconsume_times, wanted.body)
    )


def _tree(version: DataVersion, offsets: dict[int, int]) -> dict[str, object]:
    return {"dataVersion": to_json(version), "offsetTable": offsets}


def _read(tree: dict[str, object]) -> tuple[DataVersion, dict[int, int]]:
    return from_json(DataVersion, tree.get("dataVersion") or {}), _OFFSET_TABLE(tree.get("offsetTable") or {})
