"""What a consumer wants: one subscription per topic, and the edition of each that brokers were told.

A broker keeps one subscription per group and topic, the newest edition it heard of, and answers a pull that
names a newer one with an error. So a new edition counts for pulls only after a heartbeat has carried it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hotfire.client.checks import check_topic
from hotfire.errors import ConfigError
from hotfire.model import Subscription
from hotfire.protocol.filters import tag_subscription
from hotfire.protocol.sql92 import SQL92, ConditionError, compile_condition


def subscription(
    topic: str,
    tags: str | Sequence[str] = "*",
    *,
    sql: str | None = None,
    filter: str | None = None,
    version: int = 0,
) -> Subscription:
    """Tags joined by `||` or given one by one, an SQL92 condition on the message's properties, or the name of
    a filter that filter servers have.

    ConfigError says where a condition is wrong.

    >>> subscription("orders", ["pay", "refund"]).expression
    'pay || refund'
    """
    check_topic(topic)
    if filter is not None:
        if not str(filter).strip() or type(filter) is not str:
            raise ConfigError(f"topic {topic}: filter={filter!r:.60} is not the name of a filter")
        if tags != "*" or sql is not None:
            raise ConfigError(
                f"topic {topic}: filter={filter!r:.60} with tags={tags!r:.60}, sql={sql!r:.60}: a "
                "subscription is by one of them; leave the others out"
            )
        return Subscription(topic, filter, class_filter=True, version=version)
    if sql is not None:
        if not isinstance(sql, str):
            raise ConfigError(f"topic {topic}: condition {sql!r:.60} is {type(sql).__name__}, not str")
        if tags != "*":
            raise ConfigError(
                f"topic {topic}: tags={tags!r:.60} and sql={sql!r:.60}: a subscription is by tags or by a "
                "condition; leave one out, and ask for tags in the condition by TAGS IN ('a', 'b')"
            )
        if not sql.strip():
            raise ConfigError(f"topic {topic}: the condition is empty; leave it out to read everything")
        try:
            compile_condition(sql)
        except ConditionError as error:
            raise ConfigError(f"topic {topic}: the condition {sql!r:.200} is wrong: {error}") from None
        return Subscription(topic, sql, SQL92, version=version)
    try:
        expression = tags if isinstance(tags, str) else " || ".join(tags)
    except TypeError:
        raise ConfigError(f"topic {topic}: tags {tags!r:.60} are neither text nor a list of texts") from None
    wanted = tag_subscription(topic, expression, version)
    if wanted.expression != "*" and not wanted.tags:
        raise ConfigError(f"topic {topic}: {expression!r:.60} names no tag; '*' reads everything")
    return wanted


def wants(wanted: Subscription, tag: str | None) -> bool:
    """Whether a message with this tag is meant: brokers compare hashes of tags only."""
    return not wanted.tags or wanted.class_filter or tag in wanted.tags


class Subscriptions:
    """The subscriptions of one consumer, by topic, in the order they were made."""

    def __init__(self) -> None:
        self._newest: dict[str, Subscription] = {}
        self._told: dict[str, Subscription] = {}

    def put(self, wanted: Subscription) -> None:
        self._newest[wanted.topic] = wanted
        self._told.setdefault(wanted.topic, wanted)

    def remove(self, topic: str) -> None:
        self._newest.pop(topic, None)
        self._told.pop(topic, None)

    def renew(self, topic: str, now_ms: int) -> None:
        """A new edition of the same: brokers take ours for the newest again."""
        wanted = self._newest[topic]
        self._newest[topic] = replace(wanted, version=max(now_ms, wanted.version + 1))

    def told(self, subscriptions: Sequence[Subscription]) -> None:
        """A heartbeat has carried these."""
        for one in subscriptions:
            if one.topic in self._newest:
                self._told[one.topic] = one

    def to_pull(self, topic: str) -> Subscription | None:
        """The edition that brokers know."""
        return self._told.get(topic)

    def all(self) -> tuple[Subscription, ...]:
        return tuple(self._newest.values())

    def topics(self) -> tuple[str, ...]:
        return tuple(self._newest)

    def __contains__(self, topic: str) -> bool:
        return topic in self._newest
