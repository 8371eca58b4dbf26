"""Queues consumed in order are leased from their broker: nobody else in the group gets them meanwhile.

Asks brokers and notes on each queue when it last said yes; when to ask is the consumer's. Knows which leases
may be ours, answered or not: one that nobody here uses keeps its queue from everyone for a minute.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from hotfire.client.instance import ClientInstance
from hotfire.client.processqueue import ProcessQueue
from hotfire.errors import BrokerRefused, HotfireError, NoRoute
from hotfire.model import MessageQueue
from hotfire.protocol.bodies import LockBatch, LockedQueues, decode_body, encode_body
from hotfire.protocol.codes import ResponseCode
from hotfire.protocol.requests import LockBatchMq, UnlockBatchMq

log = logging.getLogger("hotfire.client")


class QueueLocks:
    """The leases of one group in this client."""

    def __init__(self, instance: ClientInstance, group: str, timeout_s: float) -> None:
        self._instance = instance
        self._group = group
        self._timeout_s = timeout_s
        self._loop = asyncio.get_running_loop()
        self._claims: dict[MessageQueue, None] = {}

    def claims(self, topic: str | None = None) -> list[MessageQueue]:
        """Queues that were asked for, neither refused nor given up since: the broker may think them ours."""
        return [queue for queue in self._claims if topic is None or queue.topic == topic]

    def claim(self, queues: Iterable[MessageQueue]) -> None:
        """Count these among ours: one of our name may have had them, and died."""
        self._claims.update(dict.fromkeys(queues))

    async def lock(self, queue: MessageQueue) -> bool:
        """Whether the queue is ours alone now."""
        self._claims[queue] = None
        try:
            return queue in await self._ask(queue.broker_name, [queue])
        except HotfireError as error:
            log.warning(
                "group=%s queue=%s/%d not locked: %s", self._group, queue.topic, queue.queue_id, error
            )
            return False

    async def renew(self, queues: Iterable[ProcessQueue]) -> None:
        """Ask again for all of them. A broker that does not answer leaves its leases to run out."""
        by_broker: dict[str, list[ProcessQueue]] = {}
        for queue in queues:
            by_broker.setdefault(queue.queue.broker_name, []).append(queue)
        await asyncio.gather(*(self._renew(name, held) for name, held in by_broker.items()))

    async def _renew(self, broker_name: str, queues: list[ProcessQueue]) -> None:
        try:
            locked = await self._ask(broker_name, [one.queue for one in queues])
        except HotfireError as error:
            log.warning("group=%s broker=%s leases not renewed: %s", self._group, broker_name, error)
            return
        now_s = self._loop.time()
        for one in queues:
            one.locked_at_s = now_s if one.queue in locked else None

    async def _ask(self, broker_name: str, queues: list[MessageQueue]) -> set[MessageQueue]:
        address = await self._master(queues[0])
        body = encode_body(LockBatch(self._group, self._instance.client_id, tuple(queues)))
        deadline = self._loop.time() + self._timeout_s
        reply = await self._instance.invoke(address, LockBatchMq(body=body), deadline)
        if reply.code != ResponseCode.SUCCESS:
            raise BrokerRefused(reply.code, reply.remark or "")
        locked = set(decode_body(LockedQueues, reply.body).queues)
        for queue in queues:
            if queue not in locked:
                self._claims.pop(queue, None)
        given_up = [queue for queue in queues if queue in locked and queue not in self._claims]
        if given_up:  # while this was asked, and perhaps read before it
            await self.unlock(given_up)
        return locked.difference(given_up)

    async def unlock(self, queues: Iterable[MessageQueue]) -> None:
        """Give them up. Who waits for one gets it at once, or when the lease has run out."""
        by_broker: dict[str, list[MessageQueue]] = {}
        for queue in queues:
            by_broker.setdefault(queue.broker_name, []).append(queue)
        for name, held in by_broker.items():
            body = encode_body(LockBatch(self._group, self._instance.client_id, tuple(held)))
            try:
                peer = await self._instance.connection(await self._master(held[0]), self._timeout_s)
                await peer.invoke_oneway(UnlockBatchMq(body=body), self._timeout_s)
            except HotfireError as error:
                log.warning("group=%s broker=%s not unlocked: %s", self._group, name, error)
                continue
            for queue in held:
                self._claims.pop(queue, None)

    async def _master(self, queue: MessageQueue) -> str:
        route = await self._instance.routes.to_read(queue.topic, self._timeout_s)
        address = route.master(queue.broker_name)
        if address is None:
            raise NoRoute(f"topic {queue.topic}: broker {queue.broker_name} has no master to lock queues at")
        return address
