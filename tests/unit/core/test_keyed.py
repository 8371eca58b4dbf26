"""Records by key: the compiled reader, which leaves the loop alone, finds what its specification finds."""

import dataclasses
import os
import tempfile
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotfire import core
from hotfire.protocol.record import (
    Host,
    Record,
    encode_properties,
    encode_record,
    key_hash,
    keys_of,
    parse_properties,
)
from hotfire.store import queries
from hotfire.store.disk import Disk
from hotfire.store.queries import Looker
from hotfire.store.scan import NEVER
from tests.unit.core.made import records, words

pytestmark = pytest.mark.core
keyed = st.dictionaries(
    st.sampled_from(["KEYS", "UNIQ_KEY", "TAGS", "other"]),
    st.lists(words | st.sampled_from(["a", "b", " "]), min_size=1, max_size=3).map(" ".join),
    max_size=4,
).map(encode_properties)


@pytest.fixture(scope="module")
def file() -> Iterator[int]:
    with tempfile.TemporaryFile() as opened:
        yield opened.fileno()


SLOTS, ENTRIES, EVER = 3, 40, 1 << 60


def index() -> core.KeyIndex:
    return core.KeyIndex(bytearray(40 + 4 * SLOTS + 20 * ENTRIES), SLOTS, ENTRIES, ENTRIES)


def looker(fd: int, data: bytes, summed_from: int = NEVER, *files: core.KeyIndex) -> Looker:
    os.ftruncate(fd, 0)
    os.pwrite(fd, data, 0)
    log: Any = SimpleNamespace(segment_of=lambda _: 0, segment_bytes=1 << 20)
    return Looker(Disk("/"), log, {0: fd}, len(data), summed_from, list(files))


def found_by(
    look: Looker, topic: str, key: str, count_max: int = 1, begin: int = 0, end: int = EVER
) -> list[bytes]:
    """The same by the core and by its specification."""
    found = look.by_key(topic, key, count_max, begin, end)
    assert found == look.by_key_plain(topic, key, count_max, begin, end)
    return found


def agreed(look: Looker, topic: str, key: str) -> bytes | None:
    """What is found of a log of one record, were it filed under this key."""
    look._files = [index()]
    assert look._files[0].put(key_hash(topic, key), 0, 1)
    found = found_by(look, topic, key)
    return found[0] if found else None


@given(record=records(), named=keyed, other=words, append_crc=st.booleans(), large=st.booleans())
def test_a_record_is_found_by_its_keys_alone(
    file: int, record: Record, named: bytes, other: str, append_crc: bool, large: bool
) -> None:
    """Unique key, words of the keys, the tag behind its kind; records beyond the first read as well."""
    body = bytes(9000) if large else record.body
    record = dataclasses.replace(record, properties=named, body=body, physical_offset=0)
    data = encode_record(record, append_crc=append_crc)
    look = looker(file, data)
    keys = keys_of(parse_properties(named))
    for key in keys:
        assert agreed(look, record.topic, key) == data
        assert agreed(look, record.topic + "x", key) is None
    assert (agreed(look, record.topic, other) is not None) == (other in keys)
    assert agreed(look, record.topic, "") is None


@given(record=records(), key=st.sampled_from(["a", "T#a"]), data=st.data())
def test_what_is_harmed_is_not_found(file: int, record: Record, key: str, data: st.DataObject) -> None:
    """Any wrong byte, and any end that is missing."""
    named = encode_properties({"KEYS": "a", "TAGS": "a"})
    whole = encode_record(dataclasses.replace(record, properties=named, physical_offset=0), append_crc=True)
    at = data.draw(st.integers(0, len(whole) - 1))
    harmed = bytearray(whole)
    harmed[at] ^= data.draw(st.integers(1, 255))
    assert agreed(looker(file, bytes(harmed), summed_from=0), record.topic, key) is None
    assert agreed(looker(file, whole[:at], summed_from=0), record.topic, key) is None
    assert agreed(looker(file, whole, summed_from=0), record.topic, key) == whole


