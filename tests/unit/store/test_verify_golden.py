"""The tools on stores that Apache's broker left, against what it said of them itself."""

import gzip
import json
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from hotfire import core
from hotfire.store.disk import Disk
from hotfire.store.dump import Row, Selection, index_rows, queue_rows, records
from hotfire.store.layout import Layout, look
from hotfire.store.logwalk import Fault
from hotfire.store.store import Store
from hotfire.store.verify import verify
from tests.unit.store import golden
from tests.unit.store.driven import tree
from tests.unit.store.test_verify import check, flip
from tests.wire.golden import GOLDEN, manifest, unpack_store

COUNTS = {"store": 523, "store-ext": 36, "store-crashed": 910, "store-torn": 909}


def unpacked(name: str, directory: Path) -> Path:
    unpack_store(name, directory)
    return directory / "store"


def told_by_apache(name: str) -> list[dict[str, Any]]:
    if name in ("store", "store-ext"):
        return manifest(name)
    text = gzip.decompress((GOLDEN / "store-crashed" / "manifest.jsonl.gz").read_bytes()).decode()
    rows = [json.loads(line) for line in text.splitlines()]
    return rows if name == "store-crashed" else rows[:-1]


def rows_of(layout: Layout) -> list[Row]:
    return [row for row in records(layout, Selection()) if not isinstance(row, Fault)]


@pytest.mark.promise(21)
@pytest.mark.parametrize("name", COUNTS)
def test_dump_says_what_apache_says(name: str, in_memory: Path) -> None:
    """Every field of every record and blank; queue entries that are not on the disk yet are none."""
    rows = rows_of(look(Disk(unpacked(name, in_memory))))
    expected = told_by_apache(name)
    assert sum("blank" not in row for row in rows) == COUNTS[name]
    undispatched = 0
    for row, facts in zip(rows, expected, strict=True):
        if facts.get("queueEntries") is not None and row["queueEntries"] is None:
            undispatched += 1
            facts = {**facts, "queueEntries": None, "tagsCode": None}
        assert json.loads(json.dumps(row)) == facts
        assert list(row) == list(facts)
    assert undispatched == {"store-crashed": 1, "store-torn": 30}.get(name, 0)


@pytest.mark.parametrize("name", ["store", "store-ext"])
def test_queue_dump_says_what_apache_says(name: str, in_memory: Path) -> None:
    """Every entry of every queue; with ext units where there are some."""
    layout = look(Disk(unpacked(name, in_memory)))
    found: dict[str, dict[str, list[list[int]]]] = {}
    for row in queue_rows(layout):
        if "batchSize" not in row:
            entries = found.setdefault(row["topic"], {}).setdefault(str(row["queueId"]), [])
            assert row["index"] == len(entries)
            entries.append([row["physicalOffset"], row["size"], row["tagsCode"]])
            assert ("ext" in row) == (name == "store-ext")
    expected = json.loads((GOLDEN / name / "queues.json").read_text())
    for topic, queues in expected.items():
        for queue_id, facts in queues.items():
            if facts.get("entries") and topic in found:
                assert found[topic][queue_id] == facts["entries"]
    assert sum(len(entries) for queues in found.values() for entries in queues.values()) == (
        523 if name == "store" else 33
    )


@pytest.mark.parametrize("name", COUNTS)
def test_what_apache_left_is_sound(name: str, in_memory: Path) -> None:
    """No damage; what a start would mend is counted. Nothing in the directory changes, no lock is made."""
    root = unpacked(name, in_memory)
    before = tree(root)
    (root / "lock").unlink()
    findings, damages = check(root)
    assert damages == []
    assert findings.records == COUNTS[name]
    assert findings.undispatched == {"store-crashed": 1, "store-torn": 30}.get(name, 0)
    assert len(findings.notes) == (1 if name == "store-torn" else 0), findings.notes
    assert {**tree(root), "lock": before["lock"]} == before


@pytest.mark.parametrize("name", ["store-crashed", "store-torn"])
def test_once_recovered_a_killed_store_is_apaches_own(name: str, in_memory: Path) -> None:
    """Opened and closed by us, its dump is what Apache's broker has after its own recovery, line for line."""
    root = unpacked(name, in_memory)
    store = Store(Disk(root), golden.CONFIG)
    store.open()
    store.close()
    rows = [json.loads(json.dumps(row)) for row in rows_of(look(Disk(root)))]
    assert rows == told_by_apache(name)
    assert check(root)[1] == []


