"""Transactions: producers are asked about those that stay open, in the order of the half queue.

    half stored ─┬─ END_TRANSACTION: commit   copy to the real topic, op
                 ├─ END_TRANSACTION: rollback op
                 └─ nothing for transactionTimeOut: the half is stored anew behind the others, with an op
                    for its old place, and one producer of its group is asked. Again every
                    transactionCheckInterval, at most transactionCheckMax times; then it is laid aside.

A commit may come twice, come late for a half that was stored anew or laid aside meanwhile, or be found in the
log without its op after a crash. Who it is about is known by its unique key (`Fate`): what was committed is
not committed again, what is open under another place is ended there, and what was laid aside is committed all
the same. Halves of former lives are looked up before anything is decided about them; without an index of keys
(messageIndexEnable) such a commit is applied twice, and one of a half laid aside in a former life is not.

A plain function of now: `tick` says what time it is, and is wanted again at `due_ms`. A step asks about a
bounded number of halves; cold ones are read and looked up beside the loop.
"""

from __future__ import annotations

import logging
import random
from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from hotfire import core, model
from hotfire.broker import halves
from hotfire.broker.call import Task
from hotfire.broker.late import Fate, Late
from hotfire.broker.outcomes import QUEUE_ID, Outcomes, read_ops
from hotfire.broker.put import REAL_TOPIC
from hotfire.broker.unasked import Unasked
from hotfire.broker.waiting import One, Waiting
from hotfire.errors import LocalProtocolError, RecordInvalid, StoreError
from hotfire.net.heart import Connection
from hotfire.protocol.command import Command, encode
from hotfire.protocol.record import Record, decode_record, iter_records, parse_properties
from hotfire.store.queries import COUNT_MAX, Looker
from hotfire.store.reading import ReadStatus
from hotfire.store.scan import NEVER

if TYPE_CHECKING:
    from hotfire.broker.broker import Broker

log = logging.getLogger("hotfire.broker")

STEP_COUNT_MAX = 16
STEP_BYTES_MAX = 256 << 10
"""Halves, and bytes of them, asked about in one step: some 3 ms."""
BEHIND_MS = 5
"""Between two steps while there is more to ask, should no turn end in between."""
RETRY_MS = 100
"""After the store took nothing, or a read failed."""
SINCE_PERIOD_MS = 100
"""How closely it is remembered when halves came: nobody looks at one before it can be due."""
WAITING_MAX = 10_000
"""Outcomes that wait for the ops of former lives to be read; more are asked for again."""
HOUR_MS = 3_600_000


