"""Turns of the log: what is handed over is on disk in order, what failed is never tried again.

Each test is one story told to both twins; where a story has choices, a script makes them and the two must
end with equal answers and equal bytes.
"""

import errno
import itertools
import os
import random
import resource
import select
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotfire.protocol.record import MAGIC_BLANK, Host, Record, encode_record
from hotfire.store.scan import scan_records_plain
from tests.unit.core.made import TWINS

pytestmark = pytest.mark.core
SEGMENT = 1024
NO_FD = 100_000  # far from any number that a file opened meanwhile could get
HERE = Host(bytes((127, 0, 0, 1)), 1)
WINDOW = 4
"""Entries a queue grows by."""


@pytest.fixture(params=TWINS)
def twin(request: pytest.FixtureRequest) -> ModuleType:
    return TWINS[request.param]


def wait_for(fd: int) -> None:
    ready, _, _ = select.select([fd], [], [], 20)
    assert ready, "the turn never ended"


class Log:
    """A journal over small segments in a directory, and queues that grow when they have to."""

    def __init__(
        self, twin: ModuleType, root: Path, *, segments: int = 1, turn_bytes_max: int = 1 << 20
    ) -> None:
        self.root = root
        root.mkdir(parents=True, exist_ok=True)
        self.journal = twin.Journal(0, turn_bytes_max)
        self.fds: list[int] = []
        for _ in range(segments):
            self.add_segment()
        self.queues = [twin.Queue(f"queue {n}", self._grower(n)) for n in range(3)]
        self.grown: list[tuple[int, int]] = []

    def _grower(self, number: int) -> Callable[[int], None]:
        def grow(index: int) -> None:
            self.grown.append((number, index))
            self.queues[number].attach(index - index % WINDOW, bytearray(WINDOW * 20))

        return grow

    def add_segment(self) -> None:
        start = len(self.fds) * SEGMENT
        fd = os.open(self.root / f"{start:020d}", os.O_RDWR | os.O_CREAT, 0o600)
        os.ftruncate(fd, SEGMENT)
        self.fds.append(fd)
        self.journal.add_segment(start, SEGMENT, fd)

    def append(self, size: int, queue: int, tags: int = 0) -> int | None:
        """A sound record of about `size` bytes; None when there is no place for it now."""
        body = b"b" * max(0, size - 96)
        record = Record("t", queue, body, 1, HERE, 2, HERE)
        physical = self.journal.reserve(len(encode_record(record, append_crc=False)))
        if physical is None:
            return None
        entries = self.queues[queue]
        placed = Record(
            "t", queue, body, 1, HERE, 2, HERE, physical_offset=physical, queue_offset=entries.next
        )
        end: int = self.journal.append(
            encode_record(placed, append_crc=False), entries, entries.claim(), tags
        )
        return end

    def flush(self, sync: bool = True) -> int:
        """Hands over what there is and waits for its end."""
        if self.journal.submit(sync):
            wait_for(self.journal.fileno())
        written: int = self.journal.complete()
        return written

    def close(self) -> None:
        self.journal.close()
        for fd in self.fds:
            os.close(fd)

    def bytes_on_disk(self) -> list[bytes]:
        return [path.read_bytes() for path in sorted(self.root.iterdir())]


@pytest.fixture
def log(twin: ModuleType, tmp_path: Path) -> Iterator[Log]:
    made = Log(twin, tmp_path / "log", segments=2)
    yield made
    made.close()


# --- both twins, one script ------------------------------------------------------------------------

