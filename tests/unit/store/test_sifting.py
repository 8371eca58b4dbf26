"""Messages by a condition: all that pass and no others, and hardly more is copied than looked at."""

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from hotfire import core
from hotfire.protocol.record import Record, encode_properties
from hotfire.protocol.sql92 import compile_condition
from hotfire.store.reading import Reading
from hotfire.store.sifting import CANDIDATES_MAX, COST_MAX, Piece, Sieve, likely
from tests.unit.store.driven import Driven, message

pytestmark = pytest.mark.core
COUNT, SHARE = 2000, 10
TENTH = Sieve(compile_condition("a = '1'"))


@pytest.mark.parametrize(
    ("wanted", "looked", "kept", "least", "most"),
    [(32, 32, 0, CANDIDATES_MAX, CANDIDATES_MAX), (10, 100, 50, 20, 40), (200, 250, 1, 256, 256)],
)
def test_looks_ahead_by_what_passed(wanted: int, looked: int, kept: int, least: int, most: int) -> None:
    """Enough for as many to pass as before, and never more than one call takes."""
    assert least <= likely(wanted, looked, kept) <= most


def test_little_is_copied_in_vain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Record by record, pulls bring each message that passes once, and fetch about what they look at."""
    fetched: list[int] = []
    at_hand = Reading._at_hand

    def noted(reading: Reading, pieces: list[Piece]) -> bytes | None:
        fetched.append(len(pieces))
        return at_hand(reading, pieces)

    monkeypatch.setattr(Reading, "_at_hand", noted)
    with Driven(tmp_path, segment_bytes=1 << 22, queue_file_bytes=20 << 12) as driven:
        monkeypatch.setattr(driven.store._reading, "_is_compiled", False)
        for number in range(COUNT):
            named = encode_properties({"a": str(number % SHARE)})
            driven.store.append(message("t", 0, bytes(50), named), driven.now_ms)
            if number % 100 == 99:
                driven.turn()
        found, offset = list[int](), 0
        while offset < COUNT:
            read = driven.store.read("t", 0, offset, count_max=32, bytes_max=1 << 20, sieve=TENTH)
            found += [piece[2] for piece in read.pieces]
            offset = read.next_offset
    assert found == list(range(1, COUNT, SHARE))
    assert sum(fetched) < COUNT * 1.4


# --- all in one call ---


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Driven]:
    """Three queues whose records lie between each other, in segments and queue files that end often."""
    rng = random.Random(92)
    assert core.COMPILED, core.WHY_PLAIN
    with Driven(tmp_path, segment_bytes=1 << 14) as driven:
        for number in range(900):
            named = {"a": str(rng.randrange(3)), "b": "x" * rng.randrange(60)}
            driven.send("t", rng.randrange(3), rng.randbytes(rng.choice((5, 50, 900))), **named)
            if number % 40 == 39:
                driven.turn()
        driven.turn()
        yield driven


def outcomes(driven: Driven, asked: list[tuple[int, Sieve, int, int]]) -> tuple[list[object], int]:
    """What each pull is told, and how many messages were looked at for all of them."""
    before, told = driven.store.evaluated, list[object]()
    for at, sieve, count, size in asked:
        found = driven.store.read("t", 1, at, count_max=count, bytes_max=size, sieve=sieve)
        told.append((found.status, found.next_offset, found.data, found.pieces))
    return told, driven.store.evaluated - before


def one_by_one(
    driven: Driven, monkeypatch: pytest.MonkeyPatch, asked: list[tuple[int, Sieve, int, int]]
) -> tuple[list[object], int]:
    with monkeypatch.context() as context:
        context.setattr(driven.store._reading, "_is_compiled", False)
        return outcomes(driven, asked)


def test_one_call_gives_what_record_by_record_gives(small: Driven, monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages, where to go on, and how many were looked at: whatever the limits, wherever files end."""
    rng = random.Random(7)
    conditions = ("a = '1'", "a < 2", "a = 'no'", "b IS NULL", "a > 0 AND b NOT CONTAINS 'xxxx'", "TRUE")
    sieves = [Sieve(compile_condition(condition)) for condition in conditions]
    sieves.append(Sieve(b"no program"))
    end = small.store.queue("t", 1).max
    asked = [
        (
            rng.randrange(end),
            rng.choice(sieves),
            rng.choice((1, 3, 32, 99)),
            rng.choice((1, 900, 3000, 1 << 30)),
        )
        for _ in range(300)
    ]
    told = outcomes(small, asked)
    assert told == one_by_one(small, monkeypatch, asked)
    assert len({str(one) for one in told[0]}) > 100


