"""Spark with Hotfire, beside its Kafka connector, its Parquet scan and the most that its interface allows.

    spark-store     a store's files read (format hotfire-store), all columns, beside Parquet files of the same
                    rows, and beside batches built from nothing: the most a source written in Python can do
    spark-batch     a topic read, of each message what Kafka's connector tells of its own; beside it a topic
                    of Kafka's with the same rows
    spark-batch-all the same, every column
    spark-now       the same as a stream that ends with what is there
    spark-sink      rows written, beside Kafka's sink
    spark-trigger   how long a batch of a stream takes at 20 000 rows a second

Each of those compared has a Spark session of its own that stays up; they take turns, every second time in the
other order. What counts is rows per second of processor time, of all that works for them: the JVM, the Python
workers, and the broker. Takes about fifteen minutes.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from statistics import quantiles
from typing import Any

from bench import memory
from bench.cases import BODY_BYTES
from bench.compare import WRONG, say
from bench.drivers import settle
from bench.place import RESULTS, SCRATCH, facts
from bench.report import Piece, Run, markdown, read_piece
from bench.sparkdrive import CORES, FIRST_BATCH_S, HEAP
from bench.sparkrig import QUEUES, TOPIC, Rig, Session, SparkMeter, connector_versions, rig_in
from tests.peers import remoting
from tests.peers.hotfire import executable

ROWS, SINK_ROWS = 4_000_000, 1_000_000
PAIRS, WARM, TRIGGER_PAIRS = 5, 4, 3
RATE, TRIGGER_WARM_S, TRIGGER_S = 20_000, 8, 12
COLUMNS = "keys string, body binary, topic string, queueId int, queueOffset bigint, storeTimestamp timestamp"
"""Of a message, what Kafka's fixed columns have of theirs."""
KAFKA_COLUMNS = "key, value, topic, partition, offset, timestamp, timestampType"
COMPARED: dict[str, tuple[str, ...]] = {
    "spark-store": ("hotfire", "ceiling", "parquet"),
    "spark-batch": ("hotfire", "kafka"),
    "spark-batch-all": ("hotfire",),
    "spark-now": ("hotfire", "kafka"),
    "spark-sink": ("hotfire", "kafka"),
    "spark-trigger": ("hotfire", "rate"),
}
GROUPS = (("spark-store",), ("spark-batch", "spark-batch-all", "spark-now", "spark-sink"), ("spark-trigger",))
"""Cases that share their sessions."""


