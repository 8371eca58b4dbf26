"""A consumer group in the life of a cluster: members that come, go and die, and what each of them handled.

Owns what was delivered, and the promises of a group: every stored message is handled, none much more often
than something went wrong, and in the end each queue is one member's. One that consumes in order gets the
messages of each queue in order, none passed over, and no two of its members have some of one queue at a time.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from functools import partial

from hotfire import ConsumeFrom, Consumer
from hotfire.model import MessageQueue, ReceivedMessage
from hotfire.testing.simulation import SimHost, Simulation

MEMBERS_MAX = 3
FAILS_SHARE = 0.03
HANDLED_S_MAX = 600.0
"""What a listener failed, or what was sent back to a broker that died, comes again within minutes."""
SETTLED_S_MAX = 240.0
"""A member that died is forgotten in two minutes, and its queues are shared out 20 seconds later."""
LEASE_S = 60.0
"""Brokers forget in a restart which member has a queue: so long after it two may."""


class Group:
    """Members on hosts of their own."""

    def __init__(self, sim: Simulation, topic: str, *, orderly: bool) -> None:
        self.sim = sim
        self.rng = sim.fork()
        self.topic = topic
        self.orderly = orderly
        self.handled: Counter[bytes] = Counter()
        self.members: dict[int, tuple[SimHost, asyncio.Task[None]]] = {}
        self._consumers: dict[int, Consumer] = {}
        self._born = 0
        self.disruptions = 0
        self.restarted_s: dict[str, float] = {}
        """When each broker was last back."""
        self._busy: dict[MessageQueue, int] = {}
        """In order: who has a message of the queue."""
        self._offsets: dict[MessageQueue, dict[int, None]] = {}
        """In order: what was begun with."""
        self.broken: list[str] = []

    # --- coming and going ----------------------------------------------------------------------------

    def join(self) -> None:
        self.disruptions += 1  # queues change hands
        number, self._born = self._born, self._born + 1
        host = self.sim.network.host(f"10.0.4.{number + 1}")
        self.members[number] = host, self.sim.on(host, self._consume(number))
        self.sim.say(f"consumer {number} joins")

    def change(self) -> str:
        """One more or one less."""
        if len(self.members) < 2 or (len(self.members) < MEMBERS_MAX and self.rng.random() < 0.5):
            self.join()
            return "consumers joined"
        self.disruptions += 1
        number = self.rng.choice(sorted(self.members))
        host, task = self.members.pop(number)
        if self.rng.random() < 0.5:
            self.sim.say(f"consumer {number} leaves")
            task.cancel()
            return "consumers left"
        self.sim.say(f"consumer {number} dies")
        self._busy = {queue: owner for queue, owner in self._busy.items() if owner != number}
        self.sim.network.power_off(host)
        task.cancel()  # whatever it still wants to say, nobody hears it
        return "consumers died"

    async def _consume(self, number: int) -> None:
        consumer = Consumer(
            self.sim.namesrv, group="billing", orderly=self.orderly, consume_from=ConsumeFrom.FIRST,
            instance_name=f"consumer{number}", rng=self.sim.fork(),
        )  # fmt: skip
        consumer.subscribe(self.topic, partial(self._handle, number))
        async with consumer:
            self._consumers[number] = consumer
            try:
                await asyncio.Event().wait()
            finally:
                del self._consumers[number]

    async def _handle(self, number: int, message: ReceivedMessage) -> None:
        if self.orderly:
            self._begin(number, message)
        try:
            await asyncio.sleep(self.rng.uniform(0.0, 0.02))
        finally:
            if self._busy.get(message.queue) == number:
                del self._busy[message.queue]
        if self.rng.random() < FAILS_SHARE:
            raise RuntimeError("not this time")
        self.handled[message.body] += 1

    def _begin(self, number: int, message: ReceivedMessage) -> None:
        if number not in self.members:  # dead, or about to go
            return
        queue = message.queue
        other = self._busy.setdefault(queue, number)
        restarted_s = self.restarted_s.get(queue.broker_name, -LEASE_S)
        if other != number and self.sim.loop.time() - restarted_s > LEASE_S:
            self.broken.append(f"{queue} is consumed by {other} and {number}")
        begun = self._offsets.setdefault(queue, {})
        if message.queue_offset not in begun and message.queue_offset != len(begun):
            self.broken.append(f"{queue}: {message.queue_offset} came, {len(begun)} was next")
        begun[message.queue_offset] = None

    # --- what must be true ---------------------------------------------------------------------------

    async def check(
        self, bodies: set[bytes], copies: Counter[bytes], queues: set[MessageQueue], disruptions: int
    ) -> None:
        """All these were handled; none too often; in order; and then every queue has one owner."""
        await self._until(lambda: bodies <= self.handled.keys(), HANDLED_S_MAX)
        assert not self.broken, self.broken[:3]
        missing = bodies - self.handled.keys()
        assert not missing, f"never handled: {sorted(missing)[:5]}"
        often_max = 1 + disruptions + self.disruptions
        for body, count in self.handled.items():
            assert count <= copies[body] * often_max, f"{body!r} was handled {count} times"
        await self._until(lambda: self._owned() == Counter(queues), SETTLED_S_MAX)
        owned = self._owned()
        assert owned == Counter(queues), f"owners: {sorted(owned.items())}, queues: {sorted(queues)}"

    async def _until(self, is_so: Callable[[], bool], seconds: float) -> None:
        until_s = self.sim.loop.time() + seconds
        while not is_so() and self.sim.loop.time() < until_s:  # noqa: ASYNC110  # of their time
            await asyncio.sleep(1.0)

    def _owned(self) -> Counter[MessageQueue]:
        """Queues by how many members believe that they are theirs."""
        owned = (queue for consumer in self._consumers.values() for queue in consumer.queues)
        return Counter(queue for queue in owned if queue.topic == self.topic)

    async def close(self) -> None:
        for _, task in self.members.values():
            task.cancel()
        await asyncio.gather(*(task for _, task in self.members.values()), return_exceptions=True)
