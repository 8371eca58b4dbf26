"""Turns, positions and periodic work: what is safe when, what is synced when, and what a failure leaves."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from hotfire.errors import StoreError, StoreReadOnly
from hotfire.store.checkpoint import Checkpoint
from hotfire.store.reading import ReadStatus
from tests.unit.store.driven import NOW_MS, Driven, ring

pytestmark = pytest.mark.core


class Syncs:
    """The log's descriptors and the files a store's own disk work has synced, not those of the flusher."""

    def __init__(self, driven: Driven, monkeypatch: pytest.MonkeyPatch) -> None:
        self.log: list[int] = []
        self.files: list[str] = []
        disk = driven.store._disk
        sync, sync_file = disk.sync, disk.sync_file
        log = driven.store._log.segments
        monkeypatch.setattr(
            disk, "sync", lambda fd: (self.log.append(fd) if fd in log.values() else None, sync(fd))
        )
        monkeypatch.setattr(disk, "sync_file", lambda name: (self.files.append(name), sync_file(name)))


def written_after(order: list[str], driven: Driven) -> Callable[[Checkpoint], None]:
    """The checkpoint's write, with its place in the order of things."""
    write = driven.store._flushing.checkpoints.write

    def noted(written: Checkpoint) -> None:
        order.append("checkpoint")
        write(written)

    return noted


def checkpoint(driven: Driven) -> Checkpoint:
    return Checkpoint.decode((driven.root / "checkpoint").read_bytes())


# --- what is readable ---


def test_nothing_is_readable_before_its_turn_is_complete(tmp_path: Path) -> None:
    """Appended, submitted, written: only after complete() does a reader or an acknowledgement see it."""
    with Driven(tmp_path / "store") as driven:
        sent = driven.send("t", 0, b"one")
        for step in (lambda: None, driven.store.submit):
            step()
            assert driven.store.readable_end == 0
            assert driven.store.end == sent.end
            assert (
                driven.store.read("t", 0, 0, count_max=1, bytes_max=1).status
                is ReadStatus.NO_MESSAGE_IN_QUEUE
            )
        ring(driven.store.fileno())
        assert driven.store.readable_end == 0
        driven.store.complete()
        assert driven.store.readable_end == driven.store.flushed_end == sent.end
        driven.check([sent])


def test_a_turn_fills_while_the_one_before_is_written(tmp_path: Path) -> None:
    """At most one turn is in the flusher's hands; what comes meanwhile waits for the next."""
    with Driven(tmp_path / "store") as driven:
        first = driven.send("t", 0, b"one")
        assert driven.store.submit()
        second = driven.send("t", 0, b"two")
        assert not driven.store.submit(), "the flusher still has the first"
        ring(driven.store.fileno())
        driven.store.complete()
        assert driven.store.readable_end == first.end
        assert driven.store.submit()
        ring(driven.store.fileno())
        driven.store.complete()
        assert driven.store.readable_end == second.end
        assert not driven.store.submit(), "nothing to write"


def test_a_full_turn_says_so(tmp_path: Path) -> None:
    """More than a turn takes is refused until it has been handed over; nothing is half appended."""
    with Driven(tmp_path / "store", turn_bytes_max=1000) as driven:
        while not driven.store.journal.is_full:
            driven.send("t", 0, b"fits")
        with pytest.raises(BlockingIOError, match="is full"):
            driven.send("t", 0, b"does not")
        driven.turn()
        driven.send("t", 0, b"room again")
        driven.turn()
        driven.check(driven.sent)


def test_a_record_larger_than_a_segment_is_refused(tmp_path: Path) -> None:
    """It could never be stored; the log goes on."""
    with Driven(tmp_path / "store", segment_bytes=4096) as driven:
        with pytest.raises(StoreError, match="does not fit a log segment of 4096"):
            driven.send("t", 0, bytes(4096))
        driven.send("t", 0, b"fits")
        driven.turn()
        driven.check(driven.sent)


