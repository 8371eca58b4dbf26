"""Bodies of administration: how far topics and groups are, counts over time, tables of topics and groups.

Declared as `bodies` declares its own; importing this module makes them known to `encode_body` and
`decode_body`. Names are in the order Java writes them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hotfire.model import DataVersion, MessageQueue, Subscription, SubscriptionGroup, TopicConfig
from hotfire.protocol.bodies import declare, flag, int32, int64, items, nested, number, table, text


@dataclass(slots=True, frozen=True)
class TopicOffset:
    """Where a queue begins and ends, and when its last message was stored."""

    min_offset: int = 0
    max_offset: int = 0
    last_update_timestamp: int = 0


@dataclass(slots=True, frozen=True)
class TopicStats:
    """Every queue of a topic on one broker."""

    offsets: Mapping[MessageQueue, TopicOffset] = field(default_factory=dict, hash=False)
    put_tps: float = 0.0


@dataclass(slots=True, frozen=True)
class OffsetLag:
    """Where a queue ends, where a group is, and when the last message it consumed was stored."""

    broker_offset: int = 0
    consumer_offset: int = 0
    pull_offset: int = 0
    last_timestamp: int = 0


@dataclass(slots=True, frozen=True)
class ConsumeStats:
    """How far a group is with the queues of one broker."""

    consume_tps: float = 0.0
    offsets: Mapping[MessageQueue, OffsetLag] = field(default_factory=dict, hash=False)


@dataclass(slots=True, frozen=True)
class ConsumeStatsList:
    """Every group of a broker: one table of a single row for each."""

    broker_addr: str
    groups: tuple[Mapping[str, tuple[ConsumeStats, ...]], ...] = field(default=(), hash=False)
    total_diff: int = 0
    total_inflight_diff: int = 0


@dataclass(slots=True, frozen=True)
class StatsWindow:
    sum: int = 0
    tps: float = 0.0
    average: float = 0.0


@dataclass(slots=True, frozen=True)
class BrokerStatsData:
    """One count over the last minute, hour and day."""

    minute: StatsWindow = StatsWindow()
    hour: StatsWindow = StatsWindow()
    day: StatsWindow = StatsWindow()


@dataclass(slots=True, frozen=True)
class GroupForbidden:
    group: str
    topic: str
    readable: bool = True


@dataclass(slots=True, frozen=True)
class CorrectionOffsets:
    offsets: Mapping[int, int] = field(default_factory=dict, hash=False)


@dataclass(slots=True, frozen=True)
class QueueEntry:
    """One entry of a consume queue. `extension` is what entries with an extension point at."""

    physical_offset: int
    size: int
    tags_code: int
    evaluated: bool = False
    extension: str | None = None
    problem: str | None = None


@dataclass(slots=True, frozen=True)
class QueueEntries:
    min_index: int
    max_index: int
    entries: tuple[QueueEntry, ...] | None = ()
    subscription: Subscription | None = None
    filter_data: str | None = None


@dataclass(slots=True, frozen=True)
class TopicConfigList:
    topics: tuple[TopicConfig, ...] = ()


@dataclass(slots=True, frozen=True)
class GroupConfigList:
    groups: tuple[SubscriptionGroup, ...] = ()


@dataclass(slots=True, frozen=True)
class GroupTable:
    """All groups of one broker, in one edition. `forbidden`: group -> topic -> bits of what it may not do."""

    data_version: DataVersion = field(default_factory=DataVersion)
    forbidden: Mapping[str, Mapping[str, int]] = field(default_factory=dict, hash=False)
    groups: Mapping[str, SubscriptionGroup] = field(default_factory=dict, hash=False)


def queue_key(value: Any) -> MessageQueue:
    if isinstance(value, MessageQueue):
        return value
    raise ValueError(f"has the key {value!r:.60}, which is no queue")


declare(
    TopicOffset,
    ("lastUpdateTimestamp", "last_update_timestamp", int64),
    ("maxOffset", "max_offset", int64),
    ("minOffset", "min_offset", int64),
)
declare(
    TopicStats,
    ("offsetTable", "offsets", table(queue_key, nested(TopicOffset))),
    ("topicPutTps", "put_tps", number),
    bare_keys=True,
)
declare(
    OffsetLag,
    ("brokerOffset", "broker_offset", int64),
    ("consumerOffset", "consumer_offset", int64),
    ("lastTimestamp", "last_timestamp", int64),
    ("pullOffset", "pull_offset", int64),
)
declare(
    ConsumeStats,
    ("consumeTps", "consume_tps", number),
    ("offsetTable", "offsets", table(queue_key, nested(OffsetLag))),
    bare_keys=True,
)
declare(
    ConsumeStatsList,
    ("brokerAddr", "broker_addr", text),
    ("consumeStatsList", "groups", items(table(text, items(nested(ConsumeStats))))),
    ("totalDiff", "total_diff", int64),
    ("totalInflightDiff", "total_inflight_diff", int64),
    bare_keys=True,
)
declare(StatsWindow, ("avgpt", "average", number), ("sum", "sum", int64), ("tps", "tps", number))
declare(
    BrokerStatsData,
    ("statsDay", "day", nested(StatsWindow)),
    ("statsHour", "hour", nested(StatsWindow)),
    ("statsMinute", "minute", nested(StatsWindow)),
)
declare(GroupForbidden, ("group", "group", text), ("readable", "readable", flag), ("topic", "topic", text))
declare(CorrectionOffsets, ("correctionOffsets", "offsets", table(int32, int64)), bare_keys=True)
declare(
    QueueEntry,
    ("eval", "evaluated", flag),
    ("extendDataJson", "extension", text),
    ("msg", "problem", text),
    ("physicOffset", "physical_offset", int64),
    ("physicSize", "size", int32),
    ("tagsCode", "tags_code", int64),
)
declare(
    QueueEntries,
    ("filterData", "filter_data", text),
    ("maxQueueIndex", "max_index", int64),
    ("minQueueIndex", "min_index", int64),
    ("queueData", "entries", items(nested(QueueEntry))),
    ("subscriptionData", "subscription", nested(Subscription)),
)
declare(TopicConfigList, ("topicConfigList", "topics", items(nested(TopicConfig))))
declare(GroupConfigList, ("groupConfigList", "groups", items(nested(SubscriptionGroup))))
declare(
    GroupTable,
    ("dataVersion", "data_version", nested(DataVersion)),
    ("forbiddenTable", "forbidden", table(text, table(text, int32))),
    ("subscriptionGroupTable", "groups", table(text, nested(SubscriptionGroup))),
)
