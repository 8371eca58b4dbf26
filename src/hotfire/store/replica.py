"""A copy of another broker's log, appended record by record at the very offsets it has there.

What arrives is a stretch of log bytes, cut anywhere. Whole records that are sound by layout, own offset and
checksum go into the turn as if they had been stored here, so that their queue entries and keys follow; a part
of one waits for its rest. The unused end of a segment becomes ours when its first bytes say so.

A copy goes on where the log ends. Before that the master is asked for the last bytes we have, too, and they
are held against ours: a log that has gone another way is noticed and never written over.

Knows the log and its queues. Where the bytes come from, and who is told how far they are safe, is not known.
"""

from __future__ import annotations

from collections.abc import Sequence

from hotfire import core
from hotfire.errors import StoreReadOnly
from hotfire.model import SCHEDULE_TOPIC
from hotfire.protocol.record import BLANK_BYTES, Record, SysFlag
from hotfire.store.deriving import due_ms, has_entry
from hotfire.store.scan import Scanned, scan_records
from hotfire.store.store import Appended, Store

OVERLAP_BYTES = 32 << 10
"""Of our own log, compared with the master's before anything is appended."""
RECORD_BYTES_MAX = 64 << 20
"""Of one record that is waited for: its length word may be any bytes."""
PLACED_MAX = 400
"""Records appended in one pass: some 2 ms."""


class Unfit(Exception):
    """What the master sends does not go on where our log ends."""


class CopiedStore(Store):
    """A store whose log is another's: one record of our own, and it would have gone another way for good."""

    def append_all(self, records: Sequence[Record], now_ms: int) -> list[Appended]:
        raise StoreReadOnly("the log is a copy of the master's, and takes messages of the master's only")


