"""What consumerFilter.json holds: the conditions of groups on topics, in the reference's form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from hotfire.protocol.bodies import declare, flag, integer, items, nested, table, text

_int32, _int64 = integer(32), integer(64)


@dataclass(slots=True, frozen=True)
class BloomBits:
    bits: int = 0
    positions: tuple[int, ...] = ()


@dataclass(slots=True, frozen=True)
class ConsumerFilter:
    """A group's condition on a topic. It is dead once `dead_ms` is not before `born_ms`."""

    topic: str
    group: str
    expression: str
    kind: str
    bloom: BloomBits | None = None
    born_ms: int = 0
    version: int = 0
    dead: bool = False
    dead_ms: int = 0


@dataclass(slots=True, frozen=True)
class TopicFilters:
    topic: str
    groups: Mapping[str, ConsumerFilter] = field(default_factory=dict, hash=False)


@dataclass(slots=True, frozen=True)
class FilterTable:
    topics: Mapping[str, TopicFilters] = field(default_factory=dict, hash=False)


declare(BloomBits, ("bitNum", "bits", _int32), ("bitPos", "positions", items(_int32)))
declare(
    ConsumerFilter,
    ("bloomFilterData", "bloom", nested(BloomBits)),
    ("bornTime", "born_ms", _int64),
    ("clientVersion", "version", _int64),
    ("consumerGroup", "group", text),
    ("dead", "dead", flag),
    ("deadTime", "dead_ms", _int64),
    ("expression", "expression", text),
    ("expressionType", "kind", text),
    ("topic", "topic", text),
)
declare(
    TopicFilters, ("groupFilterData", "groups", table(text, nested(ConsumerFilter))), ("topic", "topic", text)
)
declare(FilterTable, ("filterDataByTopic", "topics", table(text, nested(TopicFilters))))
