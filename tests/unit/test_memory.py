"""Memory of a process that serves, or works for Spark: what was freed is there for what comes next."""

import subprocess
import sys

import pytest

from hotfire import memory

ANSWERS = """
import resource, sys
from hotfire.memory import keep_freed_memory
if sys.argv[1] == "kept" and not keep_freed_memory():
    raise SystemExit(3)
def pages_made():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
held = [bytes(4 << 20) for _ in range(4)]  # as many answers as are on their way at once
del held
before = pages_made()
for _ in range(50):
    held = [bytes(b"x" * (4 << 20)) for _ in range(4)]
    del held
print(pages_made() - before)
"""


def made(how: str) -> int:
    told = subprocess.run([sys.executable, "-c", ANSWERS, how], capture_output=True, text=True, check=False)
    if told.returncode == 3:
        pytest.skip("this C library takes no such advice")
    assert not told.returncode, told.stderr
    return int(told.stdout)


def test_answers_are_made_in_memory_that_is_there() -> None:
    """Two hundred blocks of 4 MiB, each of 1024 pages: their pages are made once, not for each."""
    assert memory.KEPT_BYTES >= 4 * (4 << 20)
    assert made("kept") < 10 * 1024 < made("given back")
