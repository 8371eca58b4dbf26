"""A message that is sent again: what of it is carried on, and the mark that says which one it was.

Pipelines that send what was stored before (replay, reshard, dlq) mark each copy with the place of the message
it is a copy of. The mark is what makes them checkable: what arrived is held against what was to be sent,
place by place, and a run that was killed goes on with what is not there yet. The log alone is asked, no file
of our own.

    COPIED_FROM   orders/broker-a/3/1234     topic, broker, queue, offset; no topic and no broker has a slash
    COPIED_BORN   1769855400000              when the first of its copies was born, ms
    COPIED_BY     3f1c0a9be2d47765           which replay made it, where several may send the same message
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from pyspark.sql import Column
from pyspark.sql import functions as F

from hotfire.client.checks import RESERVED_PROPERTIES
from hotfire.model import MessageQueue

COPIED_FROM, COPIED_BORN, COPIED_BY = "COPIED_FROM", "COPIED_BORN", "COPIED_BY"
SHARDING_KEY = "__SHARDINGKEY"
"""The property newer Java clients send in order by."""


class Copied(NamedTuple):
    """Where the message lies that another is a copy of."""

    queue: MessageQueue
    queue_offset: int


def copied_from(mark: str | None) -> Copied | None:
    """
    >>> copied_from("orders/broker-a/3/1234")
    Copied(queue=MessageQueue(topic='orders', broker_name='broker-a', queue_id=3), queue_offset=1234)
    >>> copied_from("elsewhere") is None
    True
    """
    parts = (mark or "").split("/")
    if len(parts) != 4 or not parts[2].isdigit() or not parts[3].isdigit():
        return None
    return Copied(MessageQueue(parts[0], parts[1], int(parts[2])), int(parts[3]))


def place() -> Column:
    """Of each message, as its copy will name it."""
    return F.concat_ws("/", "topic", "brokerName", "queueId", "queueOffset")


def mark() -> Column:
    """The place a copy names; null for a message that is none."""
    return F.element_at("properties", F.lit(COPIED_FROM))


def carried_properties(also: Mapping[str, Column] | None = None) -> Column:
    """Properties of the copy: the application's own, the marks, and `also`.

    Those of brokers and clients are made anew.
    """
    made = {COPIED_FROM, COPIED_BORN, COPIED_BY} | RESERVED_PROPERTIES
    own = F.map_filter("properties", lambda name, value: ~name.isin(*sorted(made)))
    born = F.coalesce(
        F.element_at("properties", F.lit(COPIED_BORN)), F.unix_millis("bornTimestamp").cast("string")
    )
    marks = {COPIED_FROM: place(), COPIED_BORN: born, **(also or {})}
    return F.map_concat(
        own, F.create_map(*[part for name, one in marks.items() for part in (F.lit(name), one)])
    )