class Replica:
    """The end of one store's log, as it follows a master's."""

    def __init__(self, store: Store, segment_bytes: int, delays_ms: tuple[int, ...]) -> None:
        self._store = store
        self._segment_bytes = segment_bytes
        self._delays_ms = delays_ms
        self._own, self._own_end = b"", 0
        self._rest = bytearray()
        self.position = 0
        """First offset that has not arrived."""
        self.new_queues: list[tuple[str, int]] = []
        """Queues that got a first record, for whoever keeps their topics."""
        self.is_turn_full = False
        """What has arrived waits for the turn under way, not only for the next pass."""

    def begin(self) -> int:
        """Where the master is to send from; 0 asks for its whole log. What was left unfinished is forgotten.

        All that was appended must be readable.
        """
        store = self._store
        end = self._own_end = store.end
        assert store.readable_end == end, "a turn is under way"
        low = max(end - OVERLAP_BYTES, (end - 1) - (end - 1) % self._segment_bytes, store.min_offset)
        start = max(low, 1) if low < end else end  # 0 would be taken for an empty log
        self._own = (
            b"" if start == end else store.queries.look_now(lambda log: log.stretch(start, end - start))
        )
        self._rest.clear()
        self.position = start
        return start

    @property
    def is_compared(self) -> bool:
        """Whether the master has all of what of our log was held against its own."""
        return self.position >= self._own_end

    @property
    def safe_end(self) -> int:
        """Up to where our log is the master's and safe: what the master may be told."""
        return min(self._store.readable_end, self.position)

    def take(self, offset: int, data: bytes) -> None:
        """Bytes of the master's log. Nothing is written where they do not fit."""
        if offset != self.position:
            self._complain_place(offset)
        if not data and offset < self._own_end:
            raise Unfit(
                f"the master's log ends at {offset}, ours at {self._own_end}: it has lost what we have"
            )
        at = min(len(data), max(0, self._own_end - offset))
        if at:
            ours = self._own[len(self._own) - (self._own_end - offset) :][:at]
            if data[:at] != ours:
                raise Unfit(
                    f"the master's log and ours differ between {offset} and {offset + at}, ours ends at "
                    f"{self._own_end}"
                )
            self.position += at
        self._rest += data[at:]
        self.position += len(data) - at

    def _complain_place(self, offset: int) -> None:
        if self.position == 0:
            raise Unfit(
                f"the master's log begins at {offset} and ours is empty: begin with a copy of its store, see "
                "`hotfire store snapshot`"
            )
        raise Unfit(f"the master sends from {offset}, ours ends at {self._own_end}, next is {self.position}")

    def place(self) -> bool:
        """Append what is whole; False when the turn is full, or the pass, and some of it has to wait."""
        journal, room = self._store.journal, PLACED_MAX
        self.is_turn_full = False
        while self._rest:
            base = self.position - len(self._rest)
            if base < journal.end:  # the unused rest of a segment, whose end was placed already
                del self._rest[: journal.end - base]
                continue
            left = self._segment_bytes - base % self._segment_bytes
            entries, consumed, reason = scan_records(
                bytes(self._rest[:left]), base, verify=True, count_max=room
            )
            if not self._append_all(entries):
                self.is_turn_full = True
                return False
            left -= consumed
            room -= len(entries)
            if reason == "enough":
                return not self._rest
            if reason == "partial":
                self._check_partial(base + consumed, left)
                return True
            if reason != "blank":
                raise Unfit(f"the record at {base + consumed} that the master sends is not sound: {reason}")
            unused = int.from_bytes(self._rest[:4])
            if unused != left or left + BLANK_BYTES > self._segment_bytes:
                end = base + consumed
                raise Unfit(
                    f"the master ends a segment at {end + unused}, ours would end at {end + left}: "
                    f"{self._said_size()}"
                )
            if not self._end_segment(left):
                self.is_turn_full = True
                return False
        return True

    def _check_partial(self, offset: int, left: int) -> None:
        size = int.from_bytes(self._rest[:4]) if len(self._rest) >= 4 else 0
        if size + BLANK_BYTES > left or size > RECORD_BYTES_MAX:
            raise Unfit(
                f"the record at {offset} that the master sends would have {size} bytes, {left} are left "
                f"of our segment: {self._said_size()}"
            )

    def _said_size(self) -> str:
        return (
            f"mappedFileSizeCommitLog is {self._segment_bytes} here, and must be as on the master; set it so "
            "and begin with an empty store, or a copy of the master's"
        )

    def _append_all(self, entries: list[Scanned]) -> bool:
        at = 0
        try:
            for entry in entries:
                if not self._append(entry, bytes(self._rest[at : at + entry.size])):
                    return False
                at += entry.size
        finally:
            del self._rest[:at]
        return True

    def _append(self, entry: Scanned, data: bytes) -> bool:
        left = self._segment_bytes - entry.physical % self._segment_bytes
        if entry.size + BLANK_BYTES > left:
            raise Unfit(
                f"the record at {entry.physical} leaves no room for the end of our segment: "
                f"{self._said_size()}"
            )
        queue, tags, hashes = self._entry_of(entry)
        self._store.check_writeable()
        if self._reserve(entry.size) is None:
            return False
        journal = self._store.journal
        journal.append(data, queue, entry.queue_offset, tags, entry.store_timestamp, hashes)
        journal.last_timestamp = max(journal.last_timestamp, entry.store_timestamp)
        if queue is not None:
            queue.next = entry.queue_offset + 1
        return True

    def _entry_of(self, entry: Scanned) -> tuple[core.Queue | None, int, tuple[int, ...]]:
        """Queue, tags and keys of a record, as recovery would find them."""
        is_ended = entry.sys_flag & SysFlag.TRANSACTION_MASK == SysFlag.TRANSACTION_ROLLBACK
        hashes = () if is_ended else entry.key_hashes
        if not has_entry(entry, set()):
            return None, 0, hashes
        topic = entry.topic.decode()
        queue, tags = self._store.queue(topic, entry.queue_id), entry.tags
        if entry.queue_offset != queue.next:
            raise Unfit(
                f"the record at {entry.physical} is number {entry.queue_offset} of topic {topic} queue "
                f"{entry.queue_id}, and {queue.next} is next: the topic was deleted at the master and made "
                "again; begin with a copy of its store, see `hotfire store snapshot`"
            )
        if not entry.queue_offset:
            self.new_queues.append((topic, entry.queue_id))
        if topic == SCHEDULE_TOPIC:
            tags = due_ms(entry.queue_id, entry.store_timestamp, self._delays_ms)
        return queue, tags, hashes

    def _end_segment(self, left: int) -> bool:
        """Leave the rest of the segment unused, as the master did."""
        self._store.check_writeable()
        return self._reserve(left) is not None

    def _reserve(self, size: int) -> int | None:
        journal = self._store.journal
        offset = journal.reserve(size)
        if offset is None and not journal.is_full:
            self._store.add_segment()
            offset = journal.reserve(size)
        return offset
