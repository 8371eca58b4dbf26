"""A record at its place in the log: its bytes, and the hashes its keys are filed under.

By the compiled core where there is one; `encode_record` and `key_hash` of protocol.record say what must come
of it. What handlers store, halves, timers and delays among it, comes this way; the lane has its own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from hotfire import core
from hotfire.protocol.record import Record, SysFlag, encode_record, key_hash, keys_of

TOPIC_BYTES_MAX = 255
"""Of the compiled encoder."""
_UNSIGNED = 1 << 31


def place(
    record: Record, *, queue_offset: int, physical_offset: int, stamp_ms: int, append_crc: bool
) -> bytes:
    """The bytes of `record` there and then, whatever place and time it holds itself."""
    topic = record.topic.encode("utf-8")
    if not core.COMPILED or len(topic) > TOPIC_BYTES_MAX:
        placed = dataclasses.replace(
            record,
            queue_offset=queue_offset,
            physical_offset=physical_offset,
            store_timestamp=stamp_ms,
        )
        return encode_record(placed, append_crc=append_crc)
    born, stored = record.born_host, record.store_host
    assert born.is_v6 == bool(record.sys_flag & SysFlag.BORN_HOST_V6), record.sys_flag
    assert stored.is_v6 == bool(record.sys_flag & SysFlag.STORE_HOST_V6), record.sys_flag
    return core.encode_record(
        topic,
        record.body,
        record.properties,
        b"",
        born.address + born.port.to_bytes(4, signed=True),
        stored.address + stored.port.to_bytes(4, signed=True),
        record.queue_id,
        record.flag,
        record.sys_flag,
        record.reconsume_times,
        queue_offset,
        physical_offset,
        record.born_timestamp,
        stamp_ms,
        record.prepared_transaction_offset,
        append_crc,
    )


def key_hashes(topic: str, named: Mapping[str, str]) -> tuple[int, ...]:
    """Of every key a message with these properties is found by."""
    if not core.COMPILED:
        return tuple(key_hash(topic, key) for key in keys_of(named))
    hashes = [abs(core.java_hash(f"{topic}#{key}".encode())) for key in keys_of(named)]
    return tuple(0 if value == _UNSIGNED else value for value in hashes)
