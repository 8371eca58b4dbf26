"""Java for Spark that starts quickly: what was loaded once is kept, and mapped by those that come later.

Of the first half minute of a JVM's life with Spark most goes into reading and checking its classes. As a
program, `python -m tests.peers.sparkjava`, this leaves them in a file below `build`, once; sessions of tests
map it where it is there. A JVM that finds it made by another Java or from other jars leaves it alone.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import pyspark
from pyspark import SparkContext
from pyspark.sql import SparkSession

from hotfire.spark.java import choose_java
from tests.peers.jars import ROOT

SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""What a better compiler would win in a minute is lost in compiling."""
END_S_MAX = 300.0


@cache
def class_file() -> Path:
    """By all that it was made of: the Java, and Spark's jars where they lie."""
    java = choose_java(dict(os.environ))
    made_of = f"{java} {pyspark.__version__} {Path(pyspark.__file__).parent}"
    return ROOT / "build" / "spark" / f"classes-{hashlib.sha256(made_of.encode()).hexdigest()[:12]}.jsa"


def java_options() -> str:
    """For any JVM of Spark's; with the classes, if they are there."""
    kept = class_file()
    return f'{SHORT_LIVED} "-XX:SharedArchiveFile={kept}"' if kept.exists() else SHORT_LIVED


def session_settings(warehouse: Path) -> dict[str, str]:
    """A session as small as Spark gets, on this machine alone."""
    return {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.python.filterPushdown.enabled": "true",
        "spark.sql.warehouse.dir": str(warehouse),
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.log.level": "ERROR",
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": java_options(),
        # of a handful of rows, looking again at a plan or making a program of it takes longest
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    }


def main() -> None:
    """Use much of Spark once, and keep what that loads."""
    if class_file().exists():
        return
    kept = class_file()
    kept.parent.mkdir(parents=True, exist_ok=True)
    being_made = kept.with_suffix(f".{os.getpid()}")
    with tempfile.TemporaryDirectory() as place:
        settings = session_settings(Path(place))
        keeping = f'-Xlog:disable "-XX:ArchiveClassesAtExit={being_made}"'
        settings["spark.driver.extraJavaOptions"] = f"{SHORT_LIVED} {keeping}"
        builder = SparkSession.builder.master("local[2]")
        for key, value in settings.items():
            builder = builder.config(key, value)
        spark = builder.getOrCreate()
        use(spark, Path(place))
        spark.stop()
    end()
    being_made.rename(kept)


def use(spark: SparkSession, place: Path) -> None:
    """What tests use: tables, joins and groups, files, and a stream of them."""
    rows = spark.range(100).selectExpr("id", "id % 3 AS kind", "cast(id AS string) AS text")
    rows.write.parquet(str(place / "rows"))
    kept = spark.read.parquet(str(place / "rows"))
    kept.createOrReplaceTempView("kept")
    joined = kept.join(spark.range(9), "id").groupBy("kind").agg({"text": "max"}).orderBy("kind")
    joined.collect()
    spark.sql("SELECT kind, count(*) FROM kept GROUP BY kind").collect()
    stream = spark.readStream.schema(kept.schema).parquet(str(place / "rows"))
    writer = stream.writeStream.format("parquet").option("checkpointLocation", str(place / "checkpoint"))
    writer.trigger(availableNow=True).start(str(place / "copy")).awaitTermination()


def end() -> None:
    """The JVM of this process, whose session is stopped."""
    gateway = SparkContext._gateway
    assert gateway is not None
    process: subprocess.Popen[bytes] = gateway.proc  # type: ignore[attr-defined]
    gateway.shutdown()
    assert process.stdin is not None
    process.stdin.close()
    process.wait(END_S_MAX)


if __name__ == "__main__":
    main()
