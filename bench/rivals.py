"""Programs of others that are no RocketMQ server: Redis with its own load generator, and Apache's producer.

Both are measured as they come from their packages; owns their command lines and how their reports are read.
"""

from __future__ import annotations

import csv
import io
import re
import socket
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from bench.drivers import GRACE_S, Measured
from bench.place import ROOT
from tests.peers.jars import example_class_path
from tests.peers.ports import free_port
from tests.peers.process import LineProcess, poll_until

PRODUCER = "org.apache.rocketmq.example.benchmark.Producer"
REPORT_EVERY_S = 10  # the producer's default, and its least: it averages over ten snapshots of a second
CALIBRATION = 20_000
_REPORT = re.compile(
    r"Send TPS: (?P<rate>\d+) .*Average RT\(ms\): +(?P<mean>[\d.]+) .*Send Failed: (?P<failed>\d+)"
)


class Redis:
    """Debian's redis-server; every addition to a stream is in its file, synced, before it is answered."""

    def __init__(self, directory: Path) -> None:
        self._port = free_port()
        self.broker = f"127.0.0.1:{self._port}"
        self._directory = directory
        self._rates: dict[tuple[int, int], float] = {}
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._child is not None, "not started"
        return self._child.pid

    def __enter__(self) -> Self:
        subprocess.run(
            [str(ROOT / "tools" / "need.sh"), "redis-server"], check=True, stdout=subprocess.DEVNULL
        )
        self._directory.mkdir(parents=True)
        settings = {
            "port": str(self._port), "bind": "127.0.0.1", "dir": str(self._directory), "save": "",
            "appendonly": "yes", "appendfsync": "always", "auto-aof-rewrite-percentage": "0",
        }  # fmt: skip
        words = [word for name, value in settings.items() for word in (f"--{name}", value)]
        self._child = subprocess.Popen(["redis-server", *words], stdout=subprocess.DEVNULL)
        poll_until(self._answers, what=f"answer of redis at {self.broker}", timeout_s=GRACE_S)
        return self

    def _answers(self) -> bool:
        with socket.create_connection(("127.0.0.1", self._port), timeout=1) as connection:
            connection.sendall(b"PING\r\n")
            return connection.recv(16).startswith(b"+PONG")

    def calibrate(self, *, connections: int, window: int, body: int) -> None:
        """The tool counts requests, not seconds: a short run says how many a second there may be."""
        self._rates[connections, window] = self._bench(CALIBRATION, connections, window, body).rate

    def add(self, *, connections: int, window: int, body: int, seconds: int) -> Measured:
        """XADD for about so long."""
        count = max(CALIBRATION, int(self._rates[connections, window] * seconds))
        return self._bench(count, connections, window, body)

    def _bench(self, count: int, connections: int, window: int, body: int) -> Measured:
        self._forget()
        done = subprocess.run(
            ["redis-benchmark", "-p", str(self._port), "-c", str(connections), "-P", str(window),
             "-n", str(count), "--csv", "XADD", "bench", "*", "body", "x" * body],
            capture_output=True, text=True, timeout=600, check=True,
        )  # fmt: skip
        row = next(csv.DictReader(io.StringIO(done.stdout)))
        return Measured(
            float(row["rps"]),
            count,
            0,
            p50_ms=float(row["p50_latency_ms"]),
            p99_ms=float(row["p99_latency_ms"]),
        )

    def _forget(self) -> None:
        """The stream lives in memory: one run must not weigh on the next."""
        with socket.create_connection(("127.0.0.1", self._port), timeout=GRACE_S) as connection:
            connection.sendall(b"FLUSHALL\r\n")
            connection.recv(16)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._child is not None
        self._child.kill()
        self._child.wait()


def run_java_producer(directory: Path, namesrv: str, topic: str, *, reports: int) -> Measured:
    """Apache's benchmark producer with its own defaults (64 threads, 128 B), ended after so many reports.

    The rate is the last report's, of ten seconds; `p50_ms` is the mean round trip, the only one it tells.
    What was acknowledged in all it does not tell: the caller asks the broker.
    """
    command = [
        "java",
        f"-Duser.home={directory}",
        "-cp",
        example_class_path(),
        PRODUCER,
        "-n",
        namesrv,
        "-t",
        topic,
    ]
    process = LineProcess(command, log=directory / "producer.err")
    try:
        found, seen = None, 0
        for _ in range(reports):
            line = process.wait_line(
                lambda text: _REPORT.search(text) is not None,
                what="report of the producer",
                timeout_s=REPORT_EVERY_S * 3,
                after=seen,
            )
            seen = len(process.lines())
            found = _REPORT.search(line)
        assert found is not None
        return Measured(float(found["rate"]), 0, int(found["failed"]), p50_ms=float(found["mean"]))
    finally:
        process.kill()
        time.sleep(0.2)  # what it had in flight is stored or not before the broker is asked
