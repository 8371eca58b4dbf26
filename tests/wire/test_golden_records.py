"""The commit logs Java left on disk, record by record, against what Java's own decoder said of them."""

import hashlib
from pathlib import Path

import pytest

from hotfire.model import SCHEDULE_TOPIC
from hotfire.protocol.record import (
    Record,
    SysFlag,
    encode_record,
    is_blank,
    iter_records,
    parse_properties,
    record_checksum_ok,
    tags_code,
)
from tests.wire.golden import manifest, unpack_store

EXT_ADDRESSES = -(2**62)
"""With extended queue entries an address from -2**63 upwards takes the place of the tag's hash."""


def log_records(segments: list[Path]) -> list[tuple[Record, bytes]]:
    found = []
    for segment in segments:
        data = segment.read_bytes()
        end = written_end(data)
        at = 0
        for record in iter_records(memoryview(data)[:end]):
            found.append((record, data[at : at + record.size]))
            at += record.size
        assert at == end or is_blank(data, at)
    return found


def written_end(data: bytes) -> int:
    """Where the zeros behind the last record begin; a record never ends in more than a few."""
    at = 0
    while at + 8 <= len(data) and any(data[at : at + 8]) and not is_blank(data, at):
        at += int.from_bytes(data[at : at + 4], "big")
    return len(data) if is_blank(data, at) else at


@pytest.mark.parametrize(("store", "count"), [("store", 523), ("store-ext", 36)])
def test_records_match_the_manifest(store: str, count: int, tmp_path: Path) -> None:
    """Every stored record is read as Java reads it and written again byte for byte."""
    expected = [line for line in manifest(store) if not line.get("blank")]
    records = log_records(unpack_store(store, tmp_path))
    assert len(records) == len(expected) == count
    hashes = 0
    for (record, data), facts in zip(records, expected, strict=True):
        properties = parse_properties(record.properties)
        found = {
            "physicalOffset": record.physical_offset,
            "storeSize": record.size,
            "magic": f"{record.magic:08x}",
            "topic": record.topic,
            "queueId": record.queue_id,
            "queueOffset": record.queue_offset,
            "sysFlag": record.sys_flag,
            "flag": record.flag,
            "bornTimestamp": record.born_timestamp,
            "storeTimestamp": record.store_timestamp,
            "reconsumeTimes": record.reconsume_times,
            "preparedTransactionOffset": record.prepared_transaction_offset,
            "bodyCRC": record.body_crc,
            "storedBodyLength": len(record.body),
            "storedBodySha256": hashlib.sha256(record.body).hexdigest(),
            "properties": properties,
            "msgId": record.message_id,
        }
        assert found == {name: facts[name] for name in found}
        assert facts["bornHost"].endswith(f":{record.born_host.port}")
        assert facts["storeHost"] == f"{record.store_host.ip}:{record.store_host.port}"
        assert record.born_host.is_v6 == bool(record.sys_flag & SysFlag.BORN_HOST_V6)
        code = facts["tagsCode"]
        if record.topic != SCHEDULE_TOPIC and code is not None and code > EXT_ADDRESSES:
            assert tags_code(properties) == code
            hashes += 1
        assert encode_record(record, append_crc=False) == data
        assert record_checksum_ok(data)
        assert not record_checksum_ok(data, require_crc=True)
    assert hashes == (count - 5 if store == "store" else 0)  # five are delayed and hold their due time
