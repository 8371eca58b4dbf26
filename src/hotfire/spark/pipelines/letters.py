"""Dead letters, as queries: what they were, why they died as far as anyone said, and which fall together."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from hotfire.errors import ConfigError
from hotfire.spark.pipelines.carrying import place
from hotfire.spark.pipelines.shapes import ERROR_PROPERTIES, body_shape, error_shape

KINDS = ("origin", "tag", "tries", "error", "shape")
"""What letters of one kind have in common."""


def letters(messages: DataFrame) -> DataFrame:
    """Messages of a topic of dead letters, with what is known of each.

    `id` is the letter's place; `origin` the topic it was sent to, `originId` the id it had there; `tries` how
    often it was given to a consumer; `error` why the last one failed, where somebody said so, without what
    differs from message to message; `shape` what its body looks like.
    """
    said = F.coalesce(*[F.element_at("properties", F.lit(name)) for name in ERROR_PROPERTIES])
    origin = [F.element_at("properties", F.lit(name)) for name in ("RETRY_TOPIC", "DLQ_ORIGIN_TOPIC")]
    origin_id = [
        F.element_at("properties", F.lit(name)) for name in ("ORIGIN_MESSAGE_ID", "DLQ_ORIGIN_MESSAGE_ID")
    ]
    return (
        messages.withColumn("id", place())
        .withColumn("origin", F.coalesce(*origin))
        .withColumn("originId", F.coalesce(*origin_id, "msgId"))
        .withColumn("tag", F.col("tags"))
        .withColumn("tries", F.col("reconsumeTimes"))
        .withColumn("said", said)
        .withColumn("error", F.udf(error_shape, "string", useArrow=False)("said"))
        .withColumn("shape", F.udf(body_shape, "string", useArrow=False)("body"))
    )


def kinds(found: DataFrame) -> DataFrame:
    """A row for each kind of letter, the most frequent first."""
    return (
        found.groupBy(*KINDS)
        .agg(
            F.count("*").alias("count"),
            F.unix_millis(F.min("storeTimestamp")).alias("first"),
            F.unix_millis(F.max("storeTimestamp")).alias("last"),
            F.min("id").alias("example"),
        )
        .orderBy(F.desc("count"), *KINDS)
    )


def reviewed(spark: SparkSession, file: str) -> DataFrame:
    """The ids in a file that a review wrote, of the lines that someone left in it."""
    read = spark.read.schema("id string").json(file).where("id is not null").distinct()
    if read.isEmpty():
        raise ConfigError(
            f"--ids {file}: no line has an id; let `dlq --review {file}` write it, and take lines out"
        )
    return read
