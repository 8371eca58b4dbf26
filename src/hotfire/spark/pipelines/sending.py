"""Messages sent again, by the sink: which columns it gets, how fast, and what is there from before.

A label makes a write that was cut short one that can be gone on with: the sink finds the rows it has sent, as
long as the same rows come in the same partitions. What chooses its rows anew each time, or sends them now by
many tasks and now by one, looks for their copies first, by the place each copy names.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as F

from hotfire.model import MessageQueue
from hotfire.spark.pipelines.carrying import COPIED_BY, COPIED_FROM, carried_properties, place
from hotfire.spark.pipelines.inputs import schema_of

if TYPE_CHECKING:
    from hotfire.spark.job import Job
    from hotfire.spark.pipelines.options import Common

BATCH_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"
STEP_S = 0.1
"""A limited rate is kept over this long."""
EARLIER_MS = 60_000
"""Clocks of brokers differ; a copy may seem to be stored before what it is a copy of."""


def send_copies(
    job: Job[Any],
    messages: DataFrame,
    *,
    target: Column,
    label: str,
    key: str | None = None,
    queue: Column | None = None,
    queues: Sequence[MessageQueue] = (),
    also: Mapping[str, Column] | None = None,
    rate: int | None = None,
) -> int:
    """Send a copy of each message to the topic that `target` says; how many there were.

    `key` names a column: rows of one key go to one queue, in their order. Or `queue` is a number among
    `queues`.
    """
    columns = [
        target.alias("topic"), F.col("body"), F.col("keys"), F.col("tags"),
        carried_properties(also).alias("properties"),
    ]  # fmt: skip
    if key is not None:
        columns.append(F.col(key).alias("shardingKey"))
    if queue is not None:
        brokers = F.array(*[F.lit(one.broker_name) for one in queues])
        ids = F.array(*[F.lit(one.queue_id) for one in queues])
        columns += [F.get(brokers, queue).alias("brokerName"), F.get(ids, queue).alias("queueId")]
    seen = Observation()
    copies = messages.select(*columns).observe(seen, F.count(F.lit(1)).alias("count"))
    said = {**job.options.connection(), "label": label_text(label)}
    if rate is None:
        copies.write.format("hotfire").options(**said).mode("append").save()
    else:
        _write_slowly(job, copies, said, rate)
    return int(seen.get["count"])


def label_text(words: str) -> str:
    """
    >>> label_text("replay ('orders',) into café")
    "replay-('orders',)-into-café"
    """
    return re.sub(r"\s+", "-", words)


# --- at a rate -------------------------------------------------------------------------------------


def _write_slowly(job: Job[Any], copies: DataFrame, said: dict[str, str], rate: int) -> None:
    """By one task, so that there is one clock to go by; rows come to it in handfuls."""
    conf = job.spark.conf
    before = conf.get(BATCH_ROWS)
    conf.set(BATCH_ROWS, str(max(int(rate * STEP_S), 1)))
    try:
        pace = F.udf(Pace(rate), "boolean", useArrow=False).asNondeterministic()
        slow = copies.coalesce(1).where(pace(F.monotonically_increasing_id()))
        slow.write.format("hotfire").options(**said).mode("append").save()
    finally:
        conf.set(BATCH_ROWS, before or "10000")


class Pace:
    """Called for each row, and waits: after any time no more than `rate` times that and a piece have passed.

    A function of Python's, because one over Arrow batches would ask for pandas.
    """

    def __init__(
        self,
        rate: int,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._rate = rate
        self._clock = clock
        self._sleep = sleep
        self._piece = max(int(rate * STEP_S), 1)
        self._left = 0
        self._next_s: float | None = None

    def __call__(self, _: object) -> bool:
        if not self._left:
            now_s = self._clock()
            next_s = now_s if self._next_s is None else self._next_s
            if now_s < next_s:
                self._sleep(next_s - now_s)
            # Time that passed unused is lost: who waited for rows does not make up for it in a burst.
            self._next_s = max(next_s, now_s) + self._piece / self._rate
            self._left = self._piece
        self._left -= 1
        return True


# --- what is there from before ---------------------------------------------------------------------


class Sent(NamedTuple):
    chosen: int
    before: int
    sent: int


def send_missing(
    job: Job[Any],
    messages: DataFrame,
    *,
    target: Column,
    label: str,
    also: Mapping[str, Column] | None = None,
    rate: int | None = None,
    by: str | None = None,
    order: Callable[[DataFrame], DataFrame] = lambda messages: messages,
    key: str | None = None,
) -> Sent:
    """Send those messages of which no copy is in the topic that `target` says.

    With `by` only copies count that were made under this name. `order` arranges what is sent, and `key` is a
    column of what it gives, as for `send_copies`.
    """
    chosen = messages.withColumn("_target", target).withColumn("_mark", place()).persist()
    try:
        facts = chosen.agg(
            F.count(F.lit(1)).alias("count"), F.collect_set("_target").alias("topics"),
            F.unix_millis(F.min("storeTimestamp")).alias("since"),
        ).first()  # fmt: skip
        assert facts is not None
        if not facts["count"]:
            return Sent(0, 0, 0)
        copies = _copies(job, job.options, sorted(facts.topics), facts.since - EARLIER_MS, by)
        if by is not None:
            also = {**(also or {}), COPIED_BY: F.lit(by)}
        missing = chosen.join(copies, ["_target", "_mark"], "left_anti")
        label = f"{label} {time.time_ns()}"
        sent = send_copies(
            job, order(missing), target=F.col("_target"), label=label, key=key, also=also, rate=rate
        )
        return Sent(facts["count"], facts["count"] - sent, sent)
    finally:
        chosen.unpersist()


def _copies(
    job: Job[Any], options: Common, topics: Sequence[str], since_ms: int, by: str | None
) -> DataFrame:
    """The marks of copies stored in topics since a time."""
    said = {
        **options.connection(), "subscribe": ",".join(topics), "startingTimestamp": str(max(since_ms, 0)),
        "startingOffsetsByTimestampStrategy": "latest", "failOnDataLoss": "false",
    }  # fmt: skip
    read = job.spark.read.format("hotfire").options(**said).schema(schema_of(("topic", "properties"))).load()
    if by is not None:
        read = read.where(F.element_at("properties", F.lit(COPIED_BY)) == by)
    mark = F.element_at("properties", F.lit(COPIED_FROM))
    return read.select(F.col("topic").alias("_target"), mark.alias("_mark")).where("_mark is not null")
