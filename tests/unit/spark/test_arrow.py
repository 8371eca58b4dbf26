"""The core's columns as Arrow batches, and the records that only the plain road understands."""

import dataclasses
import zlib
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotfire.client.unpacking import unpack_messages
from hotfire.core import Columns, plain_columns
from hotfire.errors import RecordInvalid
from hotfire.model import MessageQueue
from hotfire.protocol.batch import BatchMessage, encode_batch
from hotfire.protocol.record import Host, Record, SysFlag, encode_record
from hotfire.spark.arrow import INT64_MAX, INT64_MIN, add_unusual, record_batch
from hotfire.spark.schema import BY_NAME, COLUMNS, DAMAGE, Column, arrow_schema, wanted_bits

HERE = Host(bytes((127, 0, 0, 1)), 10911)
PLAIN = Record("topic", 3, b"body", 1000, HERE, 2000, HERE, b"TAGS\x01a\x02KEYS\x01k l\x02", queue_offset=7)
ZLIB = SysFlag.COMPRESSED | SysFlag.ZLIB
BATCH = SysFlag.INNER_BATCH | SysFlag.NEED_UNWRAP


def gathered(data: bytes, chosen: tuple[Column, ...] = COLUMNS, make: Any = Columns, **limits: Any) -> Any:
    """All of `data`, by the core and by the plain road, as one batch."""
    columns, at = make(wanted_bits(chosen), b"broker-a"), 0
    while at < len(data):
        at = columns.run(data, at, len(data), b"topic", 3, INT64_MIN, INT64_MAX)
        if at < len(data):
            at = add_unusual(columns, data, at, **limits)
    batch = record_batch(columns, chosen)
    batch.validate(full=True)
    assert batch.schema.equals(arrow_schema(chosen))
    return batch


def test_a_batch_has_every_column_as_spark_wants_it() -> None:
    """Types exactly, times with their zone, missing keys as nulls, properties as a map."""
    bare = dataclasses.replace(PLAIN, properties=b"", body=b"", queue_offset=8)
    data = encode_record(PLAIN, append_crc=True) + encode_record(bare, append_crc=False)
    first, second = gathered(data).to_pylist()
    assert first == {
        "topic": "topic",
        "brokerName": "broker-a",
        "queueId": 3,
        "queueOffset": 7,
        "msgId": "7F00000100002A9F0000000000000000",
        "keys": "k l",
        "tags": "a",
        "body": b"body",
        "properties": [("TAGS", "a"), ("KEYS", "k l")],
        "bornTimestamp": datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC),
        "storeTimestamp": datetime(1970, 1, 1, 0, 0, 2, tzinfo=UTC),
        "reconsumeTimes": 0,
        "sysFlag": 0,
        "commitLogOffset": 0,
    }
    assert second == first | {"queueOffset": 8, "keys": None, "tags": None, "body": b"", "properties": []}


@given(
    st.permutations(COLUMNS), st.integers(1, len(COLUMNS)), st.sampled_from((Columns, plain_columns.Columns))
)
def test_columns_come_in_the_order_they_were_asked_for(order: list[Column], count: int, make: Any) -> None:
    """Any of them, in any order, of either twin."""
    data = encode_record(PLAIN, append_crc=True) * 3
    chosen = tuple(order[:count])
    everything = gathered(data)
    assert gathered(data, chosen, make).equals(everything.select([one.name for one in chosen]))


def test_sound_rows_have_no_damage() -> None:
    """Where the column is asked for it is null."""
    chosen = (DAMAGE, BY_NAME["body"])
    assert gathered(encode_record(PLAIN, append_crc=True), chosen).to_pylist() == [
        {"damage": None, "body": b"body"}
    ]
    assert gathered(encode_record(PLAIN, append_crc=True) * 2, (DAMAGE,)).num_rows == 2


def test_no_rows_are_a_batch_too() -> None:
    """Empty, with every column."""
    assert gathered(b"").num_rows == 0


