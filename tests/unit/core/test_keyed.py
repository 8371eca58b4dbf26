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

from hotfire.protocol.record import Record, encode_properties, encode_record, keys_of, parse_properties
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
    return Looker(Disk("/"), log, {0: fd}, len(data), summed_from)


def agreed(look: Looker, topic: str, key: str) -> bytes | None:
    found = look.keyed(0, topic, key)
    assert found == look.keyed_plain(0, topic, key)
    return found


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
