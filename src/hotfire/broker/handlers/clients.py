"""Clients say that they live, that they leave, and which queues they want for themselves."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from hotfire.broker import changes
from hotfire.broker.call import Answer, Call, Outcome, handles
from hotfire.broker.clients import Member
from hotfire.broker.handlers.beside import answer_registered
from hotfire.broker.handlers.wanted import check_kind, check_size, compiled
from hotfire.errors import BrokerRefused
from hotfire.model import Heartbeat, MessageQueue, TopicConfig, retry_topic
from hotfire.protocol.bodies import (
    ClientConfig,
    ConsumerList,
    LockBatch,
    LockedQueues,
    decode_body,
    encode_body,
)
from hotfire.protocol.codes import ResponseCode
from hotfire.protocol.requests import (
    CheckClientConfig,
    GetConsumerListByGroup,
    HeartBeat,
    HeartbeatReply,
    LockBatchMq,
    RegisterFilterServer,
    RegisterFilterServerReply,
    UnlockBatchMq,
    UnregisterClient,
)
from hotfire.protocol.sql92 import SQL92

if TYPE_CHECKING:
    from hotfire.broker.broker import Broker

GROUPS_PER_HEARTBEAT_MAX = 1024
"""Consumers, and producers, of one client. A heartbeat with as many new ones writes each table once."""
PRODUCERS_MAX = 100_000
"""Of all clients: each group a connection produces for counts once."""
CONDITION_CHARACTERS_MAX = 32_768
"""Of all conditions of one heartbeat: new ones are compiled while everyone waits, 1 to 3 µs a character."""
NAME_CHARACTERS_MAX = 1024
"""Of a client's id or group that no table holds already: several times what clients make up."""
QUEUES_PER_LOCK_MAX = 16_384
"""Queues of one request: a client asks for all it has on this broker, every 20 s."""


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
    check_names(beat.client_id, *(producer.group for producer in beat.producers))
    if broker.clients.producer_count + len(beat.producers) > PRODUCERS_MAX:
        here = sum(call.connection in broker.clients.producers.get(p.group, ()) for p in beat.producers)
        if here < len(beat.producers):
            raise BrokerRefused(
                ResponseCode.SYSTEM_BUSY,
                f"{broker.clients.producer_count} producers are known already, at most {PRODUCERS_MAX} are; "
                "one that is silent is forgotten after channelExpiredTimeout",
            )
    for consumer in beat.consumers:
        for wanted in consumer.subscriptions:
            check_size(wanted.topic, wanted.expression, max(len(wanted.tags), len(wanted.codes)))
    check_conditions(beat)
    groups = broker.groups.find_all([consumer.group for consumer in beat.consumers], call.now_ms)
    retry = {retry_topic(group.name): group.retry_queues for group in groups if group.retry_queues > 0}
    new = [TopicConfig(name, queues, queues) for name, queues in retry.items() if not broker.topics.get(name)]
    broker.topics.put_all(new, call.now_ms)  # every group can be sent messages back
    member = Member(beat.client_id, call.command.language, call.command.version, call.now_ms)
    known = {group.name for group in groups}  # one that may not be made has no members either
    taken = dataclasses.replace(beat, consumers=tuple(c for c in beat.consumers if c.group in known))
    beaten = broker.clients.beat(call.connection, taken, member)
    for consumer in beat.consumers:
        broker.fast.revoke(consumer.group)  # its filters may have changed
    if not (beat.fingerprint and beat.without_sub):
        for consumer in taken.consumers:
            broker.conditions.register(consumer.group, consumer.subscriptions, call.now_ms)
    changes.tell_members(broker, beaten.changed)
    answer = Answer(HeartbeatReply(supports_v2=True, subscription_changed=beaten.is_news))
    return answer_registered(broker, call, answer) if new else answer


