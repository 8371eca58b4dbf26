"""What administrators ask about clients: who is there, who reads what; and what only the client itself knows.

The last kind is passed on to the client and its answer passed back, see `asks`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from hotfire.broker.call import PARKED, Answer, Call, Outcome, handles
from hotfire.broker.clients import ConsumerGroup, Member
from hotfire.broker.handlers.beside import answer_beside, without_body
from hotfire.broker.handlers.query import Asked, check_room
from hotfire.errors import BrokerRefused, RemoteProtocolError
from hotfire.net.heart import Connection
from hotfire.protocol.bodies import TopicList, decode_body, encode_body
from hotfire.protocol.codes import VERSION_3_0_7_SNAPSHOT, VERSION_3_1_8_SNAPSHOT, LanguageCode, ResponseCode
from hotfire.protocol.command import Command
from hotfire.protocol.members import (
    ClientConnection,
    ConsumerConnection,
    ConsumerStatus,
    GroupList,
    GroupSubscription,
    Offsets,
    ProducerConnection,
    ProducerInfo,
    ProducerTable,
)
from hotfire.protocol.requests import (
    ConsumeMessageDirectly,
    GetAllProducerInfo,
    GetConsumerConnectionList,
    GetConsumerRunningInfo,
    GetConsumerStatus,
    GetConsumerStatusFromClient,
    GetProducerConnectionList,
    QuerySubscriptionByConsumer,
    QueryTopicConsumeByWho,
    QueryTopicsByConsumer,
    Request,
)

if TYPE_CHECKING:
    from hotfire.broker.broker import Broker

CLIENT_MS_MAX, STATUS_MS_MAX = 10_000, 5_000
"""How long a client may take to answer, as the reference waits."""
NOT_SET = "not set any response code"
"""What the reference says with this success; nobody looks at it."""


def address(connection: Connection) -> str:
    return "{}:{}".format(*connection.peer)


def language(member: Member) -> str:
    return LanguageCode(member.language).name


def connections(members: Iterable[tuple[Connection, Member]]) -> tuple[ClientConnection, ...]:
    return tuple(
        ClientConnection(member.client_id, address(connection), language(member), member.version)
        for connection, member in members
    )


@handles(GetConsumerConnectionList)
def consumers(broker: Broker, call: Call[GetConsumerConnectionList]) -> Outcome:
    name = call.request.consumer_group
    group = broker.clients.consumers.get(name)
    if group is None:
        raise BrokerRefused(ResponseCode.CONSUMER_NOT_ONLINE, f"the consumer group[{name}] not online")
    told = ConsumerConnection(
        connections(group.members.items()),
        group.consume_type,
        group.message_model,
        group.consume_from_where,
        group.subscriptions,
    )
    return Answer(body=encode_body(told))


@handles(GetProducerConnectionList)
def producers(broker: Broker, call: Call[GetProducerConnectionList]) -> Outcome:
    name = call.request.producer_group
    members = broker.clients.producers.get(name)
    if members is None:
        raise BrokerRefused(ResponseCode.SYSTEM_ERROR, f"the producer group[{name}] not exist")
    return Answer(body=encode_body(ProducerConnection(connections(members.items()))))


@handles(GetAllProducerInfo)
def all_producers(broker: Broker, call: Call[GetAllProducerInfo]) -> Outcome:
    groups = [(name, list(members.items())) for name, members in broker.clients.producers.items()]

    def work(_: object) -> bytes:
        table = {
            name: tuple(
                ProducerInfo(
                    member.client_id,
                    f"/{address(connection)}",
                    language(member),
                    member.version,
                    member.seen_ms,
                )
                for connection, member in members
            )
            for name, members in groups
        }
        return encode_body(ProducerTable(table))

    return answer_beside(broker, call, work)


@handles(QueryTopicConsumeByWho)
def groups_of_topic(broker: Broker, call: Call[QueryTopicConsumeByWho]) -> Outcome:
    """Groups that subscribe to the topic now, and those that have read of it."""
    topic = call.request.topic
    groups = broker.clients.groups_of(topic) | broker.offsets.groups_of(topic)
    return Answer(body=encode_body(GroupList(tuple(sorted(groups)))))


@handles(QueryTopicsByConsumer)
def topics_of_group(broker: Broker, call: Call[QueryTopicsByConsumer]) -> Outcome:
    topics = tuple(sorted(broker.offsets.topics_of(call.request.group)))
    return Answer(body=encode_body(TopicList(topics, broker.address)))


@handles(QuerySubscriptionByConsumer)
def subscription(broker: Broker, call: Call[QuerySubscriptionByConsumer]) -> Outcome:
    name, topic = call.request.group, call.request.topic
    group = broker.clients.consumers.get(name)
    wanted = None if group is None else group.subscriptions.get(topic)
    return Answer(body=encode_body(GroupSubscription(name, topic, wanted)))


# --- what only the client knows ---


@handles(GetConsumerRunningInfo)
def running_info(broker: Broker, call: Call[GetConsumerRunningInfo]) -> Outcome:
    request = call.request
    return pass_on(broker, call, GetConsumerRunningInfo, request, request.client_id)


@handles(ConsumeMessageDirectly)
def consume_directly(broker: Broker, call: Call[ConsumeMessageDirectly]) -> Outcome:
    """The message is read beside the loop, then given to the client with what it needs to take it."""
    check_room(broker)
    request = call.request
    message_id = request.msg_id or ""
    find_consumer(broker, request.consumer_group, request.client_id)
    topic = broker.topics.get(request.topic or "")
    group = broker.groups.get(request.consumer_group)

    def answer(found: bytes | None) -> Outcome:
        if found is None:
            raise BrokerRefused(ResponseCode.SYSTEM_ERROR, f"no message with the id {message_id}")
        whole = dataclasses.replace(
            request,
            broker_name=broker.config.broker_name,
            topic_sys_flag=topic.sys_flag if topic else None,
            group_sys_flag=group.sys_flag if group else None,
            body=found,
        )
        return pass_on(broker, call, ConsumeMessageDirectly, whole, request.client_id)

    broker.store.queries.record_at(log_offset(message_id), Asked(call, ConsumeMessageDirectly, answer))
    return PARKED


def log_offset(message_id: str) -> int:
    """An offset message id is a host, 8 or 20 bytes, and an offset, 8 bytes, in hex."""
    try:
        data = bytes.fromhex(message_id)
    except ValueError:
        data = b""
    if len(data) not in (16, 28):
        raise BrokerRefused(
            ResponseCode.SYSTEM_ERROR,
            f"message id {message_id!r:.80}: 32 or 56 hex digits with the log offset at the end are needed",
        )
    return int.from_bytes(data[-8:])


def find_consumer(broker: Broker, group: str, client_id: str | None) -> tuple[Connection, Member]:
    known = broker.clients.consumers.get(group)
    found = None if known is None else known.find(client_id or "")
    if found is None:
        raise BrokerRefused(ResponseCode.SYSTEM_ERROR, f"The Consumer <{group}> <{client_id}> not online")
    if found[1].version < VERSION_3_1_8_SNAPSHOT:
        raise BrokerRefused(
            ResponseCode.SYSTEM_ERROR,
            f"The Consumer <{client_id}> Version <{found[1].version}> too low to finish, "
            "please upgrade it to V3_1_8_SNAPSHOT",
        )
    return found


def pass_on(
    broker: Broker, call: Call[Any], declared: type[Request], request: Request, client_id: str | None
) -> Outcome:
    """Give the request to a client of the group; its answer, whatever it is, is the answer."""
    group = call.request.consumer_group
    connection, _ = find_consumer(broker, group, client_id)
    waiting = without_body(call)

    def then(reply: Command | None) -> None:
        def work() -> Outcome:
            if reply is None:
                why = "it went" if connection.closed else f"no answer within {CLIENT_MS_MAX} ms"
                raise BrokerRefused(
                    ResponseCode.CONSUME_MSG_TIMEOUT, f"consumer <{group}> <{client_id}> Timeout: {why}"
                )
            return Answer(
                reply.fields, reply.code, reply.remark, bytes(reply.body), reply.language, reply.version
            )

        if not waiting.connection.closed:
            broker.serve(waiting, declared, work)

    broker.asks.ask(connection, request.to_command(), then, call.now_ms + CLIENT_MS_MAX)
    return PARKED


@handles(GetConsumerStatus)
def status(broker: Broker, call: Call[GetConsumerStatus]) -> Outcome:
    """The offsets the group's clients hold, one or all of them. Who does not answer is left out."""
    request = call.request
    group = broker.clients.consumers.get(request.group)
    if group is None:
        raise BrokerRefused(
            ResponseCode.SYSTEM_ERROR, f"No Any Consumer online in the consumer group: [{request.group}]"
        )
    asked = asked_clients(group, request.client_addr)
    told: dict[str, Offsets] = {}
    asking, waiting = without_body(call), len(asked)

    def finish() -> Outcome:
        return Answer(remark=NOT_SET, body=encode_body(ConsumerStatus(told)))

    def heard(client_id: str, reply: Command | None) -> None:
        nonlocal waiting
        waiting -= 1
        if reply is not None and reply.code == ResponseCode.SUCCESS and reply.body:
            with suppress(RemoteProtocolError):  # as good as no answer
                told[client_id] = decode_body(ConsumerStatus, reply.body).queues
        if not waiting and not asking.connection.closed:
            broker.serve(asking, GetConsumerStatus, finish)

    if not asked:
        return finish()
    question = GetConsumerStatusFromClient(topic=request.topic, group=request.group).to_command()
    for connection, member in asked:
        broker.asks.ask(
            connection,
            question,
            lambda reply, client_id=member.client_id: heard(client_id, reply),  # type: ignore[misc]
            call.now_ms + STATUS_MS_MAX,
        )
    return PARKED


def asked_clients(group: ConsumerGroup, client_id: str | None) -> list[tuple[Connection, Member]]:
    members = list(group.members.items())
    for _, member in members:
        if member.version < VERSION_3_0_7_SNAPSHOT:
            raise BrokerRefused(
                ResponseCode.SYSTEM_ERROR,
                f"the client does not support this feature. version={member.version}",
            )
    if not client_id or client_id.isspace():
        return members
    return [found for found in members if found[1].client_id == client_id][:1]