def test_index_shape_is_found_out(in_memory: Path) -> None:
    """Slots and entries are written nowhere; header, slots and entries together leave one possibility."""
    for name in COUNTS:
        layout = look(Disk(unpacked(name, in_memory / name)))
        assert layout.index_shape == (500, 1000)
        assert (layout.segment_bytes, layout.queue_file_bytes) == (262144, 4000)
        assert (layout.ext_file_bytes, layout.batch_file_bytes) in ((0, 0), (65536, 9200))


@pytest.mark.promise(28)
def test_index_header_is_told_as_apache_wrote_it(in_memory: Path) -> None:
    """Six fields, whose numbers are those of the bytes and agree with the entries and records themselves."""
    root = unpacked("store", in_memory)
    layout = look(Disk(root))
    rows = list(index_rows(layout))
    headers = [row for row in rows if "indexCount" in row]
    records_by_offset = {row["physicalOffset"]: row for row in rows_of(layout)}
    assert [header["file"] for header in headers] == sorted(path.name for path in (root / "index").iterdir())
    for header in headers:
        raw = (root / "index" / header["file"]).read_bytes()
        fields = [header[name] for name in list(header)[1:]]
        assert [int.from_bytes(raw[at : at + 8]) for at in (0, 8, 16, 24)] == fields[:4]
        assert [int.from_bytes(raw[at : at + 4]) for at in (32, 36)] == fields[4:]
        entries = [row for row in rows if row["file"] == header["file"] and "entry" in row]
        first, last = entries[0]["physicalOffset"], entries[-1]["physicalOffset"]
        assert (header["beginPhyOffset"], header["endPhyOffset"]) == (first, last)
        assert header["beginTimestamp"] == records_by_offset[first]["storeTimestamp"]
        assert header["endTimestamp"] == records_by_offset[last]["storeTimestamp"]
        assert header["hashSlotCount"] == len({entry["slot"] for entry in entries})
        assert header["indexCount"] == len(entries) + 1


@pytest.mark.promise(29)
def test_index_chains_of_apache_are_walked_newest_first(in_memory: Path) -> None:
    """From its slot's newest entry every chain leads back over each of its entries, and to nothing else.

    Keys that share a slot are told apart: each is found, newest record first.
    """
    root = unpacked("store", in_memory)
    layout = look(Disk(root))
    slots, entries_max = layout.index_shape or (0, 0)
    longest = 0
    for name in layout.indexes:
        raw = (root / "index" / name).read_bytes()
        entries = {row["entry"]: row for row in index_rows(layout) if row["file"] == name and "entry" in row}
        opened = core.KeyIndex(bytearray(raw), slots, entries_max, 0)
        for slot in range(slots):
            mine = [number for number, row in sorted(entries.items(), reverse=True) if row["slot"] == slot]
            walked, at = [], int.from_bytes(raw[40 + slot * 4 : 44 + slot * 4])
            while at:
                walked.append(at)
                at = entries[at]["previous"]
            assert walked == mine
            for hash_ in {entries[number]["keyHash"] for number in mine}:
                same = [
                    entries[number]["physicalOffset"]
                    for number in mine
                    if entries[number]["keyHash"] == hash_
                ]
                assert opened.query(hash_, 1000, 0, 1 << 62) == same
            longest = max(longest, len({entries[number]["keyHash"] for number in mine}))
    assert longest > 1, "no two keys share a slot"


def test_a_wrong_unit_beside_a_queue_is_found(in_memory: Path) -> None:
    """Any bit of an ext unit's size, tags code, store time and bitmap size, and of a batch entry."""
    root = unpacked("store-ext", in_memory)
    file = "consumequeue_ext/sql/0/00000000000000000000"
    for position, bit in product(range(20), range(8)):
        flip(root, file, position, bit)
        _, damages = check(root)
        assert damages, (position, bit)
        assert {damage.file for damage in damages} <= {file, file.replace("_ext", "")}
        flip(root, file, position, bit)
    batch = "batchconsumequeue/innerbatch/0/00000000000000000000"
    for position, bit in product(range(46, 92), range(8)):
        flip(root, batch, position, bit)
        _, damages = check(root)
        assert [(damage.file, damage.position) for damage in damages] == [(batch, 46)], (position, bit)
        flip(root, batch, position, bit)
    assert check(root)[0].is_sound


def test_delivery_times_hang_on_the_delay_levels(in_memory: Path) -> None:
    """Entries of the delay topic hold store time and delay; other levels than the broker's do not fit."""
    layout = look(Disk(unpacked("store", in_memory)))
    damages: list[Any] = []
    verify(layout, damages.append, delay_levels="2s 5s")
    assert {damage.file.split("/")[1] for damage in damages} == {"SCHEDULE_TOPIC_XXXX"}