operations = st.one_of(
    st.tuples(st.just("append"), st.integers(91, 400), st.integers(0, 2), st.integers(-9, 9)),
    st.tuples(st.just("append"), st.integers(91, 130), st.integers(0, 2), st.integers(-9, 9)),
    st.tuples(st.just("append"), st.integers(900, 1100), st.just(0), st.just(0)),
    st.tuples(st.just("flush"), st.booleans()),
    st.tuples(st.just("derive"), st.integers(0, 100)),
    st.tuples(st.just("derive"), st.just(100)),
    st.tuples(st.just("segment")),
    st.tuples(st.just("watch"), st.integers(0, 2), st.integers(0, 1)),
    st.tuples(st.just("fetch"), st.integers(0, 10), st.integers(1, 6)),
)


def tell(twin: ModuleType, root: Path, script: list[tuple[Any, ...]]) -> tuple[list[Any], list[bytes]]:
    """Everything the journal said on the way, and the bytes it left."""
    log = Log(twin, root, turn_bytes_max=1500)
    said: list[Any] = []
    ends = [0]
    try:
        for name, *choices in script:
            match name:
                case "append":
                    said.append(log.append(*choices))
                case "flush":
                    said.append(log.flush(*choices))
                    ends.append(log.journal.written)
                case "derive":
                    limit = log.journal.written * choices[0] // 100
                    woken = log.journal.derive(limit)
                    said.append(woken and [queue.key for queue in woken])
                case "segment":
                    log.add_segment()
                case "watch":
                    log.queues[choices[0]].watched = choices[1]
                case "fetch":
                    said.append(fetched(log, *choices))
            journal = log.journal
            said.append((journal.end, journal.written, journal.pending, journal.is_full, journal.busy))
            said.append([(queue.next, queue.max) for queue in log.queues])
        log.flush()
        woken = log.journal.derive(log.journal.written)
        said += [woken and [queue.key for queue in woken], log.grown]
        said.append([[queue.entry(n) for n in range(queue.max)] for queue in log.queues])
    finally:
        log.close()
    return said, log.bytes_on_disk()


def fetched(log: Log, skip: int, count: int) -> list[tuple[int, int]]:
    """Reads visible entries back from the log and checks what it says of itself; the pieces it read."""
    pieces = []
    for queue in log.queues:
        for index in range(skip, min(queue.max, skip + count)):
            physical, size, _ = queue.entry(index)
            pieces.append((physical, size))
    data = log.journal.fetch(pieces)
    if data is not None:  # else not in memory just now
        at = 0
        for physical, size in pieces:
            entries, _, _ = scan_records_plain(data[at : at + size], physical, True)
            assert [(entry.physical, entry.size) for entry in entries] == [(physical, size)]
            at += size
        assert at == len(data)
    return pieces


def compare(script: list[tuple[Any, ...]]) -> list[Any]:
    """Tells both; they must say and leave the same, and what is left must be sound. What they said."""
    with tempfile.TemporaryDirectory() as directory:
        stories = [tell(twin, Path(directory) / name, script) for name, twin in TWINS.items()]
    assert stories[0] == stories[1]
    said, segments = stories[0]
    entries = {physical: size for queue in said[-1] for physical, size, _ in queue}
    found = {}
    for number, data in enumerate(segments):
        scanned, at, reason = scan_records_plain(data, number * SEGMENT, True)
        found.update((entry.physical, entry.size) for entry in scanned)
        assert reason in ("blank", "end"), (number, at, reason)
        if reason == "blank":
            assert int.from_bytes(data[at : at + 4]) == SEGMENT - at
    assert found == entries
    return said


@given(st.lists(operations, max_size=30))
def test_both_fill_and_flush_alike(script: list[tuple[Any, ...]]) -> None:
    """Equal answers, equal order of entries and wakings, equal bytes; and the bytes are sound records."""
    compare(script)


