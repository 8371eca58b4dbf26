"""Who reads a queue: from a member's first pull of it, until it lets go of it.

Owns the record of a group's queues over a simulated life: when two members had one queue, and how long one
was nobody's. Looks at the members themselves, not at what they tell.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
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
        self._shared_since_s: dict[MessageQueue, float] = {}
        self._bereft: set[MessageQueue] = set()
        self._dead: set[ProcessQueue] = set()
        self.moves = 0
        self.clashes: list[tuple[float, MessageQueue]] = []
        """When a queue got a second holder, or a third."""
        self.longest_free_s = 0.0
        """The longest time a queue that a member let go of was without one before the next."""
        self.longest_bereft_s = 0.0
        """The same for those whose member died."""
        self.longest_shared_s = 0.0
        """The longest time a queue had more than one holder."""
        self.in_flight = 0
        """Messages from the first one that was not done on, as queues were let go: so many may come twice."""

    def begins(self, one: ProcessQueue) -> None:
        """A member pulls the queue; again or for the first time."""
        queue, holders = one.queue, self._holders[one.queue]
        if queue.topic != self._topic or one in holders or one in self._dead:
            return
        now_s = asyncio.get_running_loop().time()
        if holders:
            self.clashes.append((now_s, queue))
            self._shared_since_s.setdefault(queue, now_s)
        holders.append(one)
        self.moves += 1
        free_s = now_s - self._free_since_s.pop(queue, now_s)
        if queue in self._bereft:
            self._bereft.remove(queue)
            self.longest_bereft_s = max(self.longest_bereft_s, free_s)
        else:
            self.longest_free_s = max(self.longest_free_s, free_s)

    def ends(self, one: ProcessQueue) -> None:
        """A member lets go of it."""
        holders = self._holders[one.queue]
        if one in holders:
            holders.remove(one)
            self.in_flight += one.span + 1 if len(one) else 0
            now_s = asyncio.get_running_loop().time()
            if len(holders) < 2:
                since_s = self._shared_since_s.pop(one.queue, now_s)
                self.longest_shared_s = max(self.longest_shared_s, now_s - since_s)
            if not holders:
                self._free_since_s[one.queue] = now_s

    def dies(self, held: Iterable[ProcessQueue], committed: Callable[[MessageQueue], int]) -> None:
        """The member that has these is gone without a word; what it did not commit comes again."""
        for one in held:
            self._dead.add(one)
            if one in self._holders[one.queue]:
                self.in_flight += one.next_offset - committed(one.queue)
                self.ends(one)
                self.bereave([one.queue])

    def bereave(self, queues: Iterable[MessageQueue]) -> None:
        """These are leased to a member that died: those that are free wait for the lease to end."""
        self._bereft.update(queue for queue in queues if queue in self._free_since_s)

    def held(self) -> set[MessageQueue]:
        """Queues that somebody reads."""
        return {queue for queue, holders in self._holders.items() if holders}

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
