"""Reading a queue: from entries to records, never past the readable end, never a harmed record as a good one.

Bytes in memory are taken at once; cold ones are read beside the loop while whoever asked waits. Each record
is held against its queue entry and its checksum before anyone gets it. One that fails is passed over and
said; the log is not changed.
"""

from __future__ import annotations

import dataclasses
import errno
import logging
import operator
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from hotfire import core
from hotfire.core.plain import select_entries
from hotfire.store.commitlog import CommitLog
from hotfire.store.consumequeue import ConsumeQueue
from hotfire.store.disk import Disk
from hotfire.store.scan import scan_records

log = logging.getLogger("hotfire.store")

COUNT_MAX_MEMORY, COUNT_MAX_DISK = 32, 8
BYTES_MAX_MEMORY, BYTES_MAX_DISK = 256 << 10, 64 << 10
SCAN_ENTRIES_MAX = 800
PULL_LIMITS = (COUNT_MAX_MEMORY, COUNT_MAX_DISK, BYTES_MAX_MEMORY, BYTES_MAX_DISK, SCAN_ENTRIES_MAX)
BULK_COUNT_MAX, BULK_BYTES_MAX = 4096, 4 << 20
BULK_LIMITS = (BULK_COUNT_MAX, BULK_COUNT_MAX, BULK_BYTES_MAX, BULK_BYTES_MAX, BULK_COUNT_MAX)
"""For those who say that they take more than BYTES_MAX_MEMORY in one answer."""
MEMORY_SHARE = 0.4
"""Records within this share of the machine's memory of the log's end are taken to be in the page cache."""
COLD_BYTES_PER_S_MIN = 1 << 20
"""A pull of the largest size would outlast its client's patience at less."""
HEAD_BYTES, MAGICS = 36, (b"\xda\xa3\x20\xa7", b"\xda\xa3\x20\xab")
HARMED_TOLD_MAX = 1000
"""Harmed records said one by one; who reads them again and again need not fill the disk with it."""

Piece = tuple[int, int, int]
"""Log offset and size of a record, and the index of its queue entry."""
_SIZE: Callable[[Piece], int] = operator.itemgetter(1)


class ReadStatus(Enum):
    """Outcome of a read; the names are the remarks of pull replies."""

    FOUND = "FOUND"
    NO_MATCHED_MESSAGE = "NO_MATCHED_MESSAGE"
    MESSAGE_WAS_REMOVING = "MESSAGE_WAS_REMOVING"
    OFFSET_FOUND_NULL = "OFFSET_FOUND_NULL"
    OFFSET_OVERFLOW_BADLY = "OFFSET_OVERFLOW_BADLY"
    OFFSET_OVERFLOW_ONE = "OFFSET_OVERFLOW_ONE"
    OFFSET_TOO_SMALL = "OFFSET_TOO_SMALL"
    NO_MESSAGE_IN_QUEUE = "NO_MESSAGE_IN_QUEUE"


@dataclass(slots=True)
class Read:
    """What a pull found. FOUND without `data` means the bytes are cold: fetch `pieces` beside the loop."""

    status: ReadStatus
    next_offset: int
    min_offset: int
    max_offset: int
    data: bytes | None = None
    pieces: list[Piece] = dataclasses.field(default_factory=list)


