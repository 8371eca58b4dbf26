"""The last step of all that is stored: where a message goes first, and where one that was parked goes then.

A message with a delay level is parked in a topic of the broker's own, one queue for each level; its real
topic and queue go along as properties. `schedule` moves it on when it is due. One with a time of its own is
parked in another, and `timers` moves it on. Knows records, not requests.
"""

from __future__ import annotations

import dataclasses
import random
import re
from typing import TYPE_CHECKING

from hotfire import model
from hotfire.broker import timing
from hotfire.errors import BrokerRefused, LocalProtocolError
from hotfire.model import TopicConfig
from hotfire.protocol.codes import ResponseCode
from hotfire.protocol.record import Record, SysFlag, encode_properties, parse_properties, without_crc
from hotfire.store.store import Appended

if TYPE_CHECKING:
    from hotfire.broker.broker import Broker

DELAY, REAL_TOPIC, REAL_QUEUE = "DELAY", "REAL_TOPIC", "REAL_QID"
_LEVEL = re.compile(r"[+-]?[0-9]{1,10}")
_QUEUE = re.compile(r"[0-9]{1,10}")
UNDELIVERED = model.SEND_FORBIDDEN_TOPICS | {model.TIMER_TOPIC}
"""Nothing parked goes here: it would only be parked again, or be what the broker alone may write, such as the
op that ends a transaction. Who sends to the topic of timers could ask for any of them.
"""


class Undeliverable(Exception):  # said of the record, and never a reply
    """A parked record does not say where it belongs."""


def put(broker: Broker, record: Record, now_ms: int) -> Appended:
    """Place `record` in this turn, or park it if its properties have a delay level or a time."""
    named = parse_properties(record.properties)
    level = delay_level(named)
    due = due_ms(broker, record, named, now_ms)
    delays = level > 0 and _may_wait(record)
    try:
        if due is not None:
            placed = broker.store.append(timing.parked(record, due), now_ms)
            broker.timers.parked(named, due, placed.queue_offset)
            return placed
        if not delays:
            return broker.store.append(record, now_ms)
        level = min(level, broker.schedule.level_max)
        placed = broker.store.append(parked(record, level), now_ms)
    except LocalProtocolError as error:
        raise BrokerRefused(ResponseCode.MESSAGE_ILLEGAL, str(error)) from None
    broker.schedule.parked(level, placed, now_ms)
    return placed


def due_ms(broker: Broker, record: Record, named: dict[str, str], now_ms: int) -> int | None:
    """When a message with a time of its own is due; None when it has none, or it has come already."""
    if delay_level(named) > 0 or not _may_wait(record) or not timing.asks_for_time(record.topic, named):
        return None
    due = timing.due_ms(broker.config, named, now_ms)
    if due <= now_ms:
        return None
    timing.check_deletes(record.topic, named)
    broker.timers.check_room(due, named)
    return due


def _may_wait(record: Record) -> bool:
    return record.sys_flag & SysFlag.TRANSACTION_MASK in (0, SysFlag.TRANSACTION_COMMIT)


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
    for name in timing.TIMES:
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
    if topic in UNDELIVERED:
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
