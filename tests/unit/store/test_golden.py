"""Stores that the reference's broker wrote, clean and killed: opened, read and asked as it would be."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hotfire.protocol.record import decode_record, iter_records, keys_of, parse_properties
from hotfire.store.disk import Disk
from hotfire.store.reading import ReadStatus
from hotfire.store.store import Store
from tests.unit.store import golden
from tests.unit.store.driven import ring

STORES = ["store", "store-ext", "store-crashed", "store-torn"]


@pytest.fixture(params=STORES)
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, Store]]:
    store = Store(Disk(golden.unpack(request.param, tmp_path)), golden.CONFIG)
    store.open()
    yield request.param, store
    store.close()


def ask(store: Store) -> Any:
    """The answer to the question just asked."""
    ring(store.queries.fileno())
    ((_, future),) = store.queries.answers()
    return future.result()


def records_of(name: str) -> list[dict[str, Any]]:
    if name == "store-torn":  # its manifest is that of the store it was made of, less the torn record
        return records_of("store-crashed")[:-1]
    return [line for line in golden.manifest(name) if not line.get("blank")]


def test_the_log_ends_where_the_reference_ends_it(opened: tuple[str, Store]) -> None:
    """Clean or killed, whole or torn: the same end, and nothing taken for damage."""
    name, store = opened
    last = records_of(name)[-1]
    assert store.recovered.end == last["physicalOffset"] + last["storeSize"]
    assert store.recovered.damage == []
    if name in ("store-crashed", "store-torn"):
        assert store.recovered.end == golden.read(name, "recovered.json")["commitLogMaxOffset"]


def test_every_queue_serves_what_the_reference_serves(opened: tuple[str, Store]) -> None:
    """Every entry of every queue leads to the record that the manifest has for it."""
    name, store = opened
    expected: dict[tuple[str, int], list[tuple[int, int]]] = {}
    for record in records_of(name):
        for place in record["queueEntries"] or []:
            topic, queue_id, index = place.rsplit("/", 2)
            expected.setdefault((topic, int(queue_id)), []).append((int(index), record["physicalOffset"]))
    batches = {r["topic"] for r in records_of(name) if r["sysFlag"] & 0x80}
    for (topic, queue_id), entries in expected.items():
        if topic in batches:
            continue  # queues of another kind
        found = []
        offset = entries[0][0]
        while (read := store.read(topic, queue_id, offset, count_max=32, bytes_max=1 << 30)).data:
            assert read.status is ReadStatus.FOUND
            found += [(r.queue_offset, r.physical_offset) for r in iter_records(read.data)]
            offset = read.next_offset
        assert found == sorted(entries), (topic, queue_id)


def test_queries_answer_as_recorded(in_memory: Path) -> None:
    """Every key query, less what only shares a hash, and every time query of the recording."""
    store = Store(Disk(golden.unpack("store", in_memory)), golden.CONFIG)
    store.open()
    queries = golden.read("store", "queries.json")
    keys = {r["msgId"]: keys_of(r["properties"]) for r in records_of("store")}
    for query in queries["byKey"]:
        store.queries.by_key(
            query["topic"], query["key"], query["maxNum"], query["beginTimestamp"], query["endTimestamp"], 0
        )
        offsets = [record.physical_offset for record in iter_records(ask(store))]
        recorded = {i: int(i[-16:], 16) for i in query["offsetMsgIds"] if query["key"] in keys[i]}
        assert offsets == sorted(set(recorded.values())), query
    assert len(queries["byKey"]) > 50
    for query in queries["byTime"]:
        store.offset_by_time(
            query["topic"],
            query["queueId"],
            query["timestamp"],
            upper=query["boundary"] == "upper",
            token=None,
        )
        assert ask(store) == query["offset"], query
    store.close()


@pytest.mark.promise(46, 156)
def test_every_record_is_found_by_its_offset(opened: tuple[str, Store]) -> None:
    """By the offset in its id over all segments; no other offset has one."""
    name, store = opened
    for record in records_of(name):
        store.queries.record_at(record["physicalOffset"], None)
        found = decode_record(ask(store))
        assert (found.topic, found.queue_offset) == (record["topic"], record["queueOffset"])
        for near in (-1, 1, 8):
            store.queries.record_at(record["physicalOffset"] + near, None)
            assert ask(store) is None
    store.queries.record_at(store.end, None)
    assert ask(store) is None


@pytest.mark.promise(26)
@pytest.mark.parametrize("name", ["store", "store-crashed"])
def test_what_is_derived_is_made_anew_byte_for_byte(in_memory: Path, name: str) -> None:
    """Queues and index removed: the reference's own files come back, but for the time in an index's name."""
    root = golden.unpack(name, in_memory)
    original = {
        kind: {
            path.relative_to(root): path.read_bytes() for path in (root / kind).rglob("*") if path.is_file()
        }
        for kind in ("consumequeue", "index")
    }
    for kind in original:
        shutil.rmtree(root / kind)
    store = Store(Disk(root), golden.CONFIG)
    store.open()
    store.close()
    made = {
        kind: {
            path.relative_to(root): path.read_bytes() for path in (root / kind).rglob("*") if path.is_file()
        }
        for kind in original
    }
    recorded = golden.read(name, "queues.json")
    for path, data in original["consumequeue"].items():
        used = len(data.rstrip(b"\0"))
        if name == "store" and used:  # a killed store's files were behind
            assert made["consumequeue"][path] == data, path
    for topic, queues in recorded.items():
        for queue_id, queue in queues.items():
            if queue["entries"] and not (root / "batchconsumequeue" / topic).exists():
                found = store._queues[topic, int(queue_id)]
                assert found.entries.max == queue["max"], (topic, queue_id)
    if name == "store":
        made_in_order, recorded_in_order = (
            [data for _, data in sorted(files["index"].items())] for files in (made, original)
        )
        assert made_in_order == recorded_in_order


def test_a_store_of_the_references_goes_on(tmp_path: Path) -> None:
    """Opened, appended to by us, closed: opened again it has both."""
    root = golden.unpack("store", tmp_path)
    for _ in range(2):
        store = Store(Disk(root), golden.CONFIG)
        store.open()
        first = decode_record(golden_bytes(store, 0))
        placed = store.append(first, 1 << 41)
        store.submit()
        ring(store.fileno())
        store.complete()
        read = store.read(first.topic, first.queue_id, placed.queue_offset, count_max=1, bytes_max=1 << 20)
        assert read.data is not None
        assert decode_record(read.data).body == first.body
        store.close()
    assert parse_properties(first.properties)


def golden_bytes(store: Store, physical: int) -> bytes:
    store.queries.record_at(physical, None)
    data = ask(store)
    assert isinstance(data, bytes)
    return data
