"""What is up while Spark is measured: two brokers with the same rows, and sessions that do as they are told.

Owns how sessions are started and asked, what their process trees cost, and what the topics are filled with.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from bench.cases import BODY_BYTES
from bench.drivers import LoadTools
from bench.meter import anonymous_bytes, cpu_seconds, finished_children_seconds, machine_seconds, tree_seconds
from bench.otherbrokers import POMS, Kafka
from bench.place import ROOT
from tests.peers import remoting
from tests.peers.hotfire import HotfireProcess
from tests.peers.jars import CACHE, class_path
from tests.peers.process import LineProcess

QUEUES = 8
TOPIC = "bench"
ANSWER_S = 900.0
CONNECTOR = "spark-kafka"


class Session:
    """A Spark of its own, in its own process; see sparkdrive."""

    def __init__(self, log: Path, *, with_kafka: bool) -> None:
        settings = {"spark.jars": ",".join(kafka_jars())} if with_kafka else {}
        settings["spark.sql.streaming.numRecentProgressUpdates"] = "100000"
        # the directories Spark makes for itself, beside the log and not wherever we were started
        settings["spark.local.dir"] = settings["spark.sql.warehouse.dir"] = str(log.parent / "spark")
        self._process = LineProcess(
            [sys.executable, "-m", "bench.sparkdrive", json.dumps(settings)],
            log=log,
            env={"PYTHONPATH": str(ROOT)},
        )
        self._answers = 1  # `ready` is the first line

    @property
    def pid(self) -> int:
        return self._process.pid

    def __enter__(self) -> Self:
        self._process.wait_line(lambda line: line == "ready", what="Spark session", timeout_s=ANSWER_S)
        return self

    def ask(self, do: str, **asked: Any) -> dict[str, Any]:
        """The answer; RuntimeError when Spark could not do it."""
        self._process.tell(json.dumps({"do": do, **asked}))
        line = self._process.wait_line(
            lambda line: line.startswith("{"), what=f"answer to {do}", timeout_s=ANSWER_S, after=self._answers
        )
        self._answers = len(self._process.lines())
        told: dict[str, Any] = json.loads(line)
        if "error" in told:
            raise RuntimeError(f"{do} {asked.get('format')}: {told['error']}")
        return told

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.end(timeout_s=60.0)


def kafka_jars() -> list[str]:
    class_path(CONNECTOR, POMS / "sparkkafka.xml")
    return sorted(str(path) for path in (CACHE / CONNECTOR / "lib").glob("*.jar"))


def connector_versions() -> str:
    return ", ".join(Path(jar).stem.replace("_2.13", "") for jar in kafka_jars())


@dataclass
class Rig:
    """The brokers, both filled with `rows` rows of 128 B under topic TOPIC, in QUEUES queues."""

    directory: Path
    tools: LoadTools
    hotfire: HotfireProcess
    kafka: Kafka
    rows: int

    def fill(self) -> None:
        """Hotfire from ordinary sends of many producers, whose queues lie between each other in the log."""
        remoting.create_topic(self.hotfire.broker, TOPIC, QUEUES)
        self.tools.fill(
            self.hotfire.broker, TOPIC, count=self.rows, body=BODY_BYTES, queues=QUEUES, keyed=True
        )


@contextmanager
def rig_in(directory: Path, rows: int) -> Iterator[Rig]:
    with ExitStack() as stack:
        rig = Rig(
            directory,
            LoadTools(directory),
            stack.enter_context(HotfireProcess(directory / "hotfire", flush_disk_type="ASYNC_FLUSH")),
            stack.enter_context(Kafka(directory / "kafka", partitions=QUEUES)),
            rows,
        )
        rig.fill()
        yield rig


class SparkMeter:
    """What a session and the servers it uses have spent since it was made; see also `meter`."""

    def __init__(self, session: Session, server_pid: int | None) -> None:
        self._session, self._server_pid = session, server_pid
        self._began = time.monotonic()
        self._before = self._now()

    def _now(self) -> tuple[float, float, float]:
        server_s = 0.0 if self._server_pid is None else cpu_seconds(self._server_pid)
        return (
            tree_seconds(self._session.pid),
            server_s,
            machine_seconds() - time.process_time() - finished_children_seconds(),
        )

    def stop(self) -> tuple[float, float, float]:
        """Processor seconds of the session's tree, of the server, and others' share of the machine."""
        spark_s, server_s, machine_s = (
            after - before for after, before in zip(self._now(), self._before, strict=True)
        )
        capacity_s = (time.monotonic() - self._began) * (os.cpu_count() or 1)
        return spark_s, server_s, max(0.0, machine_s - spark_s - server_s) / capacity_s

    def anonymous_bytes(self) -> int:
        return anonymous_bytes(self._session.pid)
