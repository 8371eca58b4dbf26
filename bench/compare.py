"""Hotfire beside Apache RocketMQ on this machine: the same load in turns, the median of the pairs.

The servers of a flush mode stay up; one at a time is under load, the others stand still. A JVM needs about a
minute of load before it is at its best, so Apache gets one first. Everything is on loopback and bounded in
time.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from bench.cases import BODY_BYTES, FLUSHES, Case, Fresh, Server
from bench.drivers import LoadTools, Measured, settle
from bench.meter import Meter, anonymous_bytes
from bench.place import facts
from bench.report import Piece, Run
from bench.rivals import Redis
from tests.peers.apache import ApacheCluster
from tests.peers.hotfire import HotfireProcess
from tests.peers.jars import SERVER_VERSION
from tests.peers.process import ProcessFailed
from tests.peers.remoting import Refused

READY_STARTS = 5
REASON_CHARS_MAX = 300
# What a server or a driver may do wrong; the case is then reported as not measured and the next one begins.
WRONG = (
    RuntimeError,
    OSError,
    AssertionError,
    subprocess.SubprocessError,
    ProcessFailed,
    Refused,
    TimeoutError,
)


@dataclass(frozen=True)
class Plan:
    pairs: int
    seconds: int
    warm_seconds: int
    cases: tuple[Case, ...]
    servers: tuple[str, ...]
    ready: bool
    apache_settings: Mapping[str, str] = field(default_factory=dict)

    def facts(self) -> dict[str, str]:
        return {
            **facts(),
            "Apache RocketMQ": f"{SERVER_VERSION}, 1 GiB heap, G1, after {self.warm_seconds} s of load",
            "Redis": "Debian's, streams, appendonly with appendfsync always, redis-benchmark as its driver",
            "runs": f"median of {self.pairs} alternating pairs of {self.seconds} s each",
            "CPU": "the server's user and system time, per message; drivers share the cores",
            "fresh": "another Hotfire with nothing in it: the same load on 16 queues, or with one group",
            "floor": "a C program that understands nothing and does the least a broker could do",
        }


@dataclass
class Bench:
    plan: Plan
    tools: LoadTools
    directory: Path
    piece: Piece

    def run(self) -> None:
        if self.plan.ready:
            self._measure_ready_time()
        for flush in FLUSHES:
            if cases := [case for case in self.plan.cases if case.flush == flush]:
                with self._rivals(flush, cases) as rivals:
                    for case in cases:
                        self._measure(case, rivals)

    def _measure(self, case: Case, rivals: dict[str, Server]) -> None:
        """One case in turns. Hotfire starts empty for each: all its logs together would fill a disk."""
        place = self.directory / case.name
        servers = {name: rivals[name] for name in case.rivals if name in rivals}
        try:
            with ExitStack() as stack:
                if "hotfire" in self.plan.servers:
                    servers = {"hotfire": self._ours(case, place / "hotfire", stack), **servers}
                    if "fresh" in case.rivals:
                        servers["fresh"] = Fresh(self._ours(case, place / "fresh", stack))
                self._take_turns(case, servers)
        except WRONG as error:
            self._blame(case, "hotfire", error)
        shutil.rmtree(place, ignore_errors=True)

    def _ours(self, case: Case, place: Path, stack: ExitStack) -> HotfireProcess:
        server = stack.enter_context(HotfireProcess(place, flush_disk_type=FLUSHES[case.flush]))
        self._warm("hotfire", server, seconds=1)
        return server

    def _take_turns(self, case: Case, servers: dict[str, Server]) -> None:
        for name in list(servers):
            with self._noted(case, name, servers):
                case.prepare(self.tools, servers[name])
        for pair in range(min(self.plan.pairs, case.pairs_max)):
            for name in _in_turn(servers, pair):
                with self._noted(case, name, servers), _alone(servers, name):
                    self._turn(case, name, servers[name], pair)

    @contextmanager
    def _noted(self, case: Case, name: str, servers: dict[str, Server]) -> Iterator[None]:
        """A server that fails at a case is left out of the rest of it, and the page says why."""
        try:
            yield
        except WRONG as error:
            del servers[name]
            self._blame(case, name, error)

    def _blame(self, case: Case, name: str, error: BaseException) -> None:
        self.piece.failures[f"{case.name} {name}"] = " ".join(str(error).split())[:REASON_CHARS_MAX]
        say(f"{case.name} | {name} FAILED: {error}")

    @contextmanager
    def _rivals(self, flush: str, cases: list[Case]) -> Iterator[dict[str, Server]]:
        """Those of the plan that one of these cases asks for, warmed."""
        wanted = {name for case in cases for name in case.rivals} & set(self.plan.servers)
        place = self.directory / flush
        with ExitStack() as stack:
            rivals: dict[str, Server] = {}
            if "apache" in wanted:
                apache = ApacheCluster(
                    place / "apache", flush_disk_type=FLUSHES[flush], settings=self.plan.apache_settings
                )
                rivals["apache"] = stack.enter_context(apache)
                self.piece.ready_seconds.setdefault("apache", []).append(apache.ready_seconds)
                self._warm("apache", apache, seconds=self.plan.warm_seconds)
            if "floor" in wanted:
                floor = self.tools.floor(place / "floor", sync=flush == "sync")
                rivals["floor"] = stack.enter_context(floor)
            if "redis" in wanted:
                rivals["redis"] = stack.enter_context(Redis(place / "redis"))
            yield rivals
        shutil.rmtree(place, ignore_errors=True)

    def _warm(self, name: str, server: Server, *, seconds: int) -> None:
        say(f"warming {name} for {seconds} s")
        self.tools.send(
            server.broker, "bench-warm", connections=8, window=64, body=BODY_BYTES, seconds=seconds
        )

    def _turn(self, case: Case, name: str, server: Server, pair: int) -> None:
        settle()
        meter = Meter(server.pid)
        measured = case.drive(self.tools, server, self.plan.seconds)
        self._note(case, name, server, pair, measured, *meter.stop())

    def _note(
        self,
        case: Case,
        name: str,
        server: Server,
        pair: int,
        measured: Measured,
        cpu_s: float,
        foreign_share: float,
    ) -> None:
        if not measured.acked:
            raise RuntimeError(f"{case.name}: nothing was taken of it, {measured.refused} refused")
        run = Run(
            case=case.name,
            server=name,
            pair=pair,
            **asdict(measured),
            cpu_us=cpu_s / measured.acked * 1e6,
            anonymous_bytes=anonymous_bytes(server.pid),
            foreign_share=foreign_share,
        )
        self.piece.runs.append(run)
        latency = "".join(
            f" {figure}={value:.2f}ms"
            for figure, value in (("p50", run.p50_ms), ("p99", run.p99_ms))
            if value
        )
        others = f"others={foreign_share:.0%}"
        say(f"{case.title} | {name} {run.rate:,.0f} msg/s {run.cpu_us:.2f} µs{latency} {others}")

    def _measure_ready_time(self) -> None:
        """From exec to the ready line, on an empty directory each time."""
        for start in range(READY_STARTS):
            place = self.directory / f"ready-{start}"
            with HotfireProcess(place) as server:
                self.piece.ready_seconds.setdefault("hotfire", []).append(server.ready_seconds)
            shutil.rmtree(place)


def _in_turn(servers: dict[str, Server], pair: int) -> list[str]:
    """Every other pair in the other order: whoever comes second must not always be the same."""
    names = list(servers)
    return names if pair % 2 == 0 else names[::-1]


@contextmanager
def _alone(servers: dict[str, Server], name: str) -> Iterator[None]:
    """The others stand still meanwhile: one may have work left from its own turn."""
    others = [server.pid for other, server in servers.items() if other != name]
    for pid in others:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in others:
            os.kill(pid, signal.SIGCONT)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
