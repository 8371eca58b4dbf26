"""Offsets: what a group has consumed, and where a queue begins and ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hotfire.broker.call import Answer, Call, Outcome, handles
from hotfire.errors import BrokerRefused
from hotfire.protocol.codes import ResponseCode
from hotfire.protocol.requests import (
    GetMaxOffset,
    GetMinOffset,
    OffsetReply,
    QueryConsumerOffset,
    UpdateConsumerOffset,
)

if TYPE_CHECKING:
    from hotfire.broker.broker import Broker


@handles(QueryConsumerOffset)
def query(broker: Broker, call: Call[QueryConsumerOffset]) -> Outcome:
    request = call.request
    offset = broker.offsets.get(request.topic, request.consumer_group, request.queue_id)
    if offset is not None and offset >= 0:
        return Answer(OffsetReply(offset=offset))
    queue = broker.store.find_queue(request.topic, request.queue_id)
    # A young queue is read from its first message, whatever the consumer's start policy says: with its first
    # message still in memory the group cannot have been meant to skip it.
    is_young = queue is not None and queue.min <= 0 and queue.max > 0
    if (
        is_young
        and broker.store.end <= broker.store.memory_window
        and request.set_zero_if_not_found is not False
    ):
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
    broker.offsets.commit(request.topic, request.consumer_group, request.queue_id, request.commit_offset)
    return Answer()


@handles(GetMaxOffset)
def max_offset(broker: Broker, call: Call[GetMaxOffset]) -> Outcome:
    queue = broker.store.find_queue(call.request.topic, call.request.queue_id)
    return Answer(OffsetReply(offset=queue.max if queue is not None else 0))


@handles(GetMinOffset)
def min_offset(broker: Broker, call: Call[GetMinOffset]) -> Outcome:
    queue = broker.store.find_queue(call.request.topic, call.request.queue_id)
    return Answer(OffsetReply(offset=queue.min if queue is not None else 0), remark="")
