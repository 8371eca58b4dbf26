"""A broker under strace that strikes at one system call: kills it there, fails the call, or makes it slow.

Owns the command line of strace and the reading of where it struck. strace counts calls by name and by thread:
`when` is the number of the call among those of its name in whichever thread gets there first.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.crash.trace import Call, parse, unhex
from tests.peers.hotfire import HotfireProcess

CLASSES = {
    "write": ("pwrite64", "pwritev", "pwritev2"),
    "sync": ("fdatasync", "fsync", "msync", "sync_file_range"),
    "rename": ("rename", "renameat", "renameat2", "link", "linkat"),
    "allocate": ("fallocate", "ftruncate"),
    "unlink": ("unlink", "unlinkat"),
}
"""Every way a store changes what is on the disk, and the calls that do it."""

CLASS_OF = {name: kind for kind, names in CLASSES.items() for name in names}
TERMINATE_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class Point:
    """The `when`th call of this name in a thread, on this very file if there is one."""

    name: str
    when: int
    path: str | None = None

    @property
    def kind(self) -> str:
        return CLASS_OF[self.name]

    @property
    def killing(self) -> str:
        return f"{self.name}:signal=KILL:when={self.when}"


class InjectedHotfire(HotfireProcess):
    """`hotfire up`, under strace while `injections` is not None: nothing but traced when it is empty."""

    def __init__(self, directory: Path, *, arguments: Sequence[str] = ()) -> None:
        super().__init__(directory, arguments=arguments)
        self.injections: Sequence[str] | None = None
        self.more: Sequence[str] = ()
        """Further arguments, from the next start on."""
        self.only_paths: Sequence[str] = ()
        """Strike, count and trace calls on these files alone, if there are any."""
        self._is_traced = False

    @property
    def calls(self) -> Path:
        return self.directory / "strace.out"

    def _command(self) -> list[str]:
        command = [*super()._command(), *self.more]
        self._is_traced = self.injections is not None
        if self.injections is None:
            return command
        strace = ["strace", "-f", "-ttt", "-yy", "-s", "0", "-o", str(self.calls)]
        # with its own filter strace delivers no signals (6.1); faults and delays it does
        if not any("signal=" in injection for injection in self.injections):
            strace.append("--seccomp-bpf")
        for injection in self.injections:
            strace += ["-e", f"inject={injection}"]
        for path in self.only_paths:
            strace += ["-P", path]
        return [*strace, "-e", f"trace={','.join(CLASS_OF)}", *command]

    @property
    def program_pid(self) -> int:
        """The broker itself, whoever started it."""
        if not self._is_traced:
            return self.pid
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        assert len(children) == 1, f"strace {self.pid} has children {children}"
        return int(children[0])

    def send_signal(self, number: signal.Signals) -> None:
        os.kill(self.program_pid, number)

    def kill9(self) -> None:
        """The broker dies of it, and strace follows: a killed strace would let it go on."""
        if self.process.alive:
            self.send_signal(signal.SIGKILL)
        self.process.wait(TERMINATE_TIMEOUT_S)

    def end(self) -> None:
        """Whatever state it is in, it is gone when this returns."""
        if self._process is not None:
            self.kill9()

    def terminate(self) -> int:
        self.send_signal(signal.SIGTERM)
        return self.process.wait(TERMINATE_TIMEOUT_S)

    def traced_calls(self) -> list[Call]:
        with self.calls.open() as lines:
            return list(parse(lines))

    def injected_lines(self) -> list[str]:
        """Calls that were made to fail or to wait."""
        with self.calls.open() as lines:
            return [line for line in lines if "(INJECTED)" in line or "(DELAYED)" in line]

    def struck(self, point: Point) -> Call | None:
        """The call it died in, if it died of the injection at this point."""
        if self.process.returncode != -signal.SIGKILL:
            return None
        counts: Counter[int] = Counter()
        for call in self.traced_calls():
            if call.name == point.name:
                counts[call.pid] += 1
                if counts[call.pid] == point.when and call.result == -1:
                    return call
        return None


def path_of(call: Call) -> str:
    """The file a call is about: the one behind its descriptor, or the first it names."""
    return call.target or unhex(call.arguments.split('"')[1] if '"' in call.arguments else "")


def target(call: Call) -> str:
    """What kind of file that is: `commitlog`, `consumequeue`, `index`, `checkpoint`, a table."""
    path = path_of(call)
    for directory in ("commitlog", "consumequeue", "index"):
        if f"/{directory}" in path:
            return directory + ("/" if path.endswith(directory) else "")
    return path.rpartition("/")[2].partition(".")[0]
