"""Questions about queues and messages, asked of the brokers that know: what is kept, messages by id or key.

Each is asked once, with a deadline; whether and when to ask again is the caller's. Who is asked follows from
the route: the broker of a queue, or all brokers of a topic.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace

from hotfire.client.checks import check_offset, check_queue
from hotfire.client.instance import CALL_TIMEOUT_S, ClientInstance
from hotfire.client.messages import received_messages
from hotfire.client.offsets import broker_address
from hotfire.errors import BrokerRefused, ConfigError, HotfireError, NoRoute, QueryNotFound
from hotfire.model import MessageQueue, ReceivedMessage
from hotfire.protocol.codes import ResponseCode
from hotfire.protocol.command import Command
from hotfire.protocol.record import parse_offset_message_id
from hotfire.protocol.request import Request
from hotfire.protocol.requests import (
    GetEarliestStoreTime,
    OffsetReply,
    QueryConsumerOffset,
    QueryMessage,
    TimestampReply,
    UpdateConsumerOffset,
    ViewMessageById,
)

END_OF_TIME_MS = (1 << 63) - 1


async def ask_queue(
    instance: ClientInstance, queue: MessageQueue, request: Request, timeout_s: float = CALL_TIMEOUT_S
) -> Command:
    """The reply of the queue's broker; BrokerRefused when its code is not success."""
    deadline = asyncio.get_running_loop().time() + timeout_s
    return checked(await instance.invoke(await broker_address(instance, queue), request, deadline))


def checked(reply: Command) -> Command:
    if reply.code != ResponseCode.SUCCESS:
        raise BrokerRefused(reply.code, reply.remark or "")
    return reply


# --- offsets of a queue --------------------------------------------------------------------------------


async def earliest_store_time_ms(instance: ClientInstance, queue: MessageQueue) -> int | None:
    """When the first message of the queue was stored; None when it is empty."""
    check_queue(queue)
    request = GetEarliestStoreTime(topic=queue.topic, queue_id=queue.queue_id, broker_name=queue.broker_name)
    stored = TimestampReply.from_command(await ask_queue(instance, queue, request)).timestamp
    return stored if stored >= 0 else None


async def committed_offset(instance: ClientInstance, group: str, queue: MessageQueue) -> int | None:
    """Where the group goes on in this queue; None when it has committed nothing."""
    check_queue(queue)
    request = QueryConsumerOffset(
        consumer_group=group,
        topic=queue.topic,
        queue_id=queue.queue_id,
        set_zero_if_not_found=False,
        broker_name=queue.broker_name,
    )
    try:
        return OffsetReply.from_command(await ask_queue(instance, queue, request)).offset
    except QueryNotFound:
        return None


async def commit_offset(instance: ClientInstance, group: str, queue: MessageQueue, offset: int) -> None:
    """The group goes on at `offset`, which may be lower than before; acknowledged by the broker."""
    check_offset(queue, offset)
    request = UpdateConsumerOffset(
        consumer_group=group,
        topic=queue.topic,
        queue_id=queue.queue_id,
        commit_offset=offset,
        broker_name=queue.broker_name,
    )
    await ask_queue(instance, queue, request)


# --- messages ------------------------------------------------------------------------------------------


async def message_by_id(
    instance: ClientInstance, message_id: str, *, topic: str | None = None, timeout_s: float = CALL_TIMEOUT_S
) -> ReceivedMessage | None:
    """The message whose id says where it lies (`offset_message_id`); None when it is there no more."""
    try:
        host, offset = parse_offset_message_id(message_id)
    except ValueError as error:
        raise ConfigError(f"{error}; ask for the id a producer gave by its topic and key") from None
    if not 0 < host.port < 1 << 16:  # where a place has its port, a producer's id has its process
        raise ConfigError(
            f"message id {message_id} is a producer's, not of a place in the log; "
            "ask for it by its topic and key"
        )
    address = f"[{host.ip}]:{host.port}" if host.is_v6 else f"{host.ip}:{host.port}"
    deadline = asyncio.get_running_loop().time() + timeout_s
    origin = (
        f"message id {message_id} names this address, where its broker was when it stored the message: if it "
        "has another one now, ask for the message by its topic and key"
    )
    request = ViewMessageById(offset=offset, topic=topic)
    reply = await instance.invoke(address, request, deadline, origin=origin)
    if reply.code == ResponseCode.SYSTEM_ERROR:
        return None  # the answer of brokers for an offset at which no message begins
    found = next(received_messages(checked(reply).body, address), None)
    if found is None:
        return None
    broker_name = await _broker_at(instance, address, found.topic, timeout_s)
    return replace(found, queue=found.queue._replace(broker_name=broker_name))


async def _broker_at(instance: ClientInstance, address: str, topic: str, timeout_s: float) -> str:
    """The broker's name; its address where no route tells it, as of a topic that was deleted."""
    with suppress(NoRoute):
        route = await instance.routes.to_read(topic, timeout_s)
        for broker in route.data.brokers:
            if address in broker.addresses.values():
                return broker.name
    return address


async def messages_by_key(
    instance: ClientInstance,
    topic: str,
    key: str,
    *,
    count_max: int = 64,
    begin_ms: int = 0,
    end_ms: int = END_OF_TIME_MS,
    unique: bool = False,
    timeout_s: float = CALL_TIMEOUT_S,
) -> list[ReceivedMessage]:
    """Messages with the key, of all brokers of the topic, by store time; `unique`: by their producer's id.

    Indexes go by hashes: what only shares the hash is left out. A broker that cannot be asked is an error
    only when no other found anything.
    """
    request = QueryMessage(
        topic=topic,
        key=key,
        max_num=count_max,
        begin_timestamp=begin_ms,
        end_timestamp=end_ms,
        unique=unique or None,
    )
    route = await instance.routes.to_read(topic, timeout_s)
    names = [broker.name for broker in route.data.brokers]
    asked = (_ask_by_key(instance, MessageQueue(topic, name, 0), request, timeout_s) for name in names)
    answers = await asyncio.gather(*asked, return_exceptions=True)
    found: list[ReceivedMessage] = []
    failure: BaseException | None = None
    for answer in answers:
        if isinstance(answer, HotfireError):
            failure = answer
        elif isinstance(answer, BaseException):
            raise answer
        else:
            found += [message for message in answer if has_key(message, key, unique)]
    if failure is not None and not found:
        raise failure
    return sorted(found, key=lambda message: message.store_timestamp_ms)


async def _ask_by_key(
    instance: ClientInstance, anywhere: MessageQueue, request: QueryMessage, timeout_s: float
) -> list[ReceivedMessage]:
    try:
        reply = await ask_queue(instance, anywhere, request, timeout_s)
    except QueryNotFound:
        return []
    return list(received_messages(reply.body, anywhere.broker_name))


def has_key(message: ReceivedMessage, key: str, unique: bool) -> bool:
    return message.message_id == key if unique else key in message.keys
