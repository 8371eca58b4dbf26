"""Snapshots: what is in them, what is not, and that there is no half of one."""

import errno
import json
import os
import shutil
from pathlib import Path

import pytest

from hotfire.errors import StoreCorrupt, StoreError, StoreFull
from hotfire.store import backup
from hotfire.store.backup import Restored, Snapshot, restore, snapshot
from hotfire.store.checkpoint import Checkpoint
from hotfire.store.disk import Disk
from tests.unit.store.driven import Driven, tree
from tests.wire.golden import manifest, unpack_store

SEGMENT = 8192
NOW_MS = 1_700_000_000_000


@pytest.fixture
def driven(in_memory: Path) -> Driven:
    """An open store of several segments, the last turns of it behind the checkpoint."""
    driven = Driven(in_memory / "store").open()
    fill(driven, 60)
    driven.tick(2000)
    fill(driven, 20)
    return driven


def fill(driven: Driven, count: int) -> None:
    for _ in range(count):
        number = len(driven.sent)
        driven.send(
            f"t{number % 3}", number % 2, b"%d " % number * 30, TAGS=f"tag{number}", KEYS=f"key{number}"
        )
        if number % 7 == 0:
            driven.turn()
    driven.turn()


def take(driven: Driven, to: Path) -> Snapshot:
    return snapshot(Disk(driven.root), to, now_ms=NOW_MS)


def put_back(driven: Driven, taken: Path, to: Path) -> Restored:
    return restore(Disk(taken), to, driven.config)


# --- what it holds ---


def test_everything_readable_is_in_it_and_comes_back(driven: Driven, in_memory: Path) -> None:
    """All messages, in order, equal, though the last turns are behind the checkpoint; the store goes on."""
    sent = list(driven.sent)
    taken = take(driven, in_memory / "taken")
    assert taken.end == driven.store.readable_end
    driven.send("t0", 0, b"not in the turn")
    fill(driven, 30)
    found = put_back(driven, in_memory / "taken", in_memory / "again")
    assert found == Restored(0, taken.end, 80, {"t0": (2, 27), "t1": (2, 27), "t2": (2, 26)})
    again = driven.on(in_memory / "again")
    again.sent = sent
    with again:
        assert not again.store.was_unclean
        again.check(sent)
        fill(again, 30)
        again.check(again.sent)
    driven.check(driven.sent)
    driven.store.close()


def test_a_snapshot_is_a_store_that_was_closed(driven: Driven, in_memory: Path) -> None:
    """Log, tables, checkpoint, its own facts; no queue, index, abort or lock; a broker is kept off it."""
    driven.store.table("topics.json").save({"topicConfigTable": {}})
    driven.store.table("consumerOffset.json").save({"offsetTable": {}})
    (driven.root / "config" / "timercheck").write_bytes(b"x")
    take(driven, in_memory / "taken")
    names = set(tree(in_memory / "taken"))
    assert {name for name in names if not name.startswith("commitlog/")} == {
        "checkpoint", "config/topics.json", "config/consumerOffset.json", "config/timercheck",
        "snapshot.json",
    }  # fmt: skip
    checkpoint = Checkpoint.decode((in_memory / "taken" / "checkpoint").read_bytes())
    assert (checkpoint.is_ours, checkpoint.derived, checkpoint.entries) == (True, 0, 0)
    assert checkpoint.durable == driven.store.readable_end
    driven.store.close()
    with pytest.raises(
        StoreError, match="is a snapshot: make a store of it with `hotfire store restore` first"
    ):
        driven.on(in_memory / "taken").open()
    (in_memory / "taken" / "snapshot.json").unlink()
    with driven.on(in_memory / "taken") as again:
        again.check(again.sent)


def test_growing_segments_are_never_linked(driven: Driven, in_memory: Path) -> None:
    """Full ones below the durable mark are the same files, the others are not; nothing changes afterwards."""
    taken = take(driven, in_memory / "taken")
    before = tree(in_memory / "taken")
    shared = [name for name in before if is_shared(driven.root / name, in_memory / "taken" / name)]
    durable = Checkpoint.decode((driven.root / "checkpoint").read_bytes()).durable
    assert sorted(shared) == [
        name for name in sorted(before) if name[:9] == "commitlog" and int(name[10:]) + SEGMENT <= durable
    ]
    assert len(shared) == taken.linked > 0
    assert taken.copied > 0
    fill(driven, 100)
    driven.store.close()
    with driven.on(driven.root):
        pass
    assert tree(in_memory / "taken") == before
    put_back(driven, in_memory / "taken", in_memory / "again")
    with driven.on(in_memory / "again") as again:
        again.sent = []
        fill(again, 50)
    assert tree(in_memory / "taken") == before


def is_shared(one: Path, other: Path) -> bool:
    return one.exists() and one.samefile(other)


