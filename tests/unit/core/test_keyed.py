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

from hotfire.protocol.record import (
    Host,
    Record,
    encode_properties,
    encode_record,
    keys_of,
    parse_properties,
)
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


def looker(fd: int, data: bytes, summed_from: int = NEVER) -> Looker:
    os.ftruncate(fd, 0)
    os.pwrite(fd, data, 0)
    log: Any = SimpleNamespace(segment_of=lambda _: 0, segment_bytes=1 << 20)
    return Looker(Disk("/"), log, {0: fd}, len(data), summed_from, ())


def agreed(look: Looker, topic: str, key: str) -> bytes | None:
    found = look.keyed([0], topic, key, 1, 1 << 20)
    assert found == look.keyed_plain([0], topic, key, 1, 1 << 20)
    return found[0][1] if found else None


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


@given(
    sizes=st.lists(st.integers(0, 5000), max_size=8),
    count_max=st.integers(0, 9),
    bytes_max=st.integers(-1, 20_000),
    data=st.data(),
)
def test_of_many_no_more_are_found_than_asked_for(
    file: int, sizes: list[int], count_max: int, bytes_max: int, data: st.DataObject
) -> None:
    """In the order of the places, as many as were asked for, and one more than the bytes allow at most."""
    stored, places = b"", []
    for number, size in enumerate(sizes):
        named = encode_properties({"KEYS": "odd" if number % 2 else "even"})
        places.append(len(stored))
        here = Host.parse("127.0.0.1", 10911)
        record = Record("T", 0, bytes(size), 1, here, 1, here, properties=named, physical_offset=len(stored))
        stored += encode_record(record, append_crc=True)
    look = looker(file, stored, summed_from=0)
    asked = data.draw(st.permutations(places))
    found = look.keyed(asked, "T", "odd", count_max, bytes_max)
    assert found == look.keyed_plain(asked, "T", "odd", count_max, bytes_max)
    odd = [at for at in asked if places.index(at) % 2]
    assert [at for at, _ in found] == odd[: len(found)]
    assert len(found) <= count_max
    assert sum(len(record) for _, record in found[:-1]) <= max(bytes_max, 0)
