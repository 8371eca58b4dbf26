"""Stored records: the compiled encoder and scanner do what their specifications in Python do."""

import dataclasses
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotfire.core import _core as compiled
from hotfire.errors import LocalProtocolError
from hotfire.protocol.record import (
    CRC_PROPERTY_BYTES,
    MAGIC_V2,
    PROPERTIES_BYTES_MAX,
    Host,
    Record,
    decode_record,
    encode_blank,
    encode_record,
)
from hotfire.store.scan import NEVER, Scanned, scan_records_plain
from tests.unit.core.made import Guarded, records
from tests.wire.golden import unpack_store

pytestmark = pytest.mark.core
SOUND = {"partial", "blank", "end"}
HERE = Host(bytes((127, 0, 0, 1)), 10911)
PLAIN = Record("topic", 3, b"body", 1, HERE, 2, HERE, b"a\x01b\x02", queue_offset=7)


def encode_compiled(record: Record, *, append_crc: bool, suffix: bytes = b"") -> bytes:
    return compiled.encode_record(
        record.topic.encode(),
        record.body,
        record.properties,
        suffix,
        record.born_host.address + record.born_host.port.to_bytes(4, signed=True),
        record.store_host.address + record.store_host.port.to_bytes(4, signed=True),
        record.queue_id,
        record.flag,
        record.sys_flag,
        record.reconsume_times,
        record.queue_offset,
        record.physical_offset,
        record.born_timestamp,
        record.store_timestamp,
        record.prepared_transaction_offset,
        append_crc,
    )


# --- encode ----------------------------------------------------------------------------------------


@given(records(), st.booleans())
def test_both_encode_the_same_bytes(record: Record, append_crc: bool) -> None:
    """IPv4 and IPv6, short and long topics, any properties, with and without the record's checksum."""
    assert encode_compiled(record, append_crc=append_crc) == encode_record(record, append_crc=append_crc)


@given(records(), st.booleans())
def test_what_the_broker_adds_follows_a_separator(record: Record, append_crc: bool) -> None:
    """The compiled encoder takes the broker's properties apart; the bytes are those of one string."""
    added, given_ = b"MSG_REGION\x01r\x02", record.properties
    between = b"\x02" if given_ and not given_.endswith(b"\x02") else b""
    whole = dataclasses.replace(record, properties=given_ + between + added)
    assert encode_compiled(record, append_crc=append_crc, suffix=added) == encode_record(
        whole, append_crc=append_crc
    )


@pytest.mark.parametrize("append_crc", [False, True])
@pytest.mark.parametrize("topic_size", [0, 1, 127, 128, 255])
def test_topic_sizes_choose_the_version(topic_size: int, append_crc: bool) -> None:
    """127 bytes are the last that fit version 1."""
    record = dataclasses.replace(PLAIN, topic="t" * topic_size)
    data = encode_compiled(record, append_crc=append_crc)
    assert data == encode_record(record, append_crc=append_crc)
    assert (decode_record(data).magic == MAGIC_V2) == (topic_size > 127)


@pytest.mark.parametrize("append_crc", [False, True])
@pytest.mark.parametrize("over", [-1, 0, 1])
@pytest.mark.parametrize("ending", [b"x", b"\x02"])
def test_properties_fit_or_are_refused_alike(over: int, ending: bytes, append_crc: bool) -> None:
    """Around the largest size both encode the same bytes or both refuse."""
    room = PROPERTIES_BYTES_MAX - append_crc * (CRC_PROPERTY_BYTES + (ending != b"\x02"))
    record = dataclasses.replace(PLAIN, properties=b"x" * (room + over - 1) + ending)
    if over <= 0:
        assert encode_compiled(record, append_crc=append_crc) == encode_record(record, append_crc=append_crc)
        return
    with pytest.raises(LocalProtocolError):
        encode_record(record, append_crc=append_crc)
    with pytest.raises(ValueError, match="properties"):
        encode_compiled(record, append_crc=append_crc)


# --- scan ------------------------------------------------------------------------------------------


def scan_both(
    data: bytes, base: int, verify: bool, guarded: Guarded | None = None, summed_from: int = NEVER
) -> None:
    """Same entries, same bytes consumed; the reason is the same unless it names a fault."""
    expected, consumed, reason = scan_records_plain(data, base, verify, summed_from)
    buffer = data if guarded is None else guarded.holding(data)
    entries, compiled_consumed, compiled_reason = compiled.scan_records(buffer, base, verify, summed_from)
    assert compiled_consumed == consumed, (reason, compiled_reason)
    assert [Scanned._make(entry) for entry in entries] == expected
    assert compiled_reason == reason or not {reason, compiled_reason} & SOUND, (reason, compiled_reason)


