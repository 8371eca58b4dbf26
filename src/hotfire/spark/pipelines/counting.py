"""What is in topics, counted: places without a message, ids that come twice, ids held against a ledger."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from hotfire.errors import ConfigError
from hotfire.model import DLQ_PREFIX, RETRY_PREFIX, SCHEDULE_TOPIC, MessageQueue
from hotfire.spark.pipelines.balance import QueueCount
from hotfire.spark.pipelines.standing import Spans

PLACE_COLUMNS = ("topic", "brokerName", "queueId", "queueOffset", "msgId")
FAILURE_COLUMNS = (*PLACE_COLUMNS, "properties", "reconsumeTimes")
LEDGER_NAMES = ("msgId", "msg_id", "messageId", "message_id", "id", "uniqKey", "UNIQ_KEY")
"""What a column of unique ids may be called; a file of one column may call it anything."""

GROUPS_OWN = f"^(?:{RETRY_PREFIX}|{DLQ_PREFIX})(.*)$"
"""A topic of a group's failures, and the group."""


class Hole(NamedTuple):
    """Places of a queue that hold no readable message: from `first` up to, not including, `until`."""

    queue: MessageQueue
    first: int
    until: int


def queue_counts(messages: DataFrame, spans: Spans | None = None) -> list[QueueCount]:
    """Each queue's places between its beginning and its end, and how many have a message.

    Without `spans` a queue begins with its first message and ends with its last: what is missing at its ends
    cannot be seen.
    """
    rows = (
        messages.groupBy("topic", "brokerName", "queueId")
        .agg(
            F.min("queueOffset").alias("first"),
            (F.max("queueOffset") + 1).alias("end"),
            F.count_distinct("queueOffset").alias("readable"),
        )
        .collect()
    )
    found = {MessageQueue(row.topic, row.brokerName, row.queueId): row for row in rows}
    if spans is None:
        return [QueueCount(queue, row.first, row.end, row.readable) for queue, row in sorted(found.items())]
    return [
        QueueCount(queue, first, end, found[queue].readable if queue in found else 0)
        for queue, (first, end) in sorted(spans.items())
    ]


def holes(messages: DataFrame, counts: Iterable[QueueCount], most: int) -> list[Hole]:
    """Where the holes of these queues are, up to so many of them."""
    found: list[Hole] = []
    for count in counts:
        if not count.holes or len(found) >= most:
            continue
        queue = count.queue
        offsets = messages.where(
            (F.col("topic") == queue.topic)
            & (F.col("brokerName") == queue.broker_name)
            & (F.col("queueId") == queue.queue_id)
        ).select("queueOffset")
        before = F.coalesce(
            F.lag("queueOffset").over(Window.orderBy("queueOffset")), F.lit(count.first - 1)
        ).alias("before")
        gaps = (
            offsets.distinct()
            .select("queueOffset", before)
            .where("queueOffset > before + 1")
            .limit(most)
            .collect()
        )
        found += [Hole(queue, row.before + 1, row.queueOffset) for row in gaps]
        last = offsets.agg(F.max("queueOffset")).first()
        end = count.first if last is None or last[0] is None else last[0] + 1
        if end < count.end:
            found.append(Hole(queue, end, count.end))
    return found[:most]


def repeats(messages: DataFrame) -> dict[str, int]:
    """By topic, how many messages have an id that another of the topic had before."""
    each = messages.groupBy("topic", "msgId").agg(
        (F.count_distinct("brokerName", "queueId", "queueOffset") - 1).alias("more")
    )
    rows = each.where("more > 0").groupBy("topic").agg(F.sum("more").alias("repeats")).collect()
    return {row.topic: row.repeats for row in rows}


# --- ledgers ---------------------------------------------------------------------------------------


def ledger(spark: SparkSession, file: str) -> DataFrame:
    """A file or directory of unique ids, as Parquet, CSV or lines of JSON, by its name: msgId, topic, group.

    `topic` and `group` are null where the file does not say.
    """
    kind = file.rstrip("/").rpartition(".")[2].lower()
    if kind == "csv":
        read = spark.read.option("header", True).csv(file)
    elif kind in ("json", "jsonl", "ndjson"):
        read = spark.read.json(file)
    else:
        read = spark.read.parquet(file)
    named = next((name for name in LEDGER_NAMES if name in read.columns), None)
    if named is None and len(read.columns) == 1:
        named = read.columns[0]
    if named is None:
        raise ConfigError(
            f"ledger {file} has columns {', '.join(read.columns)}: none is called "
            f"{' or '.join(LEDGER_NAMES[:5])}"
        )
    also = [
        F.col(name) if name in read.columns else F.lit(None).cast("string").alias(name)
        for name in ("topic", "group")
    ]
    return read.select(F.col(named).cast("string").alias("msgId"), *also).where("msgId is not null")


