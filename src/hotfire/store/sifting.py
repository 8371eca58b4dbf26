"""Messages that pass a condition: candidates taken from a queue's entries, and what is kept of their records.

A condition is a program of the core's, run over the records' raw properties, many in one call. Where a queue
has an extension, bits beside its entries may say ahead of time that a message does not pass: then its record
is not even read. Knows neither groups nor what a condition says.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate

from hotfire import core
from hotfire.core.plain import select_entries
from hotfire.store.commitlog import CommitLog
from hotfire.store.consumequeue import ConsumeQueue
from hotfire.store.queueext import QueueExt

CANDIDATES_MAX, CANDIDATE_BYTES_MAX = 256, 64 << 10
"""Records looked at in one call of the core: copied to where the last ones were, and not into fresh pages."""
COST_MAX = 4 << 20
"""Of one pull: the core's count of bytes, instructions and pages, a nanosecond each at most: under 5 ms, also
where nobody has touched a page before. The next pull goes on."""

Piece = tuple[int, int, int]


@dataclass(slots=True, frozen=True)
class Sieve:
    """A compiled condition, and where its bits are in a bitmap of `bitmap_bytes`."""

    program: bytes
    bits: tuple[int, ...] = ()
    bitmap_bytes: int = 0
    since_ms: int = 0
    """Bitmaps of messages stored later were made with this condition in mind."""

    def may_pass(self, ext: QueueExt, tags: int) -> bool:
        """Whether the message may pass, by what its entry points at; in doubt it may."""
        unit = ext.get(tags)
        if unit is None or not self.bits or unit.store_time <= self.since_ms:
            return True
        bitmap = unit.bitmap
        if len(bitmap) != self.bitmap_bytes:
            return True
        return all(bitmap[bit >> 3] >> (bit & 7) & 1 for bit in self.bits)


@dataclass(slots=True)
class Room:
    """What an answer still takes, and what looking may still cost."""

    count: int
    size: int
    cost: int = COST_MAX

    @property
    def is_full(self) -> bool:
        return self.count <= 0 or self.size <= 0 or self.cost <= 0


def candidates(
    queue: ConsumeQueue, offset: int, stop: int, sieve: Sieve, count_max: int
) -> tuple[list[Piece], int, bool]:
    """Records worth a look from `offset` on: they, where to go on, and whether a file is missing there."""
    count_max = min(count_max, CANDIDATES_MAX)
    limits = (count_max, count_max, CANDIDATE_BYTES_MAX, CANDIDATE_BYTES_MAX, stop - offset)
    if queue.ext is None or not sieve.bits:
        pieces, following, _, missing = queue.entries.select(
            offset, count_max, CANDIDATE_BYTES_MAX, 0, None, limits
        )
    else:
        ext = queue.ext
        pieces, following, _, missing = select_entries(
            queue.entries, offset, count_max, CANDIDATE_BYTES_MAX, 0, None, limits,
            may_pass=lambda tags: sieve.may_pass(ext, tags),
        )  # fmt: skip
    return pieces, following, missing


def likely(wanted: int, looked: int, kept: int) -> int:
    """How many more to look at for so many to pass, by those of the last look: what is copied beyond is lost.

    A few more, for another look costs more than they do.
    """
    return CANDIDATES_MAX if not kept else min(CANDIDATES_MAX, wanted * looked // kept * 5 // 4 + 8)


def sift(
    program: bytes, data: bytes, pieces: list[Piece], room: Room, *, is_first: bool
) -> tuple[list[Piece], list[bytes], int]:
    """Of records that lie one behind the other, those that pass, and how many were looked at.

    The first to be kept of all may be larger than there is room for. Fewer looked at than given: the room is
    used up, or the next one is not what its entry says.
    """
    positions, looked, cost = core.sift_records(program, data, pieces, room.count, room.size, room.cost)
    room.cost -= cost
    if len(positions) == len(pieces) and len(data) <= room.size:  # nothing to leave out
        room.count, room.size = room.count - len(pieces), room.size - len(data)
        return pieces, [data], looked
    ends = list(accumulate(size for _, size, _ in pieces))
    kept, parts = list[Piece](), list[bytes]()
    for position in positions:
        piece = pieces[position]
        if piece[1] > room.size and not (is_first and not kept):
            room.size = 0
            return kept, parts, position
        kept.append(piece)
        parts.append(data[ends[position] - piece[1] : ends[position]])
        room.count -= 1
        room.size -= piece[1]
    return kept, parts, looked


class Bitmaps:
    """Which conditions a new record passes, for the extension of its queue. Whoever knows them sets `of`."""

    def __init__(self, log: CommitLog) -> None:
        self._log = log
        self.of: Callable[[str, bytes], bytes] | None = None
        """Topic and record -> bitmap; None: no bitmaps are made."""
        self.topics: Callable[[str], bool] = lambda topic: False
        """Whether any condition is known of the topic."""

    def of_record(self, topic: str, physical: int, size: int) -> bytes:
        """Nothing, which leaves all to be looked at, when the record is not at hand."""
        if self.of is None or not self.topics(topic):
            return b""
        data = self._log.journal.fetch([(physical, size, 0)])
        return b"" if data is None else self.of(topic, data)
