"""Request and reply by way of topics: who waits for what, and how a reply is addressed.

A request is a message with three properties: a number of its own, the client id of who asks, and how long it
waits. Who consumes it sends the reply to the cluster's reply topic, and the broker hands it to that client.
Knows nothing of connections: `producer` sends requests, `instance` hears the replies.
"""

from __future__ import annotations

import asyncio
import logging
import random
import uuid
from collections.abc import Mapping
from dataclasses import replace

from hotfire.client.compression import decompress
from hotfire.client.messages import MESSAGE_KIND, REPLY
from hotfire.errors import ConfigError, NotRunning
from hotfire.model import Message, MessageQueue, ReceivedMessage
from hotfire.protocol.codes import ResponseCode
from hotfire.protocol.command import Command
from hotfire.protocol.record import parse_properties
from hotfire.protocol.requests import PushReplyMessageToClient

log = logging.getLogger("hotfire.client")

CORRELATION, REPLY_TO, TTL = "CORRELATION_ID", "REPLY_TO_CLIENT", "TTL"
CLUSTER, ARRIVED_AT = "CLUSTER", "ARRIVE_TIME"


def reply_topic(cluster: str) -> str:
    return f"{cluster}_REPLY_TOPIC"


def as_request(message: Message, rng: random.Random, client_id: str, timeout_s: float) -> Message:
    """The message as one that is to be replied to."""
    number = str(uuid.UUID(int=rng.getrandbits(128), version=4))
    ours = {CORRELATION: number, REPLY_TO: client_id, TTL: str(max(1, round(timeout_s * 1000)))}
    return replace(message, properties={**message.properties, **ours})


def reply_to(request: ReceivedMessage, body: bytes, properties: Mapping[str, str] | None = None) -> Message:
    """The reply to a message that was received; ConfigError when nobody waits for one."""
    told = request.properties
    missing = [name for name in (CLUSTER, CORRELATION, REPLY_TO) if not told.get(name)]
    if missing:
        raise ConfigError(
            f"message {request.message_id} of topic {request.topic} has no property {missing[0]}: it is not "
            "a request, and nobody waits for a reply; reply to messages that Producer.request sent"
        )
    ours = {name: told[name] for name in (CORRELATION, REPLY_TO, TTL) if told.get(name)}
    return Message(
        reply_topic(told[CLUSTER]), body, properties={**(properties or {}), MESSAGE_KIND: REPLY, **ours}
    )


class AwaitedReplies:
    """Requests of one client whose replies are to come."""

    def __init__(self) -> None:
        self._awaited: dict[str, asyncio.Future[ReceivedMessage]] = {}

    def __len__(self) -> int:
        return len(self._awaited)

    def expect(self, request: Message) -> asyncio.Future[ReceivedMessage]:
        """The reply to come; `forget` the request in the end, come what may."""
        future: asyncio.Future[ReceivedMessage] = asyncio.get_running_loop().create_future()
        self._awaited[request.properties[CORRELATION]] = future
        return future

    def forget(self, request: Message) -> None:
        self._awaited.pop(request.properties[CORRELATION], None)

    def arrived(self, push: PushReplyMessageToClient, now_ms: int) -> Command:
        """A broker brings a reply. One that nobody waits for any more is taken all the same, as by Java."""
        properties = parse_properties((push.properties or "").encode())
        properties[ARRIVED_AT] = str(now_ms)
        future = self._awaited.pop(properties.get(CORRELATION, ""), None)
        if future is None or future.done():
            log.info("topic=%s a reply came that nobody waits for (any more)", push.topic)
        else:
            future.set_result(_received(push, properties))
        return Command(ResponseCode.SUCCESS)

    def close(self) -> None:
        for future in self._awaited.values():
            if not future.done():
                future.set_exception(NotRunning("the producer was closed while it waited for a reply"))
        self._awaited.clear()


def _received(push: PushReplyMessageToClient, properties: dict[str, str]) -> ReceivedMessage:
    """What was pushed, as a message. It was not read from the log, so it has no place there."""
    message_id = properties.get("UNIQ_KEY", "")
    body, compression = decompress(push.body, push.sys_flag, message_id)
    return ReceivedMessage(
        topic=push.topic,
        body=body,
        tag=properties.get("TAGS"),
        keys=tuple(properties.get("KEYS", "").split()),
        properties=properties,
        flag=push.flag,
        queue=MessageQueue(push.topic, push.store_host, max(push.queue_id, 0)),
        queue_offset=0,
        message_id=message_id,
        offset_message_id="",
        born_timestamp_ms=push.born_timestamp,
        born_host=push.born_host,
        store_timestamp_ms=push.store_timestamp,
        store_host=push.store_host,
        reconsume_times=push.reconsume_times or 0,
        compression=compression,
    )
