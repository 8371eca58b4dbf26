"""Questions to a store that may take long: a record by its offset, records by key, a queue offset by time.

Each is answered on a thread of its own with plain reads, so that neither the loop nor the flushing waits for
a disk that has to seek; what it may look at is taken down before, on the loop, and stays until it is done.
Only what is sound and readable is ever found. A key's hash only leads to candidates; the key itself decides.
"""

from __future__ import annotations

import os
import struct
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

from hotfire.errors import RecordInvalid
from hotfire.protocol.record import SysFlag, decode_record, key_hash, keys_of, parse_properties
from hotfire.store.commitlog import CommitLog
from hotfire.store.config import ENTRY_BYTES
from hotfire.store.consumequeue import ConsumeQueue
from hotfire.store.disk import Disk
from hotfire.store.keyindex import KeyIndexes
from hotfire.store.reading import Reading
from hotfire.store.scan import scan_records

COUNT_MAX = 64
BYTES_MAX = 8 << 20
"""Of one answer, and one record more: clients take no frame above 16 MiB."""
CANDIDATES_MAX = 10_000
"""Records of one key's hash that are looked at."""
WAITING_MAX = 1000
_ENTRY = struct.Struct(">qiq")
_SYS_FLAG_AT, _BORN_AT, _TIME = 36, 48, struct.Struct(">q")


class Queries:
    """Questions under way and their answers, in the order they were asked."""

    def __init__(self, disk: Disk, commitlog: CommitLog, index: KeyIndexes | None, reading: Reading) -> None:
        self._disk = disk
        self._log = commitlog
        self._index = index
        self._reading = reading
        self._event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._asked: deque[tuple[object, Future[Any]]] = deque()

    def fileno(self) -> int:
        """Readable when an answer is there."""
        return self._event

    @property
    def has_room(self) -> bool:
        return len(self._asked) < WAITING_MAX

    def answers(self) -> list[tuple[object, Future[Any]]]:
        """Tokens of the questions that are answered, with what came of them."""
        with suppress(BlockingIOError):
            os.eventfd_read(self._event)
        done = []
        while self._asked and self._asked[0][1].done():
            done.append(self._asked.popleft())
            self._reading.pins -= 1
        return done

    def close(self) -> None:
        """After the disk's threads have ended."""
        os.close(self._event)

    def _ask(self, work: Callable[[], Any], token: object) -> None:
        self._reading.pins += 1
        future = self._disk.aside(work)
        self._asked.append((token, future))
        future.add_done_callback(lambda _: os.eventfd_write(self._event, 1))

    # --- the questions ---

    def record_at(self, physical: int, token: object) -> None:
        """The bytes of the record that begins at a log offset, or None."""
        look = self._looker()
        self._ask(lambda: look.record(physical), token)

    def by_key(self, topic: str, key: str, count_max: int, begin_ms: int, end_ms: int, token: object) -> None:
        """Bytes of the records of a topic with this key or unique key, stored in the span, oldest first.

        Of more than so many the newest. The index knows times to the second, as the reference's.
        """
        files = [] if self._index is None else self._index.newest_first()
        look = self._looker()
        wanted, count_max = key_hash(topic, key), min(count_max, COUNT_MAX)

        def work() -> list[bytes]:
            found: dict[int, bytes] = {}
            size = 0
            for file in files:
                for physical in file.query(wanted, CANDIDATES_MAX, begin_ms, end_ms):
                    if physical in found:
                        continue
                    data = look.keyed(physical, topic, key)
                    if data is not None:
                        found[physical] = data
                        size += len(data)
                    if len(found) >= count_max or size > BYTES_MAX:
                        return [found[at] for at in sorted(found)]
            return [found[at] for at in sorted(found)]

        self._ask(work, token)

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

    def _looker(self) -> _Looker:
        journal = self._log.journal
        return _Looker(self._disk, self._log, dict(self._log.segments), journal.written, journal.summed_from)


class _Looker:
    """The log as it was when the question was asked, read from another thread."""

    def __init__(
        self, disk: Disk, commitlog: CommitLog, segments: dict[int, int], readable: int, summed_from: int
    ) -> None:
        self._disk = disk
        self._log = commitlog
        self._segments = segments
        self._readable = readable
        self._summed_from = summed_from

    def record(self, physical: int) -> bytes | None:
        """The record at `physical` if a sound one begins there."""
        start = self._log.segment_of(physical)
        fd = self._segments.get(start)
        if fd is None or not 0 <= physical < self._readable:
            return None
        size = int.from_bytes(self._disk.read(fd, 4, physical - start))
        if not 0 < size <= min(self._log.segment_bytes, self._readable - physical):
            return None
        data = self._disk.read(fd, size, physical - start)
        found, consumed, _ = scan_records(data, physical, True, self._summed_from)
        return data if found and consumed == size else None

    def keyed(self, physical: int, topic: str, key: str) -> bytes | None:
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

    def boundary(self, queue: ConsumeQueue, low: int, high: int, timestamp: int, *, upper: bool) -> int:
        first = low
        with queue.entry_reader() as entry_at:
            while low < high:  # the first entry stored after (upper), or not before (lower) the time
                middle = (low + high) // 2
                stored = self._stored(entry_at(middle))
                if stored is None or (stored <= timestamp if upper else stored < timestamp):
                    low = middle + 1
                else:
                    high = middle
        return max(first, low - 1) if upper else low

    def _stored(self, entry: bytes) -> int | None:
        """Store time of the record an entry points at; None when it is not there any more."""
        if len(entry) < ENTRY_BYTES:
            return None
        physical, size, _ = _ENTRY.unpack(entry)
        start = self._log.segment_of(physical)
        fd = self._segments.get(start)
        if fd is None or size <= 0 or physical >= self._readable:
            return None
        head = self._disk.read(fd, _BORN_AT + 20 + _TIME.size, physical - start)
        v6 = int.from_bytes(head[_SYS_FLAG_AT : _SYS_FLAG_AT + 4]) & SysFlag.BORN_HOST_V6
        (stored,) = _TIME.unpack_from(head, _BORN_AT + (20 if v6 else 8))
        return int(stored)