def check_conditions(beat: Heartbeat) -> None:
    wanted = (one for consumer in beat.consumers for one in consumer.subscriptions if one.kind == SQL92)
    characters = sum(len(one.expression) for one in wanted)
    if characters > CONDITION_CHARACTERS_MAX:
        raise BrokerRefused(
            ResponseCode.INVALID_PARAMETER,
            f"heartbeat of {beat.client_id:.100} brings conditions of {characters} characters together, "
            f"at most {CONDITION_CHARACTERS_MAX} are taken",
        )


def check_names(*names: str) -> None:
    """They are kept as long as their client is: a peer must not choose how much that is."""
    for name in names:
        if len(name) > NAME_CHARACTERS_MAX:
            raise BrokerRefused(
                ResponseCode.INVALID_PARAMETER,
                f"client id or group {name!r:.100} has {len(name)} characters, "
                f"at most {NAME_CHARACTERS_MAX} are taken",
            )


@handles(UnregisterClient)
def unregister(broker: Broker, call: Call[UnregisterClient]) -> Outcome:
    request = call.request
    if broker.clients.leave(
        call.connection, producer=request.producer_group, consumer=request.consumer_group
    ):
        assert request.consumer_group is not None
        changes.tell_members(broker, frozenset({request.consumer_group}))
    return Answer()


@handles(RegisterFilterServer)
def register_filter_server(broker: Broker, call: Call[RegisterFilterServer]) -> Outcome:
    address = call.request.filter_server_addr
    broker.clients.filter_servers.register(call.connection, address, call.now_ms)
    answer = Answer(
        RegisterFilterServerReply(filter_server_id=address, broker_name=broker.config.broker_name)
    )
    return answer_registered(broker, call, answer)


@handles(CheckClientConfig)
def check_config(broker: Broker, call: Call[CheckClientConfig]) -> Outcome:
    """Whether a subscription can be served, asked before the consumer starts."""
    wanted = decode_body(ClientConfig, call.request.body).subscription
    if wanted is not None and check_kind(broker, wanted.kind):
        compiled(wanted.topic, wanted.expression)
    return Answer()


@handles(LockBatchMq)
def lock(broker: Broker, call: Call[LockBatchMq]) -> Outcome:
    """Queues of other brokers, or of none, are not ours to give."""
    wanted = locks_wanted(call.request.body)
    ours = [queue for queue in wanted.queues if has_queue(broker, queue)]
    locked = broker.locks.lock(wanted.consumer_group, wanted.client_id, ours, call.now_ms)
    return Answer(body=encode_body(LockedQueues(locked)))


@handles(UnlockBatchMq)
def unlock(broker: Broker, call: Call[UnlockBatchMq]) -> Outcome:
    wanted = locks_wanted(call.request.body)
    broker.locks.unlock(wanted.consumer_group, wanted.client_id, wanted.queues)
    return Answer()


def locks_wanted(body: bytes) -> LockBatch:
    wanted = decode_body(LockBatch, body)
    check_names(wanted.client_id, wanted.consumer_group)
    if len(wanted.queues) > QUEUES_PER_LOCK_MAX:
        raise BrokerRefused(
            ResponseCode.INVALID_PARAMETER,
            f"group[{wanted.consumer_group:.120}] asks about {len(wanted.queues)} queues at once, "
            f"at most {QUEUES_PER_LOCK_MAX} are taken",
        )
    return wanted


def has_queue(broker: Broker, queue: MessageQueue) -> bool:
    """A queue a topic used to have is still being read to its end."""
    topic = broker.topics.get(queue.topic)
    if topic is not None and 0 <= queue.queue_id < max(topic.read_queues, topic.write_queues):
        return True
    return broker.store.find_queue(queue.topic, queue.queue_id) is not None


@handles(GetConsumerListByGroup)
def consumer_list(broker: Broker, call: Call[GetConsumerListByGroup]) -> Outcome:
    name = call.request.consumer_group
    group = broker.clients.consumers.get(name)
    if group is None:
        raise BrokerRefused(ResponseCode.SYSTEM_ERROR, f"no consumer for this group, {name}")
    return Answer(body=encode_body(ConsumerList(group.client_ids)))
