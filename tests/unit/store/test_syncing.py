"""Many queues: files and names are synced together, beside the loop, before a checkpoint counts them."""

import logging
import os
import random
import threading
from collections import Counter
from pathlib import Path

import pytest

from hotfire.store import syncing
from hotfire.store.config import StoreConfig
from hotfire.store.disk import Disk
from hotfire.store.store import Store
from hotfire.store.syncing import sync_many
from hotfire.testing import SimDisk
from tests.unit.store.driven import NOW_MS, SMALL, Driven, message, ring

WAIT_S = 20.0
AT_ONCE_MIN = 8


def test_files_are_synced_at_the_same_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So many syncs are under way at once that a disk can do them in one go; each file has exactly one."""
    disk, synced = Disk(tmp_path), Counter[str]()
    together = threading.Barrier(AT_ONCE_MIN)

    def sync(name: str) -> None:
        together.wait(WAIT_S)
        synced[name] += 1

    monkeypatch.setattr(disk, "sync_file", sync)
    names = {f"{number:03d}" for number in range(4 * AT_ONCE_MIN)}
    assert sync_many(disk, set(), names)
    assert synced == Counter(names)


@pytest.mark.parametrize("works", [True, False])
def test_very_many_are_one_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, works: bool) -> None:
    """From so many files on one sync does for all. If it fails, each is asked for its own error."""
    with Driven(tmp_path / "store", segment_bytes=1 << 20) as driven:
        asked, synced, checkpoint = list[int](), Counter[str](), tmp_path / "store" / "checkpoint"
        before = checkpoint.read_bytes()[:512]

        def sync_all(fd: int) -> bool:
            asked.append(fd)
            assert checkpoint.read_bytes()[:512] == before, "it must not be ahead of what it speaks of"
            return works

        def sync_one(name: str) -> None:
            synced[name] += 1

        monkeypatch.setattr("hotfire.store.disk.syncfs", sync_all)
        monkeypatch.setattr(driven.store._disk, "sync_file", sync_one)
        for queue in range(syncing.MANY):
            driven.send("t", queue, b"one")
            driven.turn()
        driven.tick(1000)
        assert len(asked) == 1
        assert sum(name.startswith("consumequeue") for name in synced) == (0 if works else syncing.MANY)
        assert checkpoint.read_bytes()[:512] != before


def test_what_was_removed_is_passed_over_and_a_failure_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that is gone needs no sync; one that could not be synced is an error, with others done."""
    disk = Disk(tmp_path)
    (tmp_path / "here").write_bytes(b"x")
    assert sync_many(disk, {str(tmp_path / "gone")}, {"here", "gone"})

    def refuse(fd: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", refuse)
    with pytest.raises(OSError, match="Input/output"):
        sync_many(disk, set(), {"gone", "here"})


def test_a_first_message_waits_for_no_sync_of_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """New queues make files and directories on the loop, and not one sync; the disk's thread does those."""
    fsync, by_thread = os.fsync, Counter[int]()

    def noted(fd: int) -> None:
        by_thread[threading.get_ident()] += 1
        fsync(fd)

    with Driven(tmp_path / "store", segment_bytes=1 << 20) as driven:
        driven.tick(1000)
        monkeypatch.setattr(os, "fsync", noted)
        for queue in range(5):
            driven.send("t", queue, b"first")
        driven.turn()
        assert not by_thread
        driven.tick(1000)
        assert threading.get_ident() not in by_thread
        assert sum(by_thread.values()) == 3 + 5, "root, consumequeue, its topic's directory, the queues'"


def _open(disk: SimDisk) -> Store:
    store = Store(disk, StoreConfig(**{**SMALL, "segment_bytes": 1 << 16}))
    store.open()
    return store


def _send(store: Store, queues: int) -> None:
    for queue in range(queues):
        store.append(message("t", queue, b"one"), NOW_MS)
    while store.journal.busy or store.journal.pending:
        store.submit()
        ring(store.fileno())
        store.complete()


def _checkpoint(store: Store) -> None:
    for passed in (1000, 2000, 3000):
        store.tick(NOW_MS + passed)
        store._flushing.settle(NOW_MS + passed, wait=True)


@pytest.mark.parametrize("killed", [False, True])
def test_names_are_safe_before_a_checkpoint_counts_their_entries(
    caplog: pytest.LogCaptureFixture, killed: bool
) -> None:
    """Power lost right behind a checkpoint: every queue is as counted, even if a killed process made them."""
    disk = SimDisk()
    store = _open(disk)
    _send(store, 5)
    if killed:
        disk = disk.kill(random.Random(1))
        store = _open(disk)
    else:
        _checkpoint(store)
    for seed in range(4):
        after = disk.after(random.Random(seed), "lost")
        with caplog.at_level(logging.WARNING, "hotfire.store"):
            again = _open(after)
        assert again.recovered.records == 0, "nothing had to be made anew"
        assert [again.queue("t", queue).max for queue in range(5)] == [1] * 5
        after.switch_off()
    assert "made anew" not in caplog.text
    disk.switch_off()


def test_an_end_syncs_no_queue_file_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sync of many files under way is left off when the store closes; the rest is done with what is new."""
    monkeypatch.setattr(syncing, "STEP", 1)
    driven = Driven(tmp_path / "store", segment_bytes=1 << 20).open()
    for queue in range(20):
        driven.send("t", queue, b"one")
    driven.turn()
    disk, store, synced = driven.store._disk, driven.store, Counter[str]()
    sync_file, began, go_on = disk.sync_file, threading.Event(), threading.Event()

    def slow(name: str) -> None:
        synced[name] += 1
        began.set()
        assert go_on.wait(WAIT_S)
        sync_file(name)

    settle = store._flushing.settle

    def ended(now_ms: int, *, wait: bool) -> None:
        go_on.set()  # only now may the sync under way be done
        settle(now_ms, wait=wait)

    monkeypatch.setattr(disk, "sync_file", slow)
    store.tick(NOW_MS + 1000)
    monkeypatch.setattr(store._flushing, "settle", ended)
    assert began.wait(WAIT_S)
    store.close()
    assert store.fault is None
    assert not (driven.root / "abort").exists()
    queues = {name: count for name, count in synced.items() if name.startswith("consumequeue")}
    assert len(queues) == 20
    assert sorted(queues.values()) == [1] * 19 + [2], "the one under way was not known to be done"


def test_a_start_after_a_clean_end_syncs_no_queue_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the checkpoint counted is on the disk already: ten thousand queues are not synced once more."""
    with Driven(tmp_path / "store") as driven:
        for queue in range(5):
            driven.send("t", queue, b"one")
        driven.turn()
    again, synced = driven.on(driven.root), list[str]()
    sync_file = again.store._disk.sync_file
    monkeypatch.setattr(again.store._disk, "sync_file", lambda name: (synced.append(name), sync_file(name)))
    with again:
        assert [name for name in synced if name.startswith("consumequeue")] == []
        again.check(driven.sent)
