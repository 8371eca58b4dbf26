"""What help costs: processor time of `hotfire COMMAND --help`, the least of some runs, and of bare Python."""

from __future__ import annotations

import resource
import subprocess
import sys

from hotfire.cli import COMMANDS

RUNS = 7
GOAL_MS = 150


def cpu_ms(*words: str) -> float:
    """The least of several: whatever else the machine does only adds."""
    costs = []
    for _ in range(RUNS):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, *words], stdout=subprocess.DEVNULL, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        costs.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return min(costs) * 1000


def main() -> int:
    print(f"{'python':10} {cpu_ms('-c', ''):6.1f} ms")
    worst = 0.0
    for name in ("", *COMMANDS):
        cost = cpu_ms("-m", "hotfire.cli", *([name] if name else []), "--help")
        worst = max(worst, cost)
        print(f"{name or 'hotfire':10} {cost:6.1f} ms")
    print(f"at most {worst:.1f} ms, goal {GOAL_MS}")
    return 0 if worst <= GOAL_MS else 1


if __name__ == "__main__":
    sys.exit(main())
