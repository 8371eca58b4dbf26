"""A Spark driver to be killed: `python -m tests.crash.sparkquery MASTER [KEY=VALUE...]`.

Owns the session, and does what lines of JSON on its standard input say, each on a thread of its own, so that
several queries can stand still at once. Says `ready` when Spark runs, then `ended NAME` or `failed NAME …`.
Everything it starts is in the session of processes that it begins: whoever kills it kills all of them.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from hotfire.spark.python import python_of_workers
from hotfire.spark.session import ALWAYS
from tests.peers.sparkjava import java_options

ROWS = "keys string, body binary"
CONFIG = {
    **ALWAYS,
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": java_options(),
    "spark.log.level": "ERROR",
}


def archive(spark: SparkSession, told: dict[str, Any]) -> None:
    """A topic to Parquet; when the query has ended by itself, what the table holds goes into a file."""
    place = Path(told["place"])
    source = spark.readStream.format("hotfire").schema("body binary").options(**told["options"]).load()
    writer = source.writeStream.format("parquet").option("checkpointLocation", str(place / "checkpoint"))
    writer = writer.trigger(availableNow=True) if told["now"] else writer.trigger(processingTime="0 seconds")
    while not _ended(writer.start(str(place / "table"))):
        continue
    table = spark.read.schema("body binary").parquet(str(place / "table")).toArrow()
    (place / "bodies").write_bytes(b"\n".join(table["body"].to_pylist()))


def _ended(query: StreamingQuery) -> bool:
    """Wait for its end; False when its Python did not come up within Spark's ten seconds: a busy machine."""
    try:
        query.awaitTermination()
    except StreamingQueryException as error:
        if "Python worker failed to connect back" not in str(error):
            raise
        return False
    return True


def send(spark: SparkSession, told: dict[str, Any]) -> None:
    """Parquet files to a topic, as a stream."""
    place = Path(told["place"])
    rows = spark.readStream.schema(ROWS).parquet(str(place / "rows"))
    writer = rows.writeStream.format("hotfire").options(**told["options"])
    writer = writer.option("checkpointLocation", str(place / "checkpoint")).trigger(availableNow=True)
    writer.start().awaitTermination()


def write(spark: SparkSession, told: dict[str, Any]) -> None:
    """The same files, as one batch."""
    rows = spark.read.schema(ROWS).parquet(str(Path(told["place"], "rows")))
    rows.write.format("hotfire").mode("append").options(**told["options"]).save()


def where(spark: SparkSession, told: dict[str, Any]) -> None:
    """Which hotfire tasks have, wherever they run: into a file, a line for each."""
    tasks = spark.sparkContext.parallelize(range(16), 16)
    found = tasks.map(lambda _: importlib.import_module("hotfire").__file__).collect()
    Path(told["place"]).write_text("\n".join(found))


def pipeline(spark: SparkSession, told: dict[str, Any]) -> None:
    """A ready-made pipeline; its exit code, and how many tasks of it each executor ran, into a file."""
    from hotfire.spark.job import Job
    from hotfire.spark.progress import Shown
    from hotfire.spark.run import understood
    from hotfire.spark.stopping import Stop

    plan = understood(told["pipeline"], told["words"])
    for key, value in plan.confs.items():
        spark.conf.set(key, value)
    before = _tasks(spark)
    code = plan.run(Job(plan.name, spark, plan.options, stop=Stop(), shown=Shown()))
    tasks = {name: count - before.get(name, 0) for name, count in _tasks(spark).items()}
    Path(told["place"]).write_text(json.dumps({"code": code, "tasks": tasks}))


def _tasks(spark: SparkSession) -> dict[str, int]:
    """By executor, from Spark's own records."""
    context = spark.sparkContext._jsc.sc()
    context.listenerBus().waitUntilEmpty()
    listed = context.statusStore().executorList(True)
    every = (listed.apply(number) for number in range(listed.size()))
    return {one.id(): one.totalTasks() for one in every if one.id() != "driver"}


WORK: dict[str, Callable[[SparkSession, dict[str, Any]], None]] = {
    "archive": archive,
    "send": send,
    "write": write,
    "where": where,
    "pipeline": pipeline,
}


def do(spark: SparkSession, told: dict[str, Any]) -> None:
    name = told["name"]
    try:
        # Spark looks for formats to write in the thread's active session, and a thread of ours has none
        spark._get_j_spark_session_class(spark._jvm).setActiveSession(spark._jsparkSession)
        WORK[told["do"]](spark, told)
    except Exception as error:  # noqa: BLE001  # the test is told, whatever it was
        say(f"failed {name} {' '.join(str(error).split())[:2000]}")
    else:
        say(f"ended {name}")


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main(master: str, *settings: str) -> None:
    os.setsid()
    is_local = master.startswith("local[")
    os.environ.setdefault("PYSPARK_PYTHON", python_of_workers(os.environ, is_local=is_local))
    builder = SparkSession.builder.master(master).appName("hotfire kills")
    for key, value in {**CONFIG, **dict(text.split("=", 1) for text in settings)}.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    say("ready")
    for line in sys.stdin:
        threading.Thread(target=do, args=(spark, json.loads(line)), daemon=True).start()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
