"""A job file, run: what only its surroundings can tell is checked first, then read, change and write."""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hotfire.errors import ConfigError
from hotfire.spark import jobfile
from hotfire.spark.jobfile import JobFile, Mistakes, Table
from hotfire.spark.jobkeys import AVAILABLE_NOW
from hotfire.spark.pipelines.options import Common, parse

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from hotfire.spark.job import Job

LIVE, STORE = "hotfire", "hotfire-store"
_SQL_PLACE = re.compile(r"\(line (\d+), pos (\d+)\)")

Change = Callable[["DataFrame"], "DataFrame"]


@dataclass(frozen=True, kw_only=True)
class Options(Common):
    """Of the command line, beside a job file: over what the file says."""


def understood(
    path: str, words: Sequence[str], *, prog: str
) -> tuple[str, Common, Mapping[str, str], Callable[[Job[Any]], int]]:
    """A plan's name, options, settings and work; Mistakes tell all that is wrong, each with its line."""
    options = parse(Options, words, prog=prog, says="a job file: source, transformation, sink and trigger")
    job = jobfile.read(Path(path))
    mistakes = [*_wrong_options(job, options)]
    change = None
    try:
        change = function_of(job)
    except ConfigError as error:
        mistakes.append(job.at("transform.function", str(error)))
    if mistakes:
        raise Mistakes(mistakes)
    given = replace(options, master=options.master or job.master, name=options.name or job.name)
    return job.name, given, job.confs, lambda running: run(running, job, change)


def _wrong_options(job: JobFile, options: Common) -> Iterator[str]:
    """The options of our own formats, as those will look at them."""
    from hotfire.spark.sinkoptions import SinkOptions

    yield from _wrong(job, "source.options", partial(_check_table, job.source, options, job.is_stream))
    for table in job.tables:
        yield from _wrong(job, f"tables.{table.name}.options", partial(_check_table, table, options, False))
    if job.sink.format == LIVE:
        said = _reachable(job.sink.options, options)
        yield from _wrong(job, "sink.options", lambda: SinkOptions.read(said, streaming=job.is_stream))
    if job.source.format == STORE and job.is_stream:
        yield job.at("source.format", f"{STORE} is read as a batch: set trigger to batch")


def _check_table(table: Table, options: Common, is_stream: bool) -> None:
    from hotfire.spark.sourceoptions import SourceOptions
    from hotfire.spark.storeoptions import read_options

    if table.format == LIVE:
        SourceOptions.read(_reachable(table.options, options), streaming=is_stream)
    elif table.format == STORE:
        given = dict(table.options) if table.path is None else {"path": table.path, **table.options}
        read_options(given)


def _wrong(job: JobFile, path: str, check: Callable[[], object]) -> Iterator[str]:
    try:
        check()
    except ConfigError as error:
        yield job.at(_which(path, job, str(error)), str(error))


def _which(above: str, job: JobFile, problem: str) -> str:
    """The option that a complaint names, if it is written in the file: its line is the one to look at."""
    words = set(re.findall(r"[\w.]+", problem))
    named = [
        path for path in job.lines if path.startswith(f"{above}.") and path.removeprefix(f"{above}.") in words
    ]
    if named:
        return named[0]
    return above if above in job.lines else above.rpartition(".")[0]


def _reachable(options: Mapping[str, str], common: Common) -> dict[str, str]:
    """With the cluster that the command line or the environment names, where the file names none."""
    lower = {name.lower() for name in options}
    return {
        **{name: value for name, value in common.connection().items() if name.lower() not in lower},
        **options,
    }


def source_options(table: Table, job: JobFile, common: Common) -> dict[str, str]:
    made = _reachable(table.options, common)
    if job.is_stream and job.checkpoint is not None:
        # a new stream keeps there where it began; Spark itself keeps that nowhere
        made.setdefault("checkpointLocation", job.checkpoint)
    return made


def sink_options(job: JobFile, common: Common) -> dict[str, str]:
    return _reachable(job.sink.options, common) if job.sink.format == LIVE else dict(job.sink.options)


def function_of(job: JobFile) -> Change | None:
    """The function a file names, imported; ConfigError says why it cannot be."""
    if job.function is None:
        return None
    beside = str(job.file.resolve().parent)
    for place in (str(Path.cwd()), beside):
        if place not in sys.path:
            sys.path.insert(0, place)
    # executors on this machine look there too
    before = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([beside, *filter(None, before)]))
    name, _, attribute = job.function.partition(":")
    try:
        module = importlib.import_module(name)
    except Exception as error:  # noqa: BLE001  # whatever a user's module does when it is imported
        raise ConfigError(f"module {name} cannot be imported: {type(error).__name__}: {error}") from None
    found = getattr(module, attribute, None)
    if not callable(found):
        raise ConfigError(f"module {name} ({module.__file__}) has no function {attribute}")
    change: Change = found
    return change


