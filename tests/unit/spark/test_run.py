"""A pipeline's command line: help without Spark, errors in one line, and what Spark is told."""

import os
import stat
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hotfire.cli import main as command
from hotfire.errors import ConfigError
from hotfire.places import Place
from hotfire.spark import session as sessions
from hotfire.spark.pipelines import PIPELINES, pipeline
from hotfire.spark.pipelines.options import Common, Reading, option, options_of, parse
from hotfire.spark.run import cause, main, understood
from hotfire.spark.session import SOCKET_DIRECTORY_CHARS_MAX, cores, local_sockets, settings

HEAVY = ("pyspark", "pyarrow", "asyncio", "hotfire.client", "hotfire.store", "hotfire.protocol", "yaml")


@dataclass(frozen=True, kw_only=True)
class Example(Reading):
    to: str = option("where to")
    deep: bool = option("all the way", False)
    kept: bool = option("kept, unless not", True)
    word: tuple[str, ...] = option("a word", (), metavar="WORD")


def read(*words: str) -> Example:
    return parse(Example, ["--topic", "a,b", "--to", "x", *words], prog="run example", says="an example")


def test_options_are_read_as_declared() -> None:
    """Switches, words that may come again, places in time, and defaults."""
    plain = read()
    assert (plain.topic, plain.to, plain.deep, plain.kept, plain.word) == (("a", "b"), "x", False, True, ())
    assert plain.from_ == Place("earliest")
    said = read(
        "--deep", "--no-kept", "--word", "one", "--word", "two", "--from", "latest", "--conf", "a=b=c"
    )
    assert (said.deep, said.kept, said.word, said.from_.kind) == (True, False, ("one", "two"), "latest")
    assert said.confs() == {"a": "b=c"}


def test_a_value_that_will_not_do_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    """What was given, and what would do; exit code 2."""
    with pytest.raises(SystemExit) as ended:
        read("--from", "someday")
    assert ended.value.code == 2
    assert "'someday' is neither earliest, latest, an offset nor a time" in capsys.readouterr().err


def test_source_options_say_what_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cluster, topics, beginning and what loss means, in the format's own words."""
    monkeypatch.setenv("NAMESRV_ADDR", "ns:1")
    assert read("--from", "1970-01-01T00:00:01+00:00", "--group", "g").source() == {
        "nameServers": "ns:1",
        "tls": "false",
        "subscribe": "a,b",
        "tags": "*",
        "startingTimestamp": "1000",
        "startingOffsetsByTimestampStrategy": "latest",
        "failOnDataLoss": "true",
        "group": "g",
    }
    assert read("-n", "other:2").source()["nameServers"] == "other:2"
    with pytest.raises(ConfigError, match="--from 17: earliest, latest or a time"):
        read("--from", "17").source()


def test_a_conf_without_a_value_is_told() -> None:
    """Before Spark takes it for something else."""
    with pytest.raises(ConfigError, match=r"--conf spark\.x: expected KEY=VALUE"):
        read("--conf", "spark.x").confs()


@pytest.mark.parametrize("name", sorted(PIPELINES))
def test_every_pipeline_is_whole(name: str) -> None:
    """It has options, each with a sentence, and something to run."""
    module = pipeline(name)
    assert issubclass(module.OPTIONS, Common)
    assert callable(module.run)
    for one in options_of(module.OPTIONS):
        assert one.says, one.field
    assert PIPELINES[name]


def imported_by(*words: str) -> tuple[set[str], str]:
    command = [sys.executable, "-X", "importtime", "-m", "hotfire.cli", "pipeline", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}, done.stdout


def test_help_of_every_pipeline_loads_no_spark() -> None:
    """`--help` of each says what it takes, at next to no cost: neither Spark, nor a client, nor a loop."""
    names = "; ".join(
        f"import hotfire.spark.pipelines.{name} as m; parser_of(m.OPTIONS, prog='x', says='y').format_help()"
        for name in PIPELINES
    )
    program = f"from hotfire.spark.pipelines.options import parser_of; {names}"
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", program], capture_output=True, text=True, check=True
    )
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert not sorted(name for name in imported if name.startswith(HEAVY))
    imported, printed = imported_by("run", "archive", "--help")
    assert "usage: hotfire pipeline run archive" in printed
    assert not sorted(name for name in imported if name.startswith(HEAVY))


