"""A topic to Parquet, by topic and date: each message once, in files worth their name.

One run takes what is there and ends, for schedules; with `--every` it goes on. How a message comes to be
there once, and how small files are put together, is `hotfire.spark.batches`'.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hotfire.spark.options import count, size, span_s
from hotfire.spark.pipelines.options import Reading, option, trigger

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from hotfire.spark.job import Job

CODECS = ("zstd", "snappy", "gzip", "lz4", "uncompressed")


@dataclass(frozen=True, kw_only=True)
class Options(Reading):
    to: str = option("the directory, on this machine or wherever Spark writes to", metavar="DIR")
    every: float | None = option(
        "go on, with a batch so often: 30s, 5m; without it, what is there now, and then the end", None,
        read=span_s, metavar="TIME",
    )  # fmt: skip
    checkpoint: str | None = option(
        "where the stream keeps how far it is, if not in the directory itself", None, metavar="DIR"
    )
    batch_rows: int = option("messages in one batch, at most about", 1_000_000, read=count, metavar="N")
    compact: bool = option("put small files together", True)
    file_bytes: int = option("files are put together up to this size", 128 << 20, read=size, metavar="SIZE")
    compression: str = option("of the files", "zstd", choices=CODECS)


OPTIONS = Options


def check(options: Options) -> None:
    from hotfire.spark.sourceoptions import SourceOptions

    SourceOptions.read(options.source(), streaming=True)


def run(job: Job[Options]) -> int:
    from pyspark.sql import functions as f

    from hotfire.spark.archiving import Archive
    from hotfire.spark.files import qualified
    from hotfire.spark.telling import tell_group

    options = job.options
    archive = Archive(
        job.spark,
        options.to,
        reads=options.topic,
        by=("topic", "date"),
        checkpoint=options.checkpoint,
        file_bytes=options.file_bytes,
        compression=options.compression,
        is_stopping=lambda: job.is_stopping,
    )

    def add(rows: DataFrame, batch: int) -> None:
        archive.add(rows.withColumn("date", f.to_date("storeTimestamp")), batch, compact=options.compact)

    with archive.opened():
        stream = (
            job.spark.readStream.format("hotfire")
            .options(**options.source(), checkpointLocation=qualified(job.spark, archive.checkpoint))
            .option("maxOffsetsPerTrigger", str(options.batch_rows))
            .load()
        )
        writer = stream.writeStream.queryName(f"archive {','.join(options.topic)}").foreachBatch(add)
        query = trigger(writer.option("checkpointLocation", archive.checkpoint), options.every).start()
        end = job.stream(query)
        tell_group(query, options.source())
        if options.compact and not end.was_stopped:
            with job.batch("putting files together"):
                archive.compact()
    return 0
