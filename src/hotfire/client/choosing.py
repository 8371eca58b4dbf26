"""Which queue a message goes to: in turn over all queues, or as a selector says.

Turns begin anywhere, so that many producers do not begin together. After a failure the queues of the broker
that failed are passed over while there are others; so are, when asked for, brokers known to be slow.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from hotfire.client.faults import Faults
from hotfire.client.routes import TopicRoute
from hotfire.errors import LocalProtocolError
from hotfire.model import Message, MessageQueue
from hotfire.protocol.record import java_hash

Queues = tuple[MessageQueue, ...]
Selector = Callable[[Queues, Message, Any], MessageQueue]
"""Chooses one of the queues for a message and an argument, as `by_key_hash` does."""


def by_key_hash(queues: Queues, message: Message, arg: Any) -> MessageQueue:
    """One queue for one argument, and the same one Java's SelectMessageQueueByHash takes.

    >>> queues = tuple(MessageQueue("T", "b", number) for number in range(8))
    >>> by_key_hash(queues, Message("T", b"x"), "order-17").queue_id
    5
    """
    return queues[abs(java_hash_code(arg)) % len(queues)]


def java_hash_code(value: Any) -> int:
    """What Java's hashCode gives for a string, an integer (a Long where it is no Integer) or a boolean.

    >>> java_hash_code("TagA"), java_hash_code(-1), java_hash_code(1 << 32)
    (2598919, -1, 1)
    """
    if isinstance(value, str):
        return java_hash(value)
    if isinstance(value, bool):
        return 1231 if value else 1237
    if isinstance(value, int) and -(1 << 63) <= value < 1 << 63:
        if -(1 << 31) <= value < 1 << 31:
            return value
        folded = (value ^ value >> 32) & 0xFFFF_FFFF
        return folded - (1 << 32) if folded >> 31 else folded
    raise LocalProtocolError(
        f"a queue cannot be chosen by {value!r:.60}: text and integers of 64 bits have a hash here"
    )


def select(selector: Selector, queues: Queues, message: Message, arg: Any) -> MessageQueue:
    queue = selector(queues, message, arg)
    if queue not in queues:
        raise LocalProtocolError(
            f"message to {message.topic}: its selector chose {queue!r:.200}, none of {len(queues)}"
        )
    return queue


class Rotation:
    """Whose turn it is, by topic."""

    def __init__(self, rng: random.Random, faults: Faults) -> None:
        self._rng = rng
        self._faults = faults
        self.turns: dict[str, int] = {}

    def topics(self) -> tuple[str, ...]:
        return tuple(self.turns)

    def use(self, topic: str) -> None:
        """Keep the topic's route fresh from now on."""
        self.turns.setdefault(topic, self._rng.randrange(1 << 16))

    def next(self, route: TopicRoute, *, avoid: str | None) -> MessageQueue:
        """The next queue in turn, of another broker than the one to avoid if there is one."""
        queues = route.write_queues
        self.use(route.topic)
        turn = self.turns[route.topic]
        self.turns[route.topic] = turn + 1
        tests = [] if not self._faults.enabled else [self._faults.is_available, self._faults.is_reachable]
        for fit in (*tests, None):
            for step in range(len(queues)):
                queue = queues[(turn + step) % len(queues)]
                if queue.broker_name != avoid and (fit is None or fit(queue.broker_name)):
                    self.turns[route.topic] = turn + step + 1
                    return queue
        return queues[turn % len(queues)]
