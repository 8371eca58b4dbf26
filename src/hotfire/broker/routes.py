"""Where a topic's queues are, over all its brokers, for members of a group that let one of them decide.

Name servers know; this is what they said last. They are asked when somebody needs a route that is old or not
known; whoever needs it is called back, the loop goes on meanwhile. When none of them answers, the last one
serves. Where there is none either, nothing is guessed from this broker's own queues: a member told of these
alone would give up all others; one that is told nothing keeps what it has.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from hotfire.allocation import readable_queues
from hotfire.errors import HotfireError, TopicNotExist
from hotfire.model import RETRY_PREFIX, MessageQueue, RouteData
from hotfire.protocol.bodies import decode_body
from hotfire.protocol.command import Command
from hotfire.protocol.requests import GetRouteInfoByTopic

log = logging.getLogger("hotfire.broker")

ASK_TIMEOUT_S = 2.0
"""Clients wait 3 s for an assignment."""
ASKED_MAX = 1_000
"""Topics that name servers are asked about at once."""
WAITING_MAX = 10_000
"""Members that wait for an answer, each with its request. Any more are told nothing, and ask again."""
QUEUES_KEPT_MAX = 200_000
"""Of all routes together, some 100 bytes each; what was learnt longest ago goes first."""

Queues = tuple[MessageQueue, ...]
Then = Callable[[Queues | None], None]
Ask = Callable[[GetRouteInfoByTopic, float], Awaitable[Command]]


@dataclass(slots=True, frozen=True)
class Known:
    """Queues that may be read, in order, and how long they pass for new."""

    queues: Queues
    until_s: float


class Routes:
    """Routes by topic. Use it within a running loop."""

    def __init__(self, ask: Ask, period_s: float) -> None:
        """`ask` puts a question to the name servers; what they say holds for `period_s`."""
        self._ask = ask
        self._period_s = period_s
        self._known: dict[str, Known] = {}
        self._kept = 0
        self._waiting: dict[str, list[Then]] = {}
        self._waiting_count = 0
        self._quiet_until_s = 0.0
        self._tasks: set[asyncio.Task[None]] = set()

    def find(self, topic: str, then: Then) -> None:
        """Call `then` with the topic's queues, now or once the name servers have told; None: nobody knows."""
        known = self._known.get(topic)
        if known is not None and known.queues and asyncio.get_running_loop().time() < known.until_s:
            then(known.queues)
            return
        is_asked = topic in self._waiting
        if self._waiting_count >= WAITING_MAX or (not is_asked and len(self._waiting) >= ASKED_MAX):
            then(None if known is None else known.queues)
            return
        self._waiting.setdefault(topic, []).append(then)
        self._waiting_count += 1
        if not is_asked:
            task = asyncio.create_task(self._learn(topic))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _learn(self, topic: str) -> None:
        known = self._known.get(topic)
        queues = None if known is None else known.queues
        try:
            request = GetRouteInfoByTopic(topic=topic, accept_standard_json_only=True)
            reply = await self._ask(request, ASK_TIMEOUT_S)
            queues = readable_queues(topic, decode_body(RouteData, reply.body))
        except TopicNotExist:
            if not topic.startswith(RETRY_PREFIX):  # as the reference, which keeps these
                queues = None
        except Exception as error:  # noqa: BLE001  # whatever it is, some wait for an answer
            self._complain(topic, error)
        self._keep(topic, queues)
        waiting = self._waiting.pop(topic)
        self._waiting_count -= len(waiting)
        for then in waiting:
            then(queues)

    def _complain(self, topic: str, error: Exception) -> None:
        """Once in a while: every member of every group may ask."""
        now_s = asyncio.get_running_loop().time()
        if now_s >= self._quiet_until_s:
            self._quiet_until_s = now_s + self._period_s
            reason = error if isinstance(error, HotfireError) else f"{type(error).__name__}: {error}"
            log.warning("route not learnt, the last one serves topic=%s reason=%s", topic, reason)

    def _keep(self, topic: str, queues: Queues | None) -> None:
        former = self._known.pop(topic, None)
        self._kept -= 0 if former is None else len(former.queues)
        if queues is None:
            return
        self._known[topic] = Known(queues, asyncio.get_running_loop().time() + self._period_s)
        self._kept += len(queues)
        while self._kept > QUEUES_KEPT_MAX:
            oldest = next(iter(self._known))
            self._kept -= len(self._known.pop(oldest).queues)

    async def close(self) -> None:
        """Nobody is called back from here on."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