def test_another_file_system_gets_copies(
    driven: Driven, in_memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where links are impossible every segment is copied, and the copy is told of as it goes."""

    def refuse(*_: object) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    linked = take(driven, in_memory / "linked")
    monkeypatch.setattr(os, "link", refuse)
    told: list[tuple[int, int]] = []
    copied = snapshot(
        Disk(driven.root), in_memory / "copied", now_ms=NOW_MS, progress=lambda *now: told.append(now)
    )
    assert (copied.linked, copied.copied) == (0, linked.linked + linked.copied)
    assert tree(in_memory / "copied") == tree(in_memory / "linked")
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    assert told[-1][0] == told[-1][1] > 0
    driven.store.close()


def test_records_that_are_being_written_are_left_out(driven: Driven, in_memory: Path) -> None:
    """A torn record at the end, at any of its bytes: the copy ends before it, zeros behind."""
    first = driven.store.readable_end
    sent = list(driven.sent)
    driven.send("t0", 0, b"torn" * 20)
    driven.turn()
    path = driven.root / "commitlog" / f"{first - first % SEGMENT:020d}"
    whole, at = path.read_bytes(), first % SEGMENT
    size = driven.store.readable_end - first
    driven.store.close()
    for kept in (0, 1, 4, 8, 50, size // 2, size - 1):
        path.write_bytes(whole[: at + kept] + bytes(SEGMENT - at - kept))
        (driven.root / "checkpoint").write_bytes(Checkpoint(durable=first - first % SEGMENT).encode())
        taken = take(driven, in_memory / f"taken{kept}")
        assert taken.end == first
        assert not any((in_memory / f"taken{kept}/commitlog" / path.name).read_bytes()[at:])
        put_back(driven, in_memory / f"taken{kept}", in_memory / f"again{kept}")
        with driven.on(in_memory / f"again{kept}") as again:
            again.check(sent)


def test_a_store_of_the_reference_is_copied_too(in_memory: Path) -> None:
    """Without our marks every segment is read and copied; every record of the reference is in the copy."""
    unpack_store("store", in_memory)
    source = in_memory / "store"
    before = tree(source)
    taken = snapshot(Disk(source), in_memory / "taken", now_ms=NOW_MS)
    assert tree(source) == before
    last = [record for record in manifest("store") if not record.get("blank")][-1]
    assert (taken.linked, taken.end) == (0, last["physicalOffset"] + last["storeSize"])
    for name, data in tree(in_memory / "taken", below="commitlog").items():
        assert data[: taken.end - int(name[10:])] == before[name][: taken.end - int(name[10:])]


@pytest.mark.parametrize("again_from", ["snapshot", "restored"])
def test_queues_whose_records_are_gone_keep_their_place(in_memory: Path, again_from: str) -> None:
    """The oldest segments were deleted: a queue with nothing left goes on at the offset it had reached."""
    with Driven(in_memory / "store") as driven:
        for number in range(30):
            driven.send("early", 0, b"e%d" % number * 50)
        for number in range(9):
            driven.send("both", 0, b"b%d" % number * 50)
        fill(driven, 60)
        driven.turn()
    gone = sum(sent.topic == "early" for sent in driven.sent)
    last = max(sent.end for sent in driven.sent if sent.topic == "early")
    oldest = last - last % SEGMENT + SEGMENT
    for start in range(0, oldest, SEGMENT):
        (driven.root / "commitlog" / f"{start:020d}").unlink()
    taken = take(driven, in_memory / "taken")
    assert taken.oldest == oldest
    found = put_back(driven, in_memory / "taken", in_memory / "again")
    assert found.topics["early"] == (1, 0)
    if again_from == "restored":  # a copy of the copy
        snapshot(Disk(in_memory / "again"), in_memory / "taken2", now_ms=NOW_MS)
        put_back(driven, in_memory / "taken2", in_memory / "again2")
    with driven.on(in_memory / ("again" if again_from == "snapshot" else "again2")) as again:
        queue = again.store.find_queue("early", 0)
        assert queue is not None
        assert (queue.min, queue.max) == (gone, gone)
        assert again.send("early", 0, b"new").queue_offset == gone
        again.turn()
        records, following = again.pull("early", 0, gone)
        assert ([record.body for record in records], following) == ([b"new"], gone + 1)


# --- whole or not at all ---


def test_a_segment_deleted_meanwhile_starts_it_over(
    driven: Driven, in_memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The oldest segment goes between listing and linking: the snapshot is of what is left."""
    oldest = driven.root / "commitlog" / f"{0:020d}"
    link = Disk.link_from

    def link_late(self: Disk, other: Disk, relative: str) -> bool:
        if oldest.exists():
            oldest.unlink()
        return link(self, other, relative)

    monkeypatch.setattr(Disk, "link_from", link_late)
    taken = take(driven, in_memory / "taken")
    assert taken.oldest == SEGMENT
    found = put_back(driven, in_memory / "taken", in_memory / "again")
    assert (found.oldest, found.end) == (SEGMENT, driven.store.readable_end)
    assert found.records == sum(sent.physical >= SEGMENT for sent in driven.sent)
    driven.store.fail("its first segment is gone")
    driven.store.close()


def test_segments_that_keep_going_end_it(
    driven: Driven, in_memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(self: Disk, other: Disk, relative: str) -> bool:
        raise FileNotFoundError(errno.ENOENT, "gone", relative)

    monkeypatch.setattr(Disk, "link_from", gone)
    with pytest.raises(StoreError, match="deleted during each of 10 tries: try again"):
        take(driven, in_memory / "taken")
    assert sorted(path.name for path in in_memory.iterdir()) == ["store"]
    driven.store.close()


@pytest.mark.parametrize("step", ["link_from", "allocate", "write", "sync", "write_whole", "publish"])
def test_what_fails_leaves_nothing(
    driven: Driven, in_memory: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """A full disk at any step: an error that says so, and neither a snapshot nor half of one."""
    driven.store.close()

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Disk, step, full)
    with pytest.raises(StoreFull, match="No space left"):
        take(driven, in_memory / "taken")
    monkeypatch.undo()
    assert sorted(path.name for path in in_memory.iterdir()) == ["store"]


def test_a_snapshot_has_its_name_last(
    driven: Driven, in_memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed before the end: there is no directory of that name, and what there is is no snapshot."""
    monkeypatch.setattr(Disk, "discard", lambda self: None)  # a killed process tidies nothing up
    part = in_memory / ("taken" + backup.UNFINISHED)
    for step in ("make_directory", "link_from", "allocate", "sync_directory", "write_whole", "publish"):
        with monkeypatch.context() as patch:
            patch.setattr(Disk, step, killed)
            with pytest.raises(KeyboardInterrupt):
                take(driven, in_memory / "taken")
        assert not (in_memory / "taken").exists()
        if part.exists():
            if step != "publish":
                with pytest.raises(StoreError, match=r"has no snapshot\.json"):
                    put_back(driven, part, in_memory / "again")
            with pytest.raises(StoreError, match="was broken off; then delete it"):
                take(driven, in_memory / "taken")
            shutil.rmtree(part)
    driven.store.close()


def killed(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


def test_what_exists_is_not_written_over(driven: Driven, in_memory: Path) -> None:
    """No directory, empty or not, becomes a snapshot; a restore takes an empty one."""
    take(driven, in_memory / "taken")
    driven.store.close()
    (in_memory / "empty").mkdir()
    for to in (in_memory / "taken", in_memory / "empty", driven.root):
        with pytest.raises(StoreError, match="exists: choose another name"):
            take(driven, to)
    for to in (in_memory / "taken", driven.root):
        with pytest.raises(StoreError, match="is not empty"):
            put_back(driven, in_memory / "taken", to)
    put_back(driven, in_memory / "taken", in_memory / "empty")
    with driven.on(in_memory / "empty") as again:
        again.check(again.sent)


def test_no_store_no_snapshot(in_memory: Path) -> None:
    with pytest.raises(StoreError, match="has no log segment: give the directory of a store"):
        snapshot(Disk(in_memory / "nothing"), in_memory / "taken", now_ms=NOW_MS)
    assert list(in_memory.iterdir()) == []


# --- the drill ---


def test_a_damaged_snapshot_is_told(driven: Driven, in_memory: Path) -> None:
    """A flipped bit in any segment is told, the rest is there; a missing segment is refused."""
    snapshot(Disk(driven.root), in_memory / "good", now_ms=NOW_MS)
    driven.store.close()
    segments = sorted(path.name for path in (in_memory / "good" / "commitlog").iterdir())
    for name in segments:
        bad = in_memory / f"bad{name}"
        shutil.copytree(in_memory / "good", bad)
        data = bytearray((bad / "commitlog" / name).read_bytes())
        data[150] ^= 1
        (bad / "commitlog" / name).write_bytes(data)
        found = put_back(driven, bad, in_memory / f"rest{name}")
        ((low, high),) = found.damage
        assert low <= int(name) + 150 < high
    for name in (segments[0], segments[1], segments[-1]):
        bad = in_memory / f"less{name}"
        shutil.copytree(in_memory / "good", bad)
        (bad / "commitlog" / name).unlink()
        with pytest.raises(StoreCorrupt):
            put_back(driven, bad, in_memory / "again")
    facts = json.loads((in_memory / "good" / "snapshot.json").read_text())
    (in_memory / "good" / "snapshot.json").write_text(json.dumps(facts | {"format": 2}))
    with pytest.raises(StoreError, match="format 2, known is 1"):
        put_back(driven, in_memory / "good", in_memory / "again")
    assert not any(path.name.startswith("again") for path in in_memory.iterdir())
