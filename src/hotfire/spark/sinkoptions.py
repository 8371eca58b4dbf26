"""The options of format `hotfire` as a sink, once, and what they come to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hotfire.client.batches import BATCH_COUNT_MAX
from hotfire.client.checks import BODY_BYTES_MAX, check_group, check_topic
from hotfire.errors import ConfigError
from hotfire.model import SEND_FORBIDDEN_TOPICS
from hotfire.spark.options import Option, Options, count, one_of, size, text, yes_or_no

FORMAT = "hotfire"
EFFECTIVELY_ONCE, AT_LEAST_ONCE = "effectively-once", "at-least-once"

SINK_OPTIONS = (
    Option("nameServers", text, None, "name servers, `;` between them; NAMESRV_ADDR when not given"),
    Option("topic", text, None, "the topic of all rows, whatever a column `topic` says"),
    Option(
        "orderBy",
        one_of("none", "key"),
        "none",
        "`key`: rows of the same keys go to the same queue, in their order, as with a column `shardingKey`",
    ),
    Option(
        "delivery",
        one_of(EFFECTIVELY_ONCE, AT_LEAST_ONCE),
        EFFECTIVELY_ONCE,
        "what becomes of a row that is written again: `effectively-once` looks for it first, "
        "`at-least-once` sends it again",
    ),
    Option(
        "uniqueBy",
        one_of("row", "keys"),
        "row",
        "what makes a row the same as before: all that is in the `row`, or its `keys` alone",
    ),
    Option("label", text, None, "a batch's name: written again under the same name, it adds what is missing"),
    Option("labelTopic", text, "HOTFIRE-SPARK-LABELS", "where the names of what was begun are kept"),
    Option(
        "settleMs", count, 1000, "before rows are looked for, wait for what a dead task may still have sent"
    ),
    Option("requestBytes", size, 1 << 20, "one request holds about so much, at most 4m"),
    Option("requestRows", count, 8192, "and at most so many rows"),
    Option("inFlightBytes", size, 32 << 20, "what a task has sent and not yet heard of, at most"),
    Option("requestTimeoutMs", count, 10_000, "how long one attempt waits for its answer"),
    Option("deliveryTimeoutMs", count, 60_000, "how long a request is tried, on other queues if need be"),
    Option("producerGroup", text, "hotfire_spark", "the producer group brokers see"),
    Option("tls", yes_or_no, False, "speak TLS to name servers and brokers"),
)


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """Checked options. Plain values: they travel to the executors."""

    values: Options

    @classmethod
    def read(cls, given: Mapping[str, str], *, streaming: bool) -> SinkOptions:
        values = Options(SINK_OPTIONS, given, FORMAT)
        for name in ("topic", "labelTopic"):
            if values[name] is not None:
                check_target(values[name])
        check_group(values["producerGroup"])
        if values["requestBytes"] > BODY_BYTES_MAX:
            raise ConfigError(
                f"option requestBytes is {values['requestBytes']}, and brokers take {BODY_BYTES_MAX} at once"
            )
        if values["requestRows"] > BATCH_COUNT_MAX:
            raise ConfigError(
                f"option requestRows is {values['requestRows']}, and a request has {BATCH_COUNT_MAX} at most"
            )
        label = values["label"]
        if label is not None and (streaming or not label or " " in label):
            why = "for batches: a stream's batches have names" if streaming else "a name without blanks"
            raise ConfigError(f"option label is {label!r}, and is {why}")
        return cls(values)

    def __getitem__(self, name: str) -> Any:
        return self.values[name]


def check_target(topic: str) -> None:
    """ConfigError unless messages may be sent to it."""
    check_topic(topic)
    if topic in SEND_FORBIDDEN_TOPICS:
        raise ConfigError(f"topic {topic} belongs to the broker; nobody else may send to it")
