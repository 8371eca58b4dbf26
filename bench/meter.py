"""What a running server has used, read from /proc: processor time and anonymous memory, children included."""

from __future__ import annotations

import os
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid: int) -> float:
    """User and system time of the process, all its threads, and of its living descendants."""
    return sum(_ticks(member) for member in _family(pid)) / _TICKS_PER_S


def anonymous_bytes(pid: int) -> int:
    """RssAnon: VmRSS would count the mapped files of the store as well."""
    return sum(_anonymous_kib(member) for member in _family(pid)) * 1024


def _ticks(pid: int) -> int:
    # The name in parentheses may hold spaces; utime and stime are fields 14 and 15 of the line.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def _anonymous_kib(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1])
    return 0


def _family(pid: int) -> list[int]:
    members = [pid]
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            members += _family(int(child))
    return members