def test_the_compiled_road_is_the_one_that_is_taken(small: Driven, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pull within files that are open and in memory makes no list of candidates."""
    small.pull("t", 1, 0, sieve=TENTH)

    def at_hand(reading: Reading, pieces: list[Piece]) -> bytes | None:
        raise AssertionError("record by record")

    monkeypatch.setattr(Reading, "_at_hand", at_hand)
    for at in range(0, 7, 2):  # a queue file holds seven entries
        small.store.read("t", 1, at, count_max=1, bytes_max=1 << 20, sieve=Sieve(compile_condition("TRUE")))


@pytest.mark.parametrize("condition", ["a IS NOT NULL", "a = '1'", "a = 'no'"])
def test_what_is_harmed_is_the_same_by_either_road(
    small: Driven, monkeypatch: pytest.MonkeyPatch, condition: str
) -> None:
    """Any byte of any record: nobody gets it, what lies before it comes, and the pulls get on behind it."""
    rng, sieve = random.Random(condition), Sieve(compile_condition(condition))
    queue = small.store.queue("t", 1)
    wanted = [record.queue_offset for record in all_of(small, sieve)]
    for _ in range(60):
        index = rng.randrange(queue.max)
        entry = queue.entry(index) if small.store.read("t", 1, index, count_max=1, bytes_max=1) else None
        assert entry is not None
        segment = small.store._log.segment_of(entry[0])
        with (small.root / "commitlog" / f"{segment:020d}").open("r+b") as log:
            at = entry[0] - segment + rng.randrange(entry[1])
            log.seek(at)
            was = log.read(1)
            log.seek(at)
            log.write(bytes([was[0] ^ (1 << rng.randrange(8))]))
            log.flush()
            asked = [(max(0, index - back), sieve, 32, 1 << 30) for back in (0, 1, 5, 40)]
            assert outcomes(small, asked)[0] == one_by_one(small, monkeypatch, asked)[0]
            got = [record.queue_offset for record in all_of(small, sieve)]
            assert index not in got
            assert got == [offset for offset in wanted if offset != index]
            log.seek(at)
            log.write(was)


def all_of(driven: Driven, sieve: Sieve) -> list[Record]:
    got, at, end = list[Record](), 0, driven.store.queue("t", 1).max
    while at < end:
        records, following = driven.pull("t", 1, at, sieve=sieve)
        assert following > at
        got, at = got + records, following
    return got


def test_what_is_not_in_memory_is_read_beside_the_loop(tmp_path: Path) -> None:
    """A log whose pages the kernel has given back: the same messages, and none of them read by the loop."""
    with Driven(tmp_path, segment_bytes=1 << 22, queue_file_bytes=20 << 12) as driven:
        for number in range(600):
            driven.send("t", 1, bytes(500), a=str(number % SHARE))
        driven.turn()
        wanted = [record.queue_offset for record in all_of(driven, TENTH)]
        fd = driven.store._log.segments[0]
        os.fsync(fd)
        driven.store.journal.drop_segment(0)  # its map, which holds the pages
        driven.store.journal.add_segment(0, 1 << 22, fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        is_cold = driven.store.journal.fetch([(0, 4096, 0)]) is None  # but for file systems in memory
        found = driven.store.read("t", 1, 0, count_max=32, bytes_max=1 << 30, sieve=TENTH)
        assert (found.data is None) == is_cold
        assert [record.queue_offset for record in all_of(driven, TENTH)] == wanted


def test_asking_for_what_lies_far_apart_is_paid_for(tmp_path: Path) -> None:
    """A queue of which the log holds little: asking whether its pages are there costs more than they do."""
    condition, far = compile_condition("a = '1'"), 1 << 19
    with Driven(tmp_path, segment_bytes=1 << 24, queue_file_bytes=20 << 12) as driven:
        for _ in range(24):
            driven.send("t", 1, b"", a="0")
            driven.send("u", 0, bytes(far))
        for _ in range(24):
            driven.send("dense", 1, b"", a="0")
        driven.turn()

        def sifted(topic: str, cost_max: int, stop: int = 24) -> tuple[int, int, int]:
            queue = driven.store.queue(topic, 1)
            found = queue.sift(
                driven.store.journal, topic.encode(), 1, condition, 0, stop, 32, 1 << 20, cost_max
            )
            return found[2], found[3], found[4]

        _, looked, sparse = sifted("t", 1 << 20)
        _, _, dense = sifted("dense", 1 << 20)
        assert looked == 24
        # far apart and touched for the first time each takes up to 3.5 us, and a pull is to end within 5 ms
        assert COST_MAX / ((sparse - dense) / 24) < 1450
        following, looked, _ = sifted("t", sparse // 2)
        assert 8 < looked == following < 16
        assert sifted("t", 1 << 20, stop=1000)[:2] == (24, 24)  # what there is, whatever was asked for
