"""Records that handlers store: the same bytes and the same keys whoever encodes them."""

import dataclasses
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotfire import core
from hotfire.errors import LocalProtocolError
from hotfire.protocol.record import (
    PROPERTIES_BYTES_MAX,
    Host,
    Record,
    encode_record,
    encoded_size,
    java_hash,
    key_hash,
    keys_of,
)
from hotfire.store.placing import key_hashes, place
from tests.unit.core.made import int64, records, words
from tests.unit.store.driven import Driven, message

HERE = Host(bytes((127, 0, 0, 1)), 10911)
PLAIN = Record("topic", 3, b"body", 1, HERE, 2, HERE)


@pytest.fixture(params=["compiled", "plain"])
def encoder(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "plain":
        monkeypatch.setattr(core, "COMPILED", False)


@pytest.mark.usefixtures("encoder")
@given(records(), int64, int64, int64, st.booleans())
def test_place_and_time_are_those_given(
    record: Record, queue_offset: int, physical: int, stamp: int, append_crc: bool
) -> None:
    """A record is stored as its specification encodes it at that place, and is as long as was reserved."""
    data = place(
        record,
        queue_offset=queue_offset,
        physical_offset=physical,
        stamp_ms=stamp,
        append_crc=append_crc,
    )
    placed = dataclasses.replace(
        record, queue_offset=queue_offset, physical_offset=physical, store_timestamp=stamp
    )
    assert data == encode_record(placed, append_crc=append_crc)
    assert len(data) == encoded_size(record, append_crc=append_crc)


@pytest.mark.parametrize("append_crc", [False, True])
@pytest.mark.parametrize("ending", [b"x", b"\x02"])
def test_too_many_properties_are_refused_before_room_is_reserved(ending: bytes, append_crc: bool) -> None:
    """The size of a record that cannot be encoded is no number but the encoder's error."""
    record = dataclasses.replace(PLAIN, properties=b"x" * PROPERTIES_BYTES_MAX + ending)
    with pytest.raises(LocalProtocolError) as by_encoding:
        encode_record(record, append_crc=append_crc)
    with pytest.raises(LocalProtocolError) as by_size:
        encoded_size(record, append_crc=append_crc)
    assert str(by_size.value) == str(by_encoding.value)


@pytest.mark.usefixtures("encoder")
@given(words, st.dictionaries(st.sampled_from(["UNIQ_KEY", "KEYS", "TAGS"]), words))
def test_keys_are_filed_under_the_same_hashes(topic: str, named: dict[str, str]) -> None:
    """A message is found by its keys whoever computed their hashes."""
    assert key_hashes(topic, named) == tuple(key_hash(topic, key) for key in keys_of(named))


@pytest.mark.usefixtures("encoder")
def test_the_hash_without_an_absolute_value_is_zero() -> None:
    """As Java: the least of the 32-bit numbers has no absolute value among them."""
    key = "45G1;43"
    assert java_hash(f"t#{key}") == -(1 << 31)
    assert key_hashes("t", {"UNIQ_KEY": key}) == (0,)


@pytest.mark.usefixtures("encoder")
def test_a_record_that_cannot_be_made_leaves_no_gap(tmp_path: Path) -> None:
    """All of a batch or none: the offset of one that fails in the middle goes to the next that is stored."""
    good = message("t", 0, b"good")
    bad = dataclasses.replace(good, flag=1 << 40)
    with Driven(tmp_path / "store") as driven:
        driven.send("t", 0, b"first")
        with pytest.raises((struct.error, OverflowError)):
            driven.store.append_all([good, bad, good], driven.now_ms)
        after = driven.send("t", 0, b"after")
        driven.turn()
        assert after.queue_offset == 1
        assert [record.body for record in driven.pull_all("t", 0)] == [b"first", b"after"]