def test_watched_queues_are_told(tmp_path: Path) -> None:
    """complete() names the queues that got entries and that someone waits on, once each."""
    with Driven(tmp_path / "store") as driven:
        for queue_id in (0, 1):
            driven.store.queue("t", queue_id).watched = queue_id
        for i in range(6):
            driven.send("t", i % 2, b"")
        driven.store.submit()
        ring(driven.store.fileno())
        assert driven.store.complete() == [driven.store.queue("t", 1)]


# --- ASYNC_FLUSH ---


def test_async_flush_syncs_with_the_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Written is readable; on the disk it is with the first tick an interval after the last sync."""
    with Driven(tmp_path / "store", sync_flush=False, segment_bytes=1 << 20) as driven:
        driven.tick(5000)
        sent = driven.send("t", 0, bytes(4 * 4096))
        driven.turn()
        syncs = Syncs(driven, monkeypatch)
        assert (driven.store.readable_end, driven.store.flushed_end) == (sent.end, 0)
        driven.tick(1)
        assert driven.store.flushed_end == sent.end, "the last sync was long ago"
        sent = driven.send("t", 0, bytes(4 * 4096))
        driven.turn()
        driven.tick(499)
        assert driven.store.flushed_end < sent.end
        assert len(syncs.log) == 1
        driven.tick(1)
        assert driven.store.flushed_end == sent.end
        assert len(syncs.log) == 2
        driven.tick(500)
        assert len(syncs.log) == 2, "nothing new, nothing to sync"


@pytest.mark.promise(49)
def test_async_flush_waits_for_pages_but_not_for_ever(tmp_path: Path) -> None:
    """Fewer dirty pages than it takes are synced with the thorough interval, not before."""
    config = {"sync_flush": False, "segment_bytes": 1 << 20, "queue_flush_interval_ms": 1 << 60}
    with Driven(tmp_path / "store", **config) as driven:
        driven.tick()
        first = driven.send("t", 0, bytes(100))
        driven.turn()
        for _ in range(19):
            driven.tick(500)
            assert driven.store.flushed_end == 0
        driven.tick(500)
        assert driven.store.flushed_end == first.end
        for _ in range(2):
            driven.send("t", 0, bytes(2 * 4096))
        driven.turn()
        driven.tick(500)
        assert driven.store.flushed_end == driven.sent[-1].end


@pytest.mark.promise(50)
def test_async_flush_may_follow_the_messages_instead_of_the_clock(tmp_path: Path) -> None:
    """flushCommitLogTimed=false: synced as soon as enough pages are dirty, whatever the time."""
    for timed in (True, False):
        config = {"sync_flush": False, "segment_bytes": 1 << 20, "flush_timed": timed}
        with Driven(tmp_path / f"store{timed}", **config) as driven:
            for _ in range(2):
                sent = driven.send("t", 0, bytes(4 * 4096))
                driven.turn()
                driven.tick(1)
            assert (driven.store.flushed_end == sent.end) is not timed


def test_async_flush_keeps_what_is_dirty_bounded(tmp_path: Path) -> None:
    """Beyond so many bytes unsynced a turn waits for the disk, and so do senders; then it goes on."""
    config = {"sync_flush": False, "segment_bytes": 1 << 20, "dirty_bytes_max": 9000}
    with Driven(tmp_path / "store", **config) as driven:
        driven.tick(1)
        for _ in range(3):
            driven.send("t", 0, bytes(4000))
            driven.turn()
        driven.send("t", 0, bytes(4000))
        assert not driven.store.submit(), "12 KB are not on the disk"
        driven.tick(1)  # no interval has passed: there is a hurry
        assert driven.store.flushed_end == driven.store.readable_end
        driven.turn()
        driven.check(driven.sent)


@pytest.mark.promise(226)
@pytest.mark.parametrize("garbage", [False, True])
def test_a_power_cut_loses_nothing_before_the_flushed_position(tmp_path: Path, garbage: bool) -> None:
    """Written >= readable >= flushed at every moment; what lies before flushed survives what follows it."""
    driven = Driven(tmp_path / "store", segment_bytes=4096, sync_flush=False).open()
    for i in range(40):
        driven.send("t", i % 2, bytes([i]) * 200)
        if i % 3 == 0:
            driven.turn()
        if i == 25:
            driven.tick(1000)
        store = driven.store
        assert store.end >= store.readable_end >= store.flushed_end
    driven.turn()
    flushed = driven.store.flushed_end
    assert 0 < flushed < driven.store.readable_end
    image = driven.crash_image(tmp_path / "image")
    driven.store.close()
    for path in (image.root / "commitlog").iterdir():  # nothing behind flushed need have reached the disk
        keep = min(max(0, flushed - int(path.name)), 4096)
        path.write_bytes(path.read_bytes()[:keep] + (b"\x07" if garbage else b"\0") * (4096 - keep))
    with image:
        assert image.store.recovered.end == flushed
        image.check([sent for sent in driven.sent if sent.end <= flushed])


@pytest.mark.parametrize("how", ["tick", "close", "recovery"])
def test_every_segment_written_to_is_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """However many segments lie between two syncs, none is called durable that was not synced."""
    driven = Driven(tmp_path / "store", segment_bytes=4096, sync_flush=False).open()
    driven.tick(1000)
    for i in range(60):
        driven.send("t", 0, bytes(300 + i))
        driven.turn()
    assert driven.store.end > 4 * 4096
    if how == "recovery":
        driven = driven.crash_image(tmp_path / "image")
    syncs = Syncs(driven, monkeypatch)
    if how == "tick":
        driven.tick(1000)
    elif how == "recovery":
        driven.open()
    written = {fd for start, fd in driven.store._log.segments.items() if start < driven.store.end}
    if how == "close":
        driven.store.close()
    assert len(written) > 4
    assert written <= set(syncs.log)
    assert checkpoint(driven).durable == driven.sent[-1].end
    if how != "close":
        driven.store.close()


def test_sync_flush_leaves_the_log_to_the_flusher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In SYNC_FLUSH ticks sync the queues, never the log."""
    with Driven(tmp_path / "store") as driven:
        driven.send("t", 0, b"one")
        driven.turn()
        syncs = Syncs(driven, monkeypatch)
        driven.tick(1000)
        assert not syncs.log
        assert syncs.files == ["consumequeue/t/0/00000000000000000000"]