def test_both_fill_and_flush_alike_for_long() -> None:
    """Logs of many segments and turns, full ones and missing ones among them."""
    rng = random.Random(20261117)
    kinds = ("append",) * 9 + ("flush", "derive", "segment", "watch", "fetch")
    choices: dict[str, Callable[[], tuple[int, ...]]] = {
        "append": lambda: (rng.randrange(91, 400), rng.randrange(3), rng.randrange(-9, 9)),
        "flush": lambda: (rng.randrange(2),),
        "derive": lambda: (rng.choice((50, 100)),),
        "segment": lambda: (),
        "watch": lambda: (rng.randrange(3), rng.randrange(2)),
        "fetch": lambda: (rng.randrange(10), rng.randrange(1, 6)),
    }
    full = missing = ends = 0
    for _ in range(20):
        script = [(kind, *choices[kind]()) for kind in rng.choices(kinds, k=150)]
        states = [each for each in compare(script) if isinstance(each, tuple)]
        full += sum(is_full for _, _, _, is_full, _ in states)
        missing += sum(before == after for before, after in itertools.pairwise(states))
        ends += max(end for end, *_ in states) // SEGMENT
    assert min(full, missing, ends) > 20


# --- one story at a time ---------------------------------------------------------------------------


def test_a_record_that_does_not_fit_goes_to_the_next_segment(log: Log) -> None:
    """The rest of the segment is a blank that says how large it is."""
    log.append(600, 0)
    first_end = log.journal.end
    log.append(600, 0)
    assert log.journal.end > SEGMENT
    assert log.flush() == log.journal.end
    data = log.bytes_on_disk()[0]
    assert int.from_bytes(data[first_end : first_end + 4]) == SEGMENT - first_end
    assert int.from_bytes(data[first_end + 4 : first_end + 8]) == MAGIC_BLANK
    assert log.bytes_on_disk()[1][:4] != bytes(4)


def test_without_a_next_segment_nothing_is_placed(log: Log) -> None:
    """A record with no place leaves the log as it is until there is one."""
    for _ in range(2):
        assert log.append(800, 0) is not None
    before = log.journal.end, log.journal.pending
    assert log.append(800, 0) is None
    assert (log.journal.end, log.journal.pending, log.journal.is_full) == (*before, False)
    log.add_segment()
    assert log.append(800, 0) is not None


def test_the_last_bytes_of_a_segment_are_kept_for_a_blank(log: Log) -> None:
    """A record may leave exactly the eight bytes of a blank, not one fewer."""
    assert log.journal.reserve(SEGMENT - 8) == 0
    assert log.journal.reserve(SEGMENT - 7) is None
    log.journal.append(bytes(100), None, 0, 0)
    assert log.journal.reserve(SEGMENT - 108) == 100
    assert log.journal.pending == 100
    assert log.journal.reserve(SEGMENT - 107) == SEGMENT
    assert log.journal.pending == 108


def test_a_full_turn_takes_no_more_until_it_is_handed_over(twin: ModuleType, tmp_path: Path) -> None:
    """The turn may be overfilled by one record, not by two."""
    log = Log(twin, tmp_path, segments=2, turn_bytes_max=150)
    try:
        assert log.append(100, 0) is not None
        assert not log.journal.is_full
        assert log.append(100, 0) is not None
        assert log.journal.is_full
        assert log.append(100, 0) is None
        assert log.journal.submit(True)
        assert not log.journal.is_full
        assert log.append(100, 0) is not None
    finally:
        log.close()


def test_nothing_is_visible_before_its_turn_is_complete(log: Log) -> None:
    """Entries appear with the end of their turn, those of a later turn with that one's."""
    log.append(100, 0)
    log.append(100, 1)
    log.queues[0].watched = 1
    first = log.journal.end
    assert log.journal.derive(log.journal.written) is None
    assert [queue.max for queue in log.queues] == [0, 0, 0]
    assert log.journal.submit(True)
    assert log.journal.busy
    log.append(100, 0)
    assert not log.journal.submit(True), "one turn at a time"
    wait_for(log.journal.fileno())
    assert log.journal.complete() == first
    assert [queue.key for queue in log.journal.derive(first)] == ["queue 0"]
    assert [queue.max for queue in log.queues] == [1, 1, 0]
    assert log.flush() == log.journal.end
    log.journal.derive(log.journal.written)
    assert [queue.max for queue in log.queues] == [2, 1, 0]


