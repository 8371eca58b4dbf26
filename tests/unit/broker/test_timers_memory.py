"""Messages that wait for their time are in files: memory does not grow with them."""

import subprocess
import sys
from pathlib import Path

import pytest


def grown_bytes(count: int, root: Path) -> int:
    told = subprocess.run(
        [sys.executable, "-m", "tests.unit.broker.timermemory", str(count), str(root)],
        check=True, capture_output=True, text=True,
    ).stdout.split()  # fmt: skip
    before, after = map(int, told)
    return after - before


@pytest.mark.timeout(120)
def test_ten_thousand_take_hardly_any_memory(tmp_path: Path) -> None:
    """An object for each would be two megabytes at least; a million may take 60."""
    assert grown_bytes(12_000, tmp_path / "store") < 2_000_000


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_million_take_less_than_60_mb(tmp_path: Path) -> None:
    """One million pending timer messages in at most 60 MB of anonymous memory."""
    assert grown_bytes(1_000_000, tmp_path / "store") <= 60_000_000