# --- checkpoint ---


@pytest.mark.parametrize("sync_flush", [True, False])
def test_the_checkpoint_follows_the_queues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sync_flush: bool
) -> None:
    """Each interval with news: log, then queue files, then the checkpoint that speaks of them."""
    with Driven(tmp_path / "store", sync_flush=sync_flush) as driven:
        driven.tick(1000)
        for i in range(10):
            driven.send("t", i % 2, b"%d" % i)
        driven.turn()
        assert checkpoint(driven).derived == 0
        order: list[str] = []
        disk = driven.store._disk
        monkeypatch.setattr(driven.store._flushing.checkpoints, "write", written_after(order, driven))
        for name in ("sync", "sync_file"):
            real = getattr(disk, name)
            monkeypatch.setattr(
                disk, name, lambda *a, _real=real, _name=name, **k: (order.append(_name), _real(*a, **k))
            )
        driven.tick(999)
        driven.tick(1)
        assert order == ([] if sync_flush else ["sync"]) + ["sync_file"] * 2 + ["checkpoint", "sync"]
        written = checkpoint(driven)
        assert (written.derived, written.durable) == (driven.store.end, driven.store.end)
        assert written.entries == 10
        assert written.log_timestamp == written.queue_timestamp == NOW_MS + 1000
        order.clear()
        driven.tick(1000)
        assert order == [], "nothing new, nothing to write"


