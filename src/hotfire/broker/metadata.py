"""What a slave asks its master for beside the log: topics, groups, offsets, how far delays are delivered.

Every few seconds, over a connection of its own to the master's ordinary port. Topics and groups count at
once. Offsets point into the log, and the master's may be ahead of ours: they are taken only once our log, on
the disk, has reached the end the master's had when they were read. Whoever takes over then skips nothing it
does not have. Nothing is taken of a master whose log is not known to be ours: it may have lost its own, and
its tables with it. Tables are parsed beside the loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Future
from ssl import SSLContext
from typing import TypeVar

from hotfire.broker.call import Task
from hotfire.broker.following import Following
from hotfire.broker.groups import read_groups
from hotfire.broker.offsets import read_offsets
from hotfire.broker.slave import Slave
from hotfire.errors import HotfireError
from hotfire.model import TopicTable
from hotfire.net.clock import now_ms
from hotfire.net.peer import Peer
from hotfire.protocol import bodies
from hotfire.protocol.bodies import KVTable, decode_body, from_json
from hotfire.protocol.requests import (
    GetAllConsumerOffset,
    GetAllDelayOffset,
    GetAllSubscriptionGroupConfig,
    GetAllTopicConfig,
    GetBrokerRuntimeInfo,
    Request,
)

log = logging.getLogger("hotfire.broker")

FIRST_S, PERIOD_S = 3.0, 10.0
LOOK_S = 0.2
TIMEOUT_S = 5.0
T = TypeVar("T")


class Metadata:
    """Keeps a slave's tables like its master's."""

    def __init__(self, slave: Slave, following: Following, tls: SSLContext | None) -> None:
        self._slave = slave
        self._following = following
        self._tls = tls
        self._delays = slave.store.table("delayOffset.json")
        self._master: str | None = None
        self._peer: Peer | None = None
        self._task: asyncio.Task[None] | None = None
        self._told = ""

    def start(self) -> None:
        self._task = asyncio.create_task(self._keep())

    def master_is(self, address: str) -> None:
        if address != self._master:
            self._master = address
            if self._peer is not None:
                self._peer.abort()

    def abandon(self) -> None:
        if self._task is not None:
            self._task.cancel()
        if self._peer is not None:
            self._peer.abort()

    async def close(self) -> None:
        self.abandon()
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)
        self._delays.settle()

    async def _keep(self) -> None:
        await asyncio.sleep(FIRST_S)
        while True:
            if self._master is None or self._following.agreed is None:
                await asyncio.sleep(LOOK_S)
                continue
            try:
                await self._copy(self._master)
                self._told = ""
            except Exception as error:  # noqa: BLE001  # tried again; a task that died would never
                reason = str(error) if isinstance(error, HotfireError) else f"{type(error).__name__}: {error}"
                if reason != self._told:
                    self._told = reason
                    log.warning("tables not copied master=%s reason=%s; trying on", self._master, reason)
            await asyncio.sleep(PERIOD_S)

    async def _copy(self, address: str) -> None:
        slave, store, agreed = self._slave, self._slave.store, self._following.agreed
        if self._peer is None or self._peer.closed:
            self._peer = await Peer.connect(address, timeout_s=TIMEOUT_S, tls=self._tls)
        topics = await self._ask(GetAllTopicConfig(), lambda tree: from_json(TopicTable, tree))
        groups = await self._ask(GetAllSubscriptionGroupConfig(), read_groups)
        version, offsets, _ = await self._ask(GetAllConsumerOffset(), read_offsets)
        delays = await self._ask(GetAllDelayOffset(), dict)
        reply = await self._peer.ask(GetBrokerRuntimeInfo(), TIMEOUT_S)
        end = int(decode_body(KVTable, reply.body).table["commitLogMaxOffset"])
        if self._following.agreed is not agreed:  # who answered may be another than whose log we follow
            return
        slave.topics.adopt(topics, store.queries.widths())
        slave.groups.adopt(groups)
        while store.flushed_end < end:
            await asyncio.sleep(LOOK_S)
            if self._peer.closed or self._following.agreed is not agreed:  # the rest may never come
                return
        slave.offsets.adopt(version, offsets)
        slave.offsets.save_beside(now_ms())
        if not self._delays.is_writing:  # a disk that takes so long is not waited for
            self._delays.save_beside(lambda: delays)

    async def _ask(self, request: Request, read: Callable[[dict[str, object]], T]) -> T:
        """What `read` makes of the master's answer, beside the loop: of thousands it takes long."""
        assert self._peer is not None
        body = (await self._peer.ask(request, TIMEOUT_S)).body
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        def then(done: Future[T]) -> None:
            if answer.done():  # nobody waits any more
                return
            if (failure := done.exception()) is not None:
                answer.set_exception(failure)
            else:
                answer.set_result(done.result())

        def work() -> T:
            tree = bodies.loads(body)
            if not isinstance(tree, dict):
                raise ValueError(f"{type(request).__name__} is answered with {type(tree).__name__}")
            return read(tree)

        self._slave.store.queries.look(lambda _: work(), Task(then), own=True)
        return await answer
