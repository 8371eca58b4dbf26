"""The twins of the compiled core keep the same promises, and write the same bytes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hotfire import core
from tests.unit.store.driven import tree

ROOT = Path(__file__).resolve().parents[3]
HERE = Path(__file__).resolve().parent
SUBSET = [
    "test_turns.py",
    "test_recovery.py",
    "test_torn_tail.py",
    "test_layout.py",
    "test_model.py",
    "test_queueext.py",
]
SLOW_WITHOUT_COMPILER = "not gib and not array and not garbage and not lose_byte"


def run(*arguments: str, plain: bool) -> str:
    env = {name: value for name, value in os.environ.items() if name != "HOTFIRE_CORE"}
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=env | ({"HOTFIRE_CORE": "plain"} if plain else {}),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
    return done.stdout


@pytest.mark.skipif(not core.COMPILED, reason="the tests beside this one run on the plain twins already")
def test_the_plain_twins_keep_the_promises_too() -> None:
    """Turns, recovery, torn tails and layout hold without a compiler."""
    files = [str(HERE / name) for name in SUBSET]
    out = run(
        "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-k", SLOW_WITHOUT_COMPILER, *files, plain=True
    )  # fmt: skip
    assert " passed" in out
    assert "failed" not in out


@pytest.mark.skipif(not core.COMPILED, reason="there is only one core here to compare with itself")
def test_both_cores_leave_the_same_directory(in_memory: Path) -> None:
    """The same calls, the same bytes: log, queues and checkpoint."""
    for name in ("compiled", "plain"):
        said = run("-m", "tests.unit.store.replay", str(in_memory / name), plain=name == "plain")
        assert said.strip() == name
    compiled, plain = tree(in_memory / "compiled"), tree(in_memory / "plain")
    assert len(compiled) > 50
    assert compiled == plain
