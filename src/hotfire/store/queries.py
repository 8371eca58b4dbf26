"""Questions to a store that may take long: a record by its offset, records by key, a queue offset by time.

Each is answered on a thread of its own with plain reads, so that neither the loop nor the flushing waits for
a disk that has to seek; what it may look at is taken down before, on the loop, and stays until it is done.
There are two lines, each with its thread: what clients ask, and the broker's own work, which has a time to
keep and must not wait until a thousand of them have had their answers.
What clients ask by key is answered several questions at a time (`keyline`).
Only what is sound and readable is ever found. A key's hash only leads to candidates; the key itself decides.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from hotfire import core
from hotfire.errors import RecordInvalid
from hotfire.protocol.record import decode_record, key_hash, keys_of, parse_properties
from hotfire.store.commitlog import CommitLog
from hotfire.store.config import ENTRY_BYTES
from hotfire.store.consumequeue import ConsumeQueue
from hotfire.store.disk import Bell, Disk
from hotfire.store.keyindex import KeyIndexes
from hotfire.store.keyline import Found, KeyLine, Together, Wanted
from hotfire.store.reading import Reading
from hotfire.store.scan import NEVER, Scanned, scan_records

COUNT_MAX = 64
BYTES_MAX = 8 << 20
"""Of one answer, and one record more: clients take no frame above 16 MiB."""
CANDIDATES_MAX = 10_000
"""Records of one key's hash that are looked at."""
RECORD_BYTES_MAX = 64 << 20
"""Of a record that is looked for where a peer says one begins: what is there may be any bytes it chose."""
WAITING_MAX = 1000
_ENTRY = struct.Struct(">qiq")
HARMED_PASSED_MAX = 1000
"""Harmed messages passed over in search of a time; of more the place before them is the answer."""
LONG_AGO = NO_TIME = -1


@dataclass(frozen=True, slots=True)
class Question:
    """One under way."""

    number: int
    """How many were asked before it, in either line."""
    token: object
    answer: Future[Any]


