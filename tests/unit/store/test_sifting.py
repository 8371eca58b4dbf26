"""Messages by a condition: all that pass and no others, and hardly more is copied than looked at."""

from pathlib import Path

import pytest

from hotfire.protocol.record import encode_properties
from hotfire.protocol.sql92 import compile_condition
from hotfire.store.reading import Reading
from hotfire.store.sifting import CANDIDATES_MAX, Piece, Sieve, likely
from tests.unit.store.driven import Driven, message

COUNT, SHARE = 2000, 10


@pytest.mark.parametrize(
    ("wanted", "looked", "kept", "least", "most"),
    [(32, 32, 0, CANDIDATES_MAX, CANDIDATES_MAX), (10, 100, 50, 20, 40), (200, 250, 1, 256, 256)],
)
def test_looks_ahead_by_what_passed(wanted: int, looked: int, kept: int, least: int, most: int) -> None:
    """Enough for as many to pass as before, and never more than one call takes."""
    assert least <= likely(wanted, looked, kept) <= most


def test_little_is_copied_in_vain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pulls by a condition bring each message that passes once, and fetch about what they look at."""
    fetched: list[int] = []
    at_hand = Reading._at_hand

    def noted(reading: Reading, pieces: list[Piece]) -> bytes | None:
        fetched.append(len(pieces))
        return at_hand(reading, pieces)

    monkeypatch.setattr(Reading, "_at_hand", noted)
    sieve = Sieve(compile_condition("a = '1'"))
    with Driven(tmp_path, segment_bytes=1 << 22, queue_file_bytes=20 << 12) as driven:
        for number in range(COUNT):
            named = encode_properties({"a": str(number % SHARE)})
            driven.store.append(message("t", 0, bytes(50), named), driven.now_ms)
            if number % 100 == 99:
                driven.turn()
        found, offset = list[int](), 0
        while offset < COUNT:
            read = driven.store.read("t", 0, offset, count_max=32, bytes_max=1 << 20, sieve=sieve)
            found += [piece[2] for piece in read.pieces]
            offset = read.next_offset
    assert found == list(range(1, COUNT, SHARE))
    assert sum(fetched) < COUNT * 1.4
