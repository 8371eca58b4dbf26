"""The last step of all that is stored: where a message goes first, and where one that was parked goes then.

A message with a delay level is parked in a topic of the broker's own, one queue for each level; its real
topic and queue go along as properties. `schedule` moves it on when it is due. Knows records, not requests.
"""

from __future__ import annotations

import dataclasses
import random
import re
from typing import TYPE_CHECKING

from hotfire import model
from hotfire.errors import BrokerRefused, LocalProtocolError
from hotfire.model import TopicConfig
from hotfire.protocol.codes import ResponseCode
from hotfire.protocol.record import Record, SysFlag, encode_properties, parse_properties, without_crc
from hotfire.store.store import Appended

if TYPE_CHECKING:
    from hotfire.broker.broker import Broker

DELAY, REAL_TOPIC, REAL_QUEUE = "DELAY", "REAL_TOPIC", "REAL_QID"
TIMES = ("TIMER_DELIVER_MS", "TIMER_DELAY_SEC", "TIMER_DELAY_MS")
"""Times of delivery to the millisecond: a delay level is preferred to them, and they are removed."""
_LEVEL = re.compile(r"[+-]?[0-9]{1,10}")
_QUEUE = re.compile(r"[0-9]{1,10}")
_UNDELIVERED = (model.SCHEDULE_TOPIC, model.HALF_TOPIC)
"""Nothing parked goes here: it would only be parked again, or be a half of a transaction nobody began."""


class Undeliverable(Exception):  # said of the record, and never a reply
    """A parked record does not say where it belongs."""


def put(broker: Broker, record: Record, now_ms: int) -> Appended:
    """Place `record` in this turn, or park it if its properties have a delay level."""
    level = delay_level(parse_properties(record.properties))
    kind = record.sys_flag & SysFlag.TRANSACTION_MASK
    delays = level > 0 and kind in (0, SysFlag.TRANSACTION_COMMIT)
    try:
        if not delays:
            return broker.store.append(record, now_ms)
        level = min(level, broker.schedule.level_max)
        placed = broker.store.append(parked(record, level), now_ms)
    except LocalProtocolError as error:
        raise BrokerRefused(ResponseCode.MESSAGE_ILLEGAL, str(error)) from None
    broker.schedule.parked(level, placed, now_ms)
    return placed


def choose_queue(broker: Broker, topic: TopicConfig, queue_id: int, now_ms: int) -> int:
    """The queue asked for, or any of the topic's for an id below 0."""
    if queue_id < 0:
        if not topic.write_queues:
            raise BrokerRefused(ResponseCode.INVALID_PARAMETER, f"topic[{topic.name}] has no write queues")
        queue_id = random.randrange(topic.write_queues)  # spreading, not secrecy
        broker.backlogs.check(topic, queue_id, now_ms)
    return queue_id


def delay_level(named: dict[str, str]) -> int:
    """The level a message asks for, 0 for none."""
    text = named.get(DELAY, "0")
    if not _LEVEL.fullmatch(text):
        raise BrokerRefused(
            ResponseCode.SYSTEM_ERROR, f"delay level {text!r:.80} is no number: property DELAY takes 1 to 18"
        )
    return int(text)


def parked(record: Record, level: int) -> Record:
    """The record as it waits in the queue of its level."""
    named = parse_properties(record.properties)
    for name in TIMES:
        named.pop(name, None)
    named |= {DELAY: str(level), REAL_TOPIC: record.topic, REAL_QUEUE: str(record.queue_id)}
    return dataclasses.replace(
        record, topic=model.SCHEDULE_TOPIC, queue_id=level - 1, properties=encode_properties(named)
    )


def unparked(record: Record) -> Record:
    """A parked record as it goes to its real topic.

    Its properties stay as they are, delay level and real topic among them, as the reference leaves them: they
    have done their work, and `store.append` parks nothing by itself.
    """
    named = parse_properties(record.properties)
    topic, queue = named.get(REAL_TOPIC, ""), named.get(REAL_QUEUE, "")
    try:
        model.check_topic_name(topic)  # it names a directory
    except BrokerRefused as error:
        raise Undeliverable(error.remark) from None
    if topic in _UNDELIVERED:
        raise Undeliverable(f"its topic would be {topic}")
    if not _QUEUE.fullmatch(queue) or int(queue) >= 1 << 31:
        raise Undeliverable(f"topic {topic}: queue {queue!r:.80} is none")
    return dataclasses.replace(
        record,
        topic=topic,
        queue_id=int(queue),
        properties=without_crc(record.properties),
        prepared_transaction_offset=0,
    )
