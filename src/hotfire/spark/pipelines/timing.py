"""How long messages took and how many came by the minute, as queries.

From birth to store every message tells by itself: both times lie in its record, by the producer's clock and
by the broker's. When it was consumed lies in no log; clients with tracing on tell so in the trace topic, and
nothing else does. What is known without traces is where groups are now, and what they gave back.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from hotfire.model import MessageQueue
from hotfire.protocol.trace import decode_trace

PERCENTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p999": 0.999}
ACCURACY = 10_000
"""Of a percentile: wrong by less than one rank in so many."""
STORED_COLUMNS = ("topic", "brokerName", "queueId", "queueOffset", "msgId", "bornTimestamp", "storeTimestamp")


def born_to_stored(messages: DataFrame) -> DataFrame:
    """A row for each topic, each of its queues, and each of its minutes: how many, and how long they took.

    `early` counts those stored before they were born: the clocks of producer and broker differ.
    """
    took = F.unix_millis("storeTimestamp") - F.unix_millis("bornTimestamp")
    timed = messages.withColumn("minute", minute("storeTimestamp")).withColumn("ms", took)
    sets = [["topic"], ["topic", "brokerName", "queueId"], ["topic", "minute"]]
    grouped = timed.groupingSets(
        [[F.col(name) for name in one] for one in sets],
        *[F.col(name) for name in ("topic", "brokerName", "queueId", "minute")],
    )
    early = F.count_if(F.col("ms") < 0).alias("early")
    return grouped.agg(
        *_figures(),
        early,
        F.unix_millis(F.min("storeTimestamp")).alias("first"),
        F.unix_millis(F.max("storeTimestamp")).alias("last"),
    )


def minute(time: str | Column) -> Column:
    """When the minute of a time began, in ms."""
    return F.unix_millis(F.date_trunc("minute", time))


def _figures() -> list[Column]:
    shares = [F.lit(share) for share in PERCENTILES.values()]
    found = F.percentile_approx("ms", F.array(*shares), ACCURACY)
    each = [found.getItem(at).alias(name) for at, name in enumerate(PERCENTILES)]
    return [F.count("ms").alias("count"), *each, F.max("ms").alias("max")]


# --- traces ----------------------------------------------------------------------------------------

TRACE_SCHEMA = (
    "array<struct<kind string, msgId string, group string, timeMs bigint, costMs bigint, success boolean, "
    "requestId string, retries int>>"
)


def traces(messages: DataFrame) -> DataFrame:
    """What the messages of the trace topic say, an entry each."""
    read = F.udf(_entries, TRACE_SCHEMA, useArrow=False)  # with Arrow it would ask for pandas
    return messages.select(F.explode(read("body")).alias("entry")).select("entry.*")


def _entries(body: bytearray | None) -> list[tuple[Any, ...]]:
    return [
        (
            one.kind,
            one.message_id,
            one.group,
            one.time_ms,
            one.cost_ms,
            one.is_success,
            one.request_id,
            one.retries,
        )
        for one in decode_trace(bytes(body or b""))
    ]


def consumptions(entries: DataFrame) -> DataFrame:
    """A row for each time a listener was given a message: group, msgId, began and ended in ms, success.

    One that began and was not heard of again has neither end nor success.
    """
    began = entries.where("kind = 'SubBefore'").select(
        "msgId", "requestId", "group", F.col("timeMs").alias("began"), "retries"
    )
    ended = entries.where("kind = 'SubAfter'").select(
        "msgId", "requestId", "success", "costMs", F.col("timeMs").alias("said")
    )
    both = began.join(ended.dropDuplicates(["msgId", "requestId"]), ["msgId", "requestId"], "left")
    end = F.coalesce("said", F.col("began") + F.col("costMs")).alias("ended")
    return both.select("msgId", "group", "retries", "began", end, "success")


def consumed(messages: DataFrame, consumption: DataFrame) -> DataFrame:
    """A row for each group and topic, and each of its minutes: done and failed, how long until its first try
    began (`stored` to `began`) and from birth until it was done."""
    times = messages.select(
        "msgId",
        "topic",
        F.unix_millis("bornTimestamp").alias("born"),
        F.unix_millis("storeTimestamp").alias("stored"),
    ).dropDuplicates(["msgId"])
    joined = consumption.join(times, "msgId").withColumn("minute", minute(F.timestamp_millis("began")))
    first = F.when(F.coalesce("retries", F.lit(0)) == 0, F.col("began") - F.col("stored"))
    whole = F.when(F.col("success"), F.col("ended") - F.col("born"))
    timed = joined.withColumn("waited", first).withColumn("whole", whole)
    sets = [["group", "topic"], ["group", "topic", "minute"]]
    shares = F.array(*[F.lit(share) for share in PERCENTILES.values()])
    waits, wholes = (F.percentile_approx(name, shares, ACCURACY) for name in ("waited", "whole"))
    return timed.groupingSets(
        [[F.col(name) for name in one] for one in sets],
        *[F.col(name) for name in ("group", "topic", "minute")],
    ).agg(
        F.count_if("success").alias("done"),
        F.count_if(~F.col("success")).alias("failed"),
        F.count_if(F.col("success").isNull()).alias("unheard"),
        *[waits.getItem(at).alias(f"waited_{name}") for at, name in enumerate(PERCENTILES)],
        F.max("waited").alias("waited_max"),
        *[wholes.getItem(at).alias(f"whole_{name}") for at, name in enumerate(PERCENTILES)],
        F.max("whole").alias("whole_max"),
    )


# --- without traces --------------------------------------------------------------------------------


def waiting_since(messages: DataFrame, committed: Mapping[MessageQueue, int]) -> DataFrame:
    """A row for each topic: how many messages lie at or behind a group's offsets, and when the first was
    stored.
    """
    pairs = [
        part
        for queue, offset in committed.items()
        for part in (F.lit(f"{queue.topic}/{queue.broker_name}/{queue.queue_id}"), F.lit(offset))
    ]
    place = F.concat_ws("/", "topic", "brokerName", "queueId")
    next_ = F.element_at(F.create_map(*pairs), place) if pairs else F.lit(None)
    waits = F.col("queueOffset") >= F.coalesce(next_.cast("bigint"), F.lit(0))
    return (
        messages.where(waits)
        .groupBy("topic")
        .agg(F.count("*").alias("waiting"), F.unix_millis(F.min("storeTimestamp")).alias("since"))
    )


def given_back(failures: DataFrame) -> DataFrame:
    """A row for each group, topic and minute: how often its consumers gave a message back, and laid aside.

    `failures` are the messages on their way to retry topics, in the schedule topic, and dead letters, with
    their properties: each was stored at the moment of the failure.
    """
    real = F.coalesce(F.element_at("properties", F.lit("REAL_TOPIC")), F.col("topic"))
    origin = F.element_at("properties", F.lit("RETRY_TOPIC"))
    named = failures.select(
        F.regexp_extract(real, "^%(?:RETRY|DLQ)%(.*)$", 1).alias("group"),
        origin.alias("topic"),
        minute("storeTimestamp").alias("minute"),
        real.startswith("%DLQ%").alias("dead"),
    )
    return (
        named.where("group <> '' and topic is not null")
        .groupBy("group", "topic", "minute")
        .agg(F.count_if(~F.col("dead")).alias("retried"), F.count_if("dead").alias("dead"))
    )
