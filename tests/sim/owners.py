"""Who reads a queue: from a member's first pull of it, until it lets go of it.

Owns the record of a group's queues over a simulated life: when two members had one queue, and how long one
was nobody's. Looks at the members themselves, not at what they tell.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

from hotfire.client.processqueue import ProcessQueue
from hotfire.client.pullloop import PullLoop
from hotfire.model import MessageQueue


class Owners:
    """Holders of each queue, as they come and go."""

    def __init__(self, topic: str) -> None:
        self._topic = topic
        self._holders: dict[MessageQueue, list[ProcessQueue]] = defaultdict(list)
        self._free_since_s: dict[MessageQueue, float] = {}
        self.moves = 0
        self.clashes: list[tuple[float, MessageQueue]] = []
        """When a queue got a second holder, or a third."""
        self.longest_free_s = 0.0
        """The longest time a queue that had a holder was without one before the next."""
        self.in_flight = 0
        """Messages from the first one that was not done on, as queues were let go: so many may come twice."""

    def begins(self, one: ProcessQueue) -> None:
        """A member pulls the queue; again or for the first time."""
        queue, holders = one.queue, self._holders[one.queue]
        if queue.topic != self._topic or one in holders:
            return
        now_s = asyncio.get_running_loop().time()
        if holders:
            self.clashes.append((now_s, queue))
        holders.append(one)
        self.moves += 1
        self.longest_free_s = max(self.longest_free_s, now_s - self._free_since_s.pop(queue, now_s))

    def ends(self, one: ProcessQueue) -> None:
        """A member lets go of it."""
        holders = self._holders[one.queue]
        if one in holders:
            holders.remove(one)
            self.in_flight += one.span + 1 if len(one) else 0
            if not holders:
                self._free_since_s[one.queue] = asyncio.get_running_loop().time()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Every consumer that lives meanwhile is seen."""
        owners, pull = self, PullLoop._pull

        async def seen_pull(loop: PullLoop, queue: ProcessQueue) -> float:
            owners.begins(queue)
            return await pull(loop, queue)

        def let_go(one: ProcessQueue, is_dropped: bool) -> None:
            vars(one)["dropped"] = is_dropped
            if is_dropped:
                owners.ends(one)

        seen = property(lambda one: vars(one)["dropped"], let_go)
        with (
            mock.patch.object(PullLoop, "_pull", seen_pull),
            mock.patch.object(ProcessQueue, "dropped", seen, create=True),
        ):
            yield
