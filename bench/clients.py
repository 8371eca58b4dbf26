"""Our client beside those of others, each at the broker it is made for: what a message costs the application.

    client-produce    a window of 512 sends of 128 B under way, every answer awaited
    client-consume    a topic's backlog brought message by message to the application's listener
    client-iterate    a topic's backlog taken message by message in a loop, hundreds fetched at a time
    client-idle       one message at a time, with a pause: from before its send until its listener has it
    client-pipeline   what our producer reaches at our broker, beside what the C load generator does

Processor time is the client's alone, of its whole process. Takes less than twenty minutes: the idle case
has more pairs than the others, for its runs differ most.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.cases import BODY_BYTES, QUEUES
from bench.clientdrive import FETCH_COUNT
from bench.compare import WRONG, say
from bench.drivers import LoadTools, settle
from bench.meter import cpu_seconds, machine_seconds
from bench.otherbrokers import Kafka, Proxy, Served, rival_python
from bench.place import RESULTS, ROOT, SCRATCH, facts
from bench.report import Piece, Run, markdown
from tests.peers import remoting
from tests.peers.apache import ApacheCluster
from tests.peers.hotfire import HotfireProcess
from tests.peers.jars import client_class_path
from tests.peers.process import LineProcess

PAIRS, IDLE_PAIRS, SECONDS = 5, 11, 4
DRIVE = ROOT / "bench" / "clientdrive.py"
BACKLOG, GRPC_BACKLOG, IDLE_MESSAGES = 300_000, 20_000, 500
LIMIT_S = 180.0
JAVA_CLIENT = "5.5.0"
CASES = ("client-produce", "client-consume", "client-iterate", "client-idle", "client-pipeline")


@dataclass
class Rig:
    """Everything that is up during the bench."""

    directory: Path
    tools: LoadTools
    hotfire: HotfireProcess
    synced: HotfireProcess
    apache: ApacheCluster
    proxy: Served
    kafka: Served
    others_python: str

    def drive(self, what: str, whose: str, topic: str, amount: int) -> dict[str, Any]:
        address, python = {
            "hotfire": (self.hotfire.namesrv, sys.executable),
            "hotfire, synced": (self.synced.namesrv, sys.executable),
            "grpc": (self.proxy.broker, self.others_python),
            "kafka": (self.kafka.broker, self.others_python),
        }[whose]
        client = whose.partition(",")[0]
        command = [python, str(DRIVE), what, client, address, topic, str(amount)]
        return told(command, self.directory / f"{what}-{whose}.err", {"HOME": str(self.directory)})

    def idle_java(self, namesrv: str, topic: str) -> dict[str, Any]:
        jars = client_class_path(JAVA_CLIENT)
        home = f"-Duser.home={self.directory}"
        command = ["java", home, "-cp", jars, "interop.Idle", namesrv, topic, str(IDLE_MESSAGES)]
        return told(command, self.directory / "idle-java.err", {})


def told(command: list[str], log: Path, env: Mapping[str, str]) -> dict[str, Any]:
    """The line of JSON that a client's process prints."""
    process = LineProcess(command, log=log, env=env)
    try:
        process.wait_line(lambda line: line == "ready", what="start of the client", timeout_s=LIMIT_S)
        line = process.wait_line(lambda line: line.startswith("{"), what="figures", timeout_s=LIMIT_S)
        return {"cpu_s": 0.0, **json.loads(line)}
    finally:
        process.kill()


class Others:
    """The share of the machine that neither the servers nor the clients of the bench have used."""

    def __init__(self, rig: Rig) -> None:
        self._pids = [one.pid for one in (rig.hotfire, rig.synced, rig.apache, rig.proxy, rig.kafka)]
        self._began_s, self._before_s = time.monotonic(), self._foreign_s()

    def _foreign_s(self) -> float:
        ours = resource.getrusage(resource.RUSAGE_CHILDREN)
        servers_s = sum(cpu_seconds(pid) for pid in self._pids)
        return machine_seconds() - servers_s - ours.ru_utime - ours.ru_stime

    def share(self) -> float:
        spent_s = (time.monotonic() - self._began_s) * (os.cpu_count() or 1)
        return max(0.0, self._foreign_s() - self._before_s) / spent_s


