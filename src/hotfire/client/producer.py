"""Sending messages: which queue, how often to try, and what the broker said.

A send has one deadline. Time spent on routes, dialling and failed attempts counts against it, and an
attempt after a failure goes to another broker when there is one. The message keeps its id over all
attempts, so a consumer can tell a repeated one.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from hotfire.client.instance import ClientInstance
from hotfire.client.messages import Outgoing, prepare, send_request
from hotfire.client.routes import TopicRoute
from hotfire.errors import BrokerRefused, HotfireError, LocalProtocolError, NoRoute, NotRunning, Timeout
from hotfire.model import Message, MessageQueue, check_group_name
from hotfire.net.server import local_address
from hotfire.protocol.codes import ResponseCode
from hotfire.protocol.ids import UniqueIds
from hotfire.protocol.record import Host
from hotfire.protocol.requests import SendReply

log = logging.getLogger("hotfire.client")

DEFAULT_GROUP = "hotfire_producer"
SEND_TIMEOUT_S = 3.0
RETRIES = 2
REFRESH_TIMEOUT_S = 1.0


class SendStatus(enum.Enum):
    """In every case the message is stored; all but SEND_OK say where it may still be lost."""

    SEND_OK = ResponseCode.SUCCESS
    FLUSH_DISK_TIMEOUT = ResponseCode.FLUSH_DISK_TIMEOUT
    FLUSH_SLAVE_TIMEOUT = ResponseCode.FLUSH_SLAVE_TIMEOUT
    SLAVE_NOT_AVAILABLE = ResponseCode.SLAVE_NOT_AVAILABLE


_STATUS: dict[int, SendStatus] = {status.value: status for status in SendStatus}


@dataclass(slots=True, frozen=True)
class SendResult:
    """Where a message was stored."""

    status: SendStatus
    message_id: str
    offset_message_id: str
    queue: MessageQueue
    queue_offset: int
    transaction_id: str | None = None


class Producer:
    """Sends messages. Any number of tasks may share one.

    >>> async def example() -> None:
    ...     async with Producer("127.0.0.1:9876") as producer:
    ...         result = await producer.send(Message("orders", b"paid", tag="pay"))
    ...         print(result.queue, result.queue_offset)
    """

    def __init__(
        self,
        name_servers: str | Sequence[str],
        *,
        group: str = DEFAULT_GROUP,
        timeout_s: float = SEND_TIMEOUT_S,
        retries: int = RETRIES,
        instance_name: str | None = None,
    ) -> None:
        try:
            check_group_name(group)
        except BrokerRefused as refused:
            raise LocalProtocolError(refused.remark) from None
        self.group = group
        self._timeout_s = timeout_s
        self._retries = retries
        self._instance = ClientInstance(name_servers, instance_name=instance_name)
        self._instance.producer_groups.add(group)
        address = Host.parse(local_address(), 0).address
        self._ids = UniqueIds(address, os.getpid(), self._instance.rng.getrandbits(32))
        self._turns: dict[str, int] = {}

    async def start(self) -> None:
        await self._instance.start()

    async def close(self) -> None:
        """Say goodbye to the brokers and hang up. Sends still under way fail."""
        await self._instance.close()

    async def __aenter__(self) -> Producer:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """The queues a message to `topic` may go to."""
        self._check_running()
        return (await self._instance.routes.to_write(topic, self._timeout_s)).write_queues

    async def send(
        self, message: Message, *, queue: MessageQueue | None = None, timeout_s: float | None = None
    ) -> SendResult:
        """Store the message in the next queue, or in the one given.

        Raises what the last attempt met: BrokerRefused, or Unreachable when it is unknown whether the
        message was stored. A given queue is tried once.
        """
        outgoing = self._prepare(message)
        timeout_s = self._timeout_s if timeout_s is None else timeout_s
        deadline = asyncio.get_running_loop().time() + timeout_s
        route = await self._instance.routes.to_write(message.topic, timeout_s)
        if queue is not None:
            return await self._send_once(outgoing, queue, route, deadline)
        return await self._send_with_retries(outgoing, route, deadline)

    async def send_oneway(self, message: Message, *, queue: MessageQueue | None = None) -> None:
        """Hand the message to the network once. Nobody says whether it was stored."""
        outgoing = self._prepare(message)
        route = await self._instance.routes.to_write(message.topic, self._timeout_s)
        chosen = queue or self._choose(route, avoid=None)
        peer = await self._instance.connection(self._master(chosen, route), self._timeout_s)
        request = send_request(outgoing, chosen, group=self.group, now_ms=_now_ms())
        await peer.invoke_oneway(request, self._timeout_s)

    # --- one send ----------------------------------------------------------------------------------

    async def _send_with_retries(self, outgoing: Outgoing, route: TopicRoute, deadline: float) -> SendResult:
        loop = asyncio.get_running_loop()
        failed: HotfireError | None = None
        tried: list[str] = []
        while len(tried) <= self._retries:
            queue = self._choose(route, avoid=tried[-1] if tried else None)
            try:
                return await self._send_once(outgoing, queue, route, deadline)
            except HotfireError as error:
                if not error.retriable:
                    raise
                failed = error
            tried.append(queue.broker_name)
            left_s = deadline - loop.time()
            if left_s <= 0:
                break
            if failed.refresh_route:
                route = await self._newer_route(route, min(left_s, REFRESH_TIMEOUT_S))
        assert failed is not None
        failed.add_note(f"sending to topic {route.topic} failed {len(tried)} times: {', '.join(tried)}")
        raise failed

    async def _newer_route(self, route: TopicRoute, timeout_s: float) -> TopicRoute:
        with suppress(HotfireError):  # then the one we have must do
            newer = await self._instance.routes.refresh(route.topic, timeout_s)
            return newer if newer.write_queues else route
        return route

    async def _send_once(
        self, outgoing: Outgoing, queue: MessageQueue, route: TopicRoute, deadline: float
    ) -> SendResult:
        if asyncio.get_running_loop().time() >= deadline:
            raise Timeout(f"topic {queue.topic}: no time left to send to {queue.broker_name}")
        request = send_request(outgoing, queue, group=self.group, now_ms=_now_ms())
        reply = await self._instance.invoke(self._master(queue, route), request, deadline)
        status = _STATUS.get(reply.code)
        if status is None:
            raise BrokerRefused(reply.code, reply.remark or "")
        fields = SendReply.from_command(reply)
        return SendResult(
            status=status,
            message_id=outgoing.message_id,
            offset_message_id=fields.msg_id,
            queue=MessageQueue(queue.topic, queue.broker_name, fields.queue_id),
            queue_offset=fields.queue_offset,
            transaction_id=fields.transaction_id,
        )

    def _prepare(self, message: Message) -> Outgoing:
        self._check_running()
        return prepare(message, self._ids.next(_now_ms()))

    def _choose(self, route: TopicRoute, *, avoid: str | None) -> MessageQueue:
        """The next queue in turn, beginning anywhere, of another broker than the one to avoid if any."""
        queues = route.write_queues
        turn = self._turns.get(route.topic)
        if turn is None:
            turn = self._instance.rng.randrange(len(queues))
        for step in range(len(queues)):
            queue = queues[(turn + step) % len(queues)]
            if queue.broker_name != avoid:
                self._turns[route.topic] = turn + step + 1
                return queue
        self._turns[route.topic] = turn + 1
        return queues[turn % len(queues)]

    def _master(self, queue: MessageQueue, route: TopicRoute) -> str:
        address = route.master(queue.broker_name)
        if address is None:
            raise NoRoute(f"topic {queue.topic}: broker {queue.broker_name} does not exist, or has no master")
        return address

    def _check_running(self) -> None:
        if not self._instance.running:
            raise NotRunning("the producer is not running; use `async with` or start() before sending")


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