def test_a_queue_that_cannot_grow_keeps_its_place_in_line(twin: ModuleType, tmp_path: Path) -> None:
    """An entry that finds no room is derived again later, before those behind it."""
    log = Log(twin, tmp_path)
    room: list[bytearray] = []

    def grow(index: int) -> None:
        if not room:
            raise OSError(errno.ENOSPC, "no room")
        queue.attach(0, room.pop())

    queue = log.queues[1] = twin.Queue("small", grow)
    try:
        log.append(100, 0)
        log.append(100, 1)
        log.append(100, 0)
        written = log.flush()
        with pytest.raises(OSError, match="no room"):
            log.journal.derive(written)
        assert [q.max for q in log.queues] == [1, 0, 0]
        room.append(bytearray(200))
        assert log.journal.derive(written) is None
        assert [q.max for q in log.queues] == [2, 1, 0]
    finally:
        log.close()


def test_what_becomes_visible_is_counted_once(twin: ModuleType, tmp_path: Path) -> None:
    """Entries and bytes by queue since the last time, an entry that waited for room with the time it came."""
    log = Log(twin, tmp_path)
    room: list[bytearray] = []

    def grow(index: int) -> None:
        if not room:
            raise OSError(errno.ENOSPC, "no room")
        queue.attach(0, room.pop())

    queue = log.queues[1] = twin.Queue("small", grow)
    try:
        assert log.journal.take_shown() == []
        ends = [log.append(100, number) for number in (0, 0, 1, 0)]
        assert log.journal.take_shown() == [], "nothing is visible yet"
        written = log.flush()
        with pytest.raises(OSError, match="no room"):
            log.journal.derive(written)
        assert log.journal.take_shown() == [("queue 0", 2, ends[1])]
        room.append(bytearray(200))
        log.journal.derive(written)
        size = written // 4
        assert log.journal.take_shown() == [("small", 1, size), ("queue 0", 1, size)]
        assert log.journal.take_shown() == []
    finally:
        log.close()


def test_a_turn_in_hand_is_finished_by_close(twin: ModuleType, tmp_path: Path) -> None:
    """What was handed over is on disk when close returns."""
    log = Log(twin, tmp_path)
    log.append(500, 0)
    assert log.journal.submit(True)
    log.close()
    assert scan_records_plain(log.bytes_on_disk()[0], 0, True)[1] > 400
    log.journal.close()  # once more is nothing


def test_bytes_no_segment_holds_are_an_error(log: Log) -> None:
    """A piece outside the log, or one that leaves its segment, is refused and not made up."""
    for piece in [(-5, 3), (2 * SEGMENT, 1), (SEGMENT - 4, 8)]:
        with pytest.raises(FileNotFoundError):
            log.journal.fetch([piece])
    assert log.journal.fetch([]) == b""


def test_pieces_are_fetched_across_gaps_and_segments(log: Log) -> None:
    """Every other record of two segments, and all of them backwards: their bytes, nothing between them."""
    for _ in range(15):
        assert log.append(110, 0) is not None
    log.flush()
    log.journal.derive(log.journal.written)
    entries = [log.queues[0].entry(index)[:2] for index in range(15)]
    assert entries[-1][0] > SEGMENT
    whole = b"".join(log.bytes_on_disk())
    for pieces in (entries, entries[::2], entries[::5], entries[::-1]):
        data = None
        for _ in range(100):  # a page may be locked for a moment
            data = log.journal.fetch(pieces)
            if data is not None:
                break
            time.sleep(0.01)
        assert data == b"".join(whole[physical : physical + size] for physical, size in pieces)