def turns(rig: Rig, case: str, number: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each client once; the order is turned round from pair to pair."""
    if case == "client-produce":
        for whose in in_turn(("hotfire", "grpc", "kafka"), number):
            topic = f"produce-{number}"
            if whose == "grpc":
                remoting.create_topic(rig.apache.broker, topic, QUEUES)
            if whose == "hotfire":
                remoting.create_topic(rig.hotfire.broker, topic, QUEUES)
            yield whose, rig.drive("produce", whose, topic, SECONDS)
    elif case in ("client-consume", "client-iterate"):
        what = case.removeprefix("client-")
        for whose in in_turn(("hotfire", "grpc" if what == "consume" else "kafka"), number):
            topic = f"{what}-{number}"
            yield whose, rig.drive(what, whose, topic, backlog(rig, whose, topic))
    elif case == "client-idle":
        for whose in in_turn(("hotfire", "java", "java-here"), number):
            server = rig.apache if whose == "java" else rig.hotfire
            topic = f"idle-{number}-{whose}"
            remoting.create_topic(server.broker, topic, QUEUES)
            if whose == "hotfire":
                yield whose, rig.drive("idle", whose, topic, IDLE_MESSAGES)
            else:
                yield whose, rig.idle_java(server.namesrv, topic)
    else:
        for whose in in_turn(("hotfire", "loadgen"), number):
            topic = f"pipeline-{number}"
            if whose == "hotfire":
                remoting.create_topic(rig.synced.broker, topic, QUEUES)
                yield whose, rig.drive("produce", "hotfire, synced", topic, SECONDS)
            else:
                sent = rig.tools.send(
                    rig.synced.broker, topic, connections=8, window=64, body=BODY_BYTES, seconds=SECONDS
                )
                yield whose, {"count": sent.acked, "seconds": sent.acked / sent.rate, "cpu_s": 0.0}


def in_turn(names: tuple[str, ...], number: int) -> tuple[str, ...]:
    return names if number % 2 == 0 else names[::-1]


def backlog(rig: Rig, whose: str, topic: str) -> int:
    """Fill the topic that is to be consumed; how many messages are there."""
    if whose == "kafka":
        count: int = rig.drive("produce", whose, topic, SECONDS)["count"]
        return count
    broker, count = (rig.hotfire.broker, BACKLOG) if whose == "hotfire" else (rig.apache.broker, GRPC_BACKLOG)
    remoting.create_topic(broker, topic, QUEUES)
    rig.tools.fill(broker, topic, count=count, body=BODY_BYTES, queues=QUEUES)
    return count


def measure(rig: Rig, piece: Piece, cases: list[str], pairs: int) -> None:
    for case in cases:
        for number in range(pairs if case != "client-idle" else idle_pairs(pairs)):
            try:
                settle()
                others = Others(rig)
                for whose, found in turns(rig, case, number):
                    piece.runs.append(as_run(case, whose, number, found, others.share()))
                    settle()
                    others = Others(rig)
            except WRONG as error:
                say(f"{case} {number}: {error!r:.600}")
                piece.failures[f"{case} {number}"] = repr(error)[:300]


def idle_pairs(pairs: int) -> int:
    """More than of the other cases: what a message waits for here differs from minute to minute."""
    return pairs * IDLE_PAIRS // PAIRS


def as_run(case: str, whose: str, number: int, found: Mapping[str, Any], foreign_share: float) -> Run:
    count, seconds = found["count"], found.get("seconds", 0.0)
    run = Run(
        case=case,
        server=whose,
        pair=number,
        rate=count / seconds if seconds else 0.0,
        acked=count,
        refused=0,
        p50_ms=found.get("p50_ms"),
        p99_ms=found.get("p99_ms"),
        cpu_us=found["cpu_s"] / count * 1e6,
        anonymous_bytes=found.get("anonymous_bytes", 0),
        foreign_share=foreign_share,
    )
    say(f"{case} | {whose} {run.rate:,.0f} msg/s {run.cpu_us:.2f} µs p50={run.p50_ms}ms p99={run.p99_ms}ms")
    return run


@contextmanager
def rig_in(directory: Path) -> Iterator[Rig]:
    with ExitStack() as stack:
        apache = stack.enter_context(ApacheCluster(directory / "apache"))
        yield Rig(
            directory,
            LoadTools(directory),
            stack.enter_context(HotfireProcess(directory / "hotfire", flush_disk_type="ASYNC_FLUSH")),
            stack.enter_context(HotfireProcess(directory / "synced")),
            apache,
            stack.enter_context(Proxy(directory / "proxy", apache.namesrv)),
            stack.enter_context(Kafka(directory / "kafka")),
            rival_python(),
        )


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=PAIRS)
    parser.add_argument("--only", action="append", choices=CASES)
    chosen = parser.parse_args(arguments)
    SCRATCH.mkdir(parents=True, exist_ok=True)
    piece = Piece(
        {
            **facts(),
            "brokers": "Hotfire, Apache RocketMQ 5.5.0 (its proxy in front for gRPC), Kafka 4.1.0; none"
            " syncs, but Hotfire where it is to be kept busy",
            "clients": "Hotfire's, rocketmq-python-client 5.1.2, aiokafka 0.14.0, Java 5.5.0; each at its"
            " broker (java-here: Java's at Hotfire)",
            "idle": "java is Java's push consumer at Apache's broker, which the goal is beside; java-here the"
            " same at Hotfire's, reported",
            "loops": f"ours fetches with batch_count={FETCH_COUNT} (10 unless it is told), aiokafka's up to a"
            " mebibyte, as it does untold",
            "CPU": "the client's user and system time, per message",
            "runs": f"median of {chosen.pairs} pairs in turn, of {idle_pairs(chosen.pairs)} of"
            f" {IDLE_MESSAGES} messages in the idle case",
        }
    )
    with tempfile.TemporaryDirectory(dir=SCRATCH) as name, rig_in(Path(name)) as rig:
        measure(rig, piece, chosen.only or list(CASES), chosen.pairs)
    results = SCRATCH if arguments else RESULTS
    piece.write(results / f"clients-{datetime.now(UTC).strftime('%Y-%m-%dT%H%M%SZ')}.json")
    text = markdown("Bench of clients", [piece], RESULTS)
    (results / "clients-latest.md").write_text(text)
    print(text)
    return 1 if piece.failures else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
