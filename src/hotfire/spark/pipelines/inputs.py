"""Where a pipeline finds messages: in a cluster, in an archive of Parquet files, or in a broker's store.

All three give the columns of `hotfire.spark.schema`, so that what a pipeline says of messages holds for each.
Imported for help: Spark is imported by what uses it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING

from hotfire.errors import ConfigError
from hotfire.model import MessageQueue
from hotfire.places import TIME_HELP, Place, start_place
from hotfire.spark.options import names
from hotfire.spark.pipelines.options import Common, ending, option, starting

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

Spans = Mapping[MessageQueue, tuple[int, int]]


@dataclass(frozen=True, kw_only=True)
class Found(Common):
    """What looks at messages, wherever they are."""

    archive: str | None = option("a directory of Parquet files, instead of the cluster", None, metavar="DIR")
    store: tuple[str, ...] = option(
        "the store of a broker, instead of the cluster; may be given again", (), metavar="[BROKER=]DIR"
    )

    @property
    def is_live(self) -> bool:
        """Whether brokers are asked, and not files."""
        return self.archive is None and not self.store

    def check_input(self) -> None:
        if self.archive is not None and self.store:
            raise ConfigError("--archive and --store: messages come from one or the other")
        self.stores()

    def stores(self) -> dict[str, str]:
        """Directories by the names of their brokers: those said, or else what the directories are called."""
        found: dict[str, str] = {}
        for word in self.store:
            name, equals, directory = word.partition("=")
            if not equals or "/" in name:
                name, directory = Path(word).resolve().name, word
            if name in found:
                raise ConfigError(
                    f"--store {word}: another is called {name} already; say --store BROKER={directory}"
                )
            found[name] = directory
        return found


@dataclass(frozen=True, kw_only=True)
class Spanned(Found):
    """The same for those stored within a span of time."""

    from_: Place = option(
        f"earliest or a time: of what was stored from then on; {TIME_HELP}", Place("earliest"),
        read=start_place, metavar="PLACE",
    )  # fmt: skip
    to: Place | None = option("a time: of what was stored before it", None, read=start_place, metavar="PLACE")

    def check_input(self) -> None:
        Found.check_input(self)
        if self.from_.kind not in ("earliest", "time"):
            raise ConfigError(f"--from {self.from_.kind}: earliest or a time")
        ending(self.to)

    def times(self) -> dict[str, str]:
        """The options of format `hotfire` that mean this span."""
        return {**starting(self.from_), **ending(self.to)}


def topics_option() -> tuple[str, ...]:
    """A field: topics by name."""
    chosen: tuple[str, ...] = option("the topic, or several with commas between", read=names)
    return chosen


def messages(
    spark: SparkSession,
    options: Found,
    topics: Sequence[str],
    columns: Sequence[str] | None = None,
    *,
    spans: Spans | None = None,
    allow_loss: bool = False,
) -> DataFrame:
    """The messages of topics; of `columns` all when none are named, and otherwise nothing else is decoded.

    `spans` say from where to where in each queue; with them no time counts.
    """
    if options.is_live:
        return _live(spark, options, topics, columns, spans, allow_loss=allow_loss)
    if options.archive is not None:
        found = _archived(spark, options.archive)
    else:
        found = _of_stores(spark, options, topics, columns, allow_loss=allow_loss)
    found = found.where(_within(options, topics))
    return found if columns is None else found.select(*columns)


def _live(
    spark: SparkSession,
    options: Found,
    topics: Sequence[str],
    columns: Sequence[str] | None,
    spans: Spans | None,
    *,
    allow_loss: bool,
) -> DataFrame:
    said = {**options.connection(), "failOnDataLoss": str(not allow_loss).lower()}
    if spans is None:
        said["subscribe"] = ",".join(topics)
        if isinstance(options, Spanned):
            said |= options.times()
    else:
        said |= between({queue: span for queue, span in spans.items() if queue.topic in topics})
    reader = spark.read.format("hotfire").options(**said)
    return reader.load() if columns is None else reader.schema(schema_of(columns)).load()


def _archived(spark: SparkSession, directory: str) -> DataFrame:
    from hotfire.spark.archiving import read_archive
    from hotfire.spark.queries import archive_schema

    return read_archive(spark, directory, archive_schema()).drop("date")


def between(spans: Spans) -> dict[str, str]:
    """The options of format `hotfire` that mean these queues, from these offsets up to those."""
    from hotfire.spark.offsets import to_json

    starts = to_json({queue: first for queue, (first, _) in spans.items()})
    ends = to_json({queue: until for queue, (_, until) in spans.items()})
    queues = {
        topic: {broker: sorted(map(int, ids)) for broker, ids in brokers.items()}
        for topic, brokers in starts.items()
    }
    return {
        "assign": json.dumps(queues),
        "startingOffsets": json.dumps(starts),
        "endingOffsets": json.dumps(ends),
    }


def _of_stores(
    spark: SparkSession,
    options: Found,
    topics: Sequence[str],
    columns: Sequence[str] | None,
    *,
    allow_loss: bool,
) -> DataFrame:
    needed = None if columns is None else tuple(dict.fromkeys([*columns, "topic", "storeTimestamp"]))
    found = []
    for name, directory in options.stores().items():
        reader = spark.read.format("hotfire-store").option("path", directory).option("brokerName", name)
        reader = reader.option("subscribe", ",".join(topics)).option(
            "damaged", "skip" if allow_loss else "fail"
        )
        reader = reader.options(**_span(options))
        found.append(reader.load() if needed is None else reader.schema(schema_of(needed)).load())
    return reduce(lambda one, other: one.unionByName(other), found)


def _span(options: Found) -> dict[str, str]:
    """The options of format `hotfire-store` that mean the span of time, if there is one."""
    said = options.times() if isinstance(options, Spanned) else {}
    return {name: said[name] for name in ("startingTimestamp", "endingTimestamp") if name in said}


def _within(options: Found, topics: Sequence[str]) -> Column:
    from pyspark.sql import functions as F

    wanted = F.col("topic").isin(*topics)
    if isinstance(options, Spanned) and options.from_.kind == "time":
        wanted &= F.col("storeTimestamp") >= F.timestamp_millis(F.lit(options.from_.value))
    if isinstance(options, Spanned) and options.to is not None and options.to.kind == "time":
        wanted &= F.col("storeTimestamp") < F.timestamp_millis(F.lit(options.to.value))
    return wanted


def schema_of(columns: Sequence[str]) -> StructType:
    from hotfire.spark.schema import BY_NAME, spark_schema

    return spark_schema(tuple(BY_NAME[name] for name in columns))
