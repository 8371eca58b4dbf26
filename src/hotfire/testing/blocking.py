"""A cluster for code without an event loop: it runs on a thread of its own, and every call waits.

Names and meaning are those of `Cluster`, without `await`.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar

if TYPE_CHECKING:
    from hotfire.testing.chaos import ChaosProxy
    from hotfire.testing.cluster import Cluster

T = TypeVar("T")


class Node(Protocol):
    """A broker or a name server."""

    @property
    def address(self) -> str: ...
    @property
    def is_running(self) -> bool: ...
    @property
    def proxy(self) -> ChaosProxy | None: ...
    async def start(self) -> None: ...
    async def stop(self) -> None: ...
    async def kill(self) -> None: ...


class BlockingNode:
    """A broker or a name server of a cluster that runs on another thread."""

    def __init__(self, cluster: BlockingCluster, node: Node) -> None:
        self._cluster = cluster
        self._node = node

    @property
    def address(self) -> str:
        return self._node.address

    @property
    def is_running(self) -> bool:
        return self._node.is_running

    @property
    def proxy(self) -> ChaosProxy | None:
        return self._node.proxy

    def start(self) -> None:
        self._cluster.run(self._node.start())

    def stop(self) -> None:
        self._cluster.run(self._node.stop())

    def kill(self) -> None:
        self._cluster.run(self._node.kill())

    def restart(self) -> None:
        self.stop()
        self.start()


class BlockingClock:
    """The clock of the cluster's own loop."""

    def __init__(self, cluster: BlockingCluster) -> None:
        self._cluster = cluster

    def turn(self, seconds: float) -> None:
        """Let so much time pass for brokers, name servers, and clients that `cluster.run` has made."""
        self._cluster.run(self._cluster.cluster.clock.turn(seconds))

    def now_ms(self) -> int:
        return self._cluster.cluster.clock.now_ms()


class BlockingCluster:
    """What `with Cluster(...)` gives.

    >>> with Cluster() as cluster:
    ...     cluster.create_topic("orders", queues=2)
    ...     with sync.Producer(cluster.namesrv) as producer:
    ...         producer.send(Message("orders", b"paid")).status.name
    ...     cluster.brokers[0].kill()
    'SEND_OK'
    """

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.clock = BlockingClock(self)
        self.brokers: list[BlockingNode] = []
        self.name_servers: list[BlockingNode] = []
        # asyncio's own loop, whose time can be turned
        self._loop = asyncio.SelectorEventLoop()
        self._thread = threading.Thread(target=self._serve, name="hotfire-cluster", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        try:
            self.run(self.cluster.__aenter__())
        except BaseException:
            self._end()
            raise
        self.brokers = [BlockingNode(self, node) for node in self.cluster.brokers]
        self.name_servers = [BlockingNode(self, node) for node in self.cluster.name_servers]
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.run(self.cluster.__aexit__(None, None, None))
        finally:
            self._end()

    @property
    def namesrv(self) -> str:
        """What clients are given: the name servers' addresses, joined by ';'."""
        return self.cluster.namesrv

    @property
    def directory(self) -> Path:
        return self.cluster.directory

    def create_topic(self, name: str, queues: int = 4) -> None:
        """A topic with so many queues on every broker that runs."""
        self.run(self.cluster.create_topic(name, queues))

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """What comes of a coroutine on the cluster's own loop, whose clock can be turned."""
        return self.submit(work).result()

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Let a coroutine run on the cluster's own loop, and go on meanwhile."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    def _end(self) -> None:
        """End what was left running, then the loop, its thread with it."""
        self.run(_end_all())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _end_all() -> None:
    tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.get_running_loop().shutdown_asyncgens()
    await asyncio.get_running_loop().shutdown_default_executor()
