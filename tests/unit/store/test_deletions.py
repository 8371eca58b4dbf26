"""Deleted topics: gone whatever happens, and empty when they are made again."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from hotfire.protocol.record import Host, Record, iter_records
from hotfire.store.config import StoreConfig
from hotfire.store.disk import Disk
from hotfire.store.flushing import wait_for
from hotfire.store.layout import look
from hotfire.store.rebuild import rebuild
from hotfire.store.store import Store
from hotfire.store.verify import verify

CONFIG = StoreConfig(segment_bytes=1 << 16, queue_file_bytes=2000, index_slots=50, index_entries=100)
HOST = Host.parse("127.0.0.1", 10911)


class Life:
    """A store in a directory, driven without a loop."""

    def __init__(self, root: Path) -> None:
        self.store = Store(Disk(root), CONFIG)
        self.store.open()

    def send(self, topic: str, *messages: bytes) -> list[int]:
        offsets = []
        for message in messages:
            record = Record(
                topic=topic, queue_id=0, body=message, born_timestamp=1, born_host=HOST, store_timestamp=0,
                store_host=HOST,
            )  # fmt: skip
            offsets.append(self.store.append(record, 1).queue_offset)
        return offsets

    def settle(self) -> None:
        while self.store.journal.pending or self.store.journal.busy:
            self.store.submit()
            wait_for(self.store.fileno())
            self.store.complete()
        self.store.tick(0)

    def read(self, topic: str) -> list[bytes]:
        read = self.store.read(topic, 0, 0, count_max=32, bytes_max=1 << 20)
        return [record.body for record in iter_records(read.data or b"")]

    def crash(self, to: Path) -> Path:
        """What the disk holds if the power goes now."""
        while True:
            try:
                shutil.copytree(self.store.queries.disk.root, to)
            except shutil.Error:  # files of a deleted topic left, beside the loop, as they were copied
                shutil.rmtree(to)
            else:
                return to


@pytest.fixture
def life(tmp_path: Path) -> Iterator[Life]:
    life = Life(tmp_path / "store")
    yield life
    life.store.close()


def test_a_topic_made_again_begins_anew(life: Life) -> None:
    """Entries on their way to the deleted topic's queues reach nobody; the new one's offsets begin at 0."""
    life.send("T", b"old")
    life.settle()
    assert life.send("T", b"on its way") == [1]
    (left,) = life.store.deletions.delete(["T"])
    assert left.key == ("T", 0)
    assert life.store.find_queue("T", 0) is None
    assert life.send("T", b"new") == [0]
    life.settle()
    assert life.read("T") == [b"new"]
    assert not life.store.deletions._leaving


def test_a_queue_without_files_gets_none_any_more(life: Life) -> None:
    """Entries still on their way when their topic is deleted make no files: the next life would find them."""
    life.send("T", b"on its way")
    life.store.deletions.delete(["T"])
    life.settle()
    assert not (life.store.queries.disk.root / "consumequeue" / "T").exists()


@pytest.mark.parametrize("moment", ["table", "moved", "made again"])
def test_a_crash_half_way_leaves_it_deleted(
    life: Life, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """From the moment the table is on the disk: whatever of the files is still there does not come back."""
    life.send("T", b"1", b"2")
    life.send("Other", b"kept")
    life.settle()
    life.store._flushing.flush()
    monkeypatch.setattr(
        life.store.queries.disk, "remove_tree", lambda relative: None
    )  # the crash comes before
    if moment == "table":
        monkeypatch.setattr(life.store.deletions, "_move_away", lambda topic: None)
    life.store.deletions.delete(["T"])
    if moment == "made again":
        life.send("T", b"new")
        life.settle()
    monkeypatch.undo()
    after = Life(life.crash(tmp_path / "crash"))
    assert after.read("T") == ([b"new"] if moment == "made again" else [])
    assert after.read("Other") == [b"kept"]
    names = [path.name for path in (tmp_path / "crash" / "consumequeue").iterdir()]
    assert not [name for name in names if name.endswith(".deleted")]
    assert after.send("T", b"next") == [1 if moment == "made again" else 0]
    after.settle()
    after.store.close()


@pytest.mark.parametrize("way", ["start", "rebuild"])
def test_queues_made_anew_leave_it_out(life: Life, tmp_path: Path, way: str) -> None:
    """From the whole log, by a start without queues or by hand: old records stay out, new ones are in."""
    life.send("T", *[b"%d" % number for number in range(5)])
    life.settle()
    life.store.deletions.delete(["T"])
    life.send("T", b"new", b"newer")
    life.settle()
    life.store.close()
    root = life.store.queries.disk.root
    if way == "start":
        shutil.rmtree(root / "consumequeue")
    else:
        rebuild(look(Disk(root)))
    found: list[object] = []
    if way == "rebuild":
        verify(look(Disk(root)), found.append)
    assert not found
    after = Life(root)
    assert after.read("T") == [b"new", b"newer"]
    assert after.send("T", b"newest") == [2]
    after.settle()
    after.store.close()
    verify(look(Disk(root)), found.append)
    assert not found, "a store with a deleted topic is a sound one"


def test_what_the_log_has_left_behind_is_forgotten(life: Life) -> None:
    """A line of the table goes once the log begins behind it."""
    life.send("T", b"1")
    life.settle()
    life.store.deletions.delete(["T"])
    end = life.store.deletions.ends["T"]
    assert end > life.store.min_offset
    table = life.store.queries.disk.root / "config" / "deletedTopics.json"
    assert json.loads(table.read_text()) == {"deletedTopics": {"T": end}}
    life.store.close()
    table.write_text(json.dumps({"deletedTopics": {"T": end, "Long": 0}}))
    after = Life(life.store.queries.disk.root)
    assert after.store.deletions.ends == {"T": end}
    after.store.close()


def test_a_crash_that_shortens_the_log_takes_nothing_of_the_next_life(life: Life, tmp_path: Path) -> None:
    """Deleted while a turn was on its way that a crash then took: the new life's messages lie where that
    turn would have been, and are kept by every start to come."""
    life.send("Other", b"kept")
    life.send("T", b"old")
    life.settle()
    life.send("Other", b"never written" * 20)
    life.store.deletions.delete(["T"])
    again = Life(life.crash(tmp_path / "crash"))
    again.send("T", b"new")
    again.settle()
    after = Life(again.crash(tmp_path / "killed"))
    assert after.read("T") == [b"new"]
    again.store.close()
    clean = Life(tmp_path / "crash")
    assert clean.read("T") == [b"new"]
    for one in (after, clean):
        one.store.close()


@pytest.mark.parametrize("side", ["before", "behind"])
def test_places_without_a_message_do_not_tell_which_life_it_is(life: Life, tmp_path: Path, side: str) -> None:
    """A queue file may begin with entries that only keep their place; the first message decides."""
    life.send("T", b"old")
    life.settle()
    if side == "behind":
        life.store.deletions.delete(["T"])
        life.send("T", b"new")
        life.settle()
    else:
        life.store.deletions._move_away = lambda topic: None  # type: ignore[method-assign]  # the crash is before
        life.store.deletions.delete(["T"])
    root = life.crash(tmp_path / "crash")
    file = root / "consumequeue" / "T" / "0" / f"{0:020d}"
    entry = file.read_bytes()[:20]
    with file.open("r+b") as opened:
        opened.write((0).to_bytes(8) + (0x7FFFFFFF).to_bytes(4) + bytes(8) + entry)
    deletions = Store(Disk(root), CONFIG).deletions
    assert deletions._is_from_before("T", life.store.deletions.ends["T"]) is (side == "before")
