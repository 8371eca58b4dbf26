"""Telling an application when the queues of a topic are others than before: brokers came, or it grew."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from hotfire.client.instance import CALL_TIMEOUT_S, ClientInstance
from hotfire.client.sharing import guarded
from hotfire.errors import HotfireError
from hotfire.model import MessageQueue

log = logging.getLogger("hotfire.client")

WATCH_INTERVAL_S = 30.0

TopicChanged = Callable[[str, Sequence[MessageQueue]], Awaitable[None] | None]


class TopicWatch:
    """Topics looked at every 30 seconds, each with the one to call."""

    def __init__(self, group: str) -> None:
        self._group = group
        self._watched: dict[str, TopicChanged] = {}
        self._seen: dict[str, tuple[MessageQueue, ...]] = {}
        self._news = asyncio.Event()

    def watch(self, topic: str, changed: TopicChanged) -> None:
        self._watched[topic] = changed
        self._news.set()

    async def run(self, instance: ClientInstance) -> None:
        while True:
            self._news.clear()
            for topic in list(self._watched):
                await self._look(instance, topic)
            try:
                async with asyncio.timeout(WATCH_INTERVAL_S):
                    await self._news.wait()  # what is new among the watched is looked at now, for comparison
            except TimeoutError:
                continue

    async def _look(self, instance: ClientInstance, topic: str) -> None:
        try:
            queues = (await instance.routes.refresh(topic, CALL_TIMEOUT_S)).read_queues
        except HotfireError as error:
            log.info("group=%s topic=%s not looked at: %s", self._group, topic, error)
            return
        before = self._seen.get(topic)
        self._seen[topic] = queues
        if before is not None and set(before) != set(queues):
            await guarded(self._group, self._watched[topic], topic, queues)
