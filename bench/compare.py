"""Hotfire beside Apache RocketMQ on this machine: the same load in turns, the median of the pairs.

Both servers stay up; one at a time is under load, the other idles. A JVM needs about a minute of load
before it is at its best, so Apache gets one first. Everything is on loopback and bounded in time.
`make bench` takes about 15 minutes; `--quick` one pair of short runs.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from bench.drivers import LoadTools, Measured, settle
from bench.meter import Meter, anonymous_bytes
from bench.report import Run, markdown
from tests.peers import remoting
from tests.peers.apache import ApacheCluster, FlushDiskType
from tests.peers.hotfire import HotfireProcess
from tests.peers.jars import ROOT, SERVER_VERSION

RESULTS = ROOT / "bench" / "results"
# Stores and the results of partial runs. Not below /tmp, which may be memory, where a sync is free.
SCRATCH = ROOT / "build" / "bench"
BODY_BYTES = 128
SEND_QUEUES = 4  # loadgen's default, and what its first message creates
PULL_BODY_BYTES, PULL_BATCH, PULL_QUEUES, PULL_READERS = 1024, 32, 4, 2
READY_STARTS = 5
FLUSH_NAMES: dict[FlushDiskType, str] = {"SYNC_FLUSH": "synced", "ASYNC_FLUSH": "not synced"}
_topics = itertools.count(1)


class Server(Protocol):
    """Anything that is measured: where it listens and which process pays."""

    @property
    def pid(self) -> int: ...
    @property
    def broker(self) -> str: ...


@dataclass(frozen=True)
class Plan:
    pairs: int
    seconds: int
    warm_seconds: int
    complete: bool
    only: str | None
    shapes: tuple[tuple[int, int], ...]
    flushes: tuple[FlushDiskType, ...]

    def measures(self, server: str) -> bool:
        return self.only in (None, server)


@dataclass
class Bench:
    plan: Plan
    tools: LoadTools
    directory: Path
    runs: list[Run]
    ready_seconds: dict[str, list[float]]

    def measure_flush_mode(self, flush: FlushDiskType) -> None:
        """All shapes of load for one flush mode, then pulling, which does not depend on it, once."""
        with self._servers(flush) as servers:
            for connections, window in self.plan.shapes:
                case = f"send {BODY_BYTES} B, {connections} × {window}, {FLUSH_NAMES[flush]}"
                for pair in range(self.plan.pairs):
                    for name in _in_turn(servers, pair):
                        self._send(case, name, servers[name], pair, connections=connections, window=window)
            if flush == self.plan.flushes[-1]:
                self._measure_pull({name: server for name, server in servers.items() if name != "floor"})

    @contextmanager
    def _servers(self, flush: FlushDiskType) -> Iterator[dict[str, Server]]:
        place = self.directory / flush
        with ExitStack() as stack:
            servers: dict[str, Server] = {}
            if self.plan.measures("hotfire"):
                hotfire = stack.enter_context(HotfireProcess(place / "hotfire", flush_disk_type=flush))
                servers["hotfire"] = hotfire
                self._warm("hotfire", hotfire, seconds=3)
            if self.plan.measures("apache"):
                apache = stack.enter_context(ApacheCluster(place / "apache", flush_disk_type=flush))
                self.ready_seconds.setdefault("apache", []).append(apache.ready_seconds)
                servers["apache"] = apache
                self._warm("apache", apache, seconds=self.plan.warm_seconds)
            if self.plan.measures("floor"):
                sync = flush == "SYNC_FLUSH"
                servers["floor"] = stack.enter_context(self.tools.floor(place / "floor", sync=sync))
            yield servers
        shutil.rmtree(place)

    def _warm(self, name: str, server: Server, *, seconds: int) -> None:
        _say(f"warming {name} for {seconds} s")
        self.tools.send(
            server.broker, "bench-warm", connections=8, window=64, body=BODY_BYTES, seconds=seconds
        )

    def _measure_pull(self, servers: dict[str, Server]) -> None:
        topic = "bench-pull"
        for server in servers.values():
            self.tools.send(server.broker, topic, connections=8, window=64, body=PULL_BODY_BYTES, seconds=3)
        case = f"pull {PULL_BATCH} × {PULL_BODY_BYTES} B, {PULL_QUEUES} queues × {PULL_READERS} readers"
        for pair in range(self.plan.pairs):
            for name in _in_turn(servers, pair):
                self._pull(case, name, servers[name], pair, topic)

    def _send(
        self, case: str, name: str, server: Server, pair: int, *, connections: int, window: int
    ) -> None:
        topic = f"bench-{next(_topics)}"
        settle()
        meter = Meter(server.pid)
        measured = self.tools.send(
            server.broker,
            topic,
            connections=connections,
            window=window,
            body=BODY_BYTES,
            seconds=self.plan.seconds,
        )
        self._note(case, name, server, pair, measured, *meter.stop())
        if name != "floor":
            _check_stored(server, topic, measured.acked, in_flight_max=connections * window)

    def _pull(self, case: str, name: str, server: Server, pair: int, topic: str) -> None:
        settle()
        meter = Meter(server.pid)
        measured = self.tools.pull(
            server.broker,
            topic,
            queues=PULL_QUEUES,
            readers=PULL_READERS,
            batch=PULL_BATCH,
            seconds=self.plan.seconds,
        )
        self._note(case, name, server, pair, measured, *meter.stop())

    def _note(
        self,
        case: str,
        name: str,
        server: Server,
        pair: int,
        measured: Measured,
        cpu_s: float,
        foreign_share: float,
    ) -> None:
        run = Run(
            case=case,
            server=name,
            pair=pair,
            **asdict(measured),
            cpu_us=cpu_s / max(measured.acked, 1) * 1e6,
            anonymous_bytes=anonymous_bytes(server.pid),
            foreign_share=foreign_share,
        )
        self.runs.append(run)
        latency = "" if run.p99_ms is None else f" p50={run.p50_ms:.2f}ms p99={run.p99_ms:.2f}ms"
        _say(f"{case} | {name} {run.rate:,.0f} msg/s {run.cpu_us:.1f} µs{latency} others={foreign_share:.0%}")

    def measure_ready_time(self) -> None:
        """From exec to the ready line, on an empty directory each time."""
        for start in range(READY_STARTS if self.plan.measures("hotfire") else 0):
            place = self.directory / f"ready-{start}"
            with HotfireProcess(place) as server:
                self.ready_seconds.setdefault("hotfire", []).append(server.ready_seconds)
            shutil.rmtree(place)


def _in_turn(servers: dict[str, Server], pair: int) -> list[str]:
    """Every other pair in the other order: whoever comes second must not always be the same."""
    names = list(servers)
    return names if pair % 2 == 0 else names[::-1]


def _check_stored(server: Server, topic: str, acked: int, *, in_flight_max: int) -> None:
    """A figure counts only if what was acknowledged is there to be read."""
    offsets = remoting.max_offsets(server.broker, topic, SEND_QUEUES)
    if not acked <= sum(offsets) <= acked + in_flight_max:
        raise RuntimeError(f"{topic}: {acked} acknowledged, but the queues end at {offsets}")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _facts(plan: Plan) -> dict[str, str]:
    asked = subprocess.run(
        ["git", "-C", str(ROOT), "describe", "--always", "--dirty"],
        capture_output=True,
        text=True,
        check=False,
    )
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "machine": f"{os.cpu_count()} cores shared with the driver, Linux {platform.release()}",
        "Hotfire": f"{asked.stdout.strip() or 'unknown'}, Python {platform.python_version()}",
        "Apache RocketMQ": f"{SERVER_VERSION}, 1 GiB heap, G1, after {plan.warm_seconds} s of load",
        "runs": f"median of {plan.pairs} alternating pairs of {plan.seconds} s each",
        "CPU": "the server's user and system time, per message",
        "floor": "a C program that understands nothing and does the least a broker could do",
    }


def _parse(arguments: list[str]) -> Plan:
    parser = argparse.ArgumentParser(
        description="Hotfire beside Apache RocketMQ under the same load, in turns"
    )
    parser.add_argument("--quick", action="store_true", help="one pair of 3 s runs after 10 s of warming")
    parser.add_argument("--only", choices=["hotfire", "apache", "floor"], help="one server alone")
    parser.add_argument("--pairs", type=int, help="pairs per case (5)")
    parser.add_argument("--seconds", type=int, help="length of a run (8)")
    parser.add_argument(
        "--shape", action="append", metavar="CONNS×WINDOW", help="e.g. 8x64; may be repeated (8x64 64x1 1x1)"
    )
    parser.add_argument("--flush", choices=sorted(FLUSH_NAMES), help="one flush mode alone")
    chosen = parser.parse_args(arguments)
    shapes = [shape.lower().replace("×", "x").split("x") for shape in chosen.shape or ("8x64", "64x1", "1x1")]
    return Plan(
        pairs=chosen.pairs or (1 if chosen.quick else 5),
        seconds=chosen.seconds or (3 if chosen.quick else 8),
        warm_seconds=10 if chosen.quick else 60,
        complete=not arguments,
        only=chosen.only,
        shapes=tuple((int(connections), int(window)) for connections, window in shapes),
        flushes=(chosen.flush,) if chosen.flush else tuple(FLUSH_NAMES),
    )


def main(arguments: list[str]) -> int:
    plan = _parse(arguments)
    facts = _facts(plan)
    SCRATCH.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=SCRATCH) as temporary:
        bench = Bench(plan, LoadTools(Path(temporary)), Path(temporary), [], {})
        bench.measure_ready_time()
        for flush in plan.flushes:
            bench.measure_flush_mode(flush)
    text = markdown(bench.runs, bench.ready_seconds, facts)
    print(text)
    raw = {"facts": facts, "ready_seconds": bench.ready_seconds, "runs": [asdict(run) for run in bench.runs]}
    results = RESULTS if plan.complete else SCRATCH
    results.mkdir(parents=True, exist_ok=True)
    stamp = datetime.now(UTC).strftime("%Y-%m-%dT%H%M%SZ")
    (results / f"{stamp}.json").write_text(json.dumps(raw, indent=1) + "\n")
    (results / "latest.md").write_text(text)
    return 0
