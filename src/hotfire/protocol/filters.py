"""Subscription expressions -> what a broker compares: tags and their hashes."""

from __future__ import annotations

from hotfire.model import Subscription
from hotfire.protocol.record import java_hash

ALL = "*"


def tag_subscription(topic: str, expression: str | None, version: int) -> Subscription:
    """The subscription that `expression` spells: nothing or `*` for all, else tags joined by `||`.

    >>> tag_subscription("T", "TagA || TagB", 7).tags
    ('TagA', 'TagB')
    """
    if not expression or expression == ALL:
        return Subscription(topic, ALL, version=version)
    tags = tuple(dict.fromkeys(tag.strip() for tag in expression.split("||") if tag.strip()))
    return Subscription(
        topic, expression, tags=tags, codes=tuple(java_hash(tag) for tag in tags), version=version
    )
