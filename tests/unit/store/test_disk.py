"""The disk as the store sees it."""

from pathlib import Path

from hotfire.store.disk import Disk


def test_reading_what_was_written_makes_no_more_of_it(tmp_path: Path) -> None:
    """Of a large empty file only what was written is walked, though readers look beyond each step."""
    disk = Disk(tmp_path)
    fd = disk.allocate("large", 64 << 20)
    disk.write(fd, b"x" * 5000, 1 << 20)
    disk.sync(fd)
    walked = 0
    for at, size in disk.written_ranges(fd, 0, 64 << 20):
        disk.read(fd, size + 36, at)
        walked += size
    assert 5000 <= walked <= 16_384
    disk.close(fd)
