"""A stored message: layout, checksums, properties, ids, Java's string hash."""

import contextlib
import zlib
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from hotfire.errors import LocalProtocolError, RecordInvalid
from hotfire.protocol.record import (
    BLANK_BYTES,
    CRC_PROPERTY_BYTES,
    MAGIC_V1,
    MAGIC_V2,
    PROPERTIES_BYTES_MAX,
    RECORD_BYTES_MIN,
    Host,
    Record,
    SysFlag,
    decode_record,
    encode_blank,
    encode_properties,
    encode_record,
    is_blank,
    iter_records,
    java_hash,
    offset_message_id,
    parse_offset_message_id,
    parse_properties,
    record_checksum_ok,
    tags_code,
    without_crc,
)

int32 = st.integers(-(2**31), 2**31 - 1)
int64 = st.integers(-(2**63), 2**63 - 1)
hosts = st.builds(Host, st.binary(min_size=4, max_size=4) | st.binary(min_size=16, max_size=16), int32)


@st.composite
def records(draw: st.DrawFn) -> Record:
    born, stored = draw(hosts), draw(hosts)
    flags = (
        draw(st.integers(0, 15)) | born.is_v6 * SysFlag.BORN_HOST_V6 | stored.is_v6 * SysFlag.STORE_HOST_V6
    )
    return Record(
        topic=draw(st.text(max_size=20) | st.text(min_size=60, max_size=200)),
        queue_id=draw(int32),
        body=draw(st.binary(max_size=60)),
        born_timestamp=draw(int64),
        born_host=born,
        store_timestamp=draw(int64),
        store_host=stored,
        properties=draw(st.binary(max_size=50)),
        flag=draw(int32),
        sys_flag=flags,
        queue_offset=draw(int64),
        physical_offset=draw(int64),
        reconsume_times=draw(int32),
        prepared_transaction_offset=draw(int64),
    )


WORKED = Record(
    topic="TopicTest",
    queue_id=3,
    body=b"Hello RocketMQ",
    born_timestamp=1700000000000,
    born_host=Host.parse("10.0.0.2", 50000),
    store_timestamp=1700000000123,
    store_host=Host.parse("192.168.0.1", 10911),
    properties=encode_properties(
        {"UNIQ_KEY": "7F0000010001000000010000000000AA", "WAIT": "true", "TAGS": "TagA"}
    ),
    queue_offset=5,
    physical_offset=1234567,
)
WORKED_BYTES = bytes.fromhex(
    """
    000000b0 daa320a7 69c865ed 00000003 00000000 0000000000000005 000000000012d687 00000000
    0000018bcfe56800 0a0000020000c350 0000018bcfe5687b c0a8000100002a9f 00000000 0000000000000000
    0000000e 48656c6c6f20526f636b65744d51 09 546f70696354657374 003e
    554e49515f4b455901374630303030303130303031303030303030303130303030303030303030414102
    57414954017472756502 54414753015461674102
    """
)


def test_worked_record() -> None:
    """The record worked out by hand in the description of the format."""
    assert encode_record(WORKED, append_crc=False) == WORKED_BYTES
    found = decode_record(WORKED_BYTES)
    assert found == WORKED
    assert (found.size, found.magic, found.body_crc) == (176, MAGIC_V1, 0x69C865ED)
    assert found.message_id == "C0A8000100002A9F000000000012D687"
    assert tags_code(parse_properties(found.properties)) == 0x27A807


@given(records(), st.booleans())
def test_round_trip(record: Record, append_crc: bool) -> None:
    """What is stored is what comes back, from any place in a buffer."""
    data = encode_record(record, append_crc=append_crc)
    found = decode_record(b"before" + data + b"after", 6)
    assert found.size == len(data)
    if append_crc:
        stripped = without_crc(found.properties)
        closed = not record.properties or record.properties.endswith(b"\x02")
        assert stripped == record.properties + (b"" if closed else b"\x02")
        found = replace(found, properties=record.properties)
    assert found == record
    assert found.magic == (MAGIC_V1 if len(record.topic.encode()) <= 127 else MAGIC_V2)