def test_buffers_are_not_copied() -> None:
    """The bodies in Arrow are the memory the core wrote, and live as long as the batch."""
    columns = Columns(wanted_bits((BY_NAME["body"],)), b"")
    data = encode_record(PLAIN, append_crc=True)
    columns.run(data, 0, len(data), None, -1, INT64_MIN, INT64_MAX)
    before = pa.total_allocated_bytes()
    batch = record_batch(columns, (BY_NAME["body"],))
    assert pa.total_allocated_bytes() == before
    del columns
    assert batch.to_pylist() == [{"body": b"body"}]


# --- the plain road --------------------------------------------------------------------------------


def test_compressed_bodies_are_given_as_they_were_sent() -> None:
    """Among ordinary ones, in order; the flag no longer says compressed, for the body is not."""
    small = dataclasses.replace(PLAIN, body=zlib.compress(b"large" * 99), sys_flag=ZLIB, queue_offset=8)
    last = dataclasses.replace(PLAIN, queue_offset=9)
    data = b"".join(encode_record(one, append_crc=True) for one in (PLAIN, small, last))
    rows = gathered(data).to_pylist()
    assert [row["body"] for row in rows] == [b"body", b"large" * 99, b"body"]
    assert [row["sysFlag"] for row in rows] == [0, SysFlag.ZLIB, 0]
    assert [row["queueOffset"] for row in rows] == [7, 8, 9]


def test_a_body_that_does_not_inflate_is_kept_as_it_is() -> None:
    """One producer's mistake stops nobody; the flag tells."""
    broken = dataclasses.replace(PLAIN, sys_flag=ZLIB)
    (row,) = gathered(encode_record(broken, append_crc=False)).to_pylist()
    assert (row["body"], row["sysFlag"]) == (b"body", ZLIB)


def test_batches_are_unwrapped() -> None:
    """Each message at its own offset with its own properties; limits choose among them."""
    inner = encode_batch([BatchMessage(b"b%d" % i, b"TAGS\x01t%d\x02" % (i % 2)) for i in range(4)])
    data = encode_record(
        dataclasses.replace(PLAIN, body=inner, sys_flag=BATCH, properties=b"INNER_NUM\x014\x02"),
        append_crc=True,
    )

    def bodies(**limits: Any) -> list[bytes]:
        return [row["body"] for row in gathered(data, **limits).to_pylist()]

    assert [row["queueOffset"] for row in gathered(data).to_pylist()] == [7, 8, 9, 10]
    assert bodies() == [b"b0", b"b1", b"b2", b"b3"]
    assert bodies(first=8, until=10) == [b"b1", b"b2"]
    assert bodies(tags=("t1",)) == [b"b1", b"b3"]
    assert bodies(stored_from=2001) == []
    assert bodies(stored_until=2000) == []


@pytest.mark.parametrize(
    "properties",
    [
        b"a\x01\xff\x02KEYS\x01\xc3\x02",
        b"a\x01b\x02a\x01c\x02",
        b"".join(b"%d\x01v\x02" % i for i in range(99)),
    ],
    ids=["not UTF-8", "twice", "many"],
)
def test_strange_properties_are_what_the_client_makes_of_them(properties: bytes) -> None:
    """Replaced, the last of two, any number."""
    data = encode_record(dataclasses.replace(PLAIN, properties=properties), append_crc=True)
    (message,) = unpack_messages(data, MessageQueue("topic", "broker-a", 3))
    (row,) = gathered(data).to_pylist()
    assert dict(row["properties"]) == message.properties
    assert len(row["properties"]) == len(message.properties)
    assert row["keys"] == message.properties.get("KEYS")


def test_damaged_records_are_refused() -> None:
    """With what is wrong; nothing of them is in the columns."""
    data = encode_record(PLAIN, append_crc=True)
    columns = Columns(wanted_bits(COLUMNS), b"")
    for damaged in (data.replace(b"body", b"bodz"), data[:-1], data[:50], bytes(200)):
        with pytest.raises(RecordInvalid):
            add_unusual(columns, damaged, 0)
    assert columns.rows == 0
