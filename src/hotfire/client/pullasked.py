"""What brokers ask of a polled consumer, for administrators: how it is, where it is, to go elsewhere."""

from __future__ import annotations

import logging

from hotfire.client.asked import CLIENT_VERSION
from hotfire.client.fetching import Fetched, Fetching
from hotfire.client.instance import ClientInstance
from hotfire.client.offsets import OffsetStore
from hotfire.model import ConsumerData
from hotfire.protocol.bodies import decode_body, encode_body
from hotfire.protocol.codes import ResponseCode
from hotfire.protocol.command import Command
from hotfire.protocol.members import ConsumerStatus, ResetOffsets
from hotfire.protocol.request import Request
from hotfire.protocol.requests import (
    GetConsumerRunningInfo,
    GetConsumerStatusFromClient,
    ResetConsumerOffset,
)
from hotfire.protocol.running import ConsumerRunningInfo, QueueInfo

log = logging.getLogger("hotfire.client")


def answer(
    instance: ClientInstance, data: ConsumerData, fetching: Fetching, store: OffsetStore, request: Request
) -> Command | None:
    """None for what it cannot do: it has no listener to give a message to."""
    if isinstance(request, GetConsumerRunningInfo):
        properties = {
            "PROP_NAMESERVER_ADDR": ";".join(instance.name_servers.addresses) + ";",
            "PROP_CONSUME_TYPE": data.consume_type,
            "PROP_CLIENT_VERSION": CLIENT_VERSION,
            "consumerGroup": data.group,
            "messageModel": data.message_model,
        }
        info = ConsumerRunningInfo(
            properties,
            data.subscriptions,
            {one.queue: _queue_info(one, store) for one in fetching.all()},
        )
        return Command(ResponseCode.SUCCESS, body=encode_body(info))
    if isinstance(request, GetConsumerStatusFromClient):
        places = ((one.queue, one.done_offset) for one in fetching.all() if one.queue.topic == request.topic)
        status = ConsumerStatus(queues={queue: done for queue, done in places if done is not None})
        return Command(ResponseCode.SUCCESS, body=encode_body(status))
    if isinstance(request, ResetConsumerOffset):
        offsets = decode_body(ResetOffsets, request.body).offsets
        log.info("group=%s topic=%s: %d queues are reset", data.group, request.topic, len(offsets))
        for queue, offset in offsets.items():
            if queue in fetching:
                fetching.move(queue, offset)
                store.set(queue, offset)
    return None


def _queue_info(one: Fetched, store: OffsetStore) -> QueueInfo:
    return QueueInfo(
        commit_offset=store.get(one.queue) or 0,
        cached_min_offset=one.messages[0].queue_offset if one.messages else 0,
        cached_max_offset=one.messages[-1].queue_offset if one.messages else 0,
        cached_count=len(one.messages),
        cached_mib=one.bytes >> 20,
        dropped=one.is_stopped,
    )
