"""Format `hotfire-store` over stores of our own: what is chosen, how far it reads, what it says of damage."""

import random
import shutil
import struct
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import EqualTo, GreaterThanOrEqual, In, LessThan
from pyspark.sql.types import StringType, StructField, StructType

from hotfire.errors import ConfigError, StoreCorrupt, StoreError
from hotfire.protocol.record import SysFlag
from hotfire.spark import storefiles, storelog, storeplan, storequeues
from hotfire.spark.reading import DataLoss
from hotfire.spark.storesource import StoreSource
from hotfire.store.config import ENTRY_BYTES
from hotfire.store.disk import Disk
from hotfire.store.kinds import ROCKSDB_MARK
from hotfire.store.layout import look
from tests.unit.spark.stores import by_place, parts_of, reader_of, rows_of
from tests.unit.store.driven import NOW_MS, Driven, Sent, message

WAYS = ["queue", "log"]


@pytest.fixture(params=[1 << 20, 700], ids=["wide", "narrow"])
def window(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is read at once: all, or so little that most records go on behind it."""
    for module in (storefiles, storequeues, storelog):
        monkeypatch.setattr(module, "WINDOW_BYTES", request.param)
    monkeypatch.setattr(storequeues, "GAP_BYTES", 200)


def fill(root: Path, count: int = 120, **config: Any) -> Driven:
    """Two topics, three queues, records of all sizes over many segments; closed."""
    rng = random.Random(7)
    with Driven(root, **config) as driven:
        for i in range(count):
            driven.now_ms += 10
            body = rng.randbytes(rng.choice((0, 5, 100, 900, 3000)))
            driven.send(f"t{i % 2}", i % 3, body, TAGS=f"tag{i % 4}", KEYS=f"k{i}")
            if i % 10 == 9:
                driven.turn()
        driven.turn()
    return driven


def told(sent: Sent) -> tuple[Any, ...]:
    return sent.physical, sent.topic, sent.queue_id, sent.queue_offset, sent.body


def found(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    names = ("commitLogOffset", "topic", "queueId", "queueOffset", "body")
    return [tuple(row[name] for name in names) for row in by_place(rows)]


# --- what is read ----------------------------------------------------------------------------------


@pytest.mark.usefixtures("window")
@pytest.mark.parametrize("by", WAYS)
@pytest.mark.parametrize("partitions", [1, 4, 50])
def test_a_store_is_read_whole(in_memory: Path, by: str, partitions: int) -> None:
    """Each message once, over segments' ends, whatever is read at once and however it is cut."""
    driven = fill(in_memory / "store")
    rows = rows_of(driven.root, by=by, minPartitions=partitions, maxPartitions=partitions, batchRows=7)
    assert found(rows) == [told(sent) for sent in driven.sent]
    row = by_place(rows)[5]
    assert (row["keys"], row["tags"]) == ("k5", "tag1")
    assert row["storeTimestamp"] == datetime.fromtimestamp((NOW_MS + 60) / 1000, UTC)


@pytest.mark.usefixtures("window")
@pytest.mark.parametrize("by", WAYS)
def test_only_what_is_asked_for_is_read(in_memory: Path, by: str) -> None:
    """Topics, queues, offsets, times and filters: the same rows as if they were judged afterwards."""
    driven = fill(in_memory / "store")
    stored = {sent: NOW_MS + 10 * (i + 1) for i, sent in enumerate(driven.sent)}

    def at(ms: int) -> datetime:
        return datetime.fromtimestamp((NOW_MS + ms) / 1000, UTC)

    cases: list[tuple[dict[str, Any], list[Any] | None, Callable[[Sent], bool]]] = [
        ({"topics": "t1"}, None, lambda sent: sent.topic == "t1"),
        ({"subscribe": "t0, t1"}, None, lambda sent: True),
        ({"queues": "0,2"}, None, lambda sent: sent.queue_id != 1),
        ({"startingOffset": 4}, None, lambda sent: sent.queue_offset >= 4),
        ({"startingOffset": 4, "endingOffset": 6}, None, lambda sent: 4 <= sent.queue_offset < 6),
        ({"startingTimestamp": NOW_MS + 500}, None, lambda sent: stored[sent] >= NOW_MS + 500),
        ({"endingTimestamp": NOW_MS + 500}, None, lambda sent: stored[sent] < NOW_MS + 500),
        ({}, [EqualTo(("topic",), "t0")], lambda sent: sent.topic == "t0"),
        ({"topics": "t1"}, [EqualTo(("topic",), "t0")], lambda sent: False),
        ({}, [EqualTo(("queueId",), 1)], lambda sent: sent.queue_id == 1),
        ({"queues": "0,1"}, [GreaterThanOrEqual(("queueId",), 1)], lambda sent: sent.queue_id == 1),
        ({}, [GreaterThanOrEqual(("queueOffset",), 3)], lambda sent: sent.queue_offset >= 3),
        ({}, [LessThan(("queueOffset",), 3)], lambda sent: sent.queue_offset < 3),
        ({}, [In(("tags",), ("tag0", "tag3"))], lambda sent: sent.properties[5:9] in (b"tag0", b"tag3")),
        ({}, [EqualTo(("tags",), "none")], lambda sent: False),
        (
            {},
            [GreaterThanOrEqual(("storeTimestamp",), at(200)), LessThan(("storeTimestamp",), at(300))],
            lambda sent: NOW_MS + 200 <= stored[sent] <= NOW_MS + 300,
        ),
        ({"brokerName": "a"}, [EqualTo(("brokerName",), "b")], lambda sent: False),
    ]
    for options, filters, wanted in cases:
        rows = rows_of(driven.root, by=by, filters=filters, minPartitions=3, **options)
        assert found(rows) == [told(sent) for sent in driven.sent if wanted(sent)], (options, filters)


def test_times_are_found_without_reading_the_log(in_memory: Path) -> None:
    """A day of messages, and an hour of it is asked for: the rest of the log is left alone."""
    with Driven(in_memory / "store", segment_bytes=1 << 20) as driven:
        for i in range(2000):
            driven.now_ms += 43_200
            driven.send("t", 0, bytes(900))
            if i % 100 == 99:
                driven.turn()
    begin = NOW_MS + 43_200 * 1000
    for by in WAYS:
        reader = reader_of(
            driven.root, by=by, startingTimestamp=begin, endingTimestamp=begin + 3_600_000, maxPartitions=1
        )
        (part,) = parts_of(reader)
        assert part.log_until - part.log_from < 400 << 10
        rows = [row for batch in reader.read(part) for row in batch.to_pylist()]
        assert len(rows) == 84


@pytest.mark.parametrize("by", WAYS)
def test_a_sub_schema_is_all_that_is_decoded(in_memory: Path, by: str) -> None:
    """The user's columns in the user's order."""
    driven = fill(in_memory / "store", 20)
    rows = rows_of(driven.root, "body queueOffset", by=by)
    assert list(rows[0]) == ["body", "queueOffset"]
    assert sorted(row["body"] for row in rows) == sorted(sent.body for sent in driven.sent)


def test_sparse_queues_are_read_piece_by_piece(in_memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a topic with few messages in a large log, little more than those is read."""
    with Driven(in_memory / "store", segment_bytes=4 << 20) as driven:
        for i in range(3000):
            driven.send("rare" if i % 300 == 7 else "often", 0, bytes(1000))
            if i % 100 == 99:
                driven.turn()
    read: list[int] = []
    whole = storefiles.Log.read

    def counted(self: Any, offset: int, size: int) -> memoryview:
        data = whole(self, offset, size)
        read.append(len(data))
        return data

    monkeypatch.setattr(storefiles.Log, "read", counted)
    assert len(rows_of(driven.root, topics="rare", by="queue")) == 10
    assert sum(read) < 20_000
    read.clear()
    assert len(rows_of(driven.root, by="queue", maxPartitions=1)) == 3000
    assert sum(read) < 2 * 3_600_000, "the log is read about once, not once for each queue"


@pytest.mark.parametrize("by", WAYS)
def test_a_deleted_topics_messages_are_none(in_memory: Path, by: str) -> None:
    """Of a topic that was made again, only those since."""
    with Driven(in_memory / "store") as driven:
        for i in range(20):
            driven.send(f"t{i % 2}", 0, b"%d" % i)
        driven.turn()
        driven.store.deletions.delete(["t1"])
        for i in range(20, 30):
            driven.send(f"t{i % 2}", 0, b"%d" % i)
        driven.turn()
    rows = rows_of(driven.root, "topic body commitLogOffset queueOffset", by=by)
    assert [int(row["body"]) for row in by_place(rows)] == [*range(0, 20, 2), *range(20, 30)]


def test_what_a_transaction_took_back_is_no_row(in_memory: Path) -> None:
    """Records that get no queue entry are none by the log either."""
    with Driven(in_memory / "store") as driven:
        for flag in (
            0,
            SysFlag.TRANSACTION_PREPARED,
            SysFlag.TRANSACTION_COMMIT,
            SysFlag.TRANSACTION_ROLLBACK,
        ):
            driven.store.append(replace(message("t", 0, b"%d" % flag), sys_flag=flag), driven.now_ms)
        driven.turn()
    assert [row["body"] for row in rows_of(driven.root, "body", by="log")] == [b"0", b"8"]


# --- how far ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("by", WAYS)
def test_it_ends_where_the_log_is_surely_on_disk(in_memory: Path, by: str) -> None:
    """Of a broker that answers before it syncs: up to the mark, or up to the last sound record."""
    with Driven(in_memory / "store", sync_flush=False, flush_interval_ms=1 << 40) as driven:
        for i in range(10):
            driven.send("t", 0, b"%d" % i)
        driven.turn()
        driven.reopened().store.close()
    with driven.on(driven.root) as again:
        for i in range(10, 20):
            again.send("t", 0, b"%d" % i)
        again.turn()
        assert len(rows_of(driven.root, "body", by=by, upTo="durable")) == 10
        assert len(rows_of(driven.root, "body", by=by, upTo="last")) == 20
    assert len(rows_of(driven.root, "body", by=by, upTo="durable")) == 20


@pytest.mark.parametrize("by", ["auto", "log"])
def test_a_torn_end_is_an_end(in_memory: Path, by: str, caplog: pytest.LogCaptureFixture) -> None:
    """What a killed broker was writing is not damage: all before it is read, and the operator told."""
    with Driven(in_memory / "store") as driven:
        for i in range(10):
            driven.send("t", 0, b"%d" % i * 50)
        driven.turn()
        driven.crash_image(in_memory / "image")
    image = in_memory / "image"
    (image / "checkpoint").unlink()
    segment = image / "commitlog" / f"{0:020d}"
    data = segment.read_bytes()
    last = driven.sent[-1]
    for cut in (last.physical + 4, last.physical + 50, last.end - 1):
        segment.write_bytes(data[:cut] + bytes(len(data) - cut))
        caplog.clear()
        assert len(rows_of(image, "body", by=by)) == 9
        assert "the log ends here" in caplog.text
    segment.write_bytes(data[: last.physical] + bytes(len(data) - last.physical))
    caplog.clear()
    assert len(rows_of(image, "body", by=by)) == 9
    assert not caplog.records


@pytest.mark.parametrize("by", WAYS)
def test_a_segment_that_is_gone_is_data_loss(
    in_memory: Path, by: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Retention while the query runs: an error that names the file, or all the rest."""
    driven = fill(in_memory / "store")
    reader = reader_of(driven.root, by=by)
    parts = parts_of(reader)
    gone = driven.root / "commitlog" / f"{8192:020d}"
    gone.unlink()
    with pytest.raises(DataLoss, match=f"commitlog/{8192:020d} is not there.*failOnDataLoss"):
        [*reader.read(parts[0])]
    rows = [
        row
        for part in parts
        for batch in reader_of(driven.root, by=by, failOnDataLoss="false").read(part)
        for row in batch.to_pylist()
    ]
    assert found(rows) == [told(sent) for sent in driven.sent if sent.physical // 8192 != 1]
    assert f"{8192:020d}" in caplog.text


def test_the_oldest_segments_may_be_deleted_before(in_memory: Path) -> None:
    """Entries that lead to before the log's beginning are none."""
    driven = fill(in_memory / "store")
    for start in (0, 8192):
        (driven.root / "commitlog" / f"{start:020d}").unlink()
    for by in WAYS:
        assert found(rows_of(driven.root, by=by)) == [
            told(sent) for sent in driven.sent if sent.physical >= 2 * 8192
        ]


def test_a_queue_whose_oldest_file_goes_as_it_is_planned_is_not_left_out(
    in_memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker deletes what a look at the store has just seen: it is looked at again, and a queue that never
    holds still is an error and not an empty one.
    """
    driven = fill(in_memory / "store")
    (driven.root / "commitlog" / f"{0:020d}").unlink()
    before = look(Disk(driven.root), with_indexes=False)
    oldest, second, *_ = sorted((driven.root / "consumequeue" / "t0" / "0").iterdir())
    oldest.unlink()
    looks = iter([before])
    monkeypatch.setattr(storeplan, "look", lambda *_, **__: next(looks, None) or look(Disk(driven.root)))
    first = int(second.name) // ENTRY_BYTES
    assert found(rows_of(driven.root, by="queue")) == [
        told(sent)
        for sent in driven.sent
        if sent.physical >= 8192 and ((sent.topic, sent.queue_id) != ("t0", 0) or sent.queue_offset >= first)
    ]
    monkeypatch.setattr(storeplan, "look", lambda *_, **__: before)
    with pytest.raises(DataLoss, match=rf"consumequeue/t0/0/{0:020d} was there each of 5 times"):
        rows_of(driven.root, by="queue")


# --- damage ----------------------------------------------------------------------------------------


def harmed(driven: Driven, sent: Sent, at: int = 100) -> Path:
    """Turns a bit of that record, and says in which file."""
    segment = driven.root / "commitlog" / f"{sent.physical // 8192 * 8192:020d}"
    data = bytearray(segment.read_bytes())
    data[sent.physical % 8192 + at] ^= 0x40
    segment.write_bytes(data)
    return segment


@pytest.mark.parametrize("by", WAYS)
@pytest.mark.parametrize("at", [5, 10, 25, 57, 90, 95])
def test_damage_fails_with_its_place(in_memory: Path, by: str, at: int) -> None:
    """Whatever byte it is: file and byte are named, and the option that reads on."""
    driven = fill(in_memory / "store")
    sent = next(one for one in driven.sent if len(one.body) == 900 and one.physical > 8192)
    segment = harmed(driven, sent, at)
    place = f"{segment} at byte {sent.physical % 8192} "
    with pytest.raises(StoreCorrupt, match="damaged to skip") as raised:
        rows_of(driven.root, by=by)
    assert place in str(raised.value)


@pytest.mark.usefixtures("window")
@pytest.mark.parametrize("by", WAYS)
@pytest.mark.parametrize("at", [0, 5, 10, 25, 33, 57, 90, 95])
def test_damage_is_left_out_or_kept(
    in_memory: Path, by: str, at: int, caplog: pytest.LogCaptureFixture
) -> None:
    """All the others are there; the damaged one is counted, or a row that says why and where."""
    driven = fill(in_memory / "store")
    bad = next(one for one in driven.sent if len(one.body) == 900 and one.physical > 8192)
    harmed(driven, bad, at)
    others = [told(sent) for sent in driven.sent if sent is not bad]
    assert found(rows_of(driven.root, by=by, damaged="skip", minPartitions=3)) == others
    assert "damaged=skip records=1" in caplog.text
    rows = rows_of(driven.root, by=by, damaged="keep", minPartitions=3)
    assert found([row for row in rows if row["damage"] is None]) == others
    (kept,) = [row for row in rows if row["damage"] is not None]
    assert kept["commitLogOffset"] == bad.physical
    assert kept["damage"]
    if by == "queue":
        assert (kept["topic"], kept["queueId"], kept["queueOffset"]) == (
            bad.topic,
            bad.queue_id,
            bad.queue_offset,
        )
    if at == 95 and by == "queue":
        assert len(kept["body"]) == 900


@pytest.mark.parametrize("by", WAYS)
def test_a_hole_in_the_log_is_damage(in_memory: Path, by: str) -> None:
    """Zeros where records were: none before or behind them is missed."""
    driven = fill(in_memory / "store")
    inside = [sent for sent in driven.sent if 2 * 8192 <= sent.physical < 3 * 8192]
    segment = driven.root / "commitlog" / f"{2 * 8192:020d}"
    data = segment.read_bytes()
    segment.write_bytes(bytes(inside[-1].physical % 8192) + data[inside[-1].physical % 8192 :])
    rows = rows_of(driven.root, by=by, damaged="keep")
    lost = inside[:-1]
    assert found([row for row in rows if row["damage"] is None]) == [
        told(sent) for sent in driven.sent if sent not in lost
    ]
    reasons = [row["damage"] for row in rows if row["damage"] is not None]
    assert len(reasons) == (len(lost) if by == "queue" else 1)
    if by == "log":
        assert reasons[0].startswith("zeros")


def test_entries_that_lead_astray_are_damage(in_memory: Path) -> None:
    """A queue's entry that means another record, or none: the row says so, its neighbours are there."""
    driven = fill(in_memory / "store", 40)
    queue = [sent for sent in driven.sent if (sent.topic, sent.queue_id) == ("t0", 0)]
    file = driven.root / "consumequeue" / "t0" / "0" / f"{0:020d}"
    whole = file.read_bytes()
    offset, size, tags = struct.unpack_from(">qiq", whole, 40)
    for entry in (
        (offset + 1, size, tags),
        (offset, size - 1, tags),
        (offset, size + 1, tags),
        (offset, -5, tags),
        (driven.sent[7].physical, size, tags),
        (1 << 60, size, tags),
        (offset, 1 << 30, tags),
    ):
        file.write_bytes(whole[:40] + struct.pack(">qiq", *entry) + whole[60:])
        rows = rows_of(
            driven.root,
            by="queue",
            topics="t0",
            queues="0",
            damaged="keep",
            failOnDataLoss="false",
            maxPartitions=1,
        )
        sound = [row for row in rows if row["damage"] is None]
        assert found(sound) == [told(sent) for sent in queue if sent is not queue[2]], entry
        (bad,) = [row for row in rows if row["damage"] is not None]
        assert (bad["topic"], bad["queueId"], bad["queueOffset"]) == ("t0", 0, 2)


@pytest.mark.parametrize("by", WAYS)
def test_no_turned_bit_is_a_wrong_row(in_memory: Path, by: str) -> None:
    """Bits all over a log: every row is one that was sent, and each damaged record is told of."""
    driven = fill(in_memory / "store", 60)
    sent = {told(one) for one in driven.sent}
    rng = random.Random(20261118)
    for _ in range(60):
        image = in_memory / "image"
        shutil.copytree(driven.root, image)
        bad = rng.choice(driven.sent)
        at = rng.randrange(bad.end - bad.physical)
        segment = image / "commitlog" / f"{bad.physical // 8192 * 8192:020d}"
        data = bytearray(segment.read_bytes())
        data[bad.physical % 8192 + at] ^= 1 << rng.randrange(8)
        segment.write_bytes(data)
        rows = rows_of(image, by=by, damaged="keep", minPartitions=2)
        sound = found([row for row in rows if row["damage"] is None])
        assert set(sound) == sent - {told(bad)}, (bad, at)
        assert len(sound) == len(sent) - 1
        assert [row["commitLogOffset"] for row in rows if row["damage"] is not None] == [bad.physical]
        shutil.rmtree(image)


# --- what is refused -------------------------------------------------------------------------------


def test_what_cannot_be_read_is_told(in_memory: Path) -> None:
    """No store, other kinds of stores, queues that are missing: each with the next step."""
    with pytest.raises(StoreError, match="not a directory"):
        rows_of(in_memory / "nothing")
    driven = fill(in_memory / "store", 30)
    root = driven.root
    (root / "consumequeue" / ROCKSDB_MARK).write_bytes(b"")
    with pytest.raises(StoreError, match="RocksDB; set option by to log"):
        rows_of(root, by="queue")
    assert len(rows_of(root, "topic")) == 30
    (root / "consumequeue" / ROCKSDB_MARK).unlink()
    shutil.rmtree(root / "consumequeue")
    with pytest.raises(StoreError, match="no queues; set option by to log"):
        rows_of(root, by="queue")
    assert found(rows_of(root)) == [told(sent) for sent in driven.sent]
    (root / "dledger-n0").mkdir()
    (root / "dledger-n0" / "data").mkdir()
    with pytest.raises(StoreError, match="DLedger"):
        rows_of(root)


def test_a_queue_with_a_missing_file_is_read_by_the_log(in_memory: Path) -> None:
    """Nothing is passed over because a file in the middle of a queue is not there."""
    driven = fill(in_memory / "store")
    files = sorted((driven.root / "consumequeue" / "t0" / "0").iterdir())
    assert len(files) > 2
    files[1].unlink()
    with pytest.raises(StoreError, match=f"{files[1].name} is missing; set option by to log"):
        rows_of(driven.root, by="queue")
    assert found(rows_of(driven.root)) == [told(sent) for sent in driven.sent]


def test_wrong_options_are_refused(in_memory: Path) -> None:
    """Each with its name and what would do."""
    driven = fill(in_memory / "store", 5)
    for options, words in (
        ({"topics": "a", "subscribe": "a"}, "mean the same"),
        ({"startingOffset": 5, "endingOffset": 4}, "endingOffset 4 is before"),
        ({"queues": "a"}, "numbers with commas"),
        ({"damaged": "ignore"}, "fail or skip or keep"),
        ({"by": "index"}, "auto or queue or log"),
        ({"topic": "t0"}, "did you mean topics"),
        ({"topics": "t9"}, "no topic t9; it has t0, t1"),
        ({"topics": "%LMQ%a"}, "no records of its own"),
    ):
        with pytest.raises(ConfigError, match=words):
            rows_of(driven.root, **options)
    with pytest.raises(ConfigError, match="option path is missing"):
        reader_of("")
    with pytest.raises(ConfigError, match="mounted"):
        reader_of("hdfs://a/b")
    source = StoreSource({"path": str(driven.root)})
    with pytest.raises(ConfigError, match="damage is not one"):
        source.reader(StructType([StructField("damage", StringType())]))


def test_a_declared_topic_may_be_empty(in_memory: Path) -> None:
    """Nothing was ever sent to it, and that is no mistake."""
    driven = fill(in_memory / "store", 5)
    (driven.root / "config").mkdir(exist_ok=True)
    (driven.root / "config" / "topics.json").write_text('{"topicConfigTable": {"quiet": {}}}')
    assert rows_of(driven.root, topics="quiet") == []
    assert rows_of(f"file://{driven.root}", "topic", topics="t0", maxPartitions=1)


def test_the_brokers_name_is_said_or_known(in_memory: Path) -> None:
    """The option first, then what a broker under a controller keeps, else nothing."""
    driven = fill(in_memory / "store", 3)
    assert {row["brokerName"] for row in rows_of(driven.root)} == {""}
    (driven.root / "brokerIdentity").write_text("cluster#broker-x#2")
    assert {row["brokerName"] for row in rows_of(driven.root)} == {"broker-x"}
    assert {row["brokerName"] for row in rows_of(driven.root, brokerName="mine")} == {"mine"}