def test_a_file_cut_short_is_not_the_end_of_us(log: Log) -> None:
    """Bytes that were read before and are no longer in their file are not in memory; nobody dies of it."""
    assert log.append(500, 0) is not None
    log.flush()
    assert log.journal.fetch([(0, 400)]) is not None
    os.ftruncate(log.fds[0], 0)
    assert log.journal.fetch([(0, 400)]) is None
    os.ftruncate(log.fds[0], SEGMENT)


def test_a_dropped_segment_is_gone(log: Log) -> None:
    """Its bytes cannot be asked for any more, and it can be dropped once."""
    assert log.journal.drop_segment(0)
    assert not log.journal.drop_segment(0)
    with pytest.raises(FileNotFoundError):
        log.journal.fetch([(0, 10)])
    with pytest.raises(ValueError, match="overlaps"):
        log.journal.add_segment(SEGMENT, SEGMENT, log.fds[1])


# --- failure ---------------------------------------------------------------------------------------


def open_read_only(path: Path) -> int:
    path.write_bytes(bytes(SEGMENT))
    return os.open(path, os.O_RDONLY)


def open_closed(path: Path) -> int:
    return NO_FD


FAILURES: dict[str, tuple[Callable[[Path], int], int]] = {
    "read-only": (open_read_only, errno.EBADF),
    "closed": (open_closed, errno.EBADF),
    "sync refused": (lambda path: os.open("/dev/null", os.O_RDWR), errno.EINVAL),
}


@pytest.mark.parametrize("failure", FAILURES)
def test_after_a_failed_turn_nothing_is_written_again(failure: str, twin: ModuleType, tmp_path: Path) -> None:
    """The error comes from complete(), and from every later one; no further turn is taken."""
    make, expected = FAILURES[failure]
    fd = make(tmp_path / "segment")
    journal = twin.Journal(0)
    journal.add_segment(0, SEGMENT, fd)
    try:
        journal.append(bytes(100), None, 0, 0)
        assert journal.submit(True)
        wait_for(journal.fileno())
        for _ in range(3):
            with pytest.raises(OSError, match=os.strerror(expected)) as raised:
                journal.complete()
            assert raised.value.errno == expected
            assert journal.written == 0
            assert journal.reserve(100) is not None
            journal.append(bytes(100), None, 0, 0)
            assert not journal.submit(True)
        assert not select.select([journal.fileno()], [], [], 0)[0]
    finally:
        journal.close()
        if fd != NO_FD:
            os.close(fd)


def test_a_turn_that_finds_no_room_is_written_again(twin: ModuleType, tmp_path: Path) -> None:
    """No room is no failure: the same bytes are written when asked, and nothing counts before."""
    fd = os.open("/dev/full", os.O_RDWR)
    journal = twin.Journal(0)
    journal.add_segment(0, SEGMENT, fd)
    try:
        end = journal.append(b"first" * 20, None, 0, 0)
        assert journal.submit(1)
        for _ in range(2):
            wait_for(journal.fileno())
            assert journal.complete() == 0
            assert (journal.stalled, journal.busy) == (True, True)
            assert not journal.submit(1), "the one before comes first"
            assert journal.retry()
            assert not journal.stalled
            assert not journal.retry(), "it is under way"
        wait_for(journal.fileno())
        assert journal.complete() == 0
        room = os.open(tmp_path / "segment", os.O_RDWR | os.O_CREAT)
        os.dup2(room, fd)
        os.close(room)
        assert journal.retry()
        wait_for(journal.fileno())
        assert journal.complete() == end
        assert (tmp_path / "segment").read_bytes() == b"first" * 20
    finally:
        journal.close()
        os.close(fd)


