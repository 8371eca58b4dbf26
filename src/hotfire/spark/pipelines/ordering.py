"""The order messages were stored in, kept for all that have one key while they are sent by several tasks.

Rows of one key come into one partition and lie there as their logs had them. Within a broker that is the
log's own order, whatever its clock did: the time that counts is the latest seen up to a row, so that a clock
set back does not put a message before those it followed. Between brokers nothing but their clocks can tell.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from hotfire.errors import ConfigError
from hotfire.spark.pipelines.carrying import SHARDING_KEY

SHARD = "_shard"
TIME = "_time"
NEEDED = ("topic", "brokerName", "queueId", "queueOffset", "commitLogOffset", "storeTimestamp")
"""Columns that order is made of."""


def shard(key: str | None = None) -> Column:
    """What messages that must stay in order share: their key, or for those without one their queue.

    `key` is an SQL expression over a message's columns; otherwise the sharding key counts, then the keys.
    """
    if key is None:
        found = F.coalesce(F.element_at("properties", F.lit(SHARDING_KEY)), F.col("keys"))
    else:
        found = F.expr(key).cast("string")
    queue = F.concat_ws("/", F.lit(""), "topic", "brokerName", "queueId")  # no key begins like this by chance
    return F.coalesce(F.when(found != "", found), queue)


def in_order(messages: DataFrame, partitions: int, *, key: str | None = None) -> DataFrame:
    """The messages in `partitions`, with the column `_shard`: all of one shard in one, in stored order."""
    missing = [name for name in NEEDED if name not in messages.columns]
    if missing:
        raise ConfigError(f"order needs the columns {', '.join(missing)}, which the messages do not have")
    seen = Window.partitionBy(SHARD, "brokerName").orderBy("commitLogOffset")
    return (
        messages.withColumn(SHARD, shard(key))
        .repartition(partitions, SHARD)
        .withColumn(TIME, F.max("storeTimestamp").over(seen))
        .sortWithinPartitions(TIME, "brokerName", "commitLogOffset", "queueOffset")
        .drop(TIME)
    )


def numbered(messages: DataFrame, *, key: str | None = None, name: str = "_number") -> DataFrame:
    """The messages with `_shard` and each one's number in its shard, from 1, as `in_order` lays them."""
    seen = Window.partitionBy(SHARD, "brokerName").orderBy("commitLogOffset")
    order = Window.partitionBy(SHARD).orderBy(TIME, "brokerName", "commitLogOffset", "queueOffset")
    return (
        messages.withColumn(SHARD, shard(key))
        .withColumn(TIME, F.max("storeTimestamp").over(seen))
        .withColumn(name, F.row_number().over(order))
        .drop(TIME)
    )