def test_pipelines_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    """By `list`, and in the help of `run`."""
    assert command(["pipeline", "list"]) == 0
    listed = capsys.readouterr().out
    with pytest.raises(SystemExit):
        command(["pipeline", "run", "--help"])
    helped = capsys.readouterr().out
    for name, says in PIPELINES.items():
        assert f"{name}" in listed
        assert says in listed
        assert says in helped


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["nonsense"], "there is no pipeline nonsense: archive"),
        (["none.yml"], "job file none.yml: No such file"),
        (["sql", "--query", "SELECT 1", "--out", "x"], "--out x: a table goes to standard output"),
        (["sql"], "give the query: either --query SQL or --file FILE"),
        (["sql", "-q", "SELECT 1", "--table", "a=b"], "--table a=b: expected NAME=KIND:PLACE"),
        (["sql", "-q", "SELECT 1", "--from", "latest"], "startingOffsets is latest"),
        (["aggregate", "--topic", "t"], "nowhere to write to"),
        (["aggregate", "--topic", "t", "--to-topic", "u"], "give --checkpoint DIR"),
        (["aggregate", "--topic", "t", "--to-topic", "t", "--checkpoint", "c"], "its own result would"),
        (["aggregate", "--topic", "t", "--to", "d", "--slide", "1h"], "--slide 3600 s is longer"),
    ],
)  # fmt: skip
def test_mistakes_are_told_in_one_line_before_spark_starts(
    words: list[str],
    says: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """With exit code 1, and no session."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sessions, "session", None)
    assert main(words) == 1
    told = capsys.readouterr().err
    assert says in told
    assert told.count("\n") == 1


def test_mistakes_of_a_job_file_are_a_line_each(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two mistakes, two lines, each with its place in the file."""
    job = tmp_path / "job.yml"
    job.write_text("source: {}\nsnk: {}\ntrigger: never\n")
    assert main([str(job)]) == 1
    told = capsys.readouterr().err.splitlines()
    assert [line.split(f"{job}:")[1].split(":")[0] for line in told] == ["1", "2", "3"]


def test_init_writes_a_job_that_is_understood(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And does not write over one that is there."""
    job = tmp_path / "job.yml"
    assert command(["pipeline", "init", str(job)]) == 0
    assert "hotfire pipeline run" in capsys.readouterr().out
    assert understood(str(job), ["--master", "local[1]"]).options.master == "local[1]"
    assert command(["pipeline", "init", str(job)]) == 1
    assert "exists" in capsys.readouterr().err
    assert command(["pipeline", "init", str(job), "--force"]) == 0


def test_the_file_for_spark_submit_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    """`python -m hotfire.spark.run --where` names it; run as a script it is the same program."""
    assert main(["--where"]) == 0
    script = capsys.readouterr().out.strip()
    done = subprocess.run(
        [sys.executable, script, "archive", "--help"], capture_output=True, text=True, check=True
    )
    assert "usage: hotfire.spark.run archive" in done.stdout
    assert main([]) == 2
    assert "NAME is one of archive" in capsys.readouterr().err


def test_without_spark_the_extra_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Who has only the broker is told what to install."""
    monkeypatch.setattr(sessions, "find_spec", lambda name: None)
    assert main(["sql", "-q", "SELECT 1"]) == 1
    assert "pyspark is not installed: pip install 'hotfire[spark]'" in capsys.readouterr().err


def test_what_spark_is_told_on_one_machine_and_on_others() -> None:
    """Local: no user interface, bound to this machine, a shuffle partition a core. Others: theirs."""
    here = settings("local[3]", {"spark.ui.enabled": "true", "spark.driver.extraJavaOptions": "-Dx=y"})
    assert here["spark.sql.shuffle.partitions"] == "3"
    assert here["spark.driver.bindAddress"] == "127.0.0.1"
    assert here["spark.ui.enabled"] == "true", "what was given goes before"
    assert here["spark.driver.extraJavaOptions"].endswith("-Dx=y")
    assert "log4j2" in here["spark.driver.extraJavaOptions"]
    for other in (settings("spark://host:7077", {}), settings(None, {}, was_submitted=True)):
        assert other["spark.sql.python.filterPushdown.enabled"] == "true"
        assert not {"spark.driver.host", "spark.ui.enabled", "spark.sql.shuffle.partitions"} & other.keys()
    assert cores("local[*]") == os.cpu_count()


def test_sockets_of_workers_are_nobody_elses(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """In a directory of their own; where its name would be too long, or it cannot be made, there are none."""
    monkeypatch.setattr(tempfile, "tempdir", None)
    place = local_sockets()["spark.python.unix.domain.socket.dir"]
    assert stat.S_IMODE(Path(place).stat().st_mode) == 0o700
    deep = tmp_path / ("x" * SOCKET_DIRECTORY_CHARS_MAX)
    deep.mkdir()
    for unfit in (deep, tmp_path / "absent"):
        monkeypatch.setattr(tempfile, "tempdir", str(unfit))
        assert local_sockets() == {}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "Job aborted.\nTraceback:\n  File x\nhotfire.errors.NoRoute: topic T: none\n",
            "topic T: none",
        ),
        (
            "An error occurred while calling o71.load.\n: org.apache.spark.SparkException: gone\n\tat x",
            "org.apache.spark.SparkException: gone; --spark-log error shows all of it",
        ),
    ],
)
def test_the_cause_is_told_not_the_trace(text: str, told: str) -> None:
    """Our own error's words where one is behind it; else Spark's first line, and how to see the rest."""
    error: Any = RuntimeError(text)
    assert cause(error) == told
