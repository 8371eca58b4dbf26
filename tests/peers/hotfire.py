"""Hotfire as its users see it: `hotfire up` in a process of its own, ready when it says so.

Owns the command line and the ready line; imports nothing of the program it starts.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.peers import noon, remoting
from tests.peers.apache import OTHER_NAME, OTHER_SETTINGS, FlushDiskType
from tests.peers.jars import ROOT
from tests.peers.ports import free_port
from tests.peers.process import LineProcess, queued_seconds

READY_TIMEOUT_S = 30.0
TERMINATE_TIMEOUT_S = 10.0
_READY = "hotfire ready "


class HotfireProcess:
    """One name server and one broker in one process, with its data in `directory`.

    >>> with HotfireProcess(tmp_path) as server:                          # doctest: +SKIP
    ...     server.kill9()
    ...     server.restart()
    """

    def __init__(
        self, directory: Path, *, flush_disk_type: FlushDiskType | None = None, arguments: Sequence[str] = ()
    ) -> None:
        """`arguments` are added to the command line of `hotfire up`."""
        self.directory = directory
        # chosen here: the system would choose among those that outgoing connections get, and one of them
        # may have our port when we start again
        self.namesrv = f"127.0.0.1:{free_port()}"
        self.broker = f"127.0.0.1:{free_port(-2, 1)}"
        self.ready_seconds = self.ready_cpu_seconds = self.ready_queued_seconds = 0.0
        flush = [] if flush_disk_type is None else ["--flush", flush_disk_type]
        self._arguments = [*flush, *arguments]
        self._process: LineProcess | None = None
        self._other: LineProcess | None = None
        self._other_broker = f"127.0.0.1:{free_port(-2, 1)}"

    @property
    def process(self) -> LineProcess:
        assert self._process is not None, "not started"
        return self._process

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def store(self) -> Path:
        return self.directory / "data"

    @property
    def log(self) -> Path:
        return self.directory / "hotfire.err"

    def start(self) -> Self:
        """Start and wait for the ready line. A second start takes the ports of the first."""
        assert self._process is None or not self._process.alive, "already running"
        self._process = LineProcess(self._command(), log=self.log, env=noon.ENVIRONMENT)
        try:
            line = self._process.wait_line(
                lambda text: text.startswith(_READY), what="ready line", timeout_s=READY_TIMEOUT_S
            )
        except BaseException:
            self._process.kill()
            raise
        self.ready_seconds = time.monotonic() - self._process.started_at
        self.ready_cpu_seconds = cpu_seconds(self._process.pid)
        self.ready_queued_seconds = queued_seconds(self._process.pid)
        told = dict(word.split("=", 1) for word in line.removeprefix(_READY).split())
        self.namesrv, self.broker = told["namesrv"], told["broker"]
        return self

    def _command(self) -> list[str]:
        return [
            str(executable()), "up",
            "--data", str(self.store),
            "--namesrv-port", self.namesrv.rpartition(":")[2],
            "--broker-port", self.broker.rpartition(":")[2],
            *self._arguments,
        ]  # fmt: skip

    def kill9(self) -> None:
        """The crash: no unregistration, no closing of the store."""
        self.process.kill()

    def terminate(self) -> int:
        """The orderly end; returns the exit status."""
        return self.process.terminate(TERMINATE_TIMEOUT_S)

    def restart(self) -> Self:
        """Start again on the same data and the same ports, after `kill9` or `terminate`."""
        return self.start()

    def start_broker(self) -> None:
        """As `restart`: the broker, and here the name server with it, after `kill9`."""
        self.restart()

    def start_other(self) -> None:
        """A second broker, broker-b, at the same name server. It makes no topics by itself, so that nobody
        gets to it who does not look for it. A second start takes data and port of the first."""
        settings = {
            "brokerName": OTHER_NAME,
            "bindAddress": "127.0.0.1",
            "listenPort": self._other_broker.rpartition(":")[2],
            "storePathRootDir": self.directory / "other",
            **OTHER_SETTINGS,
        }
        pairs = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
        self._other = LineProcess(
            [str(executable()), "broker", "-n", self.namesrv, *pairs],
            log=self.directory / "other.err",
            env=noon.ENVIRONMENT,
        )
        line = self._other.wait_line(
            lambda text: text.startswith(_READY), what="ready line", timeout_s=READY_TIMEOUT_S
        )
        told = dict(word.split("=", 1) for word in line.removeprefix(_READY).split())
        self._other_broker = told["broker"]

    def stop_other(self) -> None:
        assert self._other is not None, "not started"
        self._other.terminate(TERMINATE_TIMEOUT_S)

    def cut_other(self) -> None:
        remoting.unregister_broker(self.namesrv, OTHER_NAME, self._other_broker)

    def stop(self) -> None:
        if self._other is not None and self._other.alive:
            self.stop_other()
        if self._process is not None and self._process.alive:
            self.terminate()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def executable() -> Path:
    """The command installed beside this interpreter, or else in the repository's virtual environment."""
    beside = Path(sys.executable).parent / "hotfire"
    return beside if beside.exists() else ROOT / ".venv" / "bin" / "hotfire"


def cpu_seconds(pid: int) -> float:
    """Processor time a process has used, which no other process's use of the disk adds to."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