@given(st.lists(records(), max_size=4), st.booleans())
def test_records_follow_each_other(sent: list[Record], append_crc: bool) -> None:
    """A pull reply's body and a log segment are records in a row, the latter up to its blank."""
    data = b"".join(encode_record(record, append_crc=append_crc) for record in sent)
    assert len(list(iter_records(data))) == len(sent)
    assert len(list(iter_records(data + encode_blank(100) + bytes(92)))) == len(sent)
    with pytest.raises(RecordInvalid):
        list(iter_records(data + b"\x00"))


@given(records(), st.booleans())
def test_every_truncation_is_refused(record: Record, append_crc: bool) -> None:
    """No part of a record passes for a record."""
    data = encode_record(record, append_crc=append_crc)
    for end in range(len(data)):
        with pytest.raises(RecordInvalid):
            decode_record(data[:end])
        assert not record_checksum_ok(data[:end])


@given(records(), st.booleans(), st.data())
def test_a_flipped_byte_is_refused_or_seen(record: Record, append_crc: bool, data: st.DataObject) -> None:
    """Damage gives another record or the one error; with the record CRC it is always found."""
    stored = bytearray(encode_record(record, append_crc=append_crc))
    whole = decode_record(stored)
    at = data.draw(st.integers(0, len(stored) - 1))
    stored[at] ^= data.draw(st.integers(1, 255))
    if append_crc:
        assert not record_checksum_ok(stored, require_crc=True)
    try:
        found = decode_record(stored)
    except RecordInvalid:
        return
    assert (found, found.body_crc, found.magic) != (whole, whole.body_crc, whole.magic)


@given(st.binary(max_size=300), st.booleans())
def test_any_bytes(data: bytes, with_magic: bool) -> None:
    """Whatever lies on the disk is a record or the one error."""
    if with_magic:
        data = len(data).to_bytes(4, "big") + MAGIC_V1.to_bytes(4, "big") + data[8:]
    with contextlib.suppress(RecordInvalid):
        assert decode_record(data, check_crc=False).size <= len(data)


def test_the_smallest_record() -> None:
    """The fixed part is 91 bytes, and nothing shorter is looked at."""
    host = Host(bytes(4), 0)
    empty = Record("", 0, b"", 0, host, 0, host)
    assert len(encode_record(empty, append_crc=False)) == RECORD_BYTES_MIN
    assert len(encode_record(empty, append_crc=True)) == RECORD_BYTES_MIN + CRC_PROPERTY_BYTES


def test_record_crc_by_hand() -> None:
    """Ten digits, least significant first, over all that precedes them, sizes counting them."""
    data = encode_record(WORKED, append_crc=True)
    assert len(data) == len(WORKED_BYTES) + 20
    crc = zlib.crc32(data[:-20]) & 0x7FFFFFFF
    assert data[-20:] == b"__CRC32#\x01" + str(crc).zfill(10)[::-1].encode() + b"\x02"
    assert parse_properties(decode_record(data).properties)["__CRC32#"] == str(crc).zfill(10)[::-1]
    assert int.from_bytes(data[:4], "big") == len(data)


@pytest.mark.parametrize(
    ("properties", "stored"), [(b"", b""), (b"a\x01b\x02", b"a\x01b\x02"), (b"a\x01b", b"a\x01b\x02")]
)
def test_a_separator_keeps_the_crc_apart(properties: bytes, stored: bytes) -> None:
    """Producers of 4.9 leave the last pair open; the checksum must not become part of its value."""
    data = encode_record(replace(WORKED, properties=properties), append_crc=True)
    found = decode_record(data).properties
    assert found[:-20] == stored
    assert record_checksum_ok(data, require_crc=True)
    again = encode_record(replace(WORKED, properties=without_crc(found)), append_crc=True)
    assert again == data


def test_a_wiped_tail_is_found_when_the_crc_is_required() -> None:
    """Zeros where the checksum was leave a record that only looks like one without a checksum."""
    data = bytearray(encode_record(WORKED, append_crc=True))
    data[-60:] = bytes(60)
    assert record_checksum_ok(data)
    assert not record_checksum_ok(data, require_crc=True)


def test_a_damaged_body_is_found() -> None:
    """Unless the caller asks not to look."""
    data = WORKED_BYTES.replace(b"Hello", b"Jello")
    with pytest.raises(RecordInvalid, match="body CRC"):
        decode_record(data)
    assert decode_record(data, check_crc=False).body == b"Jello RocketMQ"


