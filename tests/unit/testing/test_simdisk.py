"""A simulated disk is a disk as long as nothing goes wrong, and then it goes wrong as disks do."""

import errno
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hotfire.store.disk import Disk, SyncFailed
from hotfire.testing import PowerCut, SimDisk
from hotfire.testing.inodes import SECTOR_BYTES
from tests.unit.store.driven import tree

DRAWS = 200
"""Power cuts looked at where a test says what may come of one."""


def after_cuts(make: Callable[[], SimDisk], look: Callable[[SimDisk], Any]) -> set[Any]:
    """What `look` finds after many power cuts at the end of `make`."""
    return {look(make().power_cut(random.Random(seed))) for seed in range(DRAWS)}


def disk_with(**files: bytes) -> SimDisk:
    """A disk whose files are durable."""
    disk = SimDisk()
    disk.make_directory(".")
    for name, data in files.items():
        disk.write_whole(name, data)
    return disk


# --- a disk ---


def step(disk: Disk, rng: random.Random) -> object:
    """One operation drawn from `rng`; what it returned, or the name of what it raised."""
    name = rng.choice(["a", "b", "d/a", "d/e/b"])
    what = rng.randrange(12)
    position, data = rng.randrange(3000), rng.randbytes(rng.choice([1, 20, 600]))
    try:
        if what == 0:
            return disk.make_directory(rng.choice(["d", "d/e", "."]))
        if what == 1:
            return disk.close(disk.allocate(name, 4096))
        if what in (2, 3):
            fd = disk.open(name)
            if disk.size(name) > position + len(data):
                disk.write(fd, data, position)
            disk.sync(fd)
            found = disk.read(fd, 5000, position)
            disk.close(fd)
            return found
        if what == 4:
            mapped = disk.map(name + ".map", 4096)
            mapped[position : position + len(data)] = data
            copy = bytes(mapped[:])
            mapped.close()
            return copy
        if what == 5:
            return disk.reserve(name + ".map", 2048)
        if what == 6:
            return disk.sync_file(name + ".map")
        if what == 7:
            return disk.write_whole(name, data, keep=rng.choice([None, name + ".bak"]))
        if what == 8:
            return disk.remove(name + rng.choice(["", ".map", ".bak"]))
        if what == 9:
            fd = disk.open(name)
            cut = disk.zero(fd, min(position, disk.size(name)), max(0, disk.size(name) - position))
            disk.close(fd)
            return cut
        if what == 10:
            return disk.read_whole(name), disk.exists(name), disk.names("d"), disk.names("nowhere")
        return disk.size(name)
    except OSError as error:
        return type(error).__name__, error.errno


@pytest.mark.parametrize("seed", range(20))
def test_without_faults_it_is_a_disk(tmp_path: Path, seed: int) -> None:
    """The same calls return the same, fail the same and leave the same files as on the real disk."""
    real, simulated = Disk(tmp_path / "root"), SimDisk(seed)
    ours, theirs = random.Random(seed), random.Random(seed)
    real.make_directory(".")
    simulated.make_directory(".")
    for _ in range(150):
        assert step(simulated, ours) == step(real, theirs)
    assert simulated.tree() == tree(tmp_path / "root")
    assert len(simulated.tree()) > 2


