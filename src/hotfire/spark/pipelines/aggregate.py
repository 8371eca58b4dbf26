"""Windows over a topic, counted or summed: to a topic, to Parquet, or to both.

A window is written once, when no more messages of it are expected: `--late` after the newest one seen. Both
places get the same rows of the same batch, and each row once: Parquet by `hotfire.spark.batches`, the topic
by the sink, which looks for what a batch of this name has sent before.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hotfire.errors import ConfigError
from hotfire.spark.options import count, size, span_s
from hotfire.spark.pipelines.archive import CODECS
from hotfire.spark.pipelines.options import Reading, option, trigger

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

    from hotfire.spark.archiving import Archive
    from hotfire.spark.job import Job

TIMES = ("storeTimestamp", "bornTimestamp")
START, END = "windowStart", "windowEnd"


@dataclass(frozen=True, kw_only=True)
class Options(Reading):
    window: float = option("how long a window is: 1m, 1h", 60.0, read=span_s, metavar="TIME")
    slide: float | None = option(
        "a window begins so often; one after the other when not given", None, read=span_s, metavar="TIME"
    )
    late: float = option("how late a message may come and still count", 600.0, read=span_s, metavar="TIME")
    time: str = option("which time of a message counts", "storeTimestamp", choices=TIMES)
    by: tuple[str, ...] = option(
        "a row for each of these, an SQL expression: tags; may be given again", (), metavar="SQL"
    )
    select: tuple[str, ...] = option(
        "what is told of a window, an aggregate in SQL with AS; may be given again; "
        "when not given, count(*) AS messages and sum(length(body)) AS bytes",
        (), metavar="SQL",
    )  # fmt: skip
    where: str | None = option("only messages for which this is true", None, metavar="SQL")
    to_topic: str | None = option("each row as JSON, to this topic", None, metavar="TOPIC")
    to: str | None = option("the rows as Parquet, by date, in this directory", None, metavar="DIR")
    every: float | None = option(
        "go on, with a batch so often: 10s, 1m; without it, what is there now, and then the end", None,
        read=span_s, metavar="TIME",
    )  # fmt: skip
    checkpoint: str | None = option(
        "where the stream keeps how far it is; in the directory of --to when not given", None, metavar="DIR"
    )
    batch_rows: int = option("messages in one batch, at most about", 1_000_000, read=count, metavar="N")
    file_bytes: int = option("files are put together up to this size", 128 << 20, read=size, metavar="SIZE")
    compression: str = option("of the files", "zstd", choices=CODECS)

    @property
    def told(self) -> tuple[str, ...]:
        return self.select or ("count(*) AS messages", "sum(length(body)) AS bytes")


OPTIONS = Options


def check(options: Options) -> None:
    from hotfire.spark.sourceoptions import SourceOptions

    if options.to is None and options.to_topic is None:
        raise ConfigError("nowhere to write to: give --to-topic TOPIC, --to DIR, or both")
    if options.to is None and options.checkpoint is None:
        raise ConfigError("--to-topic alone: give --checkpoint DIR, where the stream keeps how far it is")
    if options.slide is not None and options.slide > options.window:
        raise ConfigError(f"--slide {options.slide:g} s is longer than --window {options.window:g} s")
    if options.to_topic in options.topic:
        raise ConfigError(f"--to-topic {options.to_topic}: its own result would be counted; name another")
    SourceOptions.read(options.source(), streaming=True)


def run(job: Job[Options]) -> int:
    from hotfire.spark.files import qualified
    from hotfire.spark.telling import tell_group

    options = job.options
    archive = None if options.to is None else _archive(job, options.to)
    checkpoint = options.checkpoint if archive is None else archive.checkpoint
    assert checkpoint is not None, "check wants one"
    sending = None if options.to_topic is None else _Sending(options, options.to_topic, checkpoint)

    def write(rows: DataFrame, batch: int) -> None:
        kept = rows.persist()  # windows are added up once for both
        try:
            if kept.isEmpty():
                return
            if archive is not None:
                archive.add(kept.withColumn("date", _date()), batch)
            if sending is not None:
                sending.send(kept, batch)
        finally:
            kept.unpersist()

    def start() -> None:
        stream = job.spark.readStream.format("hotfire").schema(_needed(options))
        stream = stream.options(**options.source(), checkpointLocation=qualified(job.spark, checkpoint))
        rows = windows(stream.option("maxOffsetsPerTrigger", str(options.batch_rows)).load(), options)
        writer = rows.writeStream.queryName(f"aggregate {','.join(options.topic)}").foreachBatch(write)
        writer = writer.outputMode("append").option("checkpointLocation", checkpoint)
        query = trigger(writer, options.every).start()
        job.stream(query)
        tell_group(query, options.source())

    if archive is None:
        start()
        return 0
    with archive.opened():
        start()
        if not job.is_stopping:
            with job.batch("putting files together"):
                archive.compact()
    return 0


def windows(messages: DataFrame, options: Options) -> DataFrame:
    """The rows of a window: when it begins and ends, what it is of, and what is told of it."""
    from pyspark.sql import functions as f

    if options.where is not None:
        messages = messages.where(options.where)
    window = f.window(options.time, _interval(options.window), _interval(options.slide or options.window))
    grouped = messages.withWatermark(options.time, _interval(options.late))
    counted = grouped.groupBy(window, *(f.expr(text) for text in options.by))
    rows = counted.agg(*(f.expr(text) for text in options.told))
    rest = [name for name in rows.columns if name != "window"]
    return rows.select(f.col("window.start").alias(START), f.col("window.end").alias(END), *rest)


def _interval(seconds: float) -> str:
    return f"{int(seconds * 1000)} milliseconds"


def _date() -> Column:
    from pyspark.sql import functions as f

    return f.to_date(START)


def _needed(options: Options) -> StructType:
    """The columns that are named somewhere: no others are decoded."""
    from hotfire.spark.schema import COLUMNS, spark_schema

    named = columns_named((*options.by, *options.told, options.where or "", options.time))
    return spark_schema(tuple(column for column in COLUMNS if column.name.lower() in named))


def columns_named(texts: Iterable[str]) -> set[str]:
    """Every word of expressions, in lower case: a column that none of them is, is not used by them.

    >>> sorted(columns_named(["sum(length(body)) AS bytes", "`keys`"]))
    ['as', 'body', 'bytes', 'keys', 'length', 'sum']
    """
    return {word.lower() for text in texts for word in re.findall(r"\w+", text)}


def _archive(job: Job[Options], to: str) -> Archive:
    from hotfire.spark.archiving import Archive

    options = job.options
    return Archive(
        job.spark,
        to,
        reads=options.topic,
        by=("date",),
        checkpoint=options.checkpoint,
        file_bytes=options.file_bytes,
        compression=options.compression,
        is_stopping=lambda: job.is_stopping,
    )


class _Sending:
    """Rows to a topic: a batch has a name, under which what is missing of it is added."""

    def __init__(self, options: Options, topic: str, checkpoint: str) -> None:
        self._options = options
        self._topic = topic
        self._checkpoint = checkpoint

    def send(self, rows: DataFrame, batch: int) -> None:
        from hotfire.spark.archiving import query_id_of

        messages = as_messages(rows, len(self._options.by))
        query_id = query_id_of(rows.sparkSession, self._checkpoint)
        writer = messages.write.format("hotfire").mode("append").options(**self._options.connection())
        # the keys say which window of what it is; a sum's last digit may differ when it is added up anew
        writer = writer.option("topic", self._topic).option("uniqueBy", "keys")
        writer.option("label", f"{query_id}-{batch}").save()


def as_messages(rows: DataFrame, by_count: int) -> DataFrame:
    """A row as JSON, under keys that say which window of what it is."""
    from pyspark.sql import functions as f

    groups = rows.columns[2 : 2 + by_count]
    parts = [f.date_format(START, "yyyy-MM-dd'T'HH:mm:ss.SSS'Z'")]
    # what is not there is not what is empty
    parts += [f.coalesce(_escaped(f.col(f"`{name}`").cast("string")), f.lit("%")) for name in groups]
    return rows.select(f.to_json(f.struct("*")).alias("body"), f.concat_ws("|", *parts).alias("keys"))


def _escaped(text: Column) -> Column:
    """Blanks part keys, and `|` the parts of ours; different texts stay different."""
    from pyspark.sql import functions as f

    for sign in "%| \t\n\r\v\f":
        text = f.replace(text, f.lit(sign), f.lit(f"%{ord(sign):02X}"))
    return text
