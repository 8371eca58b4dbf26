"""Checksum and string hash: the compiled ones are zlib's and Java's."""

import itertools
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotfire.core import _core as compiled
from hotfire.protocol.record import java_hash
from tests.unit.core.made import Guarded

pytestmark = pytest.mark.core
EDGES = bytes.fromhex("41 7f 80 8f 90 9f a0 bf c1 c2 df e0 e2 ed ef f0 f1 f4 f5 ff")
"""Where the rules of UTF-8 change."""


@given(st.binary(max_size=600), st.integers(0, 2**32 - 1))
def test_crc_is_zlibs(data: bytes, start: int) -> None:
    """Any bytes, from any running value."""
    assert compiled.crc32(data, start) == zlib.crc32(data, start)
    assert compiled.crc32(data) == zlib.crc32(data)


def test_crc_is_zlibs_at_every_size_and_place() -> None:
    """The wide steps and their remainders meet at every size, and never read past the end."""
    guarded = Guarded()
    data = bytes(range(256)) * 2
    for size in range(400):
        assert compiled.crc32(guarded.holding(data[:size])) == zlib.crc32(data[:size]), size
        assert compiled.crc32(memoryview(data)[size % 17 : size]) == zlib.crc32(data[size % 17 : size]), size


@given(st.text())
def test_hash_of_text_is_javas(text: str) -> None:
    """Over UTF-16 units, in signed 32 bits."""
    assert compiled.java_hash(text.encode()) == java_hash(text)


@given(st.binary(max_size=12) | st.lists(st.sampled_from(EDGES)).map(bytes))
def test_hash_of_damaged_text_is_that_of_its_replacement(data: bytes) -> None:
    """Bytes that are no text hash as the text Java and Python read in their place."""
    assert compiled.java_hash(Guarded(4096).holding(data)) == java_hash(data.decode("utf-8", "replace"))


def test_hash_of_every_short_stretch_of_edges() -> None:
    """All of up to three bytes where the rules change, cut short by the end or not."""
    for size in (1, 2, 3):
        for edges in itertools.product(EDGES, repeat=size):
            data = bytes(edges)
            assert compiled.java_hash(data) == java_hash(data.decode("utf-8", "replace")), data


@pytest.mark.parametrize(("text", "value"), [("", 0), ("TagA", 2598919), ("polygenelubricants", -(2**31))])
def test_known_hashes(text: str, value: int) -> None:
    """The three that every Java programmer knows."""
    assert compiled.java_hash(text.encode()) == value