# --- running -----------------------------------------------------------------------------------------


def run(job: Job[Common], file: JobFile, change: Change | None) -> int:
    from hotfire.spark.files import qualified
    from hotfire.spark.telling import tell_group

    spark = job.spark
    _ship(spark, file)
    given = source_options(file.source, file, job.options)
    if "checkpointLocation" in given:
        given["checkpointLocation"] = qualified(spark, given["checkpointLocation"])
    frame = _read(spark, file.source, given, file.is_stream, job.options)
    frame.createOrReplaceTempView(file.source.name)
    for table in file.tables:
        read = _read(spark, table, dict(table.options), False, job.options)
        read.createOrReplaceTempView(table.name)
    if file.sql is not None:
        frame = _query(spark, file)
    elif change is not None:
        frame = _changed(frame, file, change)
    if file.is_stream:
        query = _start(frame, file, job.options)
        job.stream(query)
        if file.source.format == LIVE:
            tell_group(query, given)
        return 0
    with job.batch():
        writer = frame.write.format(file.sink.format).mode(file.sink.mode)
        writer = writer.options(**sink_options(file, job.options))
        if file.sink.partition_by:
            writer = writer.partitionBy(*file.sink.partition_by)
        writer.save(file.sink.path)
    return 0


def _ship(spark: SparkSession, file: JobFile) -> None:
    """A module beside the job file goes to the executors of other machines."""
    if file.function is None:
        return
    beside = file.file.resolve().parent / f"{file.function.partition(':')[0].partition('.')[0]}.py"
    if beside.exists():
        spark.sparkContext.addPyFile(str(beside))


def _read(
    spark: SparkSession, table: Table, options: Mapping[str, str], is_stream: bool, common: Common
) -> DataFrame:
    from hotfire.spark.schema import BY_NAME, COLUMNS, spark_schema

    reader: Any = spark.readStream if is_stream else spark.read
    if table.format == LIVE:
        options = _reachable(options, common)
    if table.format in (LIVE, STORE) and not is_stream:
        options = {"pushdown": "true", **options}
    reader = reader.format(table.format).options(**options)
    if table.format in (LIVE, STORE) and table.columns and all(name in BY_NAME for name in table.columns):
        # nothing else is decoded
        wanted = tuple(column for column in COLUMNS if column.name in table.columns)
        reader = reader.schema(spark_schema(wanted))
    loaded: DataFrame = reader.load(table.path) if table.path is not None else reader.load()
    return loaded.select(*table.columns) if table.columns else loaded


def _query(spark: SparkSession, file: JobFile) -> DataFrame:
    from pyspark.errors import AnalysisException, ParseException

    assert file.sql is not None, "there is a query"
    try:
        return spark.sql(file.sql)
    except (ParseException, AnalysisException) as error:
        text = str(error)
        place = _SQL_PLACE.search(text) or re.search(r"line (\d+)[,:] pos (\d+)", text)
        line = file.lines.get("transform.sql", 1) + (int(place[1]) - 1 if place else 0)
        first = text.strip().partition("\n")[0]
        raise Mistakes([f"{file.file}:{line}: transform.sql: {first}"]) from None


def _changed(frame: DataFrame, file: JobFile, change: Change) -> DataFrame:
    from pyspark.sql import DataFrame

    changed: object = change(frame)
    if not isinstance(changed, DataFrame):
        raise Mistakes(
            [file.at("transform.function", f"gave a {type(changed).__name__}; a DataFrame is wanted")]
        )
    return changed


def _start(frame: DataFrame, file: JobFile, common: Common) -> Any:
    sink = file.sink
    writer = frame.writeStream.format(sink.format).options(**sink_options(file, common))
    writer = writer.outputMode(sink.mode).queryName(file.name)
    if sink.partition_by:
        writer = writer.partitionBy(*sink.partition_by)
    if file.checkpoint is not None:
        writer = writer.option("checkpointLocation", file.checkpoint)
    if file.trigger == AVAILABLE_NOW:
        writer = writer.trigger(availableNow=True)
    else:
        writer = writer.trigger(processingTime=file.trigger)
    return writer.start(sink.path)
