"""Cold reads beside the loop: the bytes asked for, in the order asked, or the number of the error."""

import errno
import os
import select
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotfire import core
from hotfire.protocol.record import Host, Record, encode_record
from tests.unit.core.made import TWINS

pytestmark = pytest.mark.core
SEGMENT = 1 << 16


@pytest.fixture(params=TWINS)
def twin(request: pytest.FixtureRequest) -> ModuleType:
    return TWINS[request.param]


class Cold:
    """Two segments of known bytes, one whose file is short, one that cannot be read, and a reader."""

    def __init__(self, twin: ModuleType, root: Path) -> None:
        self.journal = twin.Journal(0)
        self.reader = twin.Reader()
        self.data = bytes(n * 7 % 251 for n in range(2 * SEGMENT))
        self.fds = []
        contents = [self.data[:SEGMENT], self.data[SEGMENT:], bytes(100), bytes(SEGMENT)]
        for number, content in enumerate(contents):
            path = root / str(number)
            path.write_bytes(content)
            self.fds.append(os.open(path, os.O_WRONLY if number == 3 else os.O_RDONLY))
            self.journal.add_segment(number * SEGMENT, SEGMENT, self.fds[-1])

    def take(self, count: int) -> list[tuple[Any, bytes | int]]:
        return [(token, data) for token, data, _ in self.take_judged(count)]

    def take_judged(self, count: int) -> list[tuple[Any, bytes | int, int]]:
        taken: list[tuple[Any, bytes | int, int]] = []
        while len(taken) < count:
            ready, _, _ = select.select([self.reader.fileno()], [], [], 20)
            assert ready, f"{len(taken)} of {count} reads ended"
            taken += self.reader.take()
        return taken

    def close(self) -> None:
        self.reader.close()
        self.journal.close()
        for fd in self.fds:
            os.close(fd)


@pytest.fixture
def cold(twin: ModuleType, tmp_path: Path) -> Iterator[Cold]:
    made = Cold(twin, tmp_path)
    yield made
    made.close()


def test_pieces_come_joined_and_in_order(cold: Cold) -> None:
    """Each read gives its pieces one after the other, and reads end in the order they were asked for."""
    wanted = [[(n * 100, 50), (SEGMENT + n, 7), (n, 1)] for n in range(200)]
    for number, pieces in enumerate(wanted):
        cold.reader.submit(cold.journal, pieces, ("token", number))
    assert cold.reader.queued == 200
    taken = cold.take(200)
    assert cold.reader.queued == 0
    assert [token for token, _ in taken] == [("token", number) for number in range(200)]
    for (_, data), pieces in zip(taken, wanted, strict=True):
        assert data == b"".join(cold.data[at : at + size] for at, size in pieces)
    assert cold.reader.take() == []


def test_what_cannot_be_read_is_an_error_number(cold: Cold) -> None:
    """A file that ends early, a descriptor that is not for reading; what follows is read all the same."""
    cold.reader.submit(cold.journal, [(0, 10), (2 * SEGMENT + 50, 100)], "short")
    cold.reader.submit(cold.journal, [(3 * SEGMENT, 10), (0, 10)], "unreadable")
    cold.reader.submit(cold.journal, [(5, 5)], "sound")
    taken = dict(cold.take(3))  # what is in memory does not wait for what is not
    assert taken == {"short": errno.EIO, "unreadable": errno.EBADF, "sound": cold.data[5:10]}


@pytest.mark.parametrize("piece", [(-1, 5), (4 * SEGMENT, 5), (SEGMENT - 2, 5)])
def test_what_no_segment_holds_is_refused_at_once(cold: Cold, piece: tuple[int, int]) -> None:
    """A piece outside the log, or across two segments, is never queued."""
    with pytest.raises(LookupError):
        cold.reader.submit(cold.journal, [(0, 5), piece], "nowhere")
    assert cold.reader.queued == 0


def test_close_does_not_wait_for_what_is_queued(cold: Cold) -> None:
    """Thousands of reads nobody will take any more do not hold up the end."""
    for _ in range(5000):
        cold.reader.submit(cold.journal, [(0, SEGMENT)], object())
    started = time.monotonic()
    cold.reader.close()
    assert time.monotonic() - started < 10
    cold.reader.close()  # once more is nothing


