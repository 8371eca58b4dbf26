"""What every test stands on: the promise marks, the rule about skips, and which hotfire is under test."""

import importlib.util
import os
from pathlib import Path

import pytest

pytest_plugins = ["tests.promises"]

ROOT = Path(__file__).resolve().parent.parent


def hotfire_directory() -> Path:
    spec = importlib.util.find_spec("hotfire")
    assert spec is not None, "hotfire is not installed: run `make install`"
    assert spec.origin is not None
    return Path(spec.origin).parent


def pytest_report_header(config: pytest.Config) -> str:
    compiled = sorted(path.name for path in (hotfire_directory() / "core").glob("_core*.so"))
    return f"hotfire: {hotfire_directory()}, core: {', '.join(compiled) or 'plain Python'}"


def pytest_sessionstart(session: pytest.Session) -> None:
    """`make sanitize` tests a second copy of the package; the usual one by mistake would pass quietly."""
    expected = os.environ.get("HOTFIRE_EXPECT_UNDER")
    if expected is not None and not hotfire_directory().is_relative_to(ROOT / expected):
        raise pytest.UsageError(f"hotfire comes from {hotfire_directory()}, expected it under {expected}")