def test_a_disk_that_fills_inside_a_turn_fails_it(twin: ModuleType, tmp_path: Path) -> None:
    """The turn before is safe; the one that did not fit is not, though part of it was written."""
    log = Log(twin, tmp_path)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        log.append(300, 0)
        safe = log.flush()
        log.append(300, 0)
        resource.setrlimit(resource.RLIMIT_FSIZE, (safe + 100, hard))
        assert log.journal.submit(True)
        wait_for(log.journal.fileno())
        with pytest.raises(OSError, match=os.strerror(errno.EFBIG)):
            log.journal.complete()
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert log.journal.written == safe
        log.append(100, 0)
        assert not log.journal.submit(True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        log.close()
    data = log.bytes_on_disk()[0]
    assert any(data[safe : safe + 100])
    assert not any(data[safe + 100 :])


def test_without_sync_the_sync_cannot_fail(twin: ModuleType) -> None:
    """A turn handed over without sync is complete once it is written."""
    fd = os.open("/dev/null", os.O_RDWR)
    journal = twin.Journal(0)
    journal.add_segment(0, SEGMENT, fd)
    journal.append(bytes(100), None, 0, 0)
    try:
        assert journal.submit(False)
        wait_for(journal.fileno())
        assert journal.complete() == 100
    finally:
        journal.close()
        os.close(fd)


# --- zeros ahead of the log, written by the compiled twin alone ---

AHEAD, WIDE = 1 << 20, 4 << 20


@pytest.fixture
def wide(tmp_path: Path) -> Iterator[tuple[Any, int]]:
    """A journal over two large segments full of what another life left behind, and the first one's file."""
    journal = TWINS["compiled"].Journal(0, WIDE)
    fds = []
    for number in range(2):
        path = tmp_path / str(number)
        path.write_bytes(b"\xaa" * WIDE)
        fds.append(os.open(path, os.O_RDWR))
        journal.add_segment(number * WIDE, WIDE, fds[-1])
    yield journal, fds[0]
    journal.close()
    for fd in fds:
        os.close(fd)


def write_turn(journal: Any, size: int, sync: int = 1) -> int:
    """A turn of one record of so many bytes; where it ended."""
    assert journal.reserve(size) is not None
    end: int = journal.append(b"r" * size, None, 0, 0)
    assert journal.submit(sync)
    wait_for(journal.fileno())
    assert journal.complete() == end
    return end


def test_blocks_ahead_of_a_synced_log_are_written_before_their_turn(wide: tuple[Any, int]) -> None:
    """A megabyte at once; what follows it is written when the log comes near its end, not before."""
    journal, fd = wide
    write_turn(journal, 5000)
    assert os.pread(fd, WIDE, 8192) == bytes(AHEAD) + b"\xaa" * (WIDE - 8192 - AHEAD)
    while write_turn(journal, 5000) + AHEAD // 4 <= 8192 + AHEAD:
        assert os.pread(fd, 1, 8192 + AHEAD) == b"\xaa"
    assert os.pread(fd, AHEAD, 8192 + AHEAD) == bytes(AHEAD)


def test_zeros_never_cover_the_log_nor_leave_the_file(wide: tuple[Any, int]) -> None:
    """Turns of all sizes to the end of one file and into the next."""
    journal, fd = wide
    rng, end = random.Random(7), 0
    while end < WIDE - 700_000:
        end = write_turn(journal, rng.choice([100, 4096, 30_000, 300_000, 600_000]))
    last = write_turn(journal, WIDE - end - 100)
    assert os.pread(fd, WIDE, 0)[:last] == b"r" * last
    assert last <= WIDE == os.fstat(fd).st_size
    write_turn(journal, 200)
    assert os.fstat(fd).st_size == WIDE


@pytest.mark.parametrize(("size", "sync"), [(500_000, 1), (5000, 0)], ids=["large", "not synced"])
def test_nothing_is_written_ahead_of(wide: tuple[Any, int], size: int, sync: int) -> None:
    """Large turns would pay for each byte twice, and without a sync nobody waits."""
    journal, fd = wide
    end = write_turn(journal, size, sync)
    assert os.pread(fd, 100_000, end) == b"\xaa" * 100_000
