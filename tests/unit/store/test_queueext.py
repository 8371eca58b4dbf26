"""Queue extensions: the reference's units read and written again, a store whose queues point into them."""

import json
import shutil
import struct
from pathlib import Path
from typing import Any

import pytest

from hotfire.errors import StoreCorrupt
from hotfire.protocol.record import java_hash, parse_properties
from hotfire.store.config import StoreConfig
from hotfire.store.disk import Disk
from hotfire.store.queueext import QueueExt, Unit, is_address
from hotfire.store.store import Store
from tests.unit.store.driven import Driven, tree
from tests.wire.golden import GOLDEN, manifest, unpack_store

LEAST = -(1 << 63)
FILE_BYTES = 65536
ENTRY = struct.Struct(">qiq")
EXT: dict[str, Any] = {"queue_ext": True, "queue_ext_file_bytes": 128}
"""Files of six units."""
GOLDEN_CONFIG = StoreConfig(
    segment_bytes=262144,
    queue_file_bytes=4000,
    index_slots=500,
    index_entries=1000,
    queue_ext=True,
    queue_ext_file_bytes=FILE_BYTES,
)


@pytest.fixture
def recorded(in_memory: Path) -> Path:
    unpack_store("store-ext", in_memory)
    return in_memory / "store"


def golden_queues() -> list[tuple[str, int, list[list[int]]]]:
    queues = json.loads((GOLDEN / "store-ext" / "queues.json").read_text())
    found = [
        (topic, int(queue_id), queue["entries"])
        for topic, by_id in queues.items()
        for queue_id, queue in by_id.items()
        if queue["entries"] and is_address(queue["entries"][0][2])
    ]
    assert len(found) == 3
    return found


def told_by_the_reference() -> dict[tuple[str, int], list[dict[str, Any]]]:
    """What its broker answered when asked for each queue's extensions."""
    asked = json.loads((GOLDEN / "store-ext" / "queries.json").read_text())["queryConsumeQueue"]
    return {
        (one["topic"], one["queueId"]): [
            json.loads(each["extendDataJson"]) for each in one["result"]["queueData"]
        ]
        for one in asked
    }


# --- the reference's files ---


def test_units_of_the_reference_are_read_as_it_reads_them(recorded: Path) -> None:
    """Tags, store time and size of every unit equal what the reference's broker told, and its log."""
    stored = {record["physicalOffset"]: record for record in manifest("store-ext")}
    told = told_by_the_reference()
    bitmaps = 0
    for topic, queue_id, entries in golden_queues():
        ext = QueueExt(Disk(recorded), topic, queue_id, FILE_BYTES)
        ext.load()
        units = [ext.get(address) for _, _, address in entries]
        for (physical, _, _), unit, answer in zip(entries, units, told[topic, queue_id], strict=True):
            assert unit is not None
            assert (unit.tags, unit.store_time) == (answer["tagsCode"], answer["msgStoreTime"])
            assert unit.size == answer["size"]
            assert unit.store_time == stored[physical]["storeTimestamp"]
            assert unit.tags == java_hash(stored[physical]["properties"].get("TAGS", ""))
            bitmaps += bool(unit.bitmap)
        ext.close()
    assert bitmaps == 30


def test_units_written_again_give_the_same_files(recorded: Path, in_memory: Path) -> None:
    """Every unit put into a new extension: the addresses and all bytes are the reference's."""
    copy = Disk(in_memory / "again")
    for topic, queue_id, entries in golden_queues():
        before = QueueExt(Disk(recorded), topic, queue_id, FILE_BYTES)
        before.load()
        ext = QueueExt(copy, topic, queue_id, FILE_BYTES)
        for _, _, address in entries:
            unit = before.get(address)
            assert unit is not None
            assert ext.put(*unit) == address
        ext.close()
        before.close()
    assert tree(copy.root, below="consumequeue_ext") == tree(recorded, below="consumequeue_ext")


@pytest.mark.parametrize("enabled", [True, False])
def test_a_store_of_the_reference_filters_by_tag(recorded: Path, enabled: bool) -> None:
    """With the setting on or off, a pull for a tag finds the records with that tag and no others."""
    config = {name: getattr(GOLDEN_CONFIG, name) for name in GOLDEN_CONFIG.__slots__} | {"queue_ext": enabled}
    with Driven(recorded, **config) as driven:
        for topic, queue_id, entries in golden_queues():
            records = driven.pull_all(topic, queue_id)
            assert len(records) == len(entries)
            for tag in {parse_properties(record.properties).get("TAGS", "") for record in records}:
                got, following = driven.pull(topic, queue_id, 0, codes=(java_hash(tag),))
                wanted = [
                    record
                    for record in records
                    if java_hash(parse_properties(record.properties).get("TAGS", "")) == java_hash(tag)
                ]
                assert (got, following) == (wanted, len(entries))


