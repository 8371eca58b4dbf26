"""Giving back a message that could not be handled: to its broker, else as a new message to the retry topic.

The broker finds the message in its log by the offset in its id and stores it again, later, for this group
alone. When that fails the message itself is sent, to any broker that has the group's retry topic.
"""

from __future__ import annotations

import asyncio
import logging

from hotfire.client.instance import CALL_TIMEOUT_S, ClientInstance
from hotfire.client.messages import prepare
from hotfire.errors import BrokerRefused, HotfireError, NoRoute
from hotfire.model import AUTO_CREATE_TOPIC, Message, MessageQueue, ReceivedMessage, retry_topic
from hotfire.net.clock import now_ms
from hotfire.protocol.codes import ResponseCode
from hotfire.protocol.record import parse_offset_message_id
from hotfire.protocol.requests import ConsumerSendMsgBack, SendMessageV2

log = logging.getLogger("hotfire.client")

INNER_GROUP = "CLIENT_INNER_PRODUCER"
FIRST_LEVEL = 3
"""Delay level of the first retry; each further one waits a level longer."""
ATTEMPTS = 3
STORED = (
    ResponseCode.SUCCESS,
    ResponseCode.FLUSH_DISK_TIMEOUT,
    ResponseCode.FLUSH_SLAVE_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE,
)


class SendBack:
    """For one group."""

    def __init__(self, instance: ClientInstance, group: str, *, retries_max: int, timeout_s: float) -> None:
        self._instance = instance
        self._group = group
        self._retries_max = retries_max
        self._timeout_s = timeout_s

    async def give(self, message: ReceivedMessage, delay_level: int) -> bool:
        """Whether the message is kept for a later try, one way or the other."""
        try:
            await self._give_back(message, delay_level)
        except HotfireError as error:
            log.warning(
                "group=%s message=%s not taken back by %s: %s; sent to the retry topic instead",
                self._group, message.message_id, message.queue.broker_name, error,
            )  # fmt: skip
            return await self.send(message)
        return True

    async def _give_back(self, message: ReceivedMessage, delay_level: int) -> None:
        deadline = asyncio.get_running_loop().time() + self._timeout_s
        queue = message.queue
        route = await self._instance.routes.to_read(queue.topic, self._timeout_s)
        address = route.master(queue.broker_name)
        if address is None:
            raise NoRoute(f"broker {queue.broker_name} has no master")
        request = ConsumerSendMsgBack(
            offset=parse_offset_message_id(message.offset_message_id)[1],
            group=self._group,
            delay_level=delay_level,
            origin_msg_id=message.message_id,
            origin_topic=message.topic,
            max_reconsume_times=self._retries_max,
            broker_name=queue.broker_name,
        )
        reply = await self._instance.invoke(address, request, deadline)
        if reply.code != ResponseCode.SUCCESS:
            raise BrokerRefused(reply.code, reply.remark or "")

    async def send(self, message: ReceivedMessage) -> bool:
        """Send the message to the retry topic as one that failed once more; the broker counts."""
        deadline = asyncio.get_running_loop().time() + CALL_TIMEOUT_S
        failed: HotfireError | None = None
        try:
            route = await self._instance.routes.to_write(retry_topic(self._group), CALL_TIMEOUT_S)
        except HotfireError as error:
            failed = error
        else:
            queues = list(route.write_queues)
            self._instance.rng.shuffle(queues)
            for queue in queues[:ATTEMPTS]:
                address = route.master(queue.broker_name)
                try:
                    if address is not None:
                        await self._send_to(address, queue, message, deadline)
                        return True
                except HotfireError as error:
                    failed = error
        log.warning("group=%s message=%s not sent back: %s", self._group, message.message_id, failed)
        return False

    async def _send_to(
        self, address: str, queue: MessageQueue, message: ReceivedMessage, deadline: float
    ) -> None:
        properties = dict(message.properties)
        for name in ("TRAN_MSG", "KEYS", "TAGS", "WAIT", "DELAY", "RECONSUME_TIME", "MAX_RECONSUME_TIMES"):
            properties.pop(name, None)
        properties.setdefault("ORIGIN_MESSAGE_ID", message.message_id)
        properties["RETRY_TOPIC"] = message.topic
        outgoing = prepare(
            Message(
                topic=queue.topic,
                body=message.body,
                tag=message.tag,
                keys=message.keys,
                properties=properties,
                flag=message.flag,
                delay_level=FIRST_LEVEL + message.reconsume_times,
            ),
            message.message_id,
            is_ours=True,
        )
        request = SendMessageV2(
            producer_group=INNER_GROUP,
            topic=queue.topic,
            default_topic=AUTO_CREATE_TOPIC,
            default_topic_queue_nums=4,
            queue_id=queue.queue_id,
            sys_flag=outgoing.sys_flag,
            born_timestamp=now_ms(),
            flag=message.flag,
            properties=outgoing.properties,
            reconsume_times=message.reconsume_times + 1,
            max_reconsume_times=self._retries_max,
            broker_name=queue.broker_name,
            body=outgoing.body,
        )
        reply = await self._instance.invoke(address, request, deadline)
        if reply.code not in STORED:
            raise BrokerRefused(reply.code, reply.remark or "")
