"""A Spark session in a process of its own that does what it is told: one line of JSON in, one line out.

    {"do": "read", "format": "kafka", "options": {…}, "schema": "keys string, body binary"}   rows to nowhere
    {"do": "stream", …}     the same as a stream that ends with what is there
    {"do": "write", …}      made-up rows into a sink
    {"do": "trigger", …}    a stream for some seconds; how long each of its batches took
    {"do": "count", …}, {"do": "sample", …}, {"do": "save", …}    what is there, its first row, a copy of it

Prints `ready` once the session is up. Who tells it measures: this process, the JVM below it and the Python
workers below that are one tree of processes.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from bench.sparkceiling import Ceiling
from hotfire.spark.python import python_of_workers
from hotfire.spark.session import local_sockets

CORES = 2
HEAP = "2g"
FIRST_BATCH_S = 120
"""A stream begins within this: its first batch compiles much."""
KEY = "lpad(cast(id as string), 16, '0')"
Asked = Mapping[str, Any]


def session(settings: Mapping[str, str]) -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = python_of_workers(os.environ, is_local=True)  # as for a pipeline
    builder = SparkSession.builder.master(f"local[{CORES}]").appName("hotfire bench")
    fixed = {
        "spark.ui.enabled": "false",
        "spark.log.level": "ERROR",
        "spark.driver.memory": HEAP,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": str(CORES),
        "spark.sql.session.timeZone": "UTC",
        **local_sockets(),  # as for a pipeline
    }
    for name, value in (fixed | dict(settings)).items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


class Drive:
    """What can be asked of a session."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def read(self, asked: Asked) -> dict[str, Any]:
        self._frame(asked).write.format("noop").mode("overwrite").save()
        return {}

    def count(self, asked: Asked) -> dict[str, Any]:
        return {"count": self._frame(asked).count()}

    def sample(self, asked: Asked) -> dict[str, Any]:
        """The first row, as the ceiling takes it."""
        row = self._frame(asked).first()
        assert row is not None, "no row to be a sample"
        return {"row": {name: _plain(value) for name, value in row.asDict().items()}}

    def save(self, asked: Asked) -> dict[str, Any]:
        self._frame(asked).write.parquet(asked["path"])
        return {}

    def write(self, asked: Asked) -> dict[str, Any]:
        """Rows that cost nothing to make: a key that counts, and the same body again and again."""
        body = "a" * asked["bytes"]
        rows = self._spark.range(0, asked["rows"], 1, CORES).selectExpr(
            f"{KEY} as {asked['key']}", f"cast('{body}' as binary) as {asked['body']}"
        )
        rows.write.format(asked["format"]).options(**asked["options"]).mode("append").save()
        return {}

    def stream(self, asked: Asked) -> dict[str, Any]:
        with tempfile.TemporaryDirectory() as checkpoint:
            query = self._started(asked, checkpoint, {"availableNow": True})
            query.awaitTermination()
            return {"count": sum(one["numInputRows"] for one in query.recentProgress)}

    def trigger(self, asked: Asked) -> dict[str, Any]:
        """Batches one behind the other, those of the first seconds left out."""
        with tempfile.TemporaryDirectory() as checkpoint:
            query = self._started(asked, checkpoint, {"processingTime": "0 seconds"})
            until = time.monotonic() + FIRST_BATCH_S
            while query.lastProgress is None and time.monotonic() < until:
                query.awaitTermination(1)
            query.awaitTermination(asked["warm_s"])
            first = -1 if (last := query.lastProgress) is None else last["batchId"]
            query.awaitTermination(asked["seconds"])
            seen = [one for one in query.recentProgress if one["batchId"] > first and one["numInputRows"]]
            query.stop()
        return {
            "count": sum(one["numInputRows"] for one in seen),
            "took_ms": [one["durationMs"]["triggerExecution"] for one in seen],
            "parts_ms": [one["durationMs"] for one in seen],
        }

    def _frame(self, asked: Asked) -> DataFrame:
        reader = self._spark.read.format(asked["format"]).options(**asked["options"])
        return (reader.schema(asked["schema"]) if asked.get("schema") else reader).load()

    def _started(self, asked: Asked, checkpoint: str, trigger: dict[str, Any]) -> StreamingQuery:
        reader = self._spark.readStream.format(asked["format"]).options(**asked["options"])
        frame = (reader.schema(asked["schema"]) if asked.get("schema") else reader).load()
        writer = frame.writeStream.format("noop").option("checkpointLocation", checkpoint)
        return writer.trigger(**trigger).start()


def _plain(value: Any) -> Any:
    """What JSON can say: bytes as text, times as microseconds."""
    if isinstance(value, bytes | bytearray):
        return value.decode("latin-1")
    return int(value.timestamp() * 1_000_000) if hasattr(value, "timestamp") else value


def main(words: list[str]) -> None:
    spark = session(json.loads(words[0]) if words else {})
    spark.dataSource.register(Ceiling)
    drive = Drive(spark)
    print("ready", flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        work: Callable[[Asked], dict[str, Any]] = getattr(drive, asked["do"])
        began = time.perf_counter()
        try:
            told = work(asked)
        except Exception as error:  # noqa: BLE001  # told to who asked, who decides whether to go on
            told = {"error": f"{type(error).__name__}: {error}"[:2000]}
        print(json.dumps({"seconds": time.perf_counter() - began, **told}), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1:])
