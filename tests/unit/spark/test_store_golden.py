"""Stores that the reference's broker wrote, read as tables: row for row what its own decoder says."""

import hashlib
from pathlib import Path
from typing import Any

import pytest

from tests.unit.spark.stores import by_place, rows_of
from tests.unit.store import golden

STORES = ["store", "store-ext", "store-crashed", "store-torn"]


def manifest(name: str) -> list[dict[str, Any]]:
    if name == "store-torn":  # its manifest is that of the store it was made of, less the torn record
        return manifest("store-crashed")[:-1]
    return [line for line in golden.manifest(name) if not line.get("blank")]


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, in_memory: Path) -> tuple[str, Path]:
    return request.param, golden.unpack(request.param, in_memory)


def facts(row: dict[str, Any]) -> dict[str, Any]:
    """A row in the manifest's words."""
    properties = dict(row["properties"])
    return {
        "physicalOffset": row["commitLogOffset"],
        "topic": row["topic"],
        "queueId": row["queueId"],
        "queueOffset": row["queueOffset"],
        "sysFlag": row["sysFlag"],
        "bornTimestamp": round(row["bornTimestamp"].timestamp() * 1000),
        "storeTimestamp": round(row["storeTimestamp"].timestamp() * 1000),
        "reconsumeTimes": row["reconsumeTimes"],
        "bodyLength": len(row["body"]),
        "bodySha256": hashlib.sha256(row["body"]).hexdigest(),
        "properties": properties,
        "uniqKey": properties.get("UNIQ_KEY"),
    }


@pytest.mark.parametrize("by", ["auto", "log"])
@pytest.mark.parametrize("partitions", [1, 5])
def test_every_record_is_a_row(store: tuple[str, Path], by: str, partitions: int) -> None:
    """Clean, killed and torn; by queues and record by record; in one partition and in several."""
    name, root = store
    rows = by_place(rows_of(root, by=by, minPartitions=partitions))
    plain = [line for line in manifest(name) if not line["sysFlag"] & 0x80]
    expected = [
        {key: line[key] for key in facts(rows[0])} | {"sysFlag": line["sysFlag"] & ~1} for line in plain
    ]
    found = [facts(row) for row in rows if not row["sysFlag"] & 0x80]
    assert found == expected
    assert [row["msgId"] for row in rows if not row["sysFlag"] & 0x80] == [
        line["uniqKey"] or line["msgId"] for line in plain
    ]


def test_inner_batches_are_rows_of_their_messages(in_memory: Path) -> None:
    """As many as the record says, at offsets that follow each other, by their own queues and by the log."""
    root = golden.unpack("store-ext", in_memory)
    batches = [line for line in manifest("store-ext") if line["sysFlag"] & 0x80]
    assert batches
    expected = {
        (line["topic"], line["queueId"], line["queueOffset"] + i)
        for line in batches
        for i in range(int(line["properties"]["INNER_NUM"]))
    }
    for by in ("queue", "log"):
        rows = [row for row in rows_of(root, by=by) if row["sysFlag"] & 0x80]
        assert {(row["topic"], row["queueId"], row["queueOffset"]) for row in rows} == expected
        assert len(rows) == len(expected)
    first = min(place[2] for place in expected)
    some = rows_of(
        root, by="queue", topics=batches[0]["topic"], startingOffset=first + 1, endingOffset=first + 2
    )
    assert {row["queueOffset"] for row in some} == {first + 1}


@pytest.mark.parametrize("name", ["store", "store-ext"])
def test_queues_and_log_agree(name: str, in_memory: Path) -> None:
    """The same rows both ways, whatever is asked for."""
    root = golden.unpack(name, in_memory)
    everything = by_place(rows_of(root, by="queue"))
    times = sorted(row["storeTimestamp"].timestamp() * 1000 for row in everything)
    middle = round(times[len(times) // 2])
    for options in (
        {},
        {"topics": "bulk,plain" if name == "store" else everything[0]["topic"]},
        {"queues": "0"},
        {"queues": "1,2,3"},
        {"startingOffset": 3, "endingOffset": 9},
        {"startingTimestamp": middle},
        {"endingTimestamp": middle},
        {"startingTimestamp": middle - 500, "endingTimestamp": middle + 500, "queues": "0"},
    ):
        by_queue = by_place(rows_of(root, by="queue", minPartitions=3, **options))
        assert by_queue == by_place(rows_of(root, by="log", minPartitions=3, **options)), options
        assert by_queue or options, options
        assert len(by_queue) < len(everything) or not options, options


def test_a_store_left_uncleanly_is_read_by_its_log(in_memory: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Its queues miss a record; who insists on them is told."""
    root = golden.unpack("store-crashed", in_memory)
    assert len(rows_of(root, "topic")) == 910
    assert not caplog.records
    assert len(rows_of(root, "topic", by="queue")) == 909
    assert "lag behind" in caplog.text