def test_the_files_of_a_topic_without_filters_are_made_anew_as_the_reference_made_them(
    recorded: Path,
) -> None:
    """Queues and extensions deleted: those of the topic without bitmaps come back byte for byte."""
    before = {name: data for name, data in tree(recorded).items() if "/plain/" in name}
    for name in ("consumequeue", "consumequeue_ext", "checkpoint"):
        path = recorded / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    store = Store(Disk(recorded), GOLDEN_CONFIG)
    store.open()
    store.close()
    assert {name: data for name, data in tree(recorded).items() if "/plain/" in name} == before
    assert len(before) == 2


# --- files and their ends ---


def test_a_file_ends_where_the_next_unit_would_not_leave_four_bytes(in_memory: Path) -> None:
    """A unit may leave four bytes, not three; then -1 and the next file."""
    for bitmap_bytes, rolls in ((24, False), (25, True)):
        root = in_memory / str(bitmap_bytes)
        ext = QueueExt(Disk(root), "t", 0, 128)
        addresses = [ext.put(i, 0) for i in range(4)] + [ext.put(9, 9, b"x" * bitmap_bytes)]
        assert addresses[:4] == [LEAST + i * 20 for i in range(4)]
        assert addresses[4] == LEAST + (128 if rolls else 80)
        first = (root / "consumequeue_ext/t/0" / f"{0:020d}").read_bytes()
        assert (first[80:82] == b"\xff\xff") is rolls
        assert ext.get(addresses[4]) == Unit(9, 9, b"x" * bitmap_bytes)
        ext.close()


@pytest.mark.parametrize("count", range(14))
def test_the_end_is_found_again(in_memory: Path, count: int) -> None:
    """Behind the unit of the last entry, or by walking; units put then are where they would have been."""
    whole = QueueExt(Disk(in_memory / "whole"), "t", 0, 128)
    addresses = [whole.put(i, i * 10) for i in range(14)]
    ext = QueueExt(Disk(in_memory / "parts"), "t", 0, 128)
    assert [ext.put(i, i * 10) for i in range(count)] == addresses[:count]
    if count:
        ext.put(-5, 5, b"torn")  # of an entry that is not believed
        ext.take_dirty()
    ext.load()
    assert ext.recover(addresses[count - 1] if count else None)
    assert [ext.put(i, i * 10) for i in range(count, 14)] == addresses[count:]
    ext.load()
    assert ext.recover(0)  # the last entry has plain tags: walked
    assert ext.put(99, 99) == whole.put(99, 99)
    assert tree(in_memory / "parts") == tree(in_memory / "whole")
    ext.close()
    whole.close()


def test_what_is_not_a_unit_is_none(in_memory: Path) -> None:
    """Addresses behind the end, between units, in files that are gone, and plain tags give nothing."""
    ext = QueueExt(Disk(in_memory), "t", 0, 128)
    addresses = [ext.put(i, 0) for i in range(14)]
    for address in (addresses[-1] + 20, addresses[0] + 1, addresses[5] + 20, LEAST + 4000, 7, -1):
        assert ext.get(address) is None
    ext.drop_below(addresses[-1])
    assert [ext.get(address) is None for address in addresses] == [True] * 12 + [False] * 2
    assert ext.tags(addresses[0]) is None
    assert ext.tags(addresses[-1]) == 13
    assert ext.tags(-7) == -7
    ext.close()


def test_a_unit_of_more_than_an_int16_is_refused(in_memory: Path) -> None:
    ext = QueueExt(Disk(in_memory), "t", 0)
    with pytest.raises(ValueError, match="32768 bytes, at most 32767"):
        ext.put(0, 0, bytes(32748))
    assert ext.put(0, 0, bytes(32747)) == LEAST
    ext.close()


# --- a store that extends ---


def fill(driven: Driven, count: int = 60) -> None:
    for i in range(count):
        driven.now_ms += 7
        driven.send("t", i % 2, b"m%d" % i, TAGS=f"tag{i % 3}")
        if i % 5 == 0:
            driven.turn()
    driven.turn()


def check_tags(driven: Driven) -> None:
    for queue_id in (0, 1):
        for number in range(3):
            tag = f"tag{number}"
            records, offset = [], 0
            while True:
                got, following = driven.pull("t", queue_id, offset, codes=(java_hash(tag),))
                records += got
                if following == offset:
                    break
                offset = following
            wanted = [
                sent.body
                for sent in driven.sent
                if sent.queue_id == queue_id and sent.properties == f"TAGS\x01{tag}\x02".encode()
            ]
            assert [record.body for record in records] == wanted


