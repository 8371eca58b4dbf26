"""Filters that narrow what a batch reads: on topic, broker, queue, offset, store time and tag.

Spark judges every filter again over the rows that come, so reading a little too much is no mistake, and
reading too little would be: what is not understood narrows nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)


@dataclass(slots=True)
class Narrowing:
    """What is left to read. A set that is None excludes nothing; bounds are those of values wanted."""

    among: dict[str, set[object]] = field(default_factory=dict)
    least: dict[str, int] = field(default_factory=dict)
    most: dict[str, int] = field(default_factory=dict)

    def admits(self, name: str, value: object) -> bool:
        if name in self.among and value not in self.among[name]:
            return False
        if not isinstance(value, int):
            return True
        return self.least.get(name, value) <= value <= self.most.get(name, value)


EXACT = ("topic", "brokerName", "tags")
NUMBERS = ("queueId", "queueOffset", "storeTimestamp")


def narrowed(filters: Iterable[Filter]) -> Narrowing:
    found = Narrowing()
    for one in filters:
        attribute: tuple[str, ...] = getattr(one, "attribute", ())
        if len(attribute) != 1:
            continue
        name = attribute[0]
        if name in EXACT:
            _narrow_exact(found, name, one)
        elif name in NUMBERS:
            _narrow_number(found, name, one)
    return found


def _narrow_exact(found: Narrowing, name: str, one: Filter) -> None:
    values: set[object]
    if isinstance(one, EqualTo | EqualNullSafe) and one.value is not None:
        values = {one.value}
    elif isinstance(one, In):
        values = {value for value in one.value if value is not None}
    else:
        return
    found.among[name] = found.among[name] & values if name in found.among else values


def _narrow_number(found: Narrowing, name: str, one: Filter) -> None:
    if isinstance(one, In):
        read = [_whole(value, name) for value in one.value if value is not None]
        wanted = [value for value in read if value is not None]
        if wanted and len(wanted) == len(read):
            _bound(found, name, min(wanted), max(wanted))
        return
    value = _whole(getattr(one, "value", None), name)
    if value is None:
        return
    # Times come with microseconds and are stored in milliseconds: `value` is the millisecond they lie in, so
    # a strict bound does not exclude it.
    step = 0 if name == "storeTimestamp" else 1
    if isinstance(one, EqualTo | EqualNullSafe):
        _bound(found, name, value, value)
    elif isinstance(one, GreaterThan):
        _bound(found, name, value + step, None)
    elif isinstance(one, GreaterThanOrEqual):
        _bound(found, name, value, None)
    elif isinstance(one, LessThan):
        _bound(found, name, None, value - step)
    elif isinstance(one, LessThanOrEqual):
        _bound(found, name, None, value)


def _bound(found: Narrowing, name: str, least: int | None, most: int | None) -> None:
    if least is not None:
        found.least[name] = max(least, found.least.get(name, least))
    if most is not None:
        found.most[name] = min(most, found.most.get(name, most))


def _whole(value: object, name: str) -> int | None:
    if name == "storeTimestamp":
        # One without a zone would have to be guessed at.
        if isinstance(value, datetime) and value.tzinfo is not None:
            return int(value.timestamp() * 1000)
        return None
    return value if isinstance(value, int) and not isinstance(value, bool) else None
