"""A consumer gives back a message it could not handle: to be tried again later, or laid aside for good.

It goes to the group's own retry topic, by way of the delay levels: the more often it failed, the longer. One
that has failed too often goes to the group's dead letters, a topic like others.
"""

from __future__ import annotations

import dataclasses
import random
from typing import TYPE_CHECKING

from hotfire import model
from hotfire.broker.call import PARKED, Answer, AnswerWhenReadable, Call, Outcome, handles
from hotfire.broker.handlers.query import Asked, check_room
from hotfire.broker.put import DELAY, put
from hotfire.errors import BrokerRefused
from hotfire.model import Perm, SubscriptionGroup, TopicConfig
from hotfire.protocol.codes import FAQ, VERSION_3_4_9, ResponseCode
from hotfire.protocol.record import (
    Record,
    SysFlag,
    decode_record,
    encode_properties,
    parse_properties,
    without_crc,
)
from hotfire.protocol.requests import ConsumerSendMsgBack

if TYPE_CHECKING:
    from hotfire.broker.broker import Broker

DURABLE_STEPS = {
    "send-back": "the group's retry topic, in config/topics.json",
    "park": "the record in the queue of its delay level",
    "deliver": "the copy in the group's retry topic",
    "dead letter": "the record in the topic of the group's dead letters",
}
"""Where tests cut; docs/durability.md says what a crash at each means."""
FIRST_LEVEL = 3
"""Of the first retry; each further one waits a level longer."""
UNIT_SUB = 2
"""Bit of a topic's system flag."""


@handles(ConsumerSendMsgBack)
def send_back(broker: Broker, call: Call[ConsumerSendMsgBack]) -> Outcome:
    request, now_ms = call.request, call.now_ms
    if broker.config.is_slave:
        raise BrokerRefused(ResponseCode.SYSTEM_ERROR, f"no master available along with {broker.address}")
    group = require_group(broker, request.group, now_ms)
    if not broker.config.broker_permission & Perm.WRITE:
        raise BrokerRefused(
            ResponseCode.NO_PERMISSION,
            f"the broker[{broker.config.broker_ip1 or broker.address}] sending message is forbidden",
        )
    if group.retry_queues <= 0:  # a group that wants no retries
        return Answer()
    broker.store.check_writeable()
    topic = retries(broker, group, now_ms, unit_mode=request.unit_mode)
    if not topic.writeable:
        raise BrokerRefused(
            ResponseCode.NO_PERMISSION, f"the topic[{topic.name}] sending message is forbidden"
        )
    check_room(broker)

    def answer(found: bytes | None) -> Outcome:
        if found is None:
            raise BrokerRefused(ResponseCode.SYSTEM_ERROR, f"look message by offset failed, {request.offset}")
        queues = max(1, min(group.retry_queues, topic.read_queues))  # where no one reads it would be lost
        record = next_try(broker, call, group, decode_record(found, check_crc=False), queues)
        placed = put(broker, record, broker.now_ms)
        broker.sends_handled += 1
        origin = parse_properties(record.properties)["RETRY_TOPIC"]
        if broker.topics.get(origin) is not None:
            broker.statistics.sent_back(origin, group.name, broker.now_ms)
        return AnswerWhenReadable(placed.end, Answer())

    # whatever the offset is: nothing but a sound, readable record that begins there is found
    broker.store.queries.record_at(request.offset, Asked(call, ConsumerSendMsgBack, answer))
    return PARKED


def next_try(
    broker: Broker, call: Call[ConsumerSendMsgBack], group: SubscriptionGroup, record: Record, queues: int
) -> Record:
    """The record as it is stored again, one failure older, in one of so many queues."""
    request = call.request
    times_max, level = group.retry_times_max, request.delay_level
    if call.command.version >= VERSION_3_4_9 and request.max_reconsume_times is not None:
        times_max = request.max_reconsume_times
    if record.reconsume_times >= times_max or level < 0:
        topic, queue_id, level = dead_letters(broker, group.name, broker.now_ms).name, 0, 0
    else:
        topic, queue_id = model.retry_topic(group.name), random.randrange(queues)
        level = level or FIRST_LEVEL + record.reconsume_times
    named = parse_properties(without_crc(record.properties))
    named.setdefault("RETRY_TOPIC", record.topic)
    named.setdefault("ORIGIN_MESSAGE_ID", record.message_id)
    named |= {"WAIT": "false", DELAY: str(level)}
    stored = broker.store_host
    sys_flag = record.sys_flag & ~SysFlag.STORE_HOST_V6
    return dataclasses.replace(
        record,
        topic=topic,
        queue_id=queue_id,
        properties=encode_properties(named),
        store_host=stored,
        sys_flag=sys_flag | (SysFlag.STORE_HOST_V6 if stored.is_v6 else 0),
        reconsume_times=record.reconsume_times + 1,
        prepared_transaction_offset=0,
    )


def require_group(broker: Broker, name: str, now_ms: int) -> SubscriptionGroup:
    group = broker.groups.find(name, now_ms)
    if group is None:
        raise BrokerRefused(
            ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group not exist, {name} {FAQ}"
        )
    return group


def retries(broker: Broker, group: SubscriptionGroup, now_ms: int, *, unit_mode: bool) -> TopicConfig:
    """The group's retry topic, made on its first use."""
    name, count = model.retry_topic(group.name), group.retry_queues
    flag = UNIT_SUB if unit_mode else 0
    return broker.topics.get(name) or broker.topics.put(
        TopicConfig(name, count, count, sys_flag=flag), now_ms
    )


def dead_letters(broker: Broker, group: str, now_ms: int) -> TopicConfig:
    """The topic of the group's dead letters, readable like any other, made on its first use."""
    name = model.dlq_topic(group)
    return broker.topics.get(name) or broker.topics.put(TopicConfig(name, 1, 1), now_ms)
