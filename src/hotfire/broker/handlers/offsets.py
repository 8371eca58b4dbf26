"""Offsets: what a group has consumed, and where a queue begins and ends."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from hotfire.broker.call import PARKED, Answer, Call, Outcome, handles
from hotfire.broker.handlers.query import Asked, check_room
from hotfire.errors import BrokerRefused
from hotfire.protocol.codes import ResponseCode
from hotfire.protocol.requests import (
    GetEarliestStoreTime,
    GetMaxOffset,
    GetMinOffset,
    OffsetReply,
    QueryConsumerOffset,
    TimestampReply,
    UpdateConsumerOffset,
)

if TYPE_CHECKING:
    from hotfire.broker.broker import Broker

log = logging.getLogger("hotfire.broker")


@handles(QueryConsumerOffset)
def query(broker: Broker, call: Call[QueryConsumerOffset]) -> Outcome:
    request = call.request
    offset = broker.offsets.get(request.topic, request.consumer_group, request.queue_id)
    if offset is not None and offset >= 0:
        return Answer(OffsetReply(offset=offset))
    if request.set_zero_if_not_found is False:
        raise BrokerRefused(
            ResponseCode.QUERY_NOT_FOUND, "Not found, do not set to zero, maybe this group boot first"
        )
    queue = broker.store.find_queue(request.topic, request.queue_id)
    # A young queue is read from its first message, whatever the consumer's start policy says: with its first
    # message still in memory the group cannot have been meant to skip it.
    is_young = queue is not None and queue.min <= 0 and queue.max > 0
    if is_young and broker.store.end <= broker.store.memory_window:
        return Answer(OffsetReply(offset=0))
    raise BrokerRefused(
        ResponseCode.QUERY_NOT_FOUND, "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first"
    )


@handles(UpdateConsumerOffset)
def update(broker: Broker, call: Call[UpdateConsumerOffset]) -> Outcome:
    request = call.request
    if broker.groups.get(request.consumer_group) is None:  # committing makes no group
        raise BrokerRefused(
            ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {request.consumer_group} not exist!"
        )
    topic = broker.topics.get(request.topic)
    if topic is None:
        raise BrokerRefused(ResponseCode.TOPIC_NOT_EXIST, f"Topic {request.topic} not exist!")
    queues = max(topic.read_queues, topic.write_queues)
    # a queue a topic used to have is still being read to its end
    known = 0 <= request.queue_id < queues or broker.store.find_queue(topic.name, request.queue_id)
    if not known:
        raise BrokerRefused(
            ResponseCode.INVALID_PARAMETER,
            f"queueId {request.queue_id} of topic[{topic.name}]: it has {queues} queues",
        )
    if request.commit_offset < 0:
        raise BrokerRefused(
            ResponseCode.INVALID_PARAMETER,
            f"commitOffset {request.commit_offset} of topic[{topic.name}] queueId {request.queue_id}: "
            "an offset is 0 or more",
        )
    place = (request.topic, request.consumer_group, request.queue_id)
    if broker.offsets.is_reset(*place):  # said by a client that does not know of the reset yet
        return Answer(remark="Offset has been previously reset")
    before = broker.offsets.commit(*place, request.commit_offset)
    if before is not None and request.commit_offset < before:
        log.warning(
            "offset set backwards topic=%s group=%s queue=%d from=%d to=%d peer=%s:%d",
            *place, before, request.commit_offset, *call.connection.peer,
        )  # fmt: skip
    return Answer()


@handles(GetMaxOffset)
def max_offset(broker: Broker, call: Call[GetMaxOffset]) -> Outcome:
    """Where the queue ends; not `committed`, where it will once everything taken is on the disk."""
    queue = broker.store.find_queue(call.request.topic, call.request.queue_id)
    if queue is None:
        return Answer(OffsetReply(offset=0))
    return Answer(OffsetReply(offset=queue.max if call.request.committed else queue.next))


@handles(GetMinOffset)
def min_offset(broker: Broker, call: Call[GetMinOffset]) -> Outcome:
    queue = broker.store.find_queue(call.request.topic, call.request.queue_id)
    return Answer(OffsetReply(offset=queue.min if queue is not None else 0), remark="")


@handles(GetEarliestStoreTime)
def earliest_store_time(broker: Broker, call: Call[GetEarliestStoreTime]) -> Outcome:
    """Store time of the queue's first message; -1 when there is none."""
    check_room(broker)
    topic, queue_id = call.request.topic, call.request.queue_id
    queue = broker.store.find_queue(topic, queue_id)

    def answer(times: list[int]) -> Outcome:
        return Answer(TimestampReply(timestamp=times[0]))

    broker.store.queries.stored_times(
        [(topic, queue_id, queue.min if queue is not None else 0)],
        Asked(call, GetEarliestStoreTime, answer),
    )
    return PARKED