@dataclass
class Turns:
    """Sessions by whose they are, and what they are asked."""

    rig: Rig
    sessions: dict[str, Session]
    sample: str = ""

    def asked(self, case: str, whose: str, number: int) -> dict[str, Any]:
        """The query of one turn."""
        if case == "spark-store":
            return {"do": "read", **self._stored(whose)}
        if case == "spark-batch":
            return {"do": "read", **self._live(whose)}
        if case == "spark-batch-all":
            found = self._live(whose)
            return {
                "do": "read",
                **found,
                "options": {**found["options"], "includeHeaders": "true"},
                "schema": "",
            }
        if case == "spark-now":
            found = self._live(whose)
            return {"do": "stream", **found, "options": {**found["options"], "startingOffsets": "earliest"}}
        if case == "spark-sink":
            return {"do": "write", **self._sink(whose, f"sink-{number}")}
        assert case == "spark-trigger", case
        seconds = {"warm_s": TRIGGER_WARM_S, "seconds": TRIGGER_S}
        if whose == "rate":
            options = {"rowsPerSecond": str(RATE), "numPartitions": str(CORES)}
            return {"do": "trigger", "format": "rate", "options": options, **seconds}
        return {"do": "trigger", **self._live(whose, f"paced-{number}"), **seconds}

    def _stored(self, whose: str) -> dict[str, Any]:
        if whose == "hotfire":
            options = {"path": str(self.rig.hotfire.store), "topics": TOPIC}
            return {"format": "hotfire-store", "options": options}
        if whose == "parquet":
            return {"format": "parquet", "options": {"path": str(self._parquet)}}
        rows = {"rows": str(self.rig.rows), "partitions": str(CORES)}
        return {"format": "ceiling", "options": {"row": self.sample, **rows}}

    @property
    def _parquet(self) -> Path:
        return self.rig.directory / "parquet"

    def _live(self, whose: str, topic: str = TOPIC) -> dict[str, Any]:
        if whose == "hotfire":
            options = {"nameServers": self.rig.hotfire.namesrv, "subscribe": topic}
            return {"format": "hotfire", "options": options, "schema": COLUMNS}
        options = {"kafka.bootstrap.servers": self.rig.kafka.broker, "subscribe": topic}
        return {"format": "kafka", "options": options}

    def _sink(self, whose: str, topic: str, rows: int = SINK_ROWS) -> dict[str, Any]:
        shape = {"rows": rows, "bytes": BODY_BYTES}
        if whose == "hotfire":
            options = {"nameServers": self.rig.hotfire.namesrv, "topic": topic}
            return {"format": "hotfire", "options": options, "key": "keys", "body": "body", **shape}
        # its own two minutes are too few on a machine that is busy with other things
        patience = {"kafka.delivery.timeout.ms": "600000", "kafka.max.block.ms": "600000"}
        options = {"kafka.bootstrap.servers": self.rig.kafka.broker, "topic": topic, **patience}
        return {"format": "kafka", "options": options, "key": "key", "body": "value", **shape}

    # --- before ----------------------------------------------------------------------------------------

    def prepare(self, case: str) -> None:
        """What the turns of a case need; every source has the rows it is said to have."""
        if case == "spark-store":
            stored = self._stored("hotfire")
            self.sample = json.dumps(self.sessions["hotfire"].ask("sample", **stored)["row"])
            self.sessions["parquet"].ask("save", **stored, path=str(self._parquet))
        if case == "spark-batch":
            self.sessions["kafka"].ask("write", **self._sink("kafka", TOPIC, self.rig.rows))
        if case not in ("spark-store", "spark-batch"):
            return
        for whose, session in self.sessions.items():
            query = self._stored(whose) if case == "spark-store" else self._live(whose)
            if (there := session.ask("count", **query)["count"]) != self.rig.rows:
                raise RuntimeError(f"{case}: {whose} has {there} rows, not {self.rig.rows}")

    def ready(self, case: str, whose: str, number: int) -> None:
        """Before each turn, not measured."""
        if case == "spark-sink" and whose == "hotfire":
            remoting.create_topic(self.rig.hotfire.broker, f"sink-{number}", QUEUES)
        if case == "spark-sink" and whose == "kafka":
            # Makes the topic. Its producer, sending much to one that is only being made, may leave partitions
            # behind for minutes, and then gives up for want of memory.
            self.sessions[whose].ask("write", **self._sink(whose, f"sink-{number}", 1))
        if case == "spark-trigger" and whose == "hotfire":
            remoting.create_topic(self.rig.hotfire.broker, f"paced-{number}", QUEUES)
        settle()
        memory.warm()

    def check(self, case: str, whose: str, number: int, told: dict[str, Any]) -> int:
        """How many rows the turn was about, held against what is there."""
        if case == "spark-trigger":
            if not told["count"]:
                raise RuntimeError(f"{case}: {whose} ended no batch in {TRIGGER_S} s")
            return int(told["count"])
        if case == "spark-sink":
            topic = f"sink-{number}"
            if whose == "hotfire":
                there = sum(remoting.max_offsets(self.rig.hotfire.broker, topic, QUEUES))
            else:
                there = self.sessions[whose].ask("count", **self._live(whose, topic))["count"] - 1
            if there != SINK_ROWS:
                raise RuntimeError(f"{case}: {SINK_ROWS} written by {whose}, {there} stored")
            return SINK_ROWS
        if told.get("count", self.rig.rows) != self.rig.rows:
            raise RuntimeError(f"{case}: {told['count']} rows of {whose}, not {self.rig.rows}")
        return self.rig.rows


def measure(rig: Rig, piece: Piece, cases: list[str], pairs: int, warm: int) -> None:
    for group in GROUPS:
        chosen = [case for case in group if case in cases]
        if not chosen:
            continue
        with ExitStack() as stack:
            opened = {
                name: Session(rig.directory / f"{group[0]}-{name}" / "log", with_kafka=name == "kafka")
                for name in COMPARED[group[0]]
            }
            turns = Turns(rig, {name: stack.enter_context(one) for name, one in opened.items()})
            if "spark-batch" in group:
                turns.prepare("spark-batch")
            for case in chosen:
                try:
                    if case != "spark-batch":
                        turns.prepare(case)
                    take(turns, piece, case, pairs, warm)
                except WRONG as error:
                    say(f"{case}: {error!r:.2000}")
                    piece.failures[case] = repr(error)[:300]


def take(turns: Turns, piece: Piece, case: str, pairs: int, warm: int) -> None:
    """The JVM compiles what runs often: the first turns are for that, and count nothing."""
    names = COMPARED[case]
    if case == "spark-trigger":  # each is a query of many batches
        warm, pairs = 1, min(pairs, TRIGGER_PAIRS)
    for number in range(warm + pairs):
        for whose in names if number % 2 == 0 else names[::-1]:
            run = turn(turns, case, whose, number)
            if number >= warm:
                piece.runs.append(run)


