"""Clients say that they live, who else is in their group, and that they leave."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hotfire.broker.call import Answer, Call, Outcome, handles
from hotfire.broker.clients import Member
from hotfire.broker.handlers.pull import check_size
from hotfire.errors import BrokerRefused
from hotfire.model import Heartbeat, TopicConfig, retry_topic
from hotfire.protocol.bodies import ConsumerList, decode_body, encode_body
from hotfire.protocol.codes import ResponseCode
from hotfire.protocol.requests import GetConsumerListByGroup, HeartBeat, HeartbeatReply, UnregisterClient

if TYPE_CHECKING:
    from hotfire.broker.broker import Broker

GROUPS_PER_HEARTBEAT_MAX = 1024
"""Consumers, and producers, of one client. A heartbeat with as many new ones writes each table once."""


@handles(HeartBeat)
def heartbeat(broker: Broker, call: Call[HeartBeat]) -> Outcome:
    beat = decode_body(Heartbeat, call.request.body)
    for what, count in (("consumers", len(beat.consumers)), ("producers", len(beat.producers))):
        if count > GROUPS_PER_HEARTBEAT_MAX:
            raise BrokerRefused(
                ResponseCode.INVALID_PARAMETER,
                f"heartbeat of {beat.client_id:.100} names {count} {what}, "
                f"at most {GROUPS_PER_HEARTBEAT_MAX} are taken",
            )
    for consumer in beat.consumers:
        for wanted in consumer.subscriptions:
            check_size(wanted.topic, wanted.expression, max(len(wanted.tags), len(wanted.codes)))
    groups = broker.groups.find_all([consumer.group for consumer in beat.consumers], call.now_ms)
    retry = {retry_topic(group.name): group.retry_queues for group in groups if group.retry_queues > 0}
    broker.topics.put_all(  # every group can be sent messages back
        [TopicConfig(name, queues, queues) for name, queues in retry.items() if not broker.topics.get(name)],
        call.now_ms,
    )
    member = Member(beat.client_id, call.command.language, call.command.version, call.now_ms)
    changed = broker.clients.beat(call.connection, beat, member)
    for consumer in beat.consumers:
        broker.fast.revoke(consumer.group)  # its filters may have changed
    broker.members_changed(changed)
    return Answer(HeartbeatReply(supports_v2=True, subscription_changed=True))


@handles(UnregisterClient)
def unregister(broker: Broker, call: Call[UnregisterClient]) -> Outcome:
    request = call.request
    if broker.clients.leave(
        call.connection, producer=request.producer_group, consumer=request.consumer_group
    ):
        assert request.consumer_group is not None
        broker.members_changed({request.consumer_group})
    return Answer()


@handles(GetConsumerListByGroup)
def consumer_list(broker: Broker, call: Call[GetConsumerListByGroup]) -> Outcome:
    name = call.request.consumer_group
    group = broker.clients.consumers.get(name)
    if group is None:
        raise BrokerRefused(ResponseCode.SYSTEM_ERROR, f"no consumer for this group, {name}")
    return Answer(body=encode_body(ConsumerList(group.client_ids)))
