"""What was stored, sent again: from an archive, a store or a topic, by time, key or condition, in order per
key.

Messages of one key go out one after the other, in the order they were stored in. Each copy names the message
it is of, when that was born, and which replay made it: what the same one has sent before, because it was cut
short, is not sent again.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hotfire.errors import ConfigError
from hotfire.spark.options import count, names
from hotfire.spark.pipelines.inputs import Spanned, messages, topics_option
from hotfire.spark.pipelines.options import option

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from hotfire.spark.job import Job

PARTITIONS = 8


@dataclass(frozen=True, kw_only=True)
class Options(Spanned):
    topic: tuple[str, ...] = topics_option()
    into: str = option("the topic to send to", metavar="TOPIC")
    key: tuple[str, ...] = option("only messages with one of these keys", (), read=names, metavar="KEYS")
    tags: tuple[str, ...] = option("only messages with one of these tags", (), read=names)
    where: str | None = option(
        "only those for which this holds: SQL over a message's columns", None, metavar="SQL"
    )
    order: str | None = option(
        "what is kept in order: SQL over a message's columns; its sharding key, its keys, or else its queue",
        None, metavar="SQL",
    )  # fmt: skip
    rate: int | None = option("messages a second, at most", None, read=count, metavar="N")
    label: str | None = option(
        "a name for this replay: run again under it, only what is missing is sent; made of the options",
        None,
    )
    dry_run: bool = option("count what would be sent, and send nothing", False)


OPTIONS = Options


def check(options: Options) -> None:
    options.check_input()
    if options.is_live and options.into in options.topic:
        raise ConfigError(f"--into {options.into}: a topic replayed into itself has no end; name another one")


def run(job: Job[Options]) -> int:
    from pyspark.sql import functions as F

    from hotfire.spark.pipelines.ordering import SHARD, in_order
    from hotfire.spark.pipelines.sending import send_missing

    options = job.options
    found = chosen(messages(job.spark, options, options.topic), options)
    with job.batch("replay"):
        if options.dry_run:
            print(f"{found.count()} messages would be sent to {options.into}")
            return 0
        partitions = PARTITIONS if options.rate is None else 1
        label = options.label or label_of(options)
        sent = send_missing(
            job, found, target=F.lit(options.into), label=label, by=name_of(label), rate=options.rate,
            order=lambda missing: in_order(missing, partitions, key=options.order), key=SHARD,
        )  # fmt: skip
    before = f", {sent.before} were there from before" if sent.before else ""
    print(f"{sent.sent} messages sent to {options.into}{before}")
    return 0


def chosen(found: DataFrame, options: Options) -> DataFrame:
    from pyspark.sql import functions as F

    if options.key:
        keys = F.array(*[F.lit(key) for key in options.key])
        found = found.where(F.arrays_overlap(F.split("keys", r"\s+"), keys))
    if options.tags:
        found = found.where(F.col("tags").isin(*options.tags))
    return found if options.where is None else found.where(options.where)


def name_of(label: str) -> str:
    """What each copy says of the replay that made it: short, whatever the label is."""
    return hashlib.sha256(label.encode()).hexdigest()[:16]


def label_of(options: Options) -> str:
    """The same request has the same name."""
    origin = options.archive or ",".join(options.store) or options.name_servers
    chosen_by = (options.from_, options.to, options.key, options.tags, options.where)
    return f"replay {(origin, options.topic, chosen_by, options.into)!r}"
