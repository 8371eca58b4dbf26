"""Messages that wait for their time are in files: memory does not grow with them."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest


def anonymous_bytes(count: int, root: Path) -> tuple[int, int]:
    """With hardly any, and with so many."""
    told = subprocess.run(
        [sys.executable, "-m", "tests.unit.broker.timermemory", str(count), str(root)],
        check=True, capture_output=True, text=True,
    ).stdout.split()  # fmt: skip
    before, after = map(int, told)
    return before, after


@pytest.mark.timeout(120)
def test_ten_thousand_take_hardly_any_memory(tmp_path: Path) -> None:
    """An object for each would be two megabytes at least; a million may take 60."""
    before, after = anonymous_bytes(12_000, tmp_path / "store")
    assert after - before < 2_000_000


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_million_take_less_than_60_mb(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """One million pending timer messages in at most 60 MB of anonymous memory."""
    before, after = anonymous_bytes(1_000_000, tmp_path / "store")
    record_property(
        "MB of anonymous memory, without and with a million", f"{before / 1e6:.1f}, {after / 1e6:.1f}"
    )
    assert after - before <= 60_000_000