def test_work_beside_the_loop_is_done_by_the_time_it_is_waited_for() -> None:
    """At once or later, in the order it was asked for, and its exceptions are its future's."""
    for seed in range(20):
        disk, done = SimDisk(seed), []
        first, second = disk.beside(lambda: done.append(1)), disk.beside(lambda: done.append(2))  # noqa: B023
        third = disk.beside(lambda: 1 // 0)
        assert second.result() is None
        assert first.done()
        assert done == [1, 2]
        assert isinstance(third.exception(), ZeroDivisionError)
    assert {SimDisk(seed).beside(int).done() for seed in range(20)} == {True, False}


# --- power loss ---


def test_synced_bytes_survive_and_others_may_not() -> None:
    """After a cut a file holds what was synced, and of later writes any sectors, in any order."""
    size = 4 * SECTOR_BYTES

    def make() -> SimDisk:
        disk = disk_with(file=b"a" * size)
        fd = disk.open("file")
        disk.write(fd, b"b" * SECTOR_BYTES, 0)
        disk.sync(fd)
        disk.write(fd, b"c" * (2 * SECTOR_BYTES), SECTOR_BYTES)
        disk.write(fd, b"d" * SECTOR_BYTES, SECTOR_BYTES)
        return disk

    found = after_cuts(make, lambda disk: disk.read_whole("file"))
    sectors = {tuple(data[at : at + 1] for at in range(0, size, SECTOR_BYTES)) for data in found}
    assert {one for one, *_ in sectors} == {b"b"}
    assert {(two, three) for _, two, three, _ in sectors} == {
        (b"a", b"a"), (b"c", b"a"), (b"d", b"a"), (b"a", b"c"), (b"c", b"c"), (b"d", b"c"),
    }  # fmt: skip
    assert {four for *_, four in sectors} == {b"a"}


def test_stores_into_a_map_are_writes_too() -> None:
    """What went through a map is lost like a write until the file is synced, and torn between words."""

    def make() -> SimDisk:
        disk = disk_with(file=bytes(64))
        mapped = disk.map("file", 64)
        mapped[0:4] = b"sure"
        disk.sync_file("file")
        mapped[16:24] = b"not sure"
        return disk

    found = after_cuts(make, lambda disk: disk.read_whole("file")[:24])
    start = b"sure" + bytes(12)
    assert found >= {start + bytes(8), start + b"not sure", start + b"not " + bytes(4)}
    assert {data[:16] for data in found} == {start}


def test_a_file_outlives_a_cut_by_its_directory() -> None:
    """A synced file whose name was not synced may be gone; its bytes are whole when it is there."""

    def make() -> SimDisk:
        disk = disk_with()
        fd = disk._system.open(disk.path("new"), os.O_RDWR | os.O_CREAT)
        disk.write(fd, b"bytes", 0)
        disk.sync(fd)
        return disk

    def make_and_sync() -> SimDisk:
        disk = make()
        disk.sync_directory(".")
        return disk

    assert after_cuts(make, lambda disk: disk.read_whole("new")) == {None, b"bytes"}
    assert after_cuts(make_and_sync, lambda disk: disk.read_whole("new")) == {b"bytes"}


def test_a_rename_happens_or_not() -> None:
    """Until the directory is synced a renamed file has its old name or the new one, never both or none."""

    def make() -> SimDisk:
        disk = disk_with(old=b"1", new=b"2")
        disk._system.rename(disk.path("old"), disk.path("new"))
        return disk

    def look(disk: SimDisk) -> tuple[bytes | None, bytes | None]:
        return disk.read_whole("old"), disk.read_whole("new")

    assert after_cuts(make, look) == {(b"1", b"2"), (None, b"1")}


def test_names_are_lost_one_by_one() -> None:
    """Of changes to a directory that were not synced any may have happened, whatever became of the others."""

    def make() -> SimDisk:
        disk = disk_with(gone=b"g")
        disk._system.unlink(disk.path("gone"))
        disk._system.mkdir(disk.path("made"))
        return disk

    found = after_cuts(make, lambda disk: (disk.exists("gone"), disk.exists("made")))
    assert found == {(True, False), (True, True), (False, False), (False, True)}


@pytest.mark.parametrize("keep", [None, "file.bak"])
def test_a_whole_write_is_old_or_new_at_every_cut(keep: str | None) -> None:
    """Disk's own promise, held against every operation of it and whatever the cut leaves."""
    old, new = b"old" * 700, b"new" * 900
    count = disk_with(file=old).operations
    total = disk_with(file=old)
    total.write_whole("file", new, keep=keep)
    for at in range(count, total.operations + 1):
        for seed in range(60):
            disk = disk_with(file=old)
            disk.cut_after(at)
            try:
                disk.write_whole("file", new, keep=keep)
                is_done = True
            except PowerCut:
                is_done = False
            found = disk.power_cut(random.Random(seed)).read_whole("file")
            assert found == new if is_done else found in (old, new), (at, seed)


def test_after_the_cut_nothing_happens() -> None:
    """The operation at which the power goes raises PowerCut, and so does every later one, reading too."""
    disk = disk_with(file=b"1")
    disk.cut_after(disk.operations + 1)
    fd = disk.open("file")
    disk.write(fd, b"2", 0)
    for _ in range(2):
        with pytest.raises(PowerCut):
            disk.sync(fd)
        with pytest.raises(PowerCut):
            disk.read(fd, 1, 0)
    assert not isinstance(PowerCut(), Exception)


def test_a_killed_process_leaves_what_it_wrote() -> None:
    """Everything written is there, through maps too, and a power cut may still take it."""

    def make() -> SimDisk:
        disk = disk_with(file=bytes(8))
        disk.map("file", 8)[0:8] = b"in cache"
        disk = disk.kill(random.Random(0))
        assert disk.read_whole("file") == b"in cache"
        return disk

    assert after_cuts(make, lambda disk: disk.read_whole("file")) >= {bytes(8), b"in cache"}


# --- errors ---


def test_an_operation_fails_when_asked_to() -> None:
    """The n-th of a kind, with the error that was asked for; the ones around it do not."""
    disk = disk_with(file=b"1")
    fd = disk.open("file")
    disk.fail("pwrite", errno.ENOSPC, skip=1)
    disk.write(fd, b"2", 0)
    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        disk.write(fd, b"3", 0)
    disk.write(fd, b"4", 0)
    assert disk.read_whole("file") == b"4"


def test_a_failed_sync_forgets() -> None:
    """A later sync succeeds and says nothing of what the failed one was for, unless it was written again."""

    def make(again: bool) -> SimDisk:
        disk = disk_with(file=b"old")
        fd = disk.open("file")
        disk.write(fd, b"new", 0)
        disk.fail("sync", errno.EIO)
        with pytest.raises(SyncFailed):
            disk.sync(fd)
        if again:
            disk.write(fd, b"new", 0)
        disk.sync(fd)
        return disk

    assert after_cuts(lambda: make(False), lambda disk: disk.read_whole("file")) == {b"old", b"new"}
    assert after_cuts(lambda: make(True), lambda disk: disk.read_whole("file")) == {b"new"}


def test_a_flipped_bit_stays_flipped() -> None:
    """In memory, on the disk, and after a cut."""
    disk = disk_with(file=b"\x00\x00")
    disk.flip("file", 9)
    assert disk.read_whole("file") == b"\x00\x02"
    assert disk.power_cut(random.Random(0)).read_whole("file") == b"\x00\x02"


def test_a_held_turn_is_under_way_until_it_is_released() -> None:
    """A journal's turn is neither written nor complete while the disk holds it."""
    disk = disk_with(log=bytes(100))
    journal = disk.journal(0, 1000)
    fd = disk.open("log")
    journal.add_segment(0, 100, fd)
    disk.hold()
    assert journal.reserve(3) == 0
    journal.append(b"abc", None, 0, 0)
    assert journal.submit(True)
    assert journal.complete() == 0
    assert disk.read(fd, 3, 0) == bytes(3)
    disk.release()
    assert journal.complete() == 3
    assert disk.read(fd, 3, 0) == b"abc"
    disk.switch_off()
