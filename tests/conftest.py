"""What every test stands on: the promise marks, the rule about skips, which hotfire is under test, and where
stores lie that need not outlive a power cut."""

import gc
import importlib.util
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest_plugins = ["tests.promises"]

ROOT = Path(__file__).resolve().parent.parent
MEMORY = Path("/dev/shm")  # noqa: S108  # what is made in it gets a name of its own


def hotfire_directory() -> Path:
    spec = importlib.util.find_spec("hotfire")
    assert spec is not None, "hotfire is not installed: run `make install`"
    assert spec.origin is not None
    return Path(spec.origin).parent


def pytest_report_header(config: pytest.Config) -> str:
    compiled = sorted(path.name for path in (hotfire_directory() / "core").glob("_core*.so"))
    return f"hotfire: {hotfire_directory()}, core: {', '.join(compiled) or 'plain Python'}"


def pytest_collection_finish() -> None:
    """Thousands of tests are searched for garbage once, not again and again while they run."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module", autouse=True)
def _collected() -> Iterator[None]:
    """What a module forgot to close is told of it and not of a later one. Not frozen: what hangs on its
    last objects, descriptors among it, would never be let go."""
    yield
    gc.collect()


def pytest_sessionfinish() -> None:
    """pytest looks for what was never closed once more, at the very end."""
    gc.unfreeze()


def pytest_sessionstart(session: pytest.Session) -> None:
    """`make sanitize` tests a second copy of the package; the usual one by mistake would pass quietly."""
    expected = os.environ.get("HOTFIRE_EXPECT_UNDER")
    if expected is not None and not hotfire_directory().is_relative_to(ROOT / expected):
        raise pytest.UsageError(f"hotfire comes from {hotfire_directory()}, expected it under {expected}")


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
