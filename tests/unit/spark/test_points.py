"""What tests that kill Spark's workers stand on: a worker stops where it is told to, once."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hotfire.spark.points import DIRECTORY, reached


def test_nothing_happens_unasked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the variable a point leaves no trace."""
    monkeypatch.delenv(DIRECTORY, raising=False)
    monkeypatch.chdir(tmp_path)
    reached("sink.commit")
    assert list(tmp_path.iterdir()) == []


def test_the_first_to_come_leaves_its_process_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A point's file names who was there first; those after it change nothing and are not stopped."""
    monkeypatch.setenv(DIRECTORY, str(tmp_path))
    reached("sink.commit")
    (tmp_path / "sink.commit").write_text("somebody")
    (tmp_path / "sink.commit.stop").touch()
    reached("sink.commit")
    assert (tmp_path / "sink.commit").read_text() == "somebody"
    assert {path.name for path in tmp_path.iterdir()} == {"sink.commit", "sink.commit.stop"}


def test_who_is_to_stop_stands_still_until_told(tmp_path: Path) -> None:
    """A process stops exactly at the point, and goes on from there when it is continued."""
    (tmp_path / "here.stop").touch()
    code = "from hotfire.spark.points import reached; reached('before'); reached('here'); reached('behind')"
    child = subprocess.Popen([sys.executable, "-c", code], env={**os.environ, DIRECTORY: str(tmp_path)})
    _, status = os.waitpid(child.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)
    assert (tmp_path / "here").read_text() == str(child.pid)
    assert (tmp_path / "before").exists()
    assert not (tmp_path / "behind").exists()
    os.kill(child.pid, signal.SIGCONT)
    assert child.wait() == 0
    assert (tmp_path / "behind").exists()
