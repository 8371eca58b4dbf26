"""Where the time of a case goes: Hotfire alone under the case's load, its processor sampled by perf.

Owns perf's command lines. Kernel, interpreter and core are told apart by their objects; Python functions are
not, since the interpreter runs them all in one C function: py-spy, where it is installed, adds those.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from bench.cases import CASES, FLUSHES, Case
from bench.drivers import LoadTools, settle
from bench.place import RESULTS, ROOT, SCRATCH, facts
from tests.peers.hotfire import HotfireProcess

SAMPLES_PER_S = 997
SYMBOLS_SHOWN = 40
STARTED_S = 0.5
_LINE = re.compile(r"^\s+[\d.]+%")


def profile(name: str, *, seconds: int, cases: Sequence[Case] = CASES) -> str:
    """Writes and returns the page of one case."""
    case = next((case for case in cases if case.name == name), None)
    if case is None:
        raise SystemExit(f"bench: no case is named {name}: {', '.join(case.name for case in cases)}")
    if shutil.which("perf") is None:
        subprocess.run(
            [str(ROOT / "tools" / "need.sh"), "linux-perf"], check=False, stdout=subprocess.DEVNULL
        )
    with tempfile.TemporaryDirectory(dir=SCRATCH) as temporary:
        place = Path(temporary)
        tools = LoadTools(place)
        with HotfireProcess(place / "hotfire", flush_disk_type=FLUSHES[case.flush]) as server:
            case.prepare(tools, server)
            settle()
            samples = _Samples(place, server.pid)
            measured = case.drive(tools, server, seconds)
            samples.stop()
        text = [
            f"# Profile: {case.title}",
            "",
            *(f"- {name}: {value}" for name, value in facts().items()),
            f"- under perf: {measured.rate:,.0f} msg/s",
            "",
            "Share of the samples by object: kernel, interpreter, core, libraries.",
            "",
            *_fenced(samples.report("dso")),
            "By function:",
            "",
            *_fenced(samples.report("symbol,dso")[:SYMBOLS_SHOWN]),
            "By thread:",
            "",
            *_fenced(samples.report("pid")),
            *samples.python_functions(),
        ]
    page = "\n".join(text).rstrip() + "\n"
    (RESULTS / f"profile-{case.name}.md").write_text(page)
    return page


class _Samples:
    """perf, and py-spy where there is one, beside a running server until `stop`."""

    def __init__(self, place: Path, pid: int) -> None:
        self._data, self._stacks = place / "perf.data", place / "stacks.txt"
        perf = [
            "perf",
            "record",
            "-q",
            "-e",
            "cpu-clock",
            "-F",
            str(SAMPLES_PER_S),
            "-o",
            str(self._data),
            "-p",
            str(pid),
        ]
        self._children = [subprocess.Popen(perf, stdout=subprocess.DEVNULL)]
        if spy := shutil.which(
            "py-spy", path=f"{ROOT / '.venv' / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}"
        ):
            command = [
                spy,
                "record",
                "-p",
                str(pid),
                "-f",
                "raw",
                "-o",
                str(self._stacks),
                "-d",
                "3600",
                "-r",
                "200",
            ]
            quiet = subprocess.DEVNULL
            self._children.append(subprocess.Popen(command, stdout=quiet, stderr=quiet))
        time.sleep(STARTED_S)

    def stop(self) -> None:
        for child in self._children:
            child.send_signal(signal.SIGINT)
            child.wait(timeout=60)

    def report(self, sort: str) -> list[str]:
        done = subprocess.run(
            ["perf", "report", "-q", "--stdio", "--no-children", "--percent-limit", "0.3",
             "--sort", sort, "-i", str(self._data)],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        return [line.rstrip(" -") for line in done.stdout.splitlines() if _LINE.match(line)]

    def python_functions(self) -> list[str]:
        """Python functions by their own samples, callees left out."""
        if not self._stacks.exists():
            return []
        own: dict[str, int] = {}
        for line in self._stacks.read_text().splitlines():
            stack, _, count = line.rpartition(" ")
            innermost = stack.rpartition(";")[2]
            own[innermost] = own.get(innermost, 0) + int(count)
        total = sum(own.values()) or 1
        ranked = sorted(own.items(), key=lambda item: -item[1])[:SYMBOLS_SHOWN]
        lines = [f"{count / total:8.2%}  {name}" for name, count in ranked]
        return ["By Python function, its own time:", "", *_fenced(lines)]


def _fenced(lines: list[str]) -> list[str]:
    return ["```", *lines, "```", ""]
