"""What a running server has used, read from /proc: processor time and anonymous memory, children included.

Also what everybody else used meanwhile: on a machine that is busy with other things a figure says little.
"""

from __future__ import annotations

import os
import resource
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass
class Meter:
    """Started before a run; `stop` is asked after it."""

    pid: int
    _server_s: float = field(init=False)
    _driver_s: float = field(init=False)
    _machine_s: float = field(init=False)
    _started_at: float = field(init=False)

    def __post_init__(self) -> None:
        self._started_at = time.monotonic()
        self._machine_s, self._driver_s = machine_seconds(), finished_children_seconds()
        self._server_s = cpu_seconds(self.pid)

    def stop(self) -> tuple[float, float]:
        """Processor seconds of the server, and the share of the machine used by neither it nor the driver."""
        server_s = cpu_seconds(self.pid) - self._server_s
        driver_s = finished_children_seconds() - self._driver_s
        machine_s = machine_seconds() - self._machine_s
        capacity_s = (time.monotonic() - self._started_at) * (os.cpu_count() or 1)
        return server_s, max(0.0, machine_s - server_s - driver_s) / capacity_s


def machine_seconds() -> float:
    """Processor time spent on anything but waiting since the machine started."""
    user, nice, system, _idle, _iowait, irq, softirq, *_rest = map(
        int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    )
    return (user + nice + system + irq + softirq) / _TICKS_PER_S


def finished_children_seconds() -> float:
    """Processor time of our own children that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def cpu_seconds(pid: int) -> float:
    """User and system time of the process, all its threads, and of its living descendants."""
    return sum(_ticks(member) for member in _family(pid)) / _TICKS_PER_S


def tree_seconds(pid: int) -> float:
    """The same, and of descendants that have ended: whoever waited for them has their time."""
    total = 0
    for member in _family(pid):
        with suppress(FileNotFoundError, ProcessLookupError):  # it ended just now
            total += sum(map(int, _stat(member)[11:15]))
    return total / _TICKS_PER_S


def anonymous_bytes(pid: int) -> int:
    """RssAnon: VmRSS would count the mapped files of the store as well."""
    return sum(_anonymous_kib(member) for member in _family(pid)) * 1024


def _stat(pid: int) -> list[str]:
    # The name in parentheses may hold spaces; utime and stime are fields 14 and 15 of the line.
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def _ticks(pid: int) -> int:
    fields = _stat(pid)
    return int(fields[11]) + int(fields[12])


def _anonymous_kib(pid: int) -> int:
    with suppress(FileNotFoundError, ProcessLookupError):  # it ended just now
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1])
    return 0


def _family(pid: int) -> list[int]:
    members = [pid]
    with suppress(FileNotFoundError, ProcessLookupError):  # a child that has just ended
        for task in list(Path(f"/proc/{pid}/task").iterdir()):
            with suppress(
                FileNotFoundError, ProcessLookupError
            ):  # a thread, whose children are another's now
                for child in (task / "children").read_text().split():
                    members += _family(int(child))
    return members
