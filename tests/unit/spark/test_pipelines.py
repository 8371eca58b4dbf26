"""Pipelines archive, aggregate and sql, and job files, on Spark and a cluster."""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from hotfire import Message, sync
from hotfire.errors import ConfigError
from hotfire.spark import archiving, jobfile, jobrun
from hotfire.spark.archiving import read_archive
from hotfire.spark.files import HadoopFiles, LocalFiles, files_of, qualified
from hotfire.spark.jobfile import Mistakes
from hotfire.spark.pipelines import aggregate, archive, sql
from hotfire.spark.pipelines.options import Common
from hotfire.spark.progress import Shown
from hotfire.spark.queries import archive_schema, used_columns
from hotfire.spark.stopping import Stop
from tests.unit.spark.conftest import Topics
from tests.unit.spark.running import QuietJob, run_pipeline
from tests.unit.spark.test_batches import check_files


def bodies(spark: SparkSession, directory: Path) -> Counter[bytes]:
    rows = read_archive(spark, str(directory), archive_schema()).select("body").collect()
    return Counter(bytes(row.body) for row in rows)


def files_in(directory: Path) -> list[Path]:
    return [path for path in directory.glob("topic=*/date=*/*.parquet")]


class Dies(Exception):
    pass


@pytest.mark.timeout(600)
def test_an_archive_has_each_message_once(
    spark: SparkSession, topics: Topics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run after run what is new is added; one that dies in the middle of it is made whole by the next; and
    small files become one when their day is over, with the same messages in it."""
    to = tmp_path / "the archive"
    said = {"topic": ("orders",), "to": str(to), "namesrv": topics.namesrv}
    sent = topics.make("orders", 60)
    assert run_pipeline(spark, archive, **said) == 0
    assert bodies(spark, to) == Counter(sent)

    # the messages of this batch are moved into place, and the process dies before it is done
    sent += topics.send("orders", 40, first=60)
    put = LocalFiles.put

    def dying(files: LocalFiles, name: str, data: bytes) -> None:
        if b'"done": true' in data:
            raise Dies
        put(files, name, data)

    with monkeypatch.context() as patched:
        patched.setattr(LocalFiles, "put", dying)
        with pytest.raises(StreamingQueryException):
            run_pipeline(spark, archive, **said)
    # however its place is written
    assert run_pipeline(spark, archive, **{**said, "to": to.as_uri()}) == 0
    assert bodies(spark, to) == Counter(sent)
    assert len(files_in(to)) > 1

    monkeypatch.setattr(archiving, "today", lambda: "2999-01-01")
    assert run_pipeline(spark, archive, **said) == 0
    assert bodies(spark, to) == Counter(sent)
    assert len(files_in(to)) == 1
    row = read_archive(spark, str(to), archive_schema()).where("keys = 'k7'").first()
    assert row is not None
    assert (row.topic, row.body, row.date) == ("orders", b"orders-7", row.storeTimestamp.date())


@pytest.mark.timeout(600)
@pytest.mark.hotfire(brokers=1)
def test_windows_come_to_a_topic_and_to_parquet(spark: SparkSession, topics: Topics, tmp_path: Path) -> None:
    """Windows that are over, each once, alike in both places; what is still open waits for more."""
    cluster = topics.cluster
    for name in ("clicks", "counts"):
        cluster.create_topic(name, queues=2)

    for hour in range(3):
        with sync.Producer(topics.namesrv) as producer:
            for number in range(4 + hour):
                producer.send(Message("clicks", b"x" * 10, tag="even" if number % 2 == 0 else "odd"))
        cluster.clock.turn(3600)
    said: dict[str, Any] = {
        "topic": ("clicks",), "to": str(tmp_path / "out"), "to_topic": "counts", "window": 60.0, "late": 60.0,
        "by": ("tags AS tag",), "select": ("count(*) AS n", "sum(length(body)) AS bytes"),
        "namesrv": topics.namesrv,
    }  # fmt: skip
    for _ in range(2):
        assert run_pipeline(spark, aggregate, **said) == 0
    rows = read_archive(spark, said["to"]).collect()
    assert sorted((row.tag, row.n, row.bytes) for row in rows) == [
        ("even", 2, 20), ("even", 3, 30), ("odd", 2, 20), ("odd", 2, 20),
    ]  # fmt: skip
    read = (
        spark.read.format("hotfire").options(subscribe="counts", nameServers=topics.namesrv).load().collect()
    )
    told = [json.loads(bytes(row.body)) for row in read]
    assert sorted((one["tag"], one["n"]) for one in told) == sorted((row.tag, row.n) for row in rows)
    assert all(row["keys"].endswith(("|even", "|odd")) for row in read)


@pytest.mark.timeout(600)
def test_a_query_over_topics_archives_and_files(
    spark: SparkSession, topics: Topics, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A name is a topic unless it is said to be something else; rows come as a table, CSV or Parquet."""
    topics.make("paid-orders", 5, tag="new")
    spark.range(5).selectExpr("concat('k', id) AS key", "id * 10 AS price").write.parquet(
        str(tmp_path / "prices")
    )
    said: dict[str, Any] = {
        "query": "SELECT keys, price, body FROM `paid-orders` JOIN p ON keys = key "
        "WHERE price > 10 ORDER BY keys",
        "table": (f"p=parquet:{tmp_path / 'prices'}",),
        "namesrv": topics.namesrv,
    }
    assert run_pipeline(spark, sql, **said) == 0
    assert capsys.readouterr().out.splitlines() == [
        "KEYS  PRICE  BODY",
        "k2       20  paid-orders-2",
        "k3       30  paid-orders-3",
        "k4       40  paid-orders-4",
    ]
    assert run_pipeline(spark, sql, **said, format="csv") == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert rows[0] == {"keys": "k2", "price": "20", "body": "paid-orders-2"}
    assert run_pipeline(spark, sql, **said, format="parquet", out=str(tmp_path / "out")) == 0
    assert spark.read.parquet(str(tmp_path / "out")).count() == 3


def test_only_what_a_query_uses_is_read(spark: SparkSession, topics: Topics) -> None:
    """Columns that its plan asks for, and all of them where a star or a set operation means them all."""
    topics.make("t", 1)
    spark.read.format("hotfire").options(
        subscribe="t", nameServers=topics.namesrv
    ).load().createOrReplaceTempView("t")
    for query, used in {
        "SELECT tags, count(*) FROM t WHERE queueId = 1 GROUP BY tags": {"tags", "queueId"},
        "SELECT count(*) FROM t": set(),
        "SELECT a.keys FROM t a JOIN t b ON a.msgId = b.msgId": {"keys", "msgId"},
        "SELECT * FROM t": None,
        "SELECT * FROM t UNION ALL SELECT * FROM t": None,
    }.items():
        found = used_columns(spark.sql(query))
        assert found is None if used is None else found == used, query


@pytest.mark.timeout(600)
def test_a_job_file_runs(spark: SparkSession, topics: Topics, tmp_path: Path) -> None:
    """Source, SQL, sink: as a stream that ends with what is there. A mistake in its SQL has its line."""
    topics.make("orders", 20, tag="paid")
    topics.send("orders", 10, tag="new")
    text = """\
source:
  options: {subscribe: orders, startingOffsets: earliest}
transform:
  sql: |
    SELECT CAST(body AS STRING) AS body
    FROM messages
    WHERE tags = 'paid'
sink:
  format: parquet
  path: TMP/out
trigger: availableNow
checkpoint: TMP/checkpoint
""".replace("TMP", str(tmp_path))

    def run(text: str) -> int:
        options = Common(namesrv=topics.namesrv)
        job = QuietJob("job", spark, options, stop=Stop(), shown=Shown(io.StringIO()))
        return jobrun.run(job, jobfile.parse(text, Path("job.yml")), None)

    assert run(text) == 0
    assert run(text) == 0
    assert spark.read.parquet(str(tmp_path / "out")).distinct().count() == 20
    assert spark.read.parquet(str(tmp_path / "out")).count() == 20
    with pytest.raises(Mistakes, match=r"^job\.yml:6: transform\.sql: .*FORM"):
        run(text.replace("FROM", "FORM"))


def test_hadoops_files_keep_the_same_promises(spark: SparkSession, tmp_path: Path) -> None:
    """What an archive relies on holds through Hadoop's client too."""
    check_files(HadoopFiles(spark, f"file:{tmp_path}/root"))


@pytest.mark.parametrize(
    ("place", "problem"),
    [
        (
            "s3a://box/x",
            r"no file system for s3a: it needs hadoop-aws, .*packages=org.apache.hadoop:hadoop-aws:3",
        ),
        ("gs://box/x", "no file system for gs: it needs the connector of Google Cloud Storage"),
        ("nonsense://box/x", "no file system for nonsense: it needs the jar of nonsense"),
        ("hdfs://no.such.host.invalid:1/x", "cannot be opened: .*UnknownHost"),
    ],
)
def test_a_place_that_spark_cannot_open_is_told(spark: SparkSession, place: str, problem: str) -> None:
    """With what is missing, before anything is read."""
    for opens in (files_of, qualified):
        with pytest.raises(ConfigError, match=f"{place}.*{problem}"):
            opens(spark, place)


def test_keys_of_windows_differ_where_their_groups_do(spark: SparkSession) -> None:
    """A sink that knows rows by their keys must not meet two of one key: whatever the groups are called."""
    groups = ["a b", "a_b", "a%20b", "a\tb", "a|b", "", None, "%"]
    rows = spark.createDataFrame([(group,) for group in groups], "region string").selectExpr(
        "timestamp_millis(0) AS windowStart", "timestamp_millis(60000) AS windowEnd", "region"
    )
    keys = [row["keys"] for row in aggregate.as_messages(rows, 1).collect()]
    assert len(set(keys)) == len(groups)
    assert not any(len(key.split()) > 1 for key in keys)
