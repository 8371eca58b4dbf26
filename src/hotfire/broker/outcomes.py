"""Which transactions are dealt with, and how far that is known on the disk.

A half message is a place in the half queue. It is open until an op names it: committed, rolled back, laid
aside, or stored anew behind the others. Ops are placed in the turn of what they stand for and behind it, one
for all of a turn; so the log never says that something is dealt with which is not there. What the log says is
all there is to know: at a start the ops are read again from where the kept progress is.

    next   the first place that is open, or not looked at yet; what lies before it needs no op any more
    op     the first op that names a place from `next` on

Both are offsets of the group CID_RMQ_SYS_TRANS, as the reference keeps them, and count once what was done up
to there is on the disk. Reading on from older ones is only more work.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable

from hotfire import core
from hotfire.broker import halves
from hotfire.broker.offsets import Offsets
from hotfire.errors import RecordInvalid, StoreError
from hotfire.model import HALF_OP_TOPIC, HALF_TOPIC, TRANSACTION_GROUP
from hotfire.protocol.record import Host, decode_record
from hotfire.store.consumequeue import ConsumeQueue
from hotfire.store.queries import Looker
from hotfire.store.store import Store

log = logging.getLogger("hotfire.broker")

QUEUE_ID = 0
LOADED_MAX, LOADED_BESIDE_MAX = 5_000, 64
"""Ops read in one go: at a start, some 200 ms; beside the loop, which takes them in. Each may name many."""
PASSED_MAX = 10_000
"""Places passed over in one step."""

Op = tuple[int, list[int]]
"""The place of an op in its queue, and the halves it names."""


class Outcomes:
    """The half queue of one store."""

    def __init__(self, store: Store, offsets: Offsets, host: Host) -> None:
        self._store = store
        self._offsets = offsets
        self._host = host
        self.queue = store.queue(HALF_TOPIC, QUEUE_ID)
        self._op_queue = store.queue(HALF_OP_TOPIC, QUEUE_ID)
        self.places = core.Halves(self.queue)
        """Which are dealt with; the compiled lane ends transactions there too."""
        self._ended_before: set[int] = set()
        """Of former lives, and passed over: halves of the reference may name one of these as their first."""
        self._former_end = 0
        self._ops: deque[tuple[int, int]] = deque()
        """Place of each op and the highest half it names."""
        self._marks: deque[tuple[int, int, int]] = deque()
        """`next` and `op` as they may be kept once the log is safe up to an end."""
        self._marked = (0, 0)
        self._loads_from = self._loads_until = 0

    # --- a start ---

    def load(self) -> None:
        """Go on where the progress on the disk is; ops up to the end of their queue are still to be read."""
        self.places.move_to(self._kept(HALF_TOPIC, self.queue.min, self.queue.max))
        self._loads_from = self._kept(HALF_OP_TOPIC, self._op_queue.min, self._op_queue.max)
        self._loads_until = self._op_queue.max
        self._former_end = self.queue.max
        self._open_lane()
        self._marked = self.next, self._loads_from

    def _kept(self, topic: str, low: int, high: int) -> int:
        kept = self._offsets.get(topic, TRANSACTION_GROUP, QUEUE_ID)
        position = low if kept is None else min(max(kept, low), high)
        if kept is not None and position != kept:
            log.error(
                "progress of transactions corrected topic=%s from=%d to=%d: its queue has %d to %d",
                topic, kept, position, low, high,
            )  # fmt: skip
        return position

    @property
    def is_loaded(self) -> bool:
        """Whether all ops of former lives are read: before that nobody can say what is open."""
        return self._loads_from >= self._loads_until

    def unread_ops(self, *, is_start: bool = False) -> tuple[int, int]:
        """The next stretch of their queue to read."""
        count_max = LOADED_MAX if is_start else LOADED_BESIDE_MAX
        return self._loads_from, min(self._loads_until, self._loads_from + count_max)

    def take_ops(self, ops: Iterable[Op], until: int) -> None:
        """Ops of former lives, read up to a place of their queue."""
        for place, offsets in ops:
            known = [offset for offset in offsets if offset < self.queue.max]  # others were never stored
            self._ended_before.update(offset for offset in known if offset < self.next)
            try:
                for offset in known:
                    self.places.mark(offset)
            except OverflowError as error:  # then it is looked up what became of them
                log.error("op of transactions not gone by offset=%d reason=%s", place, error)
            self._ops.append((place, max(known, default=-1)))
        self._loads_from = until
        self._open_lane()

    def _open_lane(self) -> None:
        """Once all is read the lane may end those of this life: it tells at once, and that takes an op."""
        if self.is_loaded:
            self.places.serves_from = self._former_end

    # --- what is open ---

    @property
    def next(self) -> int:
        return self.places.next

    def is_open(self, offset: int) -> bool:
        return self.places.is_open(offset)

    def was_ended(self, offset: int) -> bool:
        """Whether an op names the place, of those read."""
        return self.places.is_ended(offset) or offset in self._ended_before

    @property
    def open_count(self) -> int:
        """At most so many transactions are open."""
        return self.queue.next - self.next - self.places.ended

    def end(self, offset: int) -> None:
        """What the outcome asks for is placed in this turn; the op follows in the same."""
        self.places.end(offset)

    @property
    def owes(self) -> bool:
        """Whether something is ended that no op in the log says."""
        return self.places.owes > 0

    def write(self, now_ms: int) -> None:
        """Place the ops that are owed, behind all they stand for. A full turn, or none, owes them on."""
        while self.owes and self.is_loaded:  # ops are known in the order of their queue
            count, highest, body = self.places.owed(halves.OP_BYTES_MAX)
            try:
                placed = self._store.append(halves.op(body, QUEUE_ID, self._host, now_ms), now_ms)
            except (BlockingIOError, StoreError, OSError):  # who sends is told why
                return
            self._ops.append((placed.queue_offset, highest))
            self.places.paid(count)

    # --- progress ---

    def pass_over(self) -> None:
        """Move on to the first place that is open."""
        if self.owes:
            return  # their ops have no place in the log yet
        low = self.queue.min
        if self.next < low:
            log.error("half messages have left the log unended from=%d to=%d", self.next, low)
            self.move_to(low)
        before = self.next
        self.places.pass_over(min(before + PASSED_MAX, self.queue.max))
        self._ended_before.update(range(before, min(self.next, self._former_end)))
        if self.next >= self._former_end:
            self._ended_before.clear()
        self._mark()

    def move_to(self, offset: int) -> None:
        """There is nothing sound before this place."""
        self.places.move_to(offset)

    def _mark(self) -> None:
        while self._ops and self._ops[0][1] < self.next:
            self._ops.popleft()
        op = self._ops[0][0] if self._ops else max(self._loads_from, self._op_queue.next)
        if (self.next, op) != self._marked:
            self._marked = self.next, op
            self._marks.append((self.next, op, self._store.end))

    def settle(self) -> None:
        """What is on the disk counts."""
        safe, found = self._store.flushed_end, None
        while self._marks and self._marks[0][2] <= safe:
            found = self._marks.popleft()
        if found is not None:
            self._offsets.commit(HALF_TOPIC, TRANSACTION_GROUP, QUEUE_ID, found[0])
            self._offsets.commit(HALF_OP_TOPIC, TRANSACTION_GROUP, QUEUE_ID, found[1])


def read_ops(look: Looker, queue: ConsumeQueue | None, low: int, high: int) -> list[Op]:
    """The sound ops of a stretch of their queue."""
    if queue is None:
        return []
    ops = []
    for place, data in look.records(queue, low, high):
        try:
            ops.append((place, halves.ended_by(decode_record(data, check_crc=False))))
        except RecordInvalid as error:
            log.error("op of transactions cannot be read offset=%d reason=%s", place, error)
    return ops