@st.composite
def filed(draw: st.DrawFn) -> list[tuple[int, str, int, int]]:
    """Of records: bytes of the body, key, seconds since the one before, and in which file of the index."""
    one = st.tuples(
        st.integers(0, 5000), st.sampled_from(["Aa", "BB", "c"]), st.integers(0, 2), st.integers(0, 1)
    )
    rows = draw(st.lists(one, max_size=12))
    return sorted(rows, key=lambda row: row[3])


@given(
    rows=filed(),
    count_max=st.integers(0, 9),
    bytes_max=st.integers(0, 20_000),
    span=st.tuples(st.integers(0, 30), st.integers(0, 30)),
    data=st.data(),
)
def test_of_many_no_more_are_found_than_asked_for(
    file: int,
    rows: list[tuple[int, str, int, int]],
    count_max: int,
    bytes_max: int,
    span: tuple[int, int],
    data: st.DataObject,
) -> None:
    """The newest of that key and span, oldest first; one more than the bytes allow at most.

    Two keys of one hash, entries that lead nowhere or to what is harmed, two files of the index.
    """
    files, stored, seconds = [index(), index()], bytearray(), 1
    matching, places = [], set[int]()
    for size, key, later, which in rows:
        seconds += later
        here, at = Host.parse("127.0.0.1", 10911), len(stored)
        named = encode_properties({"KEYS": key, "UNIQ_KEY": f"u{at}"})
        record = Record("T", 0, bytes(size), 1, here, 1, here, properties=named, physical_offset=at)
        stored += encode_record(record, append_crc=True)
        places.add(at)
        if (astray := data.draw(st.integers(-5, len(stored) + 5))) not in places:
            assert files[which].put(key_hash("T", key), astray, seconds * 1000)
        for _ in range(data.draw(st.integers(1, 2))):
            assert files[which].put(key_hash("T", key), at, seconds * 1000)
        if data.draw(st.integers(0, 4)) == 0:
            stored[data.draw(st.integers(at, len(stored) - 1))] ^= 1
        elif key == "Aa" and span[0] <= seconds <= span[1]:
            matching.append((at, bytes(stored[at:])))
    look = looker(file, bytes(stored), 0, *reversed(files))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(queries, "BYTES_MAX", bytes_max)
        found = found_by(look, "T", "Aa", count_max, span[0] * 1000, span[1] * 1000)
    assert found == [record for _, record in matching[len(matching) - len(found) :]]
    assert len(found) <= count_max
    assert sum(len(record) for record in found[1:]) <= bytes_max
    if len(found) < count_max and sum(map(len, found)) <= bytes_max:
        assert len(found) == len(matching)


def test_several_questions_are_answered_by_one_call(file: int) -> None:
    """Each as if it were asked alone; those that come behind much of what was found are left for the next."""
    here, stored, made = Host.parse("127.0.0.1", 10911), b"", index()
    for number in range(6):
        named = encode_properties({"KEYS": f"k{number % 3}"})
        body = bytes(200_000 if number % 3 == 1 else 10)
        record = Record("T", 0, body, 1, here, 1, here, properties=named, physical_offset=len(stored))
        assert made.put(key_hash("T", f"k{number % 3}"), len(stored), 1)
        stored += encode_record(record, append_crc=True)
    look = looker(file, stored, 0, made)
    asked = [("T", f"k{number}", 9, 0, EVER) for number in (2, 0, 7, 1, 2)]
    alone = [b"".join(look.by_key_plain(*one)) for one in asked]
    assert [one.result() for one in look.by_keys(asked[:3])] == alone[:3]
    assert [one.result() for one in look.by_keys(asked)] == alone[:4]
    assert [len(one) for one in alone[2:4]] == [0, len(alone[1]) + 2 * 199_990]


def test_a_disk_that_fails_fails_one_question(file: int) -> None:
    """Others of the call have their answers."""
    made = index()
    assert made.put(key_hash("T", "a"), 0, 1)
    look = looker(file, bytes(100), 0, made)
    look._segments = {0: os.open("/", os.O_RDONLY)}  # a directory is not read from
    try:
        failed, other = look.by_keys([("T", "a", 1, 0, EVER), ("T", "b", 1, 0, EVER)])
    finally:
        os.close(look._segments[0])
    with pytest.raises(IsADirectoryError):
        failed.result()
    assert other.result() == b""
