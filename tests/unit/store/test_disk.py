"""The disk as the store sees it."""

import ctypes
import gc
import mmap
from pathlib import Path

import pytest

from hotfire.store.config import StoreConfig
from hotfire.store.disk import Disk
from hotfire.store.keyindex import KeyIndexes


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


def resident_pages(mapped: mmap.mmap) -> int:
    """How many of its pages are in the system's memory, whoever brought them."""
    pages = (ctypes.c_ubyte * -(-len(mapped) // mmap.PAGESIZE))()
    start = ctypes.addressof(ctypes.c_char.from_buffer(mapped))
    if ctypes.CDLL(None).mincore(ctypes.c_void_p(start), ctypes.c_size_t(len(mapped)), pages):
        pytest.skip("the system does not tell which pages are in memory")
    return sum(page & 1 for page in pages)


def test_a_new_index_file_has_only_the_pages_that_were_touched(tmp_path: Path) -> None:
    """Nothing is read ahead in a file that is filled from its beginning on."""
    disk = Disk(tmp_path)
    indexes = KeyIndexes(disk, StoreConfig())
    indexes.put(7_000_000, 100, 1_700_000_000_000)
    ((mapped, _),) = indexes._files.values()
    assert 1 <= resident_pages(mapped) <= 8  # header, slot, entry
    gc.collect()
    indexes.close()
