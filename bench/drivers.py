"""The load tools that belong to no broker: compiled here, run on loopback, their one line of results read.

Owns the command lines of `loadgen`, `pullgen`, `floor` and of our own, whose sources are beside this; knows
nothing of the servers they are aimed at.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.peers.jars import ROOT
from tests.peers.ports import free_port
from tests.peers.process import poll_until

SOURCES = Path(os.environ.get("HOTFIRE_LOAD_TOOLS", ROOT.parent / "shared" / "tools"))
_LIBRARIES = {"loadgen": [], "pullgen": [], "floor": ["-lz"]}
OUR_SOURCES = ROOT / "bench"
_OURS = ("batchgen", "tailgen", "txgen", "askgen", "timergen")
# A count that is to be stored is stored at this rate at least, or something is wrong.
FILL_RATE_MIN = 2000
# Beyond the time a tool was asked to run: connecting, creating the topic, ending.
GRACE_S = 20
# timergen's own patience with what is late.
TIMERS_GRACE_S = 60
# loadgen's and pullgen's exit status when they measured, but some replies were refusals.
SOME_REFUSED = 5

_SENT = re.compile(
    r"(?P<rate>\d+) msg/s acked=(?P<acked>\d+) bad=(?P<refused>\d+)"
    r" p50=(?P<p50>[-\d.]+)ms p90=(?P<p90>[-\d.]+)ms p99=(?P<p99>[-\d.]+)ms p99.9=(?P<p999>[-\d.]+)ms"
)
_PULLED = re.compile(
    r"(?P<rate>\d+) msg/s (?P<megabytes>[\d.]+) MB/s msgs=(?P<acked>\d+) replies=\d+ bad=(?P<refused>\d+)"
)


@dataclass(frozen=True)
class Measured:
    """One run of a tool: messages per second over its measured part, and all messages it saw answered."""

    rate: float
    acked: int
    refused: int
    p50_ms: float | None = None
    p99_ms: float | None = None


class LoadTools:
    """Compiled tools in a directory that the caller removes."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        if shutil.which("gcc") is None:
            raise SystemExit("bench: no gcc on this machine; the load tools are C programs")
        for name, libraries in _LIBRARIES.items():
            source = SOURCES / f"{name}.c"
            if not source.exists():
                raise SystemExit(
                    f"bench: no {source}; set HOTFIRE_LOAD_TOOLS to the directory of the load tools"
                )
            _compile(source, directory / name, libraries)
        for name in _OURS:
            _compile(OUR_SOURCES / f"{name}.c", directory / name, [])

    def send(
        self,
        broker: str,
        topic: str,
        *,
        connections: int,
        window: int,
        body: int,
        seconds: int,
        queues: int = 4,
    ) -> Measured:
        shape = [str(connections), str(window), str(body), str(seconds), "json", str(queues)]
        return _sent(self._run("loadgen", broker, topic, shape, seconds=seconds, pattern=_SENT))

    def send_batches(
        self,
        broker: str,
        topic: str,
        *,
        connections: int,
        window: int,
        batch: int,
        body: int,
        seconds: int,
        queues: int,
        topics: int = 0,
    ) -> Measured:
        """With `topics` they are named `topic`-0 and so on, each of so many queues."""
        shape = list(map(str, (connections, window, batch, body, seconds, queues, 0, topics)))
        return _sent(self._run("batchgen", broker, topic, shape, seconds=seconds, pattern=_SENT))

    def fill(
        self,
        broker: str,
        topic: str,
        *,
        count: int,
        body: int,
        queues: int,
        topics: int = 0,
        rate_min: int = FILL_RATE_MIN,
        keyed: bool = False,
    ) -> Measured:
        """So many messages, one by one, as fast as they are taken, which is `rate_min` a second at least.

        `keyed`: each has keys of 16 characters.
        """
        seconds = GRACE_S + count // rate_min
        shape = list(map(str, (8, 64, 1, body, seconds, queues, count, topics, int(keyed))))
        return _sent(self._run("batchgen", broker, topic, shape, seconds=seconds, pattern=_SENT))

    def tails(
        self,
        broker: str,
        topic: str,
        *,
        groups: int,
        rate: int,
        window: int,
        body: int,
        seconds: float,
        first: int,
        warm_s: float | None = None,
        beside: subprocess.Popen[str] | None = None,
    ) -> Measured:
        """One writer into queue 0; the percentiles are of the way from its sending into each group, after
        `warm_s` or a quarter of the time. If it is `beside` another process it ends with that, at the latest
        after `seconds`."""
        shape = list(map(str, (groups, rate, window, body, seconds, first)))
        shape += [] if warm_s is None else [str(warm_s)]
        return _sent(
            self._run("tailgen", broker, topic, shape, seconds=seconds, pattern=_SENT, beside=beside)
        )

    def pull(
        self,
        broker: str,
        topic: str,
        *,
        queues: int,
        readers: int,
        batch: int,
        seconds: int,
    ) -> Measured:
        shape = [str(queues), str(readers), str(batch), str(seconds)]
        found = self._run("pullgen", broker, topic, shape, seconds=seconds, pattern=_PULLED)
        return Measured(float(found["rate"]), int(found["acked"]), int(found["refused"]))

    def transactions(
        self,
        broker: str,
        topic: str,
        *,
        connections: int,
        window: int,
        body: int,
        seconds: int,
        queues: int,
    ) -> Measured:
        """Half message and commit, both answered; one transaction is one message."""
        shape = list(map(str, (connections, window, body, seconds, queues)))
        return self._exact("txgen", broker, topic, shape, seconds=seconds)

    def fill_asked(
        self, broker: str, topic: str, *, count: int, body: int, queues: int, keys: int
    ) -> Measured:
        """What `pull_by_condition` and `query_keys` look for."""
        shape = ["fill", *map(str, (count, body, queues, keys))]
        return self._exact("askgen", broker, topic, shape, seconds=GRACE_S + count // FILL_RATE_MIN)

    def pull_by_condition(
        self,
        broker: str,
        topic: str,
        *,
        count: int,
        body: int,
        queues: int,
        readers: int,
        batch: int,
        seconds: int,
        group: str,
        version: int,
    ) -> Measured:
        """The group's condition is one in ten's, and the broker knows it by a heartbeat of that version."""
        shape = ["sql", *map(str, (count, body, queues, readers, batch, seconds, group, version))]
        return self._exact("askgen", broker, topic, shape, seconds=seconds)

    def query_keys(
        self,
        broker: str,
        topic: str,
        *,
        count: int,
        body: int,
        keys: int,
        connections: int,
        window: int,
        seconds: int,
    ) -> Measured:
        shape = ["keys", *map(str, (count, body, keys, connections, window, seconds))]
        return self._exact("askgen", broker, topic, shape, seconds=seconds)

    def timers(
        self,
        broker: str,
        topic: str,
        *,
        connections: int,
        window: int,
        body: int,
        count: int,
        ahead_ms: int,
        spread_ms: int,
        queues: int,
        burst: bool,
    ) -> Measured:
        """Until all have come; the rate is the intake's, or with `burst` the delivery's."""
        shape = list(map(str, (connections, window, body, count, ahead_ms, spread_ms, queues, int(burst))))
        seconds = GRACE_S + count // FILL_RATE_MIN + (ahead_ms + spread_ms) // 1000
        return self._exact("timergen", broker, topic, shape, seconds=seconds + TIMERS_GRACE_S)

    def _exact(self, tool: str, broker: str, topic: str, shape: list[str], *, seconds: int) -> Measured:
        """Of a tool that checks what comes: a single wrong answer ends it with another status."""
        return _sent(self._run(tool, broker, topic, shape, seconds=seconds, pattern=_SENT))

    def _run(
        self,
        tool: str,
        broker: str,
        topic: str,
        shape: list[str],
        *,
        seconds: float,
        pattern: re.Pattern[str],
        beside: subprocess.Popen[str] | None = None,
    ) -> re.Match[str]:
        host, _, port = broker.rpartition(":")
        command = [str(self._directory / tool), host, port, topic, *shape]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            try:
                if beside is not None:
                    with suppress(subprocess.TimeoutExpired):
                        beside.wait(seconds)
                    process.terminate()
                output, errors = process.communicate(timeout=seconds + GRACE_S)
            except BaseException:
                process.kill()
                raise
        found = pattern.search(output)
        if found is None or process.returncode not in (0, SOME_REFUSED):
            raise RuntimeError(f"{' '.join(command)}: status {process.returncode}: {output}{errors}")
        return found

    def floor(self, directory: Path, *, sync: bool) -> Floor:
        return Floor(self._directory / "floor", directory, sync=sync)


def _compile(source: Path, program: Path, libraries: list[str]) -> None:
    subprocess.run(["gcc", "-O2", "-o", str(program), str(source), *libraries], check=True)


def _sent(found: re.Match[str]) -> Measured:
    return Measured(
        float(found["rate"]),
        int(found["acked"]),
        int(found["refused"]),
        p50_ms=float(found["p50"]),
        p99_ms=float(found["p99"]),
    )


class Floor:
    """The least a broker could do; a limit to measure against, not a broker."""

    def __init__(self, program: Path, directory: Path, *, sync: bool) -> None:
        self._port = free_port()
        self.broker = f"127.0.0.1:{self._port}"
        directory.mkdir(parents=True, exist_ok=True)
        self._command = [
            str(program),
            str(self._port),
            str(directory / "floor.log"),
            "sync" if sync else "none",
        ]
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._child is not None, "not started"
        return self._child.pid

    def __enter__(self) -> Self:
        self._child = subprocess.Popen(self._command)
        poll_until(self._accepts, what=f"listener of the floor at {self.broker}", timeout_s=GRACE_S)
        return self

    def _accepts(self) -> bool:
        with socket.create_connection(("127.0.0.1", self._port), timeout=1):
            return True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._child is not None
        self._child.kill()
        self._child.wait()


def settle() -> None:
    """Write out what the last run left dirty, so that the next one does not pay for it."""
    os.sync()
    time.sleep(0.2)