class Queries:
    """Questions under way and their answers, in the order they were asked in each line."""

    def __init__(
        self,
        disk: Disk,
        commitlog: CommitLog,
        index: KeyIndexes | None,
        reading: Reading,
        queues: Mapping[tuple[str, int], ConsumeQueue],
    ) -> None:
        self._queues = queues
        self._disk = self.disk = disk
        self._log = commitlog
        self._index = index
        self._reading = reading
        self._bell = Bell()
        self._asked: deque[Question] = deque()
        self._own: deque[Question] = deque()
        self._keyed = KeyLine(self._ask_keyed, lambda: self._log.journal.is_written)

    def fileno(self) -> int:
        """Readable when an answer is there."""
        return self._bell.fileno()

    @property
    def waiting(self) -> int:
        return self._asked_count + len(self._own)

    @property
    def _asked_count(self) -> int:
        return len(self._asked) - self._keyed.calls + self._keyed.count

    @property
    def has_room(self) -> bool:
        """Whether one more client may ask; the broker's own work bounds itself."""
        return self._asked_count < WAITING_MAX

    def answers(self) -> list[tuple[object, Future[Any] | Found]]:
        """Tokens of the questions that are answered, with what came of them."""
        self._bell.silence()
        done: list[tuple[object, Future[Any] | Found]] = []
        for line in (self._own, self._asked):
            while line and line[0].answer.done():
                question = line.popleft()
                if isinstance(question.token, Together):
                    done += self._keyed.answered(question.token, question.answer)
                else:
                    done.append((question.token, question.answer))
        oldest = (line[0].number for line in (self._own, self._asked) if line)
        self._reading.answered = min(oldest, default=self._reading.asked)
        return done

    def close(self) -> None:
        """After the disk's threads have ended: nobody looks at anything any more, and nobody asks."""
        self._reading.answered = self._reading.asked
        self._bell.close()

    def _ask(self, work: Callable[[], Any], token: object, *, own: bool = False) -> None:
        self._bell.fileno()  # made before anyone can ring it
        future = self._disk.aside(work, rests=self._log.journal.is_written, own=own)
        (self._own if own else self._asked).append(Question(self._reading.asked, token, future))
        self._reading.asked += 1
        future.add_done_callback(lambda _: self._bell.ring())

    # --- the questions ---

    def record_at(self, physical: int, token: object) -> None:
        """The bytes of the record that begins at a log offset, or None."""
        look = self._looker()
        self._ask(lambda: look.record(physical), token)

    def record_now(self, physical: int) -> bytes | None:
        """The same at once: for a start, while there is no loop to hold up."""
        return self._looker().record(physical)

    def in_memory(self, pieces: list[tuple[int, int]]) -> bytes | None:
        """The bytes of records at log offsets and of sizes, if all are there and none has to be read."""
        if not all(self._reading.exists((physical, size, 0)) for physical, size in pieces):
            return None
        return self._log.journal.fetch([(physical, size, 0) for physical, size in pieces])

    def by_keys(self, wanted: Iterable[tuple[str, str, int]], token: object) -> None:
        """Of each topic, key and time, the records of that key stored since. For the broker's own work."""
        look, asked = self._looker(), list(wanted)

        def work() -> list[list[bytes]]:
            return [look.by_key(topic, key, COUNT_MAX, begin_ms, NEVER) for topic, key, begin_ms in asked]

        self._ask(work, token, own=True)

    def by_key(self, topic: str, key: str, count_max: int, begin_ms: int, end_ms: int, token: object) -> None:
        """The records of a topic with this key or unique key, stored in the span, in one piece, oldest first.

        Of more than so many the newest. The index knows times to the second, as the reference's.
        """
        self._keyed.add((topic, key, min(count_max, COUNT_MAX), begin_ms, end_ms), token)

    def _ask_keyed(self, wanted: list[Wanted], token: Together) -> None:
        look = self._looker()
        self._ask(lambda: look.by_keys(wanted), token)

    def by_key_now(self, topic: str, key: str, begin_ms: int) -> list[bytes]:
        """The same of all stored since, at once: for a start, while there is no loop to hold up."""
        return self._looker().by_key(topic, key, COUNT_MAX, begin_ms, NEVER)

    def offset_by_time(
        self, queue: ConsumeQueue | None, timestamp: int, *, upper: bool, token: object
    ) -> None:
        """Lower: the first offset stored at or after a time. Upper: the last stored at or before it."""
        look = self._looker()
        low, high = (0, 0) if queue is None else (queue.entries.min, queue.entries.max)

        def work() -> int:
            if queue is None or high <= low:
                return 0
            return look.boundary(queue, low, high, timestamp, upper=upper)

        self._ask(work, token)

    def offsets_by_time(self, topic: str, queue_ids: Iterable[int], timestamp: int, token: object) -> None:
        """Of each queue the first offset stored at or after a time."""
        look = self._looker()
        queues = [self._queues.get((topic, queue_id)) for queue_id in queue_ids]
        spans = [(queue, queue.entries.min, queue.entries.max) for queue in queues if queue is not None]

        def work() -> list[int]:
            found = {
                queue: look.boundary(queue, low, high, timestamp, upper=False) if low < high else 0
                for queue, low, high in spans
            }
            return [0 if queue is None else found[queue] for queue in queues]

        self._ask(work, token)

    def stored_times(self, wanted: Iterable[tuple[str, int, int]], token: object) -> None:
        """Store times of messages by topic, queue and offset; -1 of one that is not there, or not sound."""
        look = self._looker()
        places = [(self._queues.get((topic, queue_id)), index) for topic, queue_id, index in wanted]

        def work() -> list[int]:
            return [look.store_time(queue, index) for queue, index in places]

        self._ask(work, token)

    def widths(self) -> dict[str, int]:
        """Of every topic that has or had messages, one more than the highest queue of them."""
        found: dict[str, int] = {}
        for (topic, queue_id), queue in self._queues.items():
            if queue.entries.next:  # the lane makes the others beforehand
                found[topic] = max(found.get(topic, 0), queue_id + 1)
        return found

    def queue(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """For a look at its entries."""
        return self._queues.get((topic, queue_id))

    def look(self, work: Callable[[Looker], Any], token: object, *, own: bool = False) -> None:
        """Whatever `work` makes of the log as it is now; `own` if it is the broker's work and no client's."""
        look = self._looker()
        self._ask(lambda: work(look), token, own=own)

    def look_now(self, work: Callable[[Looker], Any]) -> Any:
        """The same at once: for a start, while there is no loop to hold up."""
        return work(self._looker())

    def _looker(self) -> Looker:
        journal = self._log.journal
        files = [] if self._index is None else self._index.newest_first()
        segments = dict(self._log.segments)
        return Looker(self._disk, self._log, segments, journal.written, journal.summed_from, files)


class Looker:
    """The log as it was when the question was asked, read from another thread."""

    def __init__(
        self,
        disk: Disk,
        commitlog: CommitLog,
        segments: dict[int, int],
        readable: int,
        summed_from: int,
        files: list[core.KeyIndex],
    ) -> None:
        self._files = files
        self._disk = disk
        self._log = commitlog
        self._segments = segments
        self._readable = readable
        self._summed_from = summed_from

    def record(self, physical: int) -> bytes | None:
        """The record at `physical` if a sound one begins there."""
        found = self._read(physical)
        return None if found is None else found[0]

    def stretch(self, physical: int, size: int) -> bytes:
        """Bytes of one segment as they are, whatever they hold; fewer where the log ends or is gone."""
        place = self._place(physical)
        return b"" if place is None else self._disk.read(place[0], min(size, place[2]), place[1])

    def _place(self, physical: int) -> tuple[int, int, int] | None:
        """Descriptor and position of what begins there, and the most bytes it may have."""
        start = self._log.segment_of(physical)
        fd = self._segments.get(start)
        if fd is None or not 0 <= physical < self._readable:
            return None
        most = min(RECORD_BYTES_MAX, self._log.segment_bytes, self._readable - physical)
        return fd, physical - start, most

    def _read(self, physical: int) -> tuple[bytes, Scanned] | None:
        place = self._place(physical)
        if place is None:
            return None
        fd, position, most = place
        size = int.from_bytes(self._disk.read(fd, 4, position))
        if not 0 < size <= most:
            return None
        data = self._disk.read(fd, size, position)
        found, consumed, _ = scan_records(data, physical, True, self._summed_from)
        return (data, found[0]) if found and consumed == size else None

    def by_key(self, topic: str, key: str, count_max: int, begin_ms: int, end_ms: int) -> list[bytes]:
        """Records of a topic with this key, stored in the span, oldest first; of more the newest."""
        (found,) = self.by_keys([(topic, key, count_max, begin_ms, end_ms)])
        return apart(found.result())

    def by_keys(self, wanted: list[Wanted]) -> list[Found]:
        """The same of several keys, of each in one piece: of the first, and of more if that takes no time."""
        # bytes that are no text read as this character, so only a text without it is the same as its bytes
        is_text = not any("\ufffd" in topic + key for topic, key, *_ in wanted)
        if not (core.COMPILED and self._disk.has_descriptors and is_text):
            try:
                return [Found(b"".join(self.by_key_plain(*wanted[0])))]
            except OSError as error:
                return [Found(error)]
        bounds = (
            self._log.segment_bytes,
            self._readable,
            self._summed_from,
            RECORD_BYTES_MAX,
            CANDIDATES_MAX,
            BYTES_MAX,
        )
        asked = [
            (topic.encode("utf-8", "replace"), key.encode("utf-8", "replace"), count_max, begin_ms, end_ms)
            for topic, key, count_max, begin_ms, end_ms in wanted
        ]
        return [*map(Found, core.records_by_key(self._files, self._segments, bounds, asked))]

    def by_key_plain(self, topic: str, key: str, count_max: int, begin_ms: int, end_ms: int) -> list[bytes]:
        wanted = key_hash(topic, key)
        found: dict[int, bytes] = {}
        looked, size = 0, 0
        for file in self._files:
            # mostly the first few suffice; the thousands of a key that everyone has are not all listed
            for candidates_max in (count_max, CANDIDATES_MAX):
                offsets = file.query(wanted, candidates_max, begin_ms, end_ms)
                candidates = [at for at in dict.fromkeys(offsets[looked:]) if at not in found]
                more = self._with_keys(candidates, topic, key, count_max - len(found), BYTES_MAX - size)
                found.update(more)
                size += sum(len(data) for _, data in more)
                if len(found) >= count_max or size > BYTES_MAX:
                    return [found[at] for at in sorted(found)]
                if len(offsets) < candidates_max:
                    break
                looked = len(offsets)
            looked = 0
        return [found[at] for at in sorted(found)]

    def records(self, queue: ConsumeQueue, low: int, high: int) -> Iterator[tuple[int, bytes]]:
        """The sound records of a stretch of a queue, each with its place in it."""
        low, high = max(low, queue.entries.min), min(high, queue.entries.max)
        with queue.entry_reader() as entry_at:
            for index in range(low, high):
                entry = entry_at(index)
                found = self._read(_ENTRY.unpack(entry)[0]) if len(entry) == ENTRY_BYTES else None
                if found is not None and self._is_entry(found[1], index, queue.entries.key):
                    yield index, found[0]

    @staticmethod
    def _is_entry(scanned: Scanned, index: int, key: object) -> bool:
        return scanned.queue_offset == index and (scanned.topic.decode(), scanned.queue_id) == key

    def _with_keys(
        self, candidates: list[int], topic: str, key: str, count_max: int, bytes_max: int
    ) -> list[tuple[int, bytes]]:
        """Those of the records at these offsets that are of the topic and have the key, in the same order.

        At most so many, and at most so many bytes and one record more.
        """
        found: list[tuple[int, bytes]] = []
        size = 0
        for at in candidates:
            if len(found) >= count_max or size > bytes_max:
                break
            data = self._with_key(at, topic, key)
            if data is not None:
                found.append((at, data))
                size += len(data)
        return found

    def _with_key(self, physical: int, topic: str, key: str) -> bytes | None:
        data = self.record(physical)
        if data is None:
            return None
        try:
            record = decode_record(data, check_crc=False)
        except RecordInvalid:
            return None
        if record.topic != topic:
            return None
        return data if key in keys_of(parse_properties(record.properties)) else None

    def earliest_store_time(self) -> int:
        """Of the first record of the log; -1 when there is none."""
        found = self._read(min(self._segments, default=0))
        return LONG_AGO if found is None else found[1].store_timestamp

    def store_time(self, queue: ConsumeQueue | None, index: int) -> int:
        """When the message at a place of a queue was stored; -1 when it is not there any more."""
        if queue is None or not queue.entries.min <= index < queue.entries.max:
            return LONG_AGO
        with queue.entry_reader() as entry_at:
            entry = entry_at(index)
        stored = self._stored(entry, index, queue.entries.key, entry)
        return LONG_AGO if stored is None else stored

    def boundary(self, queue: ConsumeQueue, low: int, high: int, timestamp: int, *, upper: bool) -> int:
        """Where a harmed message hides the boundary it is the place before it: rather one twice than none."""
        first = low
        with queue.entry_reader() as entry_at:

            def stored_from(index: int) -> tuple[int, int] | None:
                """The first sound message from here on, and its store time."""
                for at in range(index, min(high, index + HARMED_PASSED_MAX)):
                    stored = self._stored(entry_at(at), at, queue.entries.key, entry_at(first))
                    if stored is not None:
                        return at, stored
                return None

            while low < high:  # the first entry stored after (upper), or not before (lower) the time
                middle = (low + high) // 2
                found = stored_from(middle)
                if found is not None and (found[1] <= timestamp if upper else found[1] < timestamp):
                    low = found[0] + 1
                else:
                    high = middle
        return max(first, low - 1) if upper else low

    def _stored(self, entry: bytes, index: int, key: object, first: bytes) -> int | None:
        """Store time of the message an entry means; None when it is harmed, LONG_AGO when it has left."""
        if self._has_left(entry) and self._has_left(first):  # entries of what has left come before others
            return LONG_AGO
        found = self._read(_ENTRY.unpack(entry)[0]) if len(entry) == ENTRY_BYTES else None
        if found is None:
            return None
        return found[1].store_timestamp if self._is_entry(found[1], index, key) else None

    def _has_left(self, entry: bytes) -> bool:
        return len(entry) < ENTRY_BYTES or 0 <= _ENTRY.unpack(entry)[0] < min(self._segments)


def apart(records: bytes) -> list[bytes]:
    """Sound records that lie one behind the other, each for itself."""
    found, at = [], 0
    while at < len(records):
        end = at + int.from_bytes(records[at : at + 4])
        found.append(records[at:end])
        at = end
    return found
