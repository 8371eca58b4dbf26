"""Memory that is there: takes much of what is free, touches it, gives it back.

A virtual machine may give memory that nobody uses back to its host. Each page it then needs again costs it
some seven microseconds where ours run, more than a broker needs for the messages on it. Who writes more bytes
pays more of that, and so does whoever takes fresh memory where a JVM keeps its heap: it tells nothing about
their programs. What was given back a moment ago is still there.
"""

from __future__ import annotations

import mmap
import subprocess
import sys
from pathlib import Path

WARMED_BYTES = 3 << 30


def warm() -> None:
    """Right before a turn: there is memory for what it makes."""
    subprocess.run([sys.executable, "-m", "bench.memory"], check=True)


def touch(size: int) -> None:
    with mmap.mmap(-1, size) as memory:
        for page in range(0, size, mmap.PAGESIZE):
            memory[page] = 1


def _free_bytes() -> int:
    lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    (free,) = (line for line in lines if line.startswith("MemFree:"))
    return int(free.split()[1]) * 1024


if __name__ == "__main__":
    touch(min(WARMED_BYTES, _free_bytes() // 2))