class Transactions:
    """The open transactions of one broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._store = broker.store
        self.outcomes = Outcomes(broker.store, broker.offsets, broker.store_host)
        self._now_ms = 0
        self.former_end = 0
        """Halves before this place are of former lives."""
        self._loaded_ms = 0
        self.late = Late()
        self.untold = Waiting(lambda ms, count: None)
        """What the lane has answered while there was no place for the ops of it."""
        self._known: dict[int, tuple[Record, Fate | None]] = {}
        """Halves next in line, read beside the loop."""
        self._is_busy = False
        self._retry_ms = 0
        self._head = -1, 0
        """The half that is next in line, and when it is due."""
        self._since: deque[tuple[int, int]] = deque()
        """Halves from a place on came at this time or later."""
        self._asks: deque[tuple[int, str, Command]] = deque()
        """Questions, each to be sent once the half it is about can be read; and the group."""
        self._waiting: deque[Callable[[], None]] = deque()
        self._nobody = Unasked()
        self.asked = self.unasked = self.laid_aside = 0
        """Since the start; `unasked` were to be asked about when no producer was there."""
        self._committed = self._rolled_back = 0

    def load(self, now_ms: int) -> None:
        self._now_ms = self._loaded_ms = now_ms
        self.outcomes.load()
        self.former_end = self.outcomes.queue.max
        if not self.outcomes.is_loaded:
            low, high = self.outcomes.unread_ops(is_start=True)
            queue = self._store.queries.queue(model.HALF_OP_TOPIC, QUEUE_ID)
            ops = self._store.queries.look_now(lambda look: read_ops(look, queue, low, high))
            self.outcomes.take_ops(ops, high)

    @property
    def indexed_end(self) -> int:
        """The log up to where a question asked now would find records by their keys."""
        return self._store.readable_end - self._store.dispatch_behind

    # --- time ---

    def tick(self, now_ms: int) -> None:
        self._now_ms = now_ms
        self.advance()

    def due_ms(self) -> int | None:
        """When the next tick is wanted at the latest; None when nothing is open, or a read will ring."""
        outcomes = self.outcomes
        if self._is_busy or outcomes.next >= outcomes.queue.max:
            return None
        return max(self._head_due_ms(), self._retry_ms, self._now_ms + BEHIND_MS)

    def clock_moved(self, by_ms: int) -> None:
        self._now_ms += by_ms
        self._loaded_ms += by_ms
        self._retry_ms += by_ms
        self._head = self._head[0], self._head[1] + by_ms
        self.untold.clock_moved(by_ms)
        self._nobody.clock_moved(by_ms)
        self._since = deque((offset, at + by_ms) for offset, at in self._since)

    def stored(self, offset: int, now_ms: int) -> None:
        """A half was placed in this turn; the lane may have placed others before."""
        before = self.outcomes.places.take_stored()
        if 0 <= before < offset:
            self._note(before, now_ms)
        self._note(offset, now_ms)

    def _note(self, offset: int, now_ms: int) -> None:
        if not self._since or now_ms >= self._since[-1][1] + SINCE_PERIOD_MS:
            self._since.append((offset, now_ms))

    def ended(self, *, is_commit: bool) -> None:
        """A transaction had its end, as its producer wanted."""
        self._committed += is_commit
        self._rolled_back += not is_commit
        self._broker.wants_turn = True  # a rollback places nothing but its op

    @property
    def committed(self) -> int:
        """Since the start, as their producers wanted."""
        return self._committed + self.outcomes.places.committed

    @property
    def rolled_back(self) -> int:
        return self._rolled_back + self.outcomes.places.rolled_back

    def lane_has_served(self, now_ms: int) -> None:
        """The compiled lane may have stored halves and ended transactions."""
        places = self.outcomes.places
        first = places.take_stored()
        if first >= 0:
            self._note(first, now_ms)
        if places.owes:
            self._broker.wants_turn = True

    def tell(self, replies: One | core.Replies, now_ms: int) -> None:
        """Send what the lane has answered, once the log is safe: of ends, behind the ops of them."""
        places = self.outcomes.places
        if places.promised:
            places.promised = 0
            self.outcomes.write(now_ms)
            if self.outcomes.owes:
                self.untold.add(0, replies, now_ms)
                return
        self._broker.wait(self._store.end, replies, now_ms)

    def write_ops(self, now_ms: int) -> None:
        """Call it before a turn is handed over: what was decided in it is complete then."""
        self.outcomes.write(now_ms)
        if not self.outcomes.owes:
            for replies, since_ms in self.untold.take():
                self._broker.wait(self._store.end, replies, since_ms)

    def _head_due_ms(self) -> int:
        """When the first open half is due, or cannot be before."""
        head = self.outcomes.next
        if self._head[0] == head:
            return self._head[1]
        while len(self._since) > 1 and self._since[1][0] <= head:
            self._since.popleft()
        if not self._since or self._since[0][0] > head:
            return 0
        config = self._broker.config
        return self._since[0][1] + min(config.transaction_time_out, config.transaction_check_interval)

    # --- one step ---

    def advance(self) -> None:
        """Count what is safe, send what is to be asked, and look at the next halves in line."""
        outcomes = self.outcomes
        outcomes.write(self._now_ms)
        outcomes.settle()
        self._ask()
        if self._is_busy:
            return
        if not outcomes.is_loaded:
            self._load_more()
            return
        while self._waiting:
            try:
                self._waiting[0]()
            except BlockingIOError:  # the turn is full; its end takes this up again
                return
            self._waiting.popleft()
        outcomes.pass_over()
        if outcomes.next < outcomes.queue.max and self._now_ms >= max(self._head_due_ms(), self._retry_ms):
            self._step()

    def when_loaded(self, work: Callable[[], None]) -> None:
        """Do it now, or once it is known what is open."""
        if self.outcomes.is_loaded and not self._waiting:
            work()
        elif len(self._waiting) < WAITING_MAX:
            self._waiting.append(work)

    def _load_more(self) -> None:
        low, high = self.outcomes.unread_ops()
        queue = self._store.queries.queue(model.HALF_OP_TOPIC, QUEUE_ID)

        def take(future: Future[Any]) -> None:
            self.outcomes.take_ops(future.result(), high)
            self.advance()

        self._beside(lambda look: read_ops(look, queue, low, high), take)

    def _beside(self, work: Callable[[Looker], Any], then: Callable[[Future[Any]], None]) -> None:
        self._is_busy = True

        def done(future: Future[Any]) -> None:
            self._is_busy = False
            try:
                then(future)
            except Exception:  # whatever it is: the others in line are to be asked about
                log.exception("half messages not read, tried again")
                self._retry_ms = self._now_ms + RETRY_MS

        self._store.queries.look(work, Task(done), own=True)

    def _step(self) -> None:
        """Deal with halves that are due, from the first open one on."""
        outcomes, count, size = self.outcomes, 0, 0
        for offset, record, fate in self._next_halves():
            if count >= STEP_COUNT_MAX or size >= STEP_BYTES_MAX:
                break
            if not outcomes.is_open(offset):
                continue
            due_ms = self._due_ms(offset, record)
            if due_ms > self._now_ms:
                self._head = offset, due_ms
                break
            try:
                self._resolve(offset, record, fate)
            except BlockingIOError:
                break
            except (StoreError, OSError):  # who sends is told why
                self._retry_ms = self._now_ms + RETRY_MS
                break
            self._known.pop(offset, None)
            count += 1
            size += record.size
        outcomes.write(self._now_ms)
        outcomes.pass_over()

    def _next_halves(self) -> list[tuple[int, Record, Fate | None]]:
        """The next open halves, as far as they are at hand; what is not is brought beside the loop."""
        outcomes, first = self.outcomes, self.outcomes.next
        self._known = {offset: known for offset, known in self._known.items() if outcomes.is_open(offset)}
        if first in self._known:
            return [(offset, *known) for offset, known in self._known.items()]
        if first < self.former_end:
            self._bring(first, self.former_end)
            return []
        found = self._store.read(
            model.HALF_TOPIC, QUEUE_ID, first, count_max=STEP_COUNT_MAX, bytes_max=STEP_BYTES_MAX
        )
        if found.status is not ReadStatus.FOUND:
            if found.next_offset > first:
                outcomes.move_to(found.next_offset)  # nothing sound there; the store has said so
            else:
                self._retry_ms = self._now_ms + RETRY_MS
        elif found.data is None:
            self._bring(first, outcomes.queue.max)
        else:
            records = iter_records(found.data, check_crc=False)
            return [(piece[2], record, None) for piece, record in zip(found.pieces, records, strict=True)]
        return []

    def _bring(self, first: int, until: int) -> None:
        """Read some open halves, and look those of former lives up."""
        queue = self._store.queries.queue(model.HALF_TOPIC, QUEUE_ID)
        wanted = [
            at for at in range(first, min(until, first + 4 * STEP_COUNT_MAX)) if self.outcomes.is_open(at)
        ]
        former_end = self.former_end

        def work(look: Looker) -> dict[int, tuple[Record, Fate | None]]:
            known: dict[int, tuple[Record, Fate | None]] = {}
            size = 0
            for offset in wanted[:STEP_COUNT_MAX]:
                found = [] if queue is None else list(look.records(queue, offset, offset + 1))
                for _, data in found:
                    record = decode_record(data, check_crc=False)
                    known[offset] = record, look_up(look, record) if offset < former_end else None
                    size += record.size
                if size > STEP_BYTES_MAX:
                    break
            return known

        def take(future: Future[Any]) -> None:
            self._known = future.result()
            if first not in self._known and self.outcomes.is_open(first):
                log.error("half message cannot be read, it is passed over offset=%d", first)
                self.outcomes.end(first)
            self.advance()

        self._beside(work, take)

    # --- one half ---

    def _due_ms(self, offset: int, record: Record) -> int:
        """When to ask about a half: it counts from its time in the log, or from when it came, by the clock as
        it is set now. The clock may have been set back behind the former, and must not be waited for."""
        config = self._broker.config
        named = parse_properties(record.properties)
        is_again = halves.CHECK_TIMES in named and (
            named[halves.CHECK_TIMES] != "0" or halves.IMMUNITY in named
        )
        wait_ms = config.transaction_check_interval if is_again else config.transaction_time_out
        stored_ms = min(record.store_timestamp, self._came_ms(offset))
        immune_until = self._immune_until(record, named)
        if is_again and immune_until > stored_ms:
            return min(stored_ms + wait_ms, immune_until)
        return stored_ms + wait_ms

    def _came_ms(self, offset: int) -> int:
        """When a half came, at the latest; one of a former life came with the start."""
        at = bisect_right(self._since, offset, key=itemgetter(0))
        return self._since[at - 1][1] + SINCE_PERIOD_MS if at else self._loaded_ms

    def _immune_until(self, record: Record, named: dict[str, str]) -> int:
        """One that was born in the future by our clock is not immune, as with the reference."""
        seconds = halves.number(named.get(halves.IMMUNITY))
        born_ms = min(record.born_timestamp, record.store_timestamp)
        return born_ms + seconds * 1000 if seconds and born_ms <= self._now_ms else 0

    def _resolve(self, offset: int, record: Record, fate: Fate | None) -> None:
        """Ask about a half that is due, unless its end is known already or nobody is to be asked any more."""
        config, outcomes, now_ms = self._broker.config, self.outcomes, self._now_ms
        named = parse_properties(record.properties)
        first = halves.number(named.get(halves.FIRST_HALF))
        if fate is not None and (fate.is_committed or fate.is_aside or fate.newest > offset):
            outcomes.end(offset)  # committed, laid aside or stored anew; its op was lost
            return
        if first is not None and outcomes.was_ended(first):
            outcomes.end(offset)
            return
        times = halves.number(named.get(halves.CHECK_TIMES)) or 0
        is_old = (
            halves.CHECK_TIMES in named
            and now_ms - record.born_timestamp > config.file_reserved_time * HOUR_MS
        )
        if times >= config.transaction_check_max or is_old:
            self._lay_aside(record, times)
        else:
            is_immune = self._immune_until(record, named) > now_ms
            stored = halves.again(record, times if is_immune else times + 1)
            try:
                placed = self._store.append(stored, now_ms)
            except LocalProtocolError as error:  # its properties grew too long
                log.error("half message cannot be asked about offset=%d reason=%s", offset, error)
                self._lay_aside(record, times)
            else:
                self.stored(placed.queue_offset, now_ms)
                # its end may be told before it can be found by its key
                self.late.note(halves.identity(record), Fate(newest=placed.queue_offset), placed.end)
                if not is_immune:
                    question = halves.question(stored, placed, config.broker_name)
                    command = question.to_command(opaque=self._broker.asks.number(), oneway=True)
                    group = named.get(halves.PRODUCER_GROUP, "")
                    self._asks.append((placed.queue_offset, group, command))
        outcomes.end(offset)

    def _lay_aside(self, record: Record, times: int) -> None:
        topics = self._broker.topics
        if topics.get(model.CHECK_MAX_TIME_TOPIC) is None:
            topics.put(model.TopicConfig(model.CHECK_MAX_TIME_TOPIC, 1, 1), self._now_ms)
        placed = self._store.append(halves.aside(record), self._now_ms)
        self.late.note(halves.identity(record), Fate(newest=record.queue_offset, is_aside=True), placed.end)
        self.laid_aside += 1
        named = parse_properties(record.properties)
        group = named.get(halves.PRODUCER_GROUP, "")
        log.warning(
            "transaction of unknown end laid aside in %s offset=%d topic=%s group=%s key=%s rounds=%d "
            "producers=%d",
            model.CHECK_MAX_TIME_TOPIC, placed.queue_offset, named.get(REAL_TOPIC), group,
            named.get(halves.UNIQUE_KEY), times, len(self._broker.clients.producers.get(group, ())),
        )  # fmt: skip

    def _ask(self) -> None:
        """Send the questions whose halves can be read by now, each to any living producer of its group."""
        living: dict[str, tuple[Connection, ...]] = {}
        while self._asks and self._asks[0][0] < self.outcomes.queue.max:
            offset, group, command = self._asks.popleft()
            if not self.outcomes.is_open(offset):
                continue  # its end was told while it was being stored
            if group not in living:
                living[group] = tuple(self._broker.clients.producers.get(group, ()))
            connection = any_of(living[group])
            if connection is None:
                self.unasked += 1
                self._nobody.note(group)
            else:
                self.asked += 1
                connection.write(encode(command))
        self._nobody.tell(self._now_ms)


def any_of(members: tuple[Connection, ...]) -> Connection | None:
    """Any that reads what it is sent."""
    start = random.randrange(len(members)) if members else 0
    turned = (members[(start + i) % len(members)] for i in range(len(members)))
    return next((member for member in turned if not member.closed and not member.is_clogged), None)


def look_up(look: Looker, record: Record) -> Fate:
    """What became of a half, or of one laid aside, as far as the index of keys leads to it."""
    of = halves.identity(record)
    topic = parse_properties(record.properties).get(REAL_TOPIC)
    known = {record.physical_offset: record}

    def found(place: str) -> list[Record]:
        records = []
        for data in look.by_key(place, of[0], COUNT_MAX, 0, NEVER):
            try:
                records.append(decode_record(data, check_crc=False))
            except RecordInvalid:
                continue
        return records

    is_committed = False
    if of[0] and topic:
        places = topic, model.SCHEDULE_TOPIC, model.TIMER_TOPIC
        is_committed = any(halves.is_copy(copy, of) for place in places for copy in found(place))
        others = found(model.HALF_TOPIC) + found(model.CHECK_MAX_TIME_TOPIC)
        known |= {other.physical_offset: other for other in others if halves.identity(other) == of}
    last = known[max(known)]
    newest = [other.queue_offset for other in known.values() if other.topic == model.HALF_TOPIC]
    return Fate(is_committed, max(newest, default=-1), last.topic == model.CHECK_MAX_TIME_TOPIC)
