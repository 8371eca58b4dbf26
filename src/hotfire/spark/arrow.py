"""The core's columns as Arrow batches, and the records that only the plain road understands as rows of them.

Owns how buffers become arrays: without copying, of exactly the types Spark takes. Must not know where records
come from.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pyarrow as pa

from hotfire.client.messages import received_messages
from hotfire.core import Columns
from hotfire.protocol.command import Buffer
from hotfire.protocol.record import SysFlag, decode_record
from hotfire.spark.schema import ARROW_TYPES, COLUMNS, DAMAGE, Column, arrow_schema

INT64_MIN, INT64_MAX = -(1 << 63), (1 << 63) - 1

_TEXT = ARROW_TYPES["text"]
_MAP = ARROW_TYPES["map"]
_PAIR = pa.struct([_MAP.key_field, _MAP.item_field])


def record_batch(columns: Columns, chosen: tuple[Column, ...]) -> pa.RecordBatch:
    """What `columns` gathered, as one batch of the chosen columns in their order; `columns` is empty then.

    `columns` was made for exactly those: `wanted_bits(chosen)`.
    """
    rows, taken = columns.take()
    wanted = [column for column in COLUMNS if column in chosen]
    arrays = {
        column.name: _array(column, rows, buffers) for column, buffers in zip(wanted, taken, strict=True)
    }
    if DAMAGE in chosen:
        arrays[DAMAGE.name] = pa.nulls(rows, ARROW_TYPES[DAMAGE.kind])
    return pa.RecordBatch.from_arrays([arrays[one.name] for one in chosen], schema=arrow_schema(chosen))


def _array(column: Column, rows: int, buffers: tuple[Any, ...]) -> pa.Array:
    kind = ARROW_TYPES[column.kind]
    parts: list[Any] = [None if one is None else pa.py_buffer(one) for one in buffers]
    if column.kind == "map":
        offsets, name_offsets, names, value_offsets, values = parts
        pairs = name_offsets.size // 4 - 1
        texts = [
            pa.Array.from_buffers(_TEXT, pairs, [None, name_offsets, names]),
            pa.Array.from_buffers(_TEXT, pairs, [None, value_offsets, values]),
        ]
        struct = pa.Array.from_buffers(_PAIR, pairs, [None], children=texts)
        return pa.Array.from_buffers(kind, rows, [None, offsets], children=[struct])
    if column.kind in ("text", "bytes"):
        return pa.Array.from_buffers(kind, rows, parts, null_count=0 if parts[0] is None else -1)
    return pa.Array.from_buffers(kind, rows, [None, *parts], null_count=0)


def add_unusual(
    columns: Columns,
    data: Buffer,
    at: int,
    *,
    first: int = INT64_MIN,
    until: int = INT64_MAX,
    tags: Collection[str] = (),
    stored_from: int = INT64_MIN,
    stored_until: int = INT64_MAX,
) -> int:
    """Add the messages of the one record at `at`, where the core stopped; the place behind it.

    Compressed bodies are inflated, batches unwrapped, what is not UTF-8 is replaced, of a property named
    twice the last one counts. The limits are those the core had. RecordInvalid when it is no whole, sound
    record.

    A body that does not inflate is given as it is stored, and then the flag for compressed stays set.
    """
    record = decode_record(data, at)
    following = at + record.size
    if not stored_from <= record.store_timestamp < stored_until:
        return following
    for message in received_messages(memoryview(data)[at:following], ""):
        if not first <= message.queue_offset < until or (tags and message.tag not in tags):
            continue
        keys = message.properties.get("KEYS")
        inflated = SysFlag.COMPRESSED if message.compression is None else 0
        columns.add(
            message.topic.encode(),
            record.queue_id,
            message.queue_offset,
            message.message_id.encode(),
            None if keys is None else keys.encode(),
            None if message.tag is None else message.tag.encode(),
            message.body,
            [(name.encode(), value.encode()) for name, value in message.properties.items()],
            record.born_timestamp,
            record.store_timestamp,
            record.reconsume_times,
            record.sys_flag & ~inflated,
            record.physical_offset,
        )
    return following
