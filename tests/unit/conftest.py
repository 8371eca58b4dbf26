"""Where tests keep stores that need not outlive a power cut."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

MEMORY = Path("/dev/shm")  # noqa: S108  # what is made in it gets a name of its own


@pytest.fixture(scope="session")
def memory_directory() -> Iterator[Path]:
    """A directory in memory where there is one: what opens a thousand stores need not wait for a disk.

    None of its tests is about the disk keeping its word; those that are use `tmp_path`.
    """
    directory = Path(tempfile.mkdtemp(prefix="hotfire-", dir=MEMORY if MEMORY.is_dir() else None))
    yield directory
    shutil.rmtree(directory)


@pytest.fixture
def in_memory(memory_directory: Path) -> Iterator[Path]:
    """The same for one test."""
    directory = Path(tempfile.mkdtemp(dir=memory_directory))
    yield directory
    shutil.rmtree(directory)
