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
from hotfire.store.sifting import Room, Sieve, candidates, likely, sift

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
EFFORT_PER_RECORD, EFFORT_PER_UNIT = 200, 1500
"""For each entry that a condition looks at, and for each whose extension is asked: some 0.4 and 3 us."""

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
    sieve: Sieve | None = None
    """Cold pieces are yet to be looked at by it."""
    room: Room = dataclasses.field(default_factory=lambda: Room(0, 0))
    """What a sieve may let through."""
    effort: int = 0
    """What looking at messages took, in bytes that are answered in the same time."""
    bulk: tuple[int, int] | None = None
    """In place of the pieces, when all came at once: how many records, and the log offset of the last."""

    @property
    def count(self) -> int:
        return len(self.pieces) if self.bulk is None else self.bulk[0]

    @property
    def last(self) -> int | None:
        """Log offset of the last record; None when there is none."""
        if self.bulk is not None:
            return self.bulk[1]
        return self.pieces[-1][0] if self.pieces else None

    @property
    def size(self) -> int:
        """Bytes of the pieces."""
        return sum(map(_SIZE, self.pieces))


class Reading:
    """Reads of one store."""

    def __init__(
        self, disk: Disk, commitlog: CommitLog, distrust: Callable[[], None], cold_bytes_per_s: int = 0
    ) -> None:
        self._log = commitlog
        self._distrust = distrust
        self._reader = disk.reader()
        self._reader.pace_least = cold_bytes_per_s and max(cold_bytes_per_s, COLD_BYTES_PER_S_MIN)
        # simulated logs are not the core's, whatever else is
        self._is_compiled = core.COMPILED and isinstance(commitlog.journal, core.Journal)
        self.memory_window = int(disk.memory_bytes() * MEMORY_SHARE)
        self.in_use: dict[int, int] = {}
        """Segments that cold reads under way look at, and how many do."""
        self.asked = self.answered = 0
        """Queries so far; all of the first `answered` are. Each may look at what was there when it came."""
        self._disk = disk
        self.evaluated = 0
        """Messages that conditions were run over."""
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
        sieve: Sieve | None = None,
        bulk: bool = False,
    ) -> Read:
        """Messages of one pull: from `offset`, at most so many, of these tag hashes, or that pass a sieve."""
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
        if sieve is not None:
            room = Room(min(count_max, limits[0]), min(bytes_max, limits[2]))
            nothing = Read(ReadStatus.NO_MATCHED_MESSAGE, offset, low, high, room=room)
            return self._sift(consume_queue, nothing, sieve, limits[4])
        if bulk and self._is_compiled and (codes is None or consume_queue.ext is None):
            taken = self._read_bulk(queue, offset, count_max, bytes_max, memory_from, codes)
            if taken is not None:
                data, count, following, last = taken
                return Read(ReadStatus.FOUND, following, low, high, data, bulk=(count, last))
        effort = 0
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
                effort += (following - offset) * EFFORT_PER_UNIT
            if not missing or pieces or not consume_queue.show(following):
                break
        found = Read(ReadStatus.FOUND, following, low, high, pieces=pieces, effort=effort)
        if pieces:
            return self._fill(found, queue)
        found.status = ReadStatus.NO_MATCHED_MESSAGE
        if missing:  # a file that is not there: on to the next
            found.status = ReadStatus.OFFSET_FOUND_NULL
            found.next_offset = min(consume_queue.following_file(following), high)
        return found

    def _read_bulk(
        self,
        queue: core.Queue,
        offset: int,
        count_max: int,
        bytes_max: int,
        memory_from: int,
        codes: tuple[int, ...] | None,
    ) -> tuple[bytes, int, int, int] | None:
        """Thousands of records without an object for each; None unless all are in memory and sound."""
        topic, queue_id = queue.key
        journal = self._log.journal
        return queue.bulk(
            journal, self._log.min_offset, topic.encode(), queue_id,
            offset, count_max, bytes_max, memory_from, codes, BULK_LIMITS,
        )  # fmt: skip

    # --- by a condition ---

    def _sift(self, consume_queue: ConsumeQueue, found: Read, sieve: Sieve, scan_max: int) -> Read:
        """Look at the messages from the read's offset on, until it is full or so many entries were passed."""
        room, key, parts = found.room, consume_queue.entries.key, list[bytes]()
        stop, shown = min(found.next_offset + scan_max, found.max_offset), -1
        if self._sift_at_once(consume_queue, found, sieve, stop, parts):
            return found
        many = room.count  # if most pass no more are needed
        while found.next_offset < stop and not room.is_full:
            begun, cost = found.next_offset, room.cost
            pieces, found.next_offset, missing = candidates(consume_queue, begun, stop, sieve, many)
            each = EFFORT_PER_RECORD if consume_queue.ext is None else EFFORT_PER_UNIT
            found.effort += (found.next_offset - begun) * each
            if missing and not pieces:
                if shown != found.next_offset and consume_queue.show(found.next_offset):
                    shown = found.next_offset
                    continue
                if not found.pieces:  # a file that is not there: on to the next
                    found.status = ReadStatus.OFFSET_FOUND_NULL
                    following = consume_queue.following_file(found.next_offset)
                    found.next_offset = min(following, found.max_offset)
                break
            if not pieces:
                break
            sane = self._count_sane(pieces)
            data = self._at_hand(pieces[:sane])
            if data is None:  # cold: what there is already is an answer, else all of them are looked at later
                if found.pieces:
                    found.next_offset = pieces[0][2]
                    break
                found.next_offset = pieces[sane][2] if sane < len(pieces) else found.next_offset
                found.status, found.pieces, found.sieve = ReadStatus.FOUND, pieces[:sane], sieve
                return found
            kept, more, looked = sift(sieve.program, data, pieces[:sane], room, is_first=not found.pieces)
            self.evaluated += looked
            found.effort += len(data) // 8 + (cost - room.cost) // 2
            parts += more
            found.pieces += kept
            many = likely(room.count, looked, len(kept))
            if looked < len(pieces):
                found.next_offset = pieces[looked][2]
            if not looked:  # harmed, or too large for what is left
                return self._filled(found, parts, key) if found.pieces else self._skip(found, pieces[0], key)
        return self._filled(found, parts, key)

    def _sift_at_once(
        self, consume_queue: ConsumeQueue, found: Read, sieve: Sieve, stop: int, parts: list[bytes]
    ) -> bool:
        """Without an object for what does not pass. False: go on record by record, from where this ended."""
        if not self._is_compiled or (consume_queue.ext is not None and sieve.bits):
            return False
        queue, room, begun = consume_queue.entries, found.room, found.next_offset
        topic, queue_id = queue.key
        data, pieces, following, looked, cost, is_done = queue.sift(
            self._log.journal, topic.encode(), queue_id, sieve.program, begun, stop,
            room.count, room.size, room.cost,
        )  # fmt: skip
        if following == begun:
            return False
        self.evaluated += looked
        found.effort += (following - begun) * EFFORT_PER_RECORD + cost // 2
        found.next_offset, found.pieces = following, pieces
        room.count, room.size, room.cost = room.count - len(pieces), room.size - len(data), room.cost - cost
        if is_done and pieces:
            found.status, found.data = ReadStatus.FOUND, data
        parts.append(data)
        return is_done

    def _at_hand(self, pieces: list[Piece]) -> bytes | None:
        """Their records, if all of them are in memory."""
        return self._log.journal.fetch(pieces)

    def _filled(self, found: Read, parts: list[bytes], key: tuple[str, int]) -> Read:
        if not found.pieces:
            return found
        found.status, found.data = ReadStatus.FOUND, b"".join(parts)
        return self._checked(found, key)

    def _sift_cold(self, found: Read, sieve: Sieve) -> None:
        """What a read brought, less what does not pass."""
        kept, parts, looked = sift(sieve.program, found.data or b"", found.pieces, found.room, is_first=True)
        self.evaluated += looked
        if looked < len(found.pieces):
            found.next_offset = found.pieces[looked][2]
        found.pieces, found.data = kept, b"".join(parts) or None
        if not kept:
            found.status = ReadStatus.NO_MATCHED_MESSAGE

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
        if min(sizes) > 0 and self.exists(around):  # thousands of them are not looked at one by one
            return len(pieces)
        return next((i for i, piece in enumerate(pieces) if not self.exists(piece)), len(pieces))

    def exists(self, piece: Piece) -> bool:
        """Whether a record may lie there."""
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
        if not self.exists(piece):
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
            if found.sieve is not None and found.pieces:
                self._sift_cold(found, found.sieve)
        except OSError as error:  # a look at what is harmed met the disk's own error; it is this read's alone
            return error.errno or errno.EIO
        return 0