@pytest.mark.core
def test_entries_point_to_their_tags_and_times(in_memory: Path) -> None:
    """Every entry holds an address; its unit the tags and the store time of the record."""
    with Driven(in_memory / "store", **EXT) as driven:
        fill(driven)
        ext = QueueExt(Disk(driven.root), "t", 0, 128)
        ext.load()
        queue = driven.store.queue("t", 0)
        for record in driven.pull_all("t", 0):
            driven.pull("t", 0, record.queue_offset)  # opens the file that holds the entry
            entry = queue.entry(record.queue_offset)
            assert entry is not None
            tags = java_hash(parse_properties(record.properties)["TAGS"])
            assert ext.get(entry[2]) == Unit(tags, record.store_timestamp)
        ext.close()
        driven.check(driven.sent)
        check_tags(driven)


@pytest.mark.core
@pytest.mark.parametrize(
    "gone", [("consumequeue", "consumequeue_ext"), ("consumequeue",), ("consumequeue_ext",)]
)
@pytest.mark.parametrize("crashed", [True, False])
def test_deleted_files_are_made_anew(in_memory: Path, gone: tuple[str, ...], crashed: bool) -> None:
    """Queues, extensions or both deleted: all are made again from the log as they were, to the byte."""
    driven = Driven(in_memory / "store", **EXT).open()
    fill(driven)
    driven.tick(2000)
    image = driven.crash_image(in_memory / "image")
    driven.store.close()
    again = image if crashed else driven.on(driven.root)
    before = derived(again.root)
    assert len(before) > 12
    for name in gone:
        shutil.rmtree(again.root / name)
    with again:
        again.check(again.sent)
        check_tags(again)
    assert derived(again.root) == before


def derived(root: Path) -> dict[str, bytes]:
    return {name: data for name, data in tree(root).items() if name.startswith("consumequeue")}


@pytest.mark.core
def test_every_crash_leaves_a_store_that_goes_on_as_though_there_was_none(in_memory: Path) -> None:
    """Crash, recover, send on, again and again: the files are those of a store that never crashed."""
    calm = Driven(in_memory / "calm", **EXT).open()
    fill(calm)
    driven = Driven(in_memory / "0", **EXT).open()
    for number in range(60):
        driven.now_ms += 7
        driven.send("t", number % 2, b"m%d" % number, TAGS=f"tag{number % 3}")
        driven.turn()
        if number % 8 == 3:
            driven.tick(1000)
            driven.now_ms -= 1000
        if number % 6 == 5:
            image = driven.crash_image(in_memory / str(number))
            driven.store.close()
            driven = image.open()
            check_tags(driven)
    assert driven.sent == calm.sent
    calm.store.close()
    driven.store.close()
    assert derived(driven.root) == derived(calm.root)


@pytest.mark.core
def test_the_setting_may_come_and_go(in_memory: Path) -> None:
    """Off, on, off, on: entries of both kinds in one queue, all filtered right, also after a crash."""
    driven = Driven(in_memory / "store").open()
    for turn in range(4):
        fill(driven, 20)
        driven.store.close()
        sent, now_ms = driven.sent, driven.now_ms
        driven = Driven(driven.root, **(EXT | {"queue_ext": turn % 2 == 0}))
        driven.sent, driven.now_ms = sent, now_ms
        driven.open()
        check_tags(driven)
    image = driven.crash_image(in_memory / "image")
    driven.store.close()
    with image:
        image.check(image.sent)
        check_tags(image)


def test_extensions_go_with_the_entries_that_point_at_them(in_memory: Path) -> None:
    """The log begins later: files of units that no entry points at any more are removed, no others."""
    with Driven(in_memory / "store", **EXT) as driven:
        fill(driven)
        directory = driven.root / "consumequeue_ext/t/0"
        before = sorted(directory.iterdir())
        middle = next(sent for sent in driven.sent if sent.queue_id == 0 and sent.queue_offset == 17)
        driven.store._queues["t", 0].follow(middle.physical)
        assert sorted(directory.iterdir()) == before[17 // 6 :]  # six units a file
        offset, found = 17, []
        while (pulled := driven.pull("t", 0, offset, codes=(java_hash("tag1"),)))[1] > offset:
            found += [record.body for record in pulled[0]]
            offset = pulled[1]
        kept = [sent for sent in driven.sent if sent.queue_id == 0 and sent.queue_offset >= 17]
        assert found == [sent.body for sent in kept if b"tag1" in sent.properties]
    assert not (driven.root / "abort").exists()


def test_files_of_another_size_are_refused(in_memory: Path) -> None:
    """A store whose extension files have another size than configured does not open, and says why."""
    with Driven(in_memory / "store", **EXT) as driven:
        fill(driven)
    with pytest.raises(
        StoreCorrupt, match="has 128 bytes, configured are 256: set mappedFileSizeConsumeQueueExt"
    ):
        Driven(in_memory / "store", **(EXT | {"queue_ext_file_bytes": 256})).open()
    with Driven(in_memory / "store", queue_ext_file_bytes=256) as driven:  # reading goes by what is there
        assert driven.pull("t", 0, 0, codes=(java_hash("tag1"),))[0]