@given(
    count=st.integers(1, 6),
    harmed=st.integers(0, 6),
    kind=st.sampled_from(["byte", "entry", "topic", "none"]),
)
def test_records_before_the_first_harmed_one_are_counted(count: int, harmed: int, kind: str) -> None:
    """The compiled reader judges what it read as the store's own check does; without a topic it does not."""
    here = Host.parse("127.0.0.1", 10911)
    data, pieces = b"", []
    for number in range(count):
        record = Record(
            "T" if kind != "topic" or number != harmed else "U",
            3, b"body", 1, here, 1, here, queue_offset=number, physical_offset=len(data),
        )  # fmt: skip
        encoded = encode_record(record, append_crc=True)
        pieces.append((len(data), len(encoded), number + (kind == "entry" and number == harmed)))
        data += encoded
    if kind == "byte" and harmed < count:
        at = pieces[harmed][0] + 90
        data = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
    with tempfile.TemporaryFile() as file:
        file.write(data)
        file.flush()
        journal, reader = core.Journal(0), core.Reader()
        journal.add_segment(0, len(data), file.fileno())
        journal.summed_from = 0
        reader.submit(journal, pieces, "judged", b"T", 3)
        reader.submit(journal, pieces, "taken as they are")
        taken: list[tuple[Any, bytes | int, int]] = []
        while len(taken) < 2:
            assert select.select([reader.fileno()], [], [], 20)[0]
            taken += reader.take()
        reader.close()
        journal.close()
    sound = count if kind == "none" else min(count, harmed)
    assert taken == [("judged", data, sound), ("taken as they are", data, -1)]
    assert core.sound_records(data, pieces, b"T", 3, 0) == sound


def test_what_is_in_memory_waits_for_no_disk(tmp_path: Path) -> None:
    """While messages are stored cold reads keep to a pace; who needs none passes them; so does the end."""
    cold_file, log_file, size = tmp_path / "cold", tmp_path / "log", 1 << 20
    cold_file.write_bytes(os.urandom(size))
    log_file.write_bytes(bytes(size))
    fds = [os.open(cold_file, os.O_RDONLY), os.open(log_file, os.O_RDWR)]
    os.fsync(fds[0])
    os.posix_fadvise(fds[0], 0, 0, os.POSIX_FADV_DONTNEED)
    journal, reader = core.Journal(size), core.Reader()
    for number, fd in enumerate(fds):
        journal.add_segment(number * size, size, fd)
    assert not journal.is_written
    assert journal.reserve(100) == size
    journal.append(b"x" * 100, None, 0, 0)
    reader.pace_least = 1  # a byte a second: the second cold read would wait for hours
    journal.submit(1)
    assert select.select([journal.fileno()], [], [], 20)[0]
    assert journal.is_written
    journal.complete()
    for number in range(8):
        reader.submit(journal, [(number * (size // 8), 5000)], f"cold {number}")
    reader.submit(journal, [(size, 100)], "warm")
    taken: set[str] = set()
    while "warm" not in taken:
        assert select.select([reader.fileno()], [], [], 20)[0], f"only {taken}"
        taken |= {token for token, _, _ in reader.take()}
    begun_s = time.monotonic()
    reader.close()
    assert time.monotonic() - begun_s < 10
    journal.close()
    for fd in fds:
        os.close(fd)


def test_the_disk_is_asked_however_much_is_in_memory(tmp_path: Path) -> None:
    """One who is far behind has his turn among any number of those who are not."""
    path, size = tmp_path / "log", 1 << 20
    path.write_bytes(os.urandom(2 * size))
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.pread(fd, size, size)
    journal, reader = core.Journal(2 * size), core.Reader()
    journal.add_segment(0, 2 * size, fd)
    reader.submit(journal, [(0, 5000)], "cold")
    for number in range(500):
        reader.submit(journal, [(size, size)], number)
    taken: list[object] = []
    while len(taken) < 501:
        assert select.select([reader.fileno()], [], [], 20)[0]
        taken += [token for token, _, _ in reader.take()]
    assert taken.index("cold") < 250
    reader.close()
    journal.close()
    os.close(fd)


def test_much_is_handed_out_in_portions(cold: Cold) -> None:
    """The loop looks around between; the reader goes on ringing until all is taken."""
    for number in range(12):
        cold.reader.submit(cold.journal, [(0, SEGMENT)], number)
    taken = cold.take(12)
    assert [token for token, _ in taken] == list(range(12))
    assert cold.reader.take() == []
