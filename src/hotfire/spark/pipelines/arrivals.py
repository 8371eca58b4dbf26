"""What arrived of a round, held against what was to be moved: each message once, evenly or in order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from hotfire.model import MessageQueue
from hotfire.spark.offsets import Range
from hotfire.spark.pipelines.carrying import mark, place
from hotfire.spark.pipelines.ordering import SHARD, numbered

MARK = "_mark"


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Figures of a round."""

    wanted: int
    arrived: int
    """Different messages of the round."""
    repeats: int
    least: int
    most: int
    """Messages in the queue with the fewest, and in the one with the most."""
    disordered: int | None = None
    """Messages that lie elsewhere among those of their key than they did; None where order was not asked
    for.
    """
    split_keys: int | None = None
    """Keys that lie in more than one queue."""

    @property
    def missing(self) -> int:
        return self.wanted - self.arrived

    def faults(self, *, evenly: bool) -> list[str]:
        """What is wrong, a sentence each."""
        found = []
        if self.missing:
            found.append(f"{self.missing} of {self.wanted} messages have not arrived")
        if self.repeats:
            found.append(f"{self.repeats} messages have arrived again")
        if evenly and self.most - self.least > 1:
            found.append(f"queues are uneven: {self.least} to {self.most} messages")
        if self.disordered:
            found.append(f"{self.disordered} messages are not in the order of their key")
        if self.split_keys:
            found.append(f"{self.split_keys} keys lie in several queues")
        return found


def marked(arrived: DataFrame, ranges: Sequence[Range]) -> DataFrame:
    """Messages that are copies of those in the ranges, with the place they name in `_mark`."""
    return arrived.withColumn(MARK, mark()).where(_is_of(ranges))


def _is_of(ranges: Sequence[Range]) -> Column:
    """Whether the mark names a message of the ranges."""
    parts = F.split(MARK, "/")
    queue = F.concat_ws("/", F.slice(parts, 1, 3))
    bounds = {_name(one.queue): (one.first, one.until) for one in ranges}
    if not bounds:
        return F.lit(False)
    firsts, untils = (
        F.create_map(*[part for name, bound in bounds.items() for part in (F.lit(name), F.lit(bound[at]))])
        for at in (0, 1)
    )
    offset = F.try_element_at(parts, F.lit(4)).cast("bigint")
    is_within = (offset >= F.element_at(firsts, queue)) & (offset < F.element_at(untils, queue))
    return F.coalesce(F.col(MARK).isNotNull() & is_within, F.lit(False))


def _name(queue: MessageQueue) -> str:
    return f"{queue.topic}/{queue.broker_name}/{queue.queue_id}"


def not_arrived(source: DataFrame, copies: DataFrame) -> DataFrame:
    """Messages of which there is no copy yet."""
    return source.withColumn(MARK, place()).join(copies.select(MARK), MARK, "left_anti").drop(MARK)


def look(copies: DataFrame, wanted: int, queues: Sequence[MessageQueue]) -> Arrivals:
    """Counts of the copies of a round, in all and by queue."""
    rows = copies.groupBy("brokerName", "queueId").agg(F.count(MARK).alias("count")).collect()
    counts = {(row.brokerName, row.queueId): row["count"] for row in rows}
    each = [counts.get((queue.broker_name, queue.queue_id), 0) for queue in queues]
    different = copies.select(MARK).distinct().count()
    total = sum(counts.values())
    return Arrivals(wanted, different, total - different, min(each, default=0), max(each, default=0))


def disorder(source: DataFrame, copies: DataFrame, *, key: str | None) -> tuple[int, int]:
    """Copies out of their key's order, and keys in several queues.

    A message's number among those of its key must be the same on both sides; of one that arrived twice the
    first counts.
    """
    there = numbered(source, key=key).select(place().alias(MARK), F.col("_number"), F.col(SHARD))
    first = Window.partitionBy(MARK).orderBy("queueOffset")
    once = copies.withColumn("_turn", F.row_number().over(first)).where("_turn = 1")
    joined = once.select(MARK, "brokerName", "queueId", "queueOffset").join(there, MARK)
    order = Window.partitionBy(SHARD).orderBy("queueOffset")
    here = joined.withColumn("_here", F.row_number().over(order))
    row = here.agg(F.count_if(F.col("_here") != F.col("_number"))).first()
    split = (
        here.groupBy(SHARD)
        .agg(F.count_distinct("brokerName", "queueId").alias("queues"))
        .where("queues > 1")
        .count()
    )
    assert row is not None
    return int(row[0]), split