def test_the_checkpoints_times_are_of_what_it_calls_durable(tmp_path: Path) -> None:
    """A record that only waits for its turn does not move the time of the last flush."""
    with Driven(tmp_path / "store") as driven:
        driven.send("t", 0, b"flushed")
        driven.turn()
        driven.now_ms += 5000
        driven.send("t", 0, b"waits")
        driven.tick()
        written = checkpoint(driven)
        assert (written.log_timestamp, written.queue_timestamp) == (NOW_MS, NOW_MS)
        assert written.durable == driven.sent[0].end


def test_only_queues_with_news_are_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand idle queues cost no sync; a file that was left for the next one is not forgotten."""
    with Driven(tmp_path / "store", queue_file_bytes=100) as driven:
        for queue_id in range(5):
            driven.send("t", queue_id, b"")
        driven.turn()
        driven.tick(1000)
        syncs = Syncs(driven, monkeypatch)
        for _ in range(5):
            driven.send("t", 3, b"")
        driven.turn()
        driven.tick(1000)
        assert sorted(syncs.files) == [f"consumequeue/t/3/{at:020d}" for at in (0, 100)]


# --- failures ---


def replace_descriptor(driven: Driven, path: str) -> None:
    """Let the last segment's descriptor be something else from here on."""
    fd = next(reversed(driven.store._log.segments.values()))
    other = os.open(path, os.O_RDONLY if path != "/dev/null" else os.O_RDWR)
    os.dup2(other, fd)
    os.close(other)


@pytest.mark.parametrize("step", ["pwrite", "fdatasync"])
def test_a_failed_log_write_ends_all_writing(tmp_path: Path, step: str) -> None:
    """A write or a sync that failed: nothing of that turn counts, nothing more is taken, reads go on."""
    driven = Driven(tmp_path / "store").open()
    kept = [driven.send("t", 0, b"before %d" % i) for i in range(3)]
    driven.turn()
    segment = tmp_path / "store" / "commitlog" / ("0" * 20)
    # /dev/null takes the write and has nothing to sync; a read-only descriptor does not take the write
    replace_descriptor(driven, str(segment) if step == "pwrite" else "/dev/null")
    driven.send("t", 0, b"lost")
    driven.store.submit()
    driven.send("t", 0, b"lost too")
    ring(driven.store.fileno())
    with pytest.raises(StoreReadOnly, match="the log could not be written"):
        driven.store.complete()
    assert driven.store.readable_end == kept[-1].end
    assert driven.store.fault is not None
    assert not driven.store.submit(), "a failed turn is not tried again"
    with pytest.raises(StoreReadOnly, match="repair the disk and restart"):
        driven.send("t", 0, b"refused")
    assert driven.store.tick(driven.now_ms + 10_000) == []
    if step == "pwrite":
        driven.check(kept)
    driven.store.close()
    assert (tmp_path / "store" / "abort").exists(), "the next start must look for the end"
    with driven.on(driven.root) as again:
        again.check(kept)


@pytest.mark.parametrize("step", ["pwrite", "fdatasync"])
def test_a_failure_while_closing_is_no_clean_close(tmp_path: Path, step: str) -> None:
    """The last turn fails: close() comes back, `abort` stays, what was safe is there at the next start."""
    driven = Driven(tmp_path / "store").open()
    kept = [driven.send("t", 0, b"before")]
    driven.turn()
    replace_descriptor(
        driven, str(tmp_path / "store" / "commitlog" / ("0" * 20)) if step == "pwrite" else "/dev/null"
    )
    driven.send("t", 0, b"lost")
    driven.store.close()
    assert driven.store.fault is not None
    assert (tmp_path / "store" / "abort").exists()
    with driven.on(driven.root) as again:
        again.check(kept)


