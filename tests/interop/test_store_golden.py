"""Hotfire serves every message of the stores that Apache's broker left behind, whole, crashed and torn."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest

from hotfire.protocol.record import Record, parse_properties, without_crc
from tests.interop import stores
from tests.interop.stores import Records, apache, hotfire
from tests.peers import remoting
from tests.peers.process import poll_until
from tests.wire.golden import GOLDEN, unpack_store

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

SIZES = {
    "mappedFileSizeCommitLog": "262144",
    "mappedFileSizeConsumeQueue": "4000",
    "maxHashSlotNum": "500",
    "maxIndexNum": "1000",
    "maxMessageSize": "200000",
    "mappedFileSizeTimerLog": "65536",
}
EXT = {
    "enableConsumeQueueExt": "true",
    "enableCalcFilterBitMap": "true",
    "mappedFileSizeConsumeQueueExt": "65536",
}
GROUP = "golden-readers"
INNER_BATCH = 0x40
SCHEDULE_TOPIC, TIMER_TOPIC = "SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer"
Line = dict[str, Any]


def manifest(name: str) -> list[Line]:
    """Every record Apache's broker has after it opened the store."""
    if name == "store-torn":
        return manifest("store-crashed")[:-1]
    plain = GOLDEN / name / "manifest.jsonl"
    text = (
        plain.read_text()
        if plain.exists()
        else gzip.decompress((GOLDEN / name / "manifest.jsonl.gz").read_bytes())
    )
    return [line for line in map(json.loads, text.splitlines()) if not line.get("blank")]


def in_queues(lines: list[Line]) -> dict[tuple[str, int, int], Line]:
    """By topic, queue and offset; inner batches lie in queues of another kind."""
    found = {}
    for line in lines:
        for entry in line["queueEntries"] or ():
            topic, queue_id, offset = entry.rsplit("/", 2)
            if not line["sysFlag"] & INNER_BATCH:
                found[topic, int(queue_id), int(offset)] = line
    return found


def queues_of(expected: dict[tuple[str, int, int], Line]) -> dict[str, set[int]]:
    queues: dict[str, set[int]] = defaultdict(set)
    for topic, queue_id, _ in expected:
        queues[topic].add(queue_id)
    return queues


def facts(record: Record) -> Line:
    """The record in the words of the manifest."""
    return {
        "physicalOffset": record.physical_offset,
        "topic": record.topic,
        "queueId": record.queue_id,
        "queueOffset": record.queue_offset,
        "sysFlag": record.sys_flag,
        "flag": record.flag,
        "bornTimestamp": record.born_timestamp,
        "storeTimestamp": record.store_timestamp,
        "reconsumeTimes": record.reconsume_times,
        "storedBodySha256": hashlib.sha256(record.body).hexdigest(),
        "properties": parse_properties(without_crc(record.properties)),
    }


def undelivered(expected: dict[tuple[str, int, int], Line]) -> dict[tuple[str, int, int], Line]:
    """Messages still parked, long since due, by the places they get when a broker starts."""
    told = {(place[0], line["properties"].get("UNIQ_KEY")) for place, line in expected.items()}
    ends: Counter[tuple[str, int]] = Counter((topic, queue_id) for topic, queue_id, _ in expected)
    due = {}
    for (topic, _, _), line in sorted(expected.items()):
        named = line["properties"]
        if topic in (SCHEDULE_TOPIC, TIMER_TOPIC) and (named["REAL_TOPIC"], named["UNIQ_KEY"]) not in told:
            real = named["REAL_TOPIC"], int(named["REAL_QID"])
            due[(*real, ends[real])] = line
            ends[real] += 1
    return due


def same(records: Records, expected: dict[tuple[str, int, int], Line]) -> None:
    assert sorted(records) == sorted(expected)
    for place, line in expected.items():
        found = facts(records[place])
        assert found == {name: line[name] for name in found}, place


@pytest.mark.parametrize("name", ["store", "store-crashed", "store-torn", "store-ext"])
def test_each_message_of_a_store_of_apaches_is_served(tmp_path: Path, name: str) -> None:
    """Every message by pull, as the manifest has it, and those that waited for their delay, which is over;
    then Apache's broker serves what Hotfire made of it."""
    unpack_store(name, tmp_path)
    store = tmp_path / "store"
    expected = in_queues(manifest(name))
    assert len(expected) > 300 or name == "store-ext"
    ours = hotfire(tmp_path / "hotfire", store, SIZES)
    with ours:
        due = undelivered(expected)
        for topic, queue_id, offset in due:
            poll_until(
                lambda: remoting.max_offsets(ours.broker, topic, queue_id + 1)[-1] > offset,  # noqa: B023
                what=f"delayed message {topic}/{queue_id}/{offset}",
                timeout_s=10.0,
            )
        records = stores.read_queues(ours, queues_of(expected), group=GROUP)
        delivered = {place: records[place] for place in due}
        same({place: record for place, record in records.items() if place not in due}, expected)
        for place, line in due.items():
            found = facts(delivered[place])
            assert found["storedBodySha256"] == line["storedBodySha256"], place
            assert found["properties"]["UNIQ_KEY"] == line["properties"]["UNIQ_KEY"], place
        wanted = stores.keys_in(records)
        assert stores.ask_keys(ours, wanted) == wanted
        remoting.create_topic(ours.broker, "more", 1)
        stores.await_route(ours, "more", 1)
        stores.send_contents(ours, "more", range(50))
        more = stores.read_topic(ours, "more", 1, group=GROUP)
        assert not stores.contents_differ(more, range(50))
        assert ours.terminate() == 0

    settings = {**SIZES, **(EXT if name == "store-ext" else {})}
    theirs = apache(tmp_path / "apache", store, {**settings, "mapperFileSizeBatchConsumeQueue": "9200"})
    with theirs:
        served = stores.read_queues(theirs, queues_of(expected), group=GROUP)
        assert served.items() >= records.items()  # it delivers what its timer holds, too
        assert stores.read_topic(theirs, "more", 1, group=GROUP) == more
        answers = stores.ask_keys(theirs, wanted)
        lacking = {key: at for key, at in wanted.items() if not set(answers[key]) >= set(at)}
        assert not lacking, f"{len(lacking)} of {len(wanted)}: {list(lacking.items())[:3]}"