def turn(turns: Turns, case: str, whose: str, number: int) -> Run:
    session = turns.sessions[whose]
    turns.ready(case, whose, number)
    servers = {"hotfire": turns.rig.hotfire.pid, "kafka": turns.rig.kafka.pid}
    meter = SparkMeter(session, None if case == "spark-store" else servers.get(whose))
    with feeding(turns, case, whose, number):
        told = session.ask(**turns.asked(case, whose, number))
    spark_s, server_s, foreign_share = meter.stop()
    count = turns.check(case, whose, number, told)
    took_ms = quantiles(told["took_ms"], n=100) if len(told.get("took_ms", ())) > 1 else None
    say(
        f"{case} {number} | {whose} {count / told['seconds'] / 1e6:.2f} M rows/s, "
        f"{count / (spark_s + server_s) / 1e6:.2f} M per CPU s "
        f"(Spark {spark_s:.2f} s, broker {server_s:.2f} s, others {foreign_share:.0%})"
        + (f", a batch {took_ms[49]:.0f} ms" if took_ms else "")
    )
    return Run(
        case=case,
        server=whose,
        pair=number,
        rate=count / told["seconds"],
        acked=count,
        refused=0,
        p50_ms=took_ms[49] if took_ms else None,
        p99_ms=took_ms[98] if took_ms else None,
        cpu_us=(spark_s + server_s) / count * 1e6,
        anonymous_bytes=meter.anonymous_bytes(),
        foreign_share=foreign_share,
    )


@contextmanager
def feeding(turns: Turns, case: str, whose: str, number: int) -> Iterator[None]:
    """Messages come at a steady rate while a stream's batches are timed."""
    if case != "spark-trigger" or whose != "hotfire":
        yield
        return
    seconds = FIRST_BATCH_S + TRIGGER_WARM_S + TRIGGER_S  # it is ended when that is over
    words = ["--rate", str(RATE), "--size", str(BODY_BYTES), "--seconds", str(seconds)]
    command = [str(executable()), "bench", "send", "-n", turns.rig.hotfire.namesrv]
    topic = ["--topic", f"paced-{number}"]
    with subprocess.Popen([*command, *topic, *words], stdout=subprocess.DEVNULL) as feeder:
        try:
            yield
        finally:
            feeder.terminate()


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=PAIRS)
    parser.add_argument("--warm", type=int, default=WARM, help="turns before, not counted (%(default)s)")
    parser.add_argument("--rows", type=int, default=ROWS, help="in the topic that is read (%(default)s)")
    parser.add_argument("--keep", action="store_true", help="a partial run belongs to the committed results")
    parser.add_argument("--report", action="store_true", help="measure nothing; the page of all kept results")
    parser.add_argument("--only", action="append", choices=tuple(COMPARED))
    chosen = parser.parse_args(arguments)
    if chosen.report:
        report(sorted(RESULTS.glob("spark-2*Z.json")), RESULTS)
        return 0
    SCRATCH.mkdir(parents=True, exist_ok=True)
    piece = Piece(
        {
            **facts(),
            "Spark": f"{version('pyspark')}, local[{CORES}], heap of {HEAP}; a session for each compared",
            "Kafka": f"broker 4.1.0, 1 GiB heap; {connector_versions()}: no newer are in Maven Central",
            "rows": f"{chosen.rows:,} read, {SINK_ROWS:,} written at a time, {BODY_BYTES} B and a key, in"
            f" {QUEUES} queues or partitions, to Spark's sink noop",
            "columns": f"store: all; live: {COLUMNS}; Kafka's: {KAFKA_COLUMNS}",
            "sinks": "Kafka: acks=all, flushed at a task's end, at least once; Hotfire: every request"
            " acknowledged, effectively once (its default). Neither broker syncs before it answers",
            "CPU": "user and system time of JVM, Python workers and broker (the store's reader has none),"
            " per row",
            "trigger": f"triggerExecution of a stream's batches at {RATE:,} rows/s, processingTime 0; beside"
            " it Spark's own rate source",
            "memory": f"before each turn {memory.WARMED_BYTES >> 30} GiB, or half of what is free, are taken"
            " and given back: a page that a virtual machine must ask its host for costs more than messages"
            " on it, which hits those most who write most bytes and keep least memory (Hotfire)",
            "workers": "Python workers are reached by a local socket, as `hotfire pipeline` has it with local"
            " masters; Spark's default is TCP. Kafka's connector and Parquet have no such workers",
            "runs": f"median of {chosen.pairs} in turn, after {chosen.warm} that are not counted; trigger: of"
            f" {min(chosen.pairs, TRIGGER_PAIRS)}",
        }
    )
    kept = chosen.keep or not arguments
    raw = (RESULTS if kept else SCRATCH) / f"spark-{datetime.now(UTC).strftime('%Y-%m-%dT%H%M%SZ')}.json"
    try:
        with tempfile.TemporaryDirectory(dir=SCRATCH) as name, rig_in(Path(name), chosen.rows) as rig:
            measure(rig, piece, chosen.only or list(COMPARED), chosen.pairs, chosen.warm)
    finally:
        piece.write(raw)  # what was measured before something went wrong is not lost
    report(sorted(RESULTS.glob("spark-2*Z.json")) if kept else [raw], raw.parent)
    return 1 if piece.failures else 0


def report(files: list[Path], place: Path) -> None:
    """Names of raw files are the times of their runs: of each case the newest counts."""
    pieces = [piece for path in files if (piece := read_piece(path))]
    text = markdown("Bench of Spark", pieces, RESULTS)
    (place / "spark-latest.md").write_text(text)
    print(text)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