class Reading:
    """Reads of one store."""

    def __init__(
        self, disk: Disk, commitlog: CommitLog, distrust: Callable[[], None], cold_bytes_per_s: int = 0
    ) -> None:
        self._log = commitlog
        self._distrust = distrust
        self._reader = disk.reader()
        self._reader.pace_least = cold_bytes_per_s and max(cold_bytes_per_s, COLD_BYTES_PER_S_MIN)
        self.memory_window = int(disk.memory_bytes() * MEMORY_SHARE)
        self.in_use: dict[int, int] = {}
        """Segments that cold reads under way look at, and how many do."""
        self.asked = self.answered = 0
        """Queries so far, answered in the order they came. Each may look at what was there when it came."""
        self._disk = disk
        self._closing: dict[int, tuple[int, int]] = {}
        self._told: set[int] = set()

    def close(self) -> None:
        self._reader.close()
        for fd, _ in self._closing.values():
            self._disk.close(fd)

    def is_read(self, segment: int, asked: int) -> bool:
        """Whether a read looks at the segment, or a query that was among the first `asked`."""
        return segment in self.in_use or self.answered < asked

    def close_later(self, segment: int, fd: int) -> None:
        """Close the segment's descriptor when nobody who looks at it now does so any more."""
        self._closing[segment] = fd, self.asked

    def sweep(self) -> None:
        """Close what was to be closed and is no longer looked at."""
        for segment, (fd, asked) in list(self._closing.items()):
            if not self.is_read(segment, asked):
                del self._closing[segment]
                self._disk.close(fd)

    # --- a pull ---

    def read(
        self,
        consume_queue: ConsumeQueue | None,
        offset: int,
        *,
        count_max: int,
        bytes_max: int,
        codes: tuple[int, ...] | None = None,
        bulk: bool = False,
    ) -> Read:
        """Messages of one pull: from `offset`, at most so many, of these tag hashes."""
        limits = BULK_LIMITS if bulk else PULL_LIMITS
        if consume_queue is None or consume_queue.entries.max == 0:
            return Read(ReadStatus.NO_MESSAGE_IN_QUEUE, 0, 0, 0)
        queue = consume_queue.entries
        self._leave_what_left(consume_queue, offset)
        low, high = queue.min, queue.max
        if offset < low:
            return Read(ReadStatus.OFFSET_TOO_SMALL, low, low, high)
        if offset == high:
            return Read(ReadStatus.OFFSET_OVERFLOW_ONE, offset, low, high)
        if offset > high:
            return Read(ReadStatus.OFFSET_OVERFLOW_BADLY, high, low, high)
        memory_from = self._log.journal.written - self.memory_window
        for _ in range(2):  # once more after the file was opened
            if codes is None or consume_queue.ext is None:
                pieces, following, _, missing = queue.select(
                    offset, count_max, bytes_max, memory_from, codes, limits
                )
            else:  # entries that are addresses do not tell their tags by themselves
                resolve = consume_queue.ext.tags
                pieces, following, _, missing = select_entries(
                    queue, offset, count_max, bytes_max, memory_from, codes, limits, resolve
                )
            if not missing or pieces or not consume_queue.show(following):
                break
        found = Read(ReadStatus.FOUND, following, low, high, pieces=pieces)
        if pieces:
            return self._fill(found, queue)
        found.status = ReadStatus.NO_MATCHED_MESSAGE
        if missing:  # a file that is not there: on to the next
            found.status = ReadStatus.OFFSET_FOUND_NULL
            found.next_offset = min(consume_queue.following_file(following), high)
        return found

    def _leave_what_left(self, consume_queue: ConsumeQueue, offset: int) -> None:
        """A queue whose oldest records have just left the log begins behind them, for all who ask."""
        queue = consume_queue.entries
        if queue.min <= offset < queue.max and consume_queue.show(offset):
            entry = queue.entry(offset)
            if entry is not None and 0 <= entry[0] < self._log.min_offset:
                consume_queue.follow(self._log.min_offset)

    def _fill(self, found: Read, queue: core.Queue) -> Read:
        """The bytes of the pieces if they are in memory. Entries that point nowhere end the pull."""
        sane = self._count_sane(found.pieces)
        if sane == 0:
            return self._skip(found, found.pieces[0], queue.key)
        if sane < len(found.pieces):
            found.next_offset = found.pieces[sane][2]
            del found.pieces[sane:]
        found.data = self._log.journal.fetch(found.pieces)
        return found if found.data is None else self._checked(found, queue.key)

    def _count_sane(self, pieces: list[Piece]) -> int:
        """Pieces before the first that lies where no record can."""
        sizes = list(map(_SIZE, pieces))
        lowest, highest = min(pieces), max(pieces)
        around = (lowest[0], highest[0] - lowest[0] + max(sizes), 0)
        if min(sizes) > 0 and self._exists(around):  # thousands of them are not looked at one by one
            return len(pieces)
        return next((i for i, piece in enumerate(pieces) if not self._exists(piece)), len(pieces))

    def _exists(self, piece: Piece) -> bool:
        physical, size, _ = piece
        if size <= 0 or not self._log.min_offset <= physical <= self._log.journal.written - size:
            return False
        return self._log.segment_of(physical) == self._log.segment_of(physical + size - 1)

    def _checked(self, found: Read, key: tuple[str, int]) -> Read:
        """What a read brought, less what is harmed: the sound records before the first harmed one."""
        return self._sound(found, key, self._count_sound(found.data or b"", found.pieces, key))

    def _sound(self, found: Read, key: tuple[str, int], sound: int) -> Read:
        data, pieces = found.data or b"", found.pieces
        if sound == len(pieces):
            return found
        if sound == 0:
            return self._skip(found, pieces[0], key)
        found.next_offset = pieces[sound][2]
        del pieces[sound:]
        found.data = data[: sum(size for _, size, _ in pieces)]
        return found

    def _count_sound(self, data: bytes, pieces: list[Piece], key: tuple[str, int]) -> int:
        """Records before the first harmed one."""
        if core.COMPILED:
            topic, queue_id = key
            return core.sound_records(data, pieces, topic.encode(), queue_id, self._log.journal.summed_from)
        at = 0
        for i, piece in enumerate(pieces):
            if not self.is_sound(data[at : at + piece[1]], piece, key):
                return i
            at += piece[1]
        return len(pieces)

    def is_sound(self, data: bytes, piece: Piece, key: object) -> bool:
        """Whether the bytes are one whole, unharmed record, and the one its queue entry means."""
        physical, size, index = piece
        records, consumed, _ = scan_records(data, physical, True, self._log.journal.summed_from)
        if consumed != size or len(records) != 1:
            return False
        found = records[0]
        return found.queue_offset == index and (found.topic.decode(), found.queue_id) == key

    def _skip(self, found: Read, piece: Piece, key: object) -> Read:
        physical, size, index = piece
        if not self._is_record(piece):
            self._distrust()
        if (
            physical >= self._log.min_offset
            and physical not in self._told
            and len(self._told) < HARMED_TOLD_MAX
        ):
            self._told.add(physical)
            log.error(
                "message not delivered, it is harmed or not what its queue entry says queue=%s offset=%d "
                "log_offset=%d size=%d: look at it with `hotfire store verify`", key, index, physical, size,
            )  # fmt: skip
        found.status, found.next_offset, found.data = ReadStatus.NO_MATCHED_MESSAGE, index + 1, None
        if physical < self._log.min_offset:
            found.status = ReadStatus.MESSAGE_WAS_REMOVING
        found.pieces.clear()
        return found

    def _is_record(self, piece: Piece) -> bool:
        """Whether a record begins where the entry points, be it harmed. What is cold is given the doubt."""
        physical, size, _ = piece
        if physical < self._log.min_offset:
            return True
        if not self._exists(piece):
            return False
        head = self._log.journal.fetch([(physical, min(size, HEAD_BYTES), 0)])
        return head is None or (head[4:8] in MAGICS and head[28:36] == physical.to_bytes(8))

    # --- beside the loop ---

    def fileno(self) -> int:
        return self._reader.fileno()

    def fetch_beside(self, found: Read, key: tuple[str, int], token: object) -> None:
        """Have the bytes of a read brought: they are there when `fetched()` gives back its token."""
        segments = {self._log.segment_of(physical) for physical, _, _ in found.pieces}
        topic, queue_id = key
        self._reader.submit(
            self._log.journal, found.pieces, (token, found, key, segments), topic.encode(), queue_id
        )
        for segment in segments:
            self.in_use[segment] = self.in_use.get(segment, 0) + 1

    def fetched(self) -> list[tuple[object, int]]:
        """Tokens of the reads that are done, and 0 or the number of the error of each."""
        taken = self._reader.take()
        for (_, _, _, segments), _, _ in taken:
            for segment in segments:
                self.in_use[segment] -= 1
                if not self.in_use[segment]:
                    del self.in_use[segment]
        return [
            (token, self._settle(found, key, data, sound)) for (token, found, key, _), data, sound in taken
        ]

    def _settle(self, found: Read, key: tuple[str, int], data: bytes | int, sound: int) -> int:
        """What was read, less what is harmed, into its read; 0 or the number of the error."""
        if isinstance(data, int):
            return data
        found.data = data
        try:
            self._sound(found, key, self._count_sound(data, found.pieces, key) if sound < 0 else sound)
        except OSError as error:  # a look at what is harmed met the disk's own error; it is this read's alone
            return error.errno or errno.EIO
        return 0
