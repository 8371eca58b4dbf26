"""Queues and key index are made anew from the log, by the tool and by a start, and are the same again."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from hotfire.errors import StoreCorrupt, StoreError
from hotfire.store import rebuild as rebuilding
from hotfire.store.disk import Disk
from hotfire.store.layout import look
from hotfire.store.rebuild import rebuild
from tests.unit.store.driven import tree
from tests.unit.store.test_verify import check, flip, write_store
from tests.unit.store.test_verify_golden import unpacked


def derived(root: Path) -> dict[str, bytes]:
    return {**tree(root, below="consumequeue"), **tree(root, below="index")}


def test_rebuilt_files_are_the_same(in_memory: Path) -> None:
    """Whatever was wrong with them; the checkpoint agrees, and a broker opens the store at once."""
    driven = write_store(in_memory / "store")
    root = driven.root
    before, checkpoint = derived(root), (root / "checkpoint").read_bytes()
    shutil.rmtree(root / "consumequeue" / "topic-0")
    flip(root, "consumequeue/topic-1/0/" + "0" * 20, 3, 1)
    flip(root, sorted(before)[-1], 50, 1)
    (root / "consumequeue" / "stray").mkdir()
    built = rebuild(look(Disk(root)))
    assert derived(root) == before
    assert (built.records, built.entries) == (150, 150)
    assert (root / "checkpoint").read_bytes() == checkpoint
    assert not (root / "rebuild.tmp").exists()
    assert check(root)[0].is_sound
    with driven.on(root) as again:
        assert again.store.recovered.records == 0, "the log was read though everything was there"
        again.check(driven.sent)


@pytest.mark.promise(26)
def test_lost_queues_and_index_come_back_at_a_start(in_memory: Path) -> None:
    """`rm -r consumequeue index`, start: every file is there again byte for byte, and reading goes on."""
    driven = write_store(in_memory / "store")
    root = driven.root
    before = derived(root)
    shutil.rmtree(root / "consumequeue")
    shutil.rmtree(root / "index")
    with driven.on(root) as again:
        assert derived(root) == before
        again.check(driven.sent)
        again.send("topic-0", 0, b"one more", KEYS="last")
        again.turn()
        again.check(again.sent)
    assert check(root)[0].is_sound


def test_queues_of_apache_are_made_as_apache_made_them(in_memory: Path) -> None:
    """Byte for byte, the delay topic's delivery times too. The index leaves out tags, as ours does."""
    root = unpacked("store", in_memory)
    before = tree(root, below="consumequeue")
    log = tree(root, below="commitlog")
    rebuild(look(Disk(root)))
    assert tree(root, below="consumequeue") == before
    assert tree(root, below="commitlog") == log
    findings, damages = check(root)
    assert (damages, findings.entries) == ([], 523)


def test_what_cannot_be_made_from_the_log_stays_or_goes(in_memory: Path) -> None:
    """Entries of inner batches stay as they are; filter bits go, and entries hold tags again."""
    root = unpacked("store-ext", in_memory)
    batches = tree(root, below="batchconsumequeue")
    built = rebuild(look(Disk(root)))
    assert built.dropped_ext
    assert not (root / "consumequeue_ext").exists()
    assert tree(root, below="batchconsumequeue") == batches
    assert not (root / "consumequeue" / "innerbatch").exists()
    assert check(root)[0].is_sound


def test_a_damaged_log_is_refused(in_memory: Path) -> None:
    """Queues made from half a log would hide what is lost: nothing changes, and the place is named."""
    root = write_store(in_memory / "store").root
    flip(root, "commitlog/00000000000000008192", 300, 1)
    before = tree(root)
    with pytest.raises(StoreCorrupt, match="00000000000000008192"):
        rebuild(look(Disk(root)))
    assert tree(root) == before


@pytest.mark.parametrize("swaps", [0, 1, 2, 3])
def test_a_rebuild_that_is_stopped_leaves_a_store(
    swaps: int, in_memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, between and after the renames: a start has every message and every key."""
    driven = write_store(in_memory / "store")
    before = derived(driven.root)
    renames = []

    class Stopped(Disk):
        def rename(self, old: str, new: str) -> None:
            if len(renames) == swaps:
                raise KeyboardInterrupt
            renames.append(old)
            super().rename(old, new)

    with pytest.raises(KeyboardInterrupt):
        rebuild(look(Stopped(driven.root)))
    with driven.on(driven.root) as again:
        again.check(driven.sent)
    assert derived(driven.root) == before


def test_a_queue_without_records_keeps_its_place(in_memory: Path) -> None:
    """Its records left with the log's first segments; its next message still gets the next offset."""
    driven = write_store(in_memory / "store")
    root = driven.root
    with driven.on(root) as again:
        for _ in range(60):
            again.send("topic-9", 0, b"y" * 300)
        again.turn()
        kept = again.store.end // 8192 * 8192
    for path in (root / "commitlog").iterdir():
        if int(path.name) < kept:
            path.unlink()
    rebuild(look(Disk(root)))
    with driven.on(root) as again:
        queue = again.store.find_queue("topic-1", 1)
        assert queue is not None
        assert (queue.min, queue.max) == (25, 25)
    assert check(root)[0].is_sound


def test_a_store_in_use_is_not_touched(in_memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lock is taken before anything is looked at twice."""
    root = write_store(in_memory / "store").root
    taken: list[Any] = []
    monkeypatch.setattr(rebuilding, "_swap", taken.append)

    class Held(Disk):
        def lock(self, relative: str) -> None:
            raise StoreError("in use")

    with pytest.raises(StoreError, match="in use"):
        rebuild(look(Held(root)))
    assert not taken
    assert not (root / "rebuild.tmp").exists()