def log_of(wanted: list[Record], base: int, crcs: list[bool]) -> bytes:
    """The records one behind the other, from log offset `base`."""
    data = b""
    for record, append_crc in zip(wanted, crcs, strict=True):
        placed = dataclasses.replace(record, physical_offset=base + len(data))
        data += encode_record(placed, append_crc=append_crc)
    return data


tails = st.binary(max_size=40) | st.sampled_from(
    (b"", bytes(7), bytes(100), encode_blank(8), encode_blank(5000) + bytes(40), encode_blank(7))
)


@given(st.data())
def test_both_scan_a_log_alike(data: st.DataObject) -> None:
    """Whole logs, cut ones, and ones with flipped bytes: both find the same records and stop at one place."""
    wanted = data.draw(st.lists(records(), max_size=4))
    base = data.draw(st.integers(0, 2**50))
    crcs = data.draw(st.lists(st.booleans(), min_size=len(wanted), max_size=len(wanted)))
    log = bytearray(log_of(wanted, base, crcs) + data.draw(tails))
    for _ in range(data.draw(st.sampled_from((0, 0, 1, 1, 3)))):
        if log:
            at = data.draw(st.integers(0, len(log) - 1))
            log[at] ^= data.draw(st.integers(1, 255))
    cut = data.draw(st.integers(0, len(log)) | st.just(len(log)))
    shift = data.draw(st.sampled_from((0, 0, 0, 1)))
    summed_from = data.draw(st.sampled_from((0, base, base + 100, base + 300, NEVER)))
    scan_both(bytes(log[:cut]), base + shift, data.draw(st.booleans()), Guarded(), summed_from)


@pytest.mark.parametrize("verify", [False, True])
def test_no_flipped_byte_is_judged_differently(verify: bool) -> None:
    """Each byte of a log of three records takes ten other values; the scanners agree on every one."""
    guarded = Guarded()
    plain = dataclasses.replace(PLAIN, properties=b"TAGS\x01a\x02KEYS\x01k")
    short = dataclasses.replace(PLAIN, topic="t" * 130, properties=b"")
    log = log_of([plain, short, plain], 4096, [True, False, True])
    assert len(scan_records_plain(log, 4096, verify)[0]) == 3
    for at in range(len(log)):
        for value in {0, 1, 2, 0x7F, 0x80, 0xFF, log[at] ^ 1, log[at] ^ 0x80, log[at] ^ 0x10, log[at] ^ 0x20}:
            damaged = log[:at] + bytes([value]) + log[at + 1 :]
            scan_both(damaged, 4096, verify, guarded)
            scan_both(damaged, 4096, verify, guarded, summed_from=4096)
    for cut in range(len(log)):
        scan_both(log[:cut], 4096, verify, guarded)


def test_a_record_whose_checksum_was_torn_is_not_believed() -> None:
    """The last byte of the checksum property is as much part of it as its digits."""
    log = log_of([PLAIN], 0, [True])
    assert compiled.scan_records(log, 0, True)[2] == "partial"
    for at in range(len(log) - 11, len(log)):
        torn = log[:at] + b"\x00" + log[at + 1 :]
        assert compiled.scan_records(torn, 0, True)[1:] == (0, "record checksum"), at


@pytest.mark.parametrize("name", ["store", "store-ext", "store-crashed", "store-torn"])
def test_both_scan_the_references_logs_alike(name: str, tmp_path: Path) -> None:
    """Every record the Java broker wrote, verified and not."""
    found = 0
    for segment in unpack_store(name, tmp_path):
        data = segment.read_bytes()
        for verify in (False, True):
            scan_both(data, int(segment.name), verify)
        found += len(compiled.scan_records(data, int(segment.name), True)[0])
    assert found > 20


def test_noise_is_scanned_alike() -> None:
    """Records overlaid with noise in their first hundred bytes, where all the lengths are."""
    rng, guarded = random.Random(20261115), Guarded()
    record = dataclasses.replace(PLAIN, body=b"b" * 40, properties=b"TAGS\x01x\x02")
    log = log_of([record] * 3, 0, [True] * 3)
    for _ in range(5000):
        noisy = bytearray(log)
        for _ in range(rng.randrange(1, 4)):
            at = rng.randrange(len(noisy))
            noisy[at : at + 4] = rng.choice((bytes(4), b"\xff" * 4, b"\x7f\xff\xff\xff", rng.randbytes(4)))
        scan_both(bytes(noisy), 0, rng.random() < 0.5, guarded)
