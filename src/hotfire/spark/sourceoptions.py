"""The options of format `hotfire` as a source, once, and what they come to."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hotfire.client.queuereader import READER_GROUP
from hotfire.errors import ConfigError
from hotfire.spark import offsets
from hotfire.spark.options import (
    Option,
    Options,
    count,
    json_object,
    milliseconds,
    names,
    one_of,
    size,
    span_s,
    text,
    yes_or_no,
)

FORMAT = "hotfire"


def _offsets(value: str) -> Any:
    """`earliest`, `latest`, or JSON by queue."""
    if value.lower() in ("earliest", "latest"):
        return value.lower()
    try:
        read = json_object(value)
        return offsets.Place.read(read).until  # what a query's progress says may be given as it is
    except ConfigError as error:
        raise ValueError(str(error)) from None
    except ValueError as error:
        raise ValueError(f"earliest, latest or offsets by queue: {error}") from None


def _pattern(value: str) -> re.Pattern[str]:
    try:
        return re.compile(value)
    except re.error as error:
        raise ValueError(f"a regular expression ({error})") from None


SOURCE_OPTIONS = (
    Option("nameServers", text, None, "name servers, `;` between them; NAMESRV_ADDR when not given"),
    Option("subscribe", names, None, "topics, commas between them; this or one of the next two"),
    Option("subscribePattern", _pattern, None, "a regular expression that whole names of topics match"),
    Option("assign", json_object, None, 'queues: `{"topic": {"broker": [0, 1]}}`'),
    Option("tags", text, "*", "only messages with one of these tags: `A` and `B` with two bars between"),
    Option(
        "startingOffsets", _offsets, None,
        "`earliest`, `latest` or JSON by queue (-2 earliest, -1 latest), where a new query begins; "
        "`latest` for streams, `earliest` for batches",
    ),
    Option("endingOffsets", _offsets, None, "the same, where a batch ends; `latest`"),
    Option("startingTimestamp", milliseconds, None, "begin with what was stored then or later, in ms"),
    Option("endingTimestamp", milliseconds, None, "a batch ends before what was stored at this time, in ms"),
    Option("startingOffsetsByTimestamp", json_object, None, "times in ms by queue, in the shape of offsets"),
    Option("endingOffsetsByTimestamp", json_object, None, "the same, where a batch ends"),
    Option(
        "startingOffsetsByTimestampStrategy", one_of("error", "latest"), "error",
        "for a queue that holds nothing so late: `error`, or begin at its `latest`",
    ),
    Option("failOnDataLoss", yes_or_no, True, "fail when messages to be read are there no more"),
    Option("group", text, None, "a consumer group: begin where it is, and publish progress as its offsets"),
    Option("checkpointLocation", text, None, "the query's own: where a new stream begins is kept there too"),
    Option("maxOffsetsPerTrigger", count, None, "messages in one batch of a stream, at most about"),
    Option("maxBytesPerTrigger", size, None, "the same in bytes, judged by the first messages of each queue"),
    Option("minOffsetsPerTrigger", count, None, "wait for so many, or for maxTriggerDelay"),
    Option("maxTriggerDelay", span_s, 900.0, "how long minOffsetsPerTrigger may hold a batch back; `15m`"),
    Option("minPartitions", count, None, "cut a batch into at least so many partitions"),
    Option("maxPartitions", count, None, "and at most so many; as many as the driver has cores"),
    Option("maxRecordsPerPartition", count, None, "messages in one partition, at most"),
    Option("includeHeaders", yes_or_no, True, "whether the schema has the column `properties`"),
    Option("pushdown", yes_or_no, False, "narrow batches by filters on topic, brokerName, queueId, "
           "queueOffset, storeTimestamp and tags; needs spark.sql.python.filterPushdown.enabled"),
    Option("pollTimeoutMs", count, 120_000, "a task fails when a queue gave nothing for so long"),
    Option("fetchOffset.numRetries", count, 10, "how often the driver asks again for offsets"),
    Option("fetchOffset.retryIntervalMs", count, 1000, "and how long it waits between"),
    Option("batchRows", count, 50_000, "rows in one Arrow batch, at most about"),
    Option("tls", yes_or_no, False, "speak TLS to name servers and brokers"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """Checked options. Plain values: they travel to the executors."""

    values: Options

    @classmethod
    def read(cls, given: Mapping[str, str], *, streaming: bool) -> SourceOptions:
        values = Options(SOURCE_OPTIONS, given, FORMAT)
        chosen = [name for name in ("subscribe", "subscribePattern", "assign") if values.has(name)]
        if len(chosen) != 1:
            said = " and ".join(chosen) or "none of them"
            raise ConfigError(f"exactly one of subscribe, subscribePattern and assign is wanted, not {said}")
        for kind in ("starting", "ending"):
            forms = (f"{kind}Offsets", f"{kind}Timestamp", f"{kind}OffsetsByTimestamp")
            both = [name for name in forms if values.has(name)]
            if len(both) > 1:
                raise ConfigError(f"options {' and '.join(both)} exclude each other")
            if streaming and kind == "ending" and both:
                raise ConfigError(f"option {both[0]} is for batches: a stream has no end")
        if not streaming and values["startingOffsets"] == "latest":
            raise ConfigError("startingOffsets is latest, behind which a batch has nothing; use earliest")
        if streaming and values["pushdown"]:
            raise ConfigError("option pushdown is for batches: Spark pushes no filter into a stream")
        if values["endingOffsets"] == "earliest":
            raise ConfigError("endingOffsets is earliest, before which there is nothing; use latest")
        return cls(values)

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    def has(self, name: str) -> bool:
        return self.values.has(name)

    @property
    def group(self) -> str:
        """The one brokers count pulls for."""
        return self["group"] or READER_GROUP

    @property
    def tags(self) -> tuple[str, ...]:
        """None when all are wanted."""
        return tuple(part.strip() for part in self["tags"].split("||") if part.strip() not in ("", "*"))