class Held(NamedTuple):
    """A topic held against its ledger."""

    sent: int
    held: int
    missing: int
    unknown: int


def against(entries: DataFrame, messages: DataFrame, scheduled: DataFrame) -> dict[str, Held]:
    """By topic: ids sent against those stored, and those that the schedule holds back for it."""
    each = ["topic", "msgId"]
    real = F.element_at("properties", F.lit("REAL_TOPIC")).alias("topic")
    marked = (
        entries.select(*each).distinct().withColumn("sent", F.lit(True))
        .join(messages.select(*each).distinct().withColumn("stored", F.lit(True)), each, "full")
        .join(scheduled.select(real, "msgId").distinct().withColumn("later", F.lit(True)), each, "left")
    )  # fmt: skip
    is_sent, is_stored, is_later = (F.col(name).isNotNull() for name in ("sent", "stored", "later"))
    rows = marked.groupBy("topic").agg(
        F.count_if(is_sent), F.count_if(is_sent & ~is_stored & is_later),
        F.count_if(is_sent & ~is_stored & ~is_later), F.count_if(~is_sent & is_stored),
    ).collect()  # fmt: skip
    return {row[0]: Held(*row[1:]) for row in rows}


# --- groups ----------------------------------------------------------------------------------------


def failing(frame: DataFrame, committed: Mapping[str, Mapping[MessageQueue, int]]) -> DataFrame:
    """Messages that groups have not managed yet (`retrying`) or have given up (`dead`): group, topic, msgId,
    state.

    `frame` holds the messages of their retry topics and dead letters, and of the schedule topic, where one
    lies as often as it failed: the last of its lives counts. It waits to be tried again when that is in the
    schedule, or in the retry topic where the group has not been. `committed` are offsets by group.
    """
    origin = F.element_at("properties", F.lit("RETRY_TOPIC"))
    real = F.element_at("properties", F.lit("REAL_TOPIC"))
    home = F.when(F.col("topic") == SCHEDULE_TOPIC, real).otherwise(F.col("topic"))
    stage = (
        F.when(F.col("topic") == SCHEDULE_TOPIC, 0)
        .when(F.col("topic").startswith(DLQ_PREFIX), 2)
        .otherwise(1)
    )
    named = frame.select(
        F.regexp_extract(home, GROUPS_OWN, 1).alias("group"), origin.alias("origin"), stage.alias("stage"),
        "msgId", "topic", "brokerName", "queueId", "queueOffset", "reconsumeTimes",
    ).where("group <> '' and origin is not null")  # fmt: skip
    latest = Window.partitionBy("group", "origin", "msgId").orderBy(
        F.desc("reconsumeTimes"), F.desc("stage"), F.desc("queueOffset")
    )
    last = named.withColumn("turn", F.row_number().over(latest)).where("turn = 1")
    places = {queue: offset for offsets in committed.values() for queue, offset in offsets.items()}
    is_waiting = (F.col("stage") == 0) | ((F.col("stage") == 1) & ~is_before(places))
    state = F.when(F.col("stage") == 2, "dead").when(is_waiting, "retrying")
    found = last.select("group", F.col("origin").alias("topic"), "msgId", state.alias("state"))
    return found.where("state is not null")


def is_before(places: Mapping[MessageQueue, int]) -> Column:
    """Whether a message lies before these places of its queue; not so where none is given."""
    pairs = [part for queue, offset in places.items() for part in (F.lit(_name(queue)), F.lit(offset))]
    if not pairs:
        return F.lit(False)
    next_ = F.element_at(F.create_map(*pairs), F.concat_ws("/", "topic", "brokerName", "queueId"))
    return F.col("queueOffset") < F.coalesce(next_, F.lit(0))


def _name(queue: MessageQueue) -> str:
    return f"{queue.topic}/{queue.broker_name}/{queue.queue_id}"


def unconsumed(passed: DataFrame, consumed: DataFrame, excused: DataFrame) -> tuple[int, int]:
    """Of messages a group has passed: how many its ledger does not have, and how many it has again.

    `excused` are those it failed, which it will have later or never.
    """
    seen = consumed.groupBy("msgId").agg(F.count(F.lit(1)).alias("seen"))
    joined = (
        passed.select("msgId").distinct().join(seen, "msgId", "left")
        .join(excused.select("msgId", F.lit(True).alias("excused")), "msgId", "left")
    )  # fmt: skip
    row = joined.agg(
        F.count_if(F.col("seen").isNull() & F.col("excused").isNull()),
        F.coalesce(F.sum(F.col("seen") - 1), F.lit(0)),
    ).first()
    assert row is not None
    return int(row[0]), int(row[1])