def test_a_failed_sync_beside_the_loop_ends_writing_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ASYNC_FLUSH: the sync that fails is noticed at the next tick, and the flushed position did not move."""
    driven = Driven(tmp_path / "store", sync_flush=False).open()
    driven.send("t", 0, b"one")
    driven.turn()

    def broken(fd: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("os.fdatasync", broken)
    driven.tick(1000)
    driven.tick(1)
    assert driven.store.flushed_end == 0
    assert "Input/output error" in (driven.store.fault or "")
    with pytest.raises(StoreReadOnly):
        driven.send("t", 0, b"refused")
    driven.store.close()
    assert (tmp_path / "store" / "abort").exists()


def test_no_room_for_queue_entries_is_made_up_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log has the records: their entries come once there is room, and a crash before that loses none."""
    with Driven(tmp_path / "store", queue_file_bytes=100) as driven:
        driven.send("t", 0, b"before")
        driven.turn()
        disk = driven.store._disk
        real = disk.reserve

        def full(relative: str, size: int) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(disk, "reserve", full)
        for i in range(8):
            driven.send("t", 0, b"%d" % i)
        driven.turn()
        assert driven.store.dispatch_behind > 0
        driven.tick(1000)
        with driven.crash_image(tmp_path / "image") as image:
            image.check(driven.sent)
        monkeypatch.setattr(disk, "reserve", real)
        driven.tick(1000)
        assert driven.store.dispatch_behind == 0
        driven.check(driven.sent)


def test_a_failed_sync_is_not_forgotten_at_the_close(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sync beside the loop failed and the store is closed before the next tick: `abort` stays."""
    driven = Driven(tmp_path / "store", sync_flush=False).open()
    driven.send("t", 0, b"one")
    driven.turn()
    with monkeypatch.context() as patch:
        patch.setattr("os.fdatasync", _no_such_luck)
        driven.tick(1000)
        driven.store._disk.beside(lambda: None).result()
    driven.store.close()
    assert "Input/output error" in (driven.store.fault or "")
    assert (driven.root / "abort").exists()


def test_no_descriptor_left_is_no_failed_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The checkpoint could not be opened for want of descriptors: tried again, and nothing is refused."""
    with Driven(tmp_path / "store") as driven:
        driven.send("t", 0, b"one")
        driven.turn()
        with monkeypatch.context() as patch:
            patch.setattr(driven.store._disk, "sync_file", _no_descriptor)
            driven.tick(1000)
            driven.store._disk.beside(lambda: None).result()
            driven.tick(1)
        assert driven.store.fault is None
        driven.send("t", 0, b"two")
        driven.turn()
        driven.tick(1000)
        driven.store._disk.beside(lambda: None).result()
        driven.tick(1)
        with driven.crash_image(tmp_path / "image") as image:
            assert image.store.recovered.records == 0, "the second attempt wrote the checkpoint"
            image.check(driven.sent)


def _no_such_luck(fd: int) -> None:
    raise OSError(5, "Input/output error")


def _no_descriptor(name: str) -> None:
    raise OSError(24, "Too many open files")


# --- segments ahead of need ---


def test_the_next_segment_is_there_before_it_is_needed(tmp_path: Path) -> None:
    """Half a segment full: a tick makes the next one beside the loop; appends then do not wait for it."""
    with Driven(tmp_path / "store", segment_bytes=4096) as driven:
        while driven.store.end <= 2048:
            driven.send("t", 0, bytes(200))
        driven.turn()
        assert [path.name for path in sorted((driven.root / "commitlog").iterdir())] == ["0" * 20]
        driven.tick()
        driven.store._disk.beside(lambda: None).result()
        names = [path.name for path in sorted((driven.root / "commitlog").iterdir())]
        assert names == ["0" * 20, f"{4096:020d}"]
        driven.tick()
        driven.store._disk.allocate = None  # type: ignore[method-assign, assignment]  # not called from here on
        while driven.store.end < 4096 + 1000:
            driven.send("t", 0, bytes(200))
        driven.turn()
        driven.check(driven.sent)