def test_properties_have_a_limit() -> None:
    """The checksum's twenty bytes count."""
    fits = replace(WORKED, properties=b"a\x01" + b"b" * (PROPERTIES_BYTES_MAX - 3) + b"\x02")
    assert len(encode_record(fits, append_crc=False)) > PROPERTIES_BYTES_MAX
    with pytest.raises(LocalProtocolError, match="TopicTest: properties of 32787 bytes"):
        encode_record(fits, append_crc=True)


def test_blank() -> None:
    """The end of a log file, worked out by hand in the description of the store."""
    assert encode_blank(100) == bytes.fromhex("00000064cbd43194")
    assert len(encode_blank(100)) == BLANK_BYTES
    assert is_blank(encode_blank(100), 0)
    assert not is_blank(WORKED_BYTES, 0)
    assert not is_blank(encode_blank(100), 1)


# --- properties ------------------------------------------------------------------------------------

property_text = st.text(
    st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), min_size=1, max_size=9
)


@given(st.dictionaries(property_text, property_text))
def test_properties_round_trip(properties: dict[str, str]) -> None:
    """With the last separator and, as older producers send them, without."""
    data = encode_properties(properties)
    assert parse_properties(data) == properties
    assert parse_properties(data.removesuffix(b"\x02")) == properties


@given(st.binary(max_size=60))
def test_any_property_bytes(data: bytes) -> None:
    """A damaged property string is read as far as it can be."""
    for name, value in parse_properties(data).items():
        assert name
        assert value


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", {}),
        (b"a\x01\x02b\x01c\x02", {"b": "c"}),
        (b"\x01v\x02b\x01c\x02", {"b": "c"}),
        (b"noise\x02b\x01c\x02", {"b": "c"}),
        (b"b\x01c\x01d\x02", {"b": "c\x01d"}),
        (b"b\x01c\x02b\x01d\x02", {"b": "d"}),
        ("键\x01值\x02".encode(), {"键": "值"}),
        (b"b\x01\xff\x02", {"b": "�"}),
    ],
)
def test_odd_property_strings(data: bytes, expected: dict[str, str]) -> None:
    """Empty names and values are no pairs; a value may hold the first separator."""
    assert parse_properties(data) == expected


# --- hashes and ids --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", 0),
        ("TagA", 2598919),
        ("中文", 646394),
        ("\U0001f600", 1772899),
        ("TopicTest#key1", -1655984460),
        ("Aa", 2112),
        ("BB", 2112),
        ("polygenelubricants", -(2**31)),
    ],
)
def test_java_hash(text: str, expected: int) -> None:
    """Java's String.hashCode, the values worked out in the descriptions among them."""
    assert java_hash(text) == expected


@given(st.text(max_size=30))
def test_java_hash_is_over_utf16_units(text: str) -> None:
    """A character outside the basic plane counts as its two halves."""
    value = 0
    units = text.encode("utf-16-be")
    for at in range(0, len(units), 2):
        value = (31 * value + int.from_bytes(units[at : at + 2], "big")) % 2**32
    assert java_hash(text) % 2**32 == value
    assert -(2**31) <= java_hash(text) < 2**31


def test_tags_code() -> None:
    """No tag is zero."""
    assert tags_code({}) == tags_code({"TAGS": ""}) == 0
    assert tags_code({"TAGS": "TagA"}) == 2598919


def test_offset_message_id() -> None:
    """Address, port and offset in upper-case hex, and back."""
    host = Host.parse("192.168.0.1", 10911)
    message_id = offset_message_id(*host, 1234567)
    assert message_id == "C0A8000100002A9F000000000012D687"
    assert parse_offset_message_id(message_id) == (host, 1234567)


@given(hosts, int64)
def test_message_ids_round_trip(host: Host, offset: int) -> None:
    """For both kinds of address."""
    assert parse_offset_message_id(offset_message_id(*host, offset)) == (host, offset)


@given(st.text(max_size=60))
def test_any_message_id(text: str) -> None:
    """What is no id says so."""
    assume(len(text) not in (32, 56))
    with pytest.raises(ValueError, match=r"message id .* is not 32 or 56 hexadecimal digits"):
        parse_offset_message_id(text)


def test_hosts() -> None:
    """IPv4 in IPv6 clothes is IPv4."""
    assert Host.parse("::ffff:10.0.0.2", 1) == Host(bytes([10, 0, 0, 2]), 1)
    assert Host.parse("::1", 1).is_v6
    assert Host.parse("::1", 1).ip == "::1"
