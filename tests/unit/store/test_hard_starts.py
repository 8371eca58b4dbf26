"""Starts and ends that others have made hard: another broker's crash, gaps left by damage, a full disk."""

import dataclasses
import errno
import os
import shutil
from pathlib import Path

import pytest

from hotfire.protocol.record import encode_record
from hotfire.store.disk import Disk
from tests.unit.store.driven import NOW_MS, Driven, message


def test_records_of_another_brokers_crash_are_not_taken_for_torn(tmp_path: Path) -> None:
    """We closed cleanly; Apache's broker appended, without our checksum, and was killed before its first
    checkpoint: its records are the log's, whatever our marks say."""
    driven = Driven(tmp_path, segment_bytes=1 << 16).open()
    for i in range(5):
        driven.send("t", 0, b"ours %d" % i)
    driven.turn()
    end = driven.store.end
    driven.store.close()
    with (tmp_path / "commitlog" / f"{0:020d}").open("r+b") as log:
        for i in range(5, 25):
            record = dataclasses.replace(
                message("t", 0, b"theirs %d" % i),
                queue_offset=i,
                physical_offset=end,
                store_timestamp=NOW_MS + i,
            )
            data = encode_record(record, append_crc=False)
            log.seek(end)
            log.write(data)
            end += len(data)
    (tmp_path / "abort").write_text("4711")  # as theirs: a process id, or nothing
    with driven.on(tmp_path) as again:
        assert again.store.recovered.end == end
        assert [r.body for r in again.pull_all("t", 0)] == [
            b"%s %d" % (b"ours" if i < 5 else b"theirs", i) for i in range(25)
        ]
    with driven.on(tmp_path) as again:  # and they are ours from now on
        assert again.store.recovered.records == 0


def test_a_gap_in_a_queue_hides_nothing_before_it(tmp_path: Path) -> None:
    """A record lost to damage leaves a place without a message: those before it stay, start after start."""
    driven = Driven(tmp_path, segment_bytes=1 << 16, queue_file_bytes=2000).open()
    for i in range(50):
        driven.send("t", 0, b"%d" % i)
    driven.turn()
    driven.store.close()
    lost = driven.sent[5:8]
    with (tmp_path / "commitlog" / f"{0:020d}").open("r+b") as log:
        for sent in lost:
            log.seek(sent.physical + 60)
            log.write(b"\xff" * 8)
    shutil.rmtree(tmp_path / "consumequeue")
    for _ in range(3):
        with driven.on(tmp_path) as again:
            queue = again.store.find_queue("t", 0)
            assert queue is not None
            assert (queue.min, queue.max) == (0, 50)
            bodies = [record.body for record in again.pull_all("t", 0)]
            assert bodies == [sent.body for sent in driven.sent if sent not in lost]


def test_a_close_on_a_full_disk_ends(tmp_path: Path) -> None:
    """The last turn finds no room, twice: the store says so, keeps `abort`, and lets go of the directory."""
    driven = Driven(tmp_path).open()
    driven.send("t", 0, b"safe")
    driven.turn()
    full = os.open("/dev/full", os.O_RDWR)
    os.dup2(full, driven.store._log.segments[0])
    os.close(full)
    driven.send("t", 0, b"no room")
    driven.store.close()
    assert "the disk is full" in (driven.store.fault or "")
    assert (tmp_path / "abort").exists()
    with driven.on(tmp_path) as again:
        assert [record.body for record in again.pull_all("t", 0)] == [b"safe"]


def test_a_full_disk_is_no_reason_not_to_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing new can be allocated: what is stored is served, and old segments can leave."""
    driven = Driven(tmp_path).open()
    for i in range(30):
        driven.send("t", i % 3, b"%d" % i, KEYS=f"k{i}")
    driven.turn()
    image = driven.crash_image(tmp_path.with_name("image"))
    driven.store.close()

    def no_room(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    for store in (driven.on(tmp_path), image):
        if store is image:
            store.open()  # entries that were not on disk yet need room
            store.store.close()
            store = image.on(image.root)
        with monkeypatch.context() as patch:
            patch.setattr(Disk, "reserve", no_room)
            patch.setattr(Disk, "allocate", no_room)
            store.open()
            assert len(store.pull_all("t", 0)) == 10
        store.store.close()
