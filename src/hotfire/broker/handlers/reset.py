"""Letting a group go on elsewhere, and how late it is. Store times are looked up beside the loop.

A reset is kept by the broker: the group's next pull of each queue is told where to go on, and until then
nothing its clients commit counts. Clients need not be there, and none is asked.
"""

from __future__ import annotations

import logging
from datetime import datetime
from typing import TYPE_CHECKING

from hotfire.broker.call import PARKED, Answer, Call, Outcome, handles
from hotfire.broker.handlers.pull import group_of
from hotfire.broker.handlers.query import Asked, check_room
from hotfire.errors import BrokerRefused
from hotfire.model import MessageQueue, TopicConfig
from hotfire.protocol.bodies import encode_body
from hotfire.protocol.codes import ResponseCode
from hotfire.protocol.members import ConsumeTimeSpans, QueueTimeSpan, ResetOffsets
from hotfire.protocol.requests import QueryConsumeTimeSpan, ResetOffset

if TYPE_CHECKING:
    from hotfire.broker.broker import Broker

log = logging.getLogger("hotfire.broker")

NONE = -1
"""Stands for an offset, a queue or a store time that is not there."""


@handles(ResetOffset)
def reset(broker: Broker, call: Call[ResetOffset]) -> Outcome:
    request = call.request
    topic = broker.topics.get(request.topic)
    if topic is None:
        raise BrokerRefused(ResponseCode.TOPIC_NOT_EXIST, f"Topic {request.topic} does not exist")
    if broker.groups.get(request.group) is None:
        raise BrokerRefused(
            ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {request.group} does not exist"
        )
    members = broker.clients.consumers.get(request.group)
    if members is not None and members.is_broadcast:
        raise BrokerRefused(
            ResponseCode.BROADCAST_CONSUMPTION,
            f"Group {request.group} consumes by broadcasting: its members keep their own offsets, a broker "
            "cannot set them; move or edit offsets.json of each member while it is stopped",
        )
    queue_ids = chosen_queues(request, topic)
    if request.queue_id != NONE and request.offset not in (None, NONE):
        assert request.offset is not None
        check_offset(broker, request, request.offset)
        return apply(broker, call, {queue_ids[0]: request.offset})
    if request.timestamp < 0:
        return apply(broker, call, {queue_id: ends(broker, topic, queue_id)[1] for queue_id in queue_ids})
    check_room(broker)

    def answer(offsets: list[int]) -> Outcome:
        return apply(broker, call, dict(zip(queue_ids, offsets, strict=True)))

    broker.store.queries.offsets_by_time(
        topic.name, queue_ids, request.timestamp, Asked(call, ResetOffset, answer)
    )
    return PARKED


def chosen_queues(request: ResetOffset, topic: TopicConfig) -> list[int]:
    if request.queue_id is None or request.queue_id < 0:
        return list(range(topic.read_queues))
    queues = max(topic.read_queues, topic.write_queues)
    if request.queue_id >= queues:
        raise BrokerRefused(
            ResponseCode.SYSTEM_ERROR,
            f"queueId {request.queue_id} of topic[{topic.name}]: it has {queues} queues",
        )
    return [request.queue_id]


def check_offset(broker: Broker, request: ResetOffset, offset: int) -> None:
    assert request.queue_id is not None
    queue = broker.store.find_queue(request.topic, request.queue_id)
    low, high = (0, 0) if queue is None else (queue.min, queue.max)
    if not low <= offset <= high + 1:
        raise BrokerRefused(
            ResponseCode.SYSTEM_ERROR, f"Target offset {offset} not in consume queue range [{low}-{high}]"
        )


def ends(broker: Broker, topic: TopicConfig, queue_id: int) -> tuple[int, int]:
    queue = broker.store.find_queue(topic.name, queue_id)
    return (0, 0) if queue is None else (queue.min, queue.max)


def apply(broker: Broker, call: Call[ResetOffset], offsets: dict[int, int]) -> Answer:
    request = call.request
    move_group(broker, request.topic, request.group, offsets)
    log.info(
        "offsets reset topic=%s group=%s timestamp=%d queues=%d first=%s peer=%s:%d",
        request.topic, request.group, request.timestamp, len(offsets),
        next(iter(offsets.items()), None), *call.connection.peer,
    )  # fmt: skip
    name = broker.config.broker_name
    told = {MessageQueue(request.topic, name, queue_id): offset for queue_id, offset in offsets.items()}
    return Answer(body=encode_body(ResetOffsets(told)))


def move_group(broker: Broker, topic: str, group: str, offsets: dict[int, int]) -> None:
    """Let a group go on elsewhere: its next pulls are told, those held at once."""
    broker.offsets.reset(topic, group, offsets)
    broker.fast.revoke(group)  # the lane knows of no resets
    for queue_id in offsets:
        queue = broker.store.find_queue(topic, queue_id)
        for pull in broker.parked.on_queue(queue) if queue is not None else ():
            if group_of(pull) == group:
                broker.waking.end(pull)
    broker.wants_turn = True


# --- how late a group is ---


@handles(QueryConsumeTimeSpan)
def time_spans(broker: Broker, call: Call[QueryConsumeTimeSpan]) -> Outcome:
    request = call.request
    topic = broker.topics.get(request.topic)
    if topic is None:
        raise BrokerRefused(ResponseCode.TOPIC_NOT_EXIST, f"topic[{request.topic}] not exist")
    check_room(broker)
    places: list[tuple[str, int, int]] = []
    has_next = []
    for queue_id in range(topic.write_queues):
        low, high = ends(broker, topic, queue_id)
        offset = broker.offsets.get(topic.name, request.group, queue_id)
        following = low if offset is None else max(low, offset)
        consumed = offset - 1 if offset is not None and offset > 0 else low
        places += [(topic.name, queue_id, at) for at in (low, high - 1, consumed, following)]
        has_next.append(following < high)

    def answer(times: list[int]) -> Outcome:
        spans = []
        for queue_id, more in enumerate(has_next):
            first, last, consumed, following = times[4 * queue_id : 4 * queue_id + 4]
            spans.append(
                QueueTimeSpan(
                    MessageQueue(topic.name, broker.config.broker_name, queue_id),
                    first,
                    last,
                    consumed,
                    call.now_ms - following if more and following != NONE else 0,
                    readable(first),
                    readable(last),
                    readable(consumed),
                )
            )
        return Answer(body=encode_body(ConsumeTimeSpans(tuple(spans))))

    broker.store.queries.stored_times(places, Asked(call, QueryConsumeTimeSpan, answer))
    return PARKED


def readable(timestamp_ms: int) -> str:
    """Local time as the reference prints it: 2026-11-16#17:36:45:806."""
    at = datetime.fromtimestamp(timestamp_ms // 1000).astimezone()
    return f"{at:%Y-%m-%d#%H:%M:%S}:{timestamp_ms % 1000:03d}"
