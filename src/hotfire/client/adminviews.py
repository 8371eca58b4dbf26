"""What an administrator is shown: brokers, topics, groups and how far they are."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from hotfire.model import MessageQueue, Subscription
from hotfire.protocol.members import ClientConnection


@dataclass(slots=True, frozen=True, order=True)
class BrokerInfo:
    """One broker process; those that share a name are a master, id 0, and its slaves."""

    cluster: str
    name: str
    broker_id: int
    address: str

    @property
    def is_master(self) -> bool:
        return self.broker_id == 0


@dataclass(slots=True, frozen=True)
class QueueStats:
    """Where a queue begins and ends, and when its last message was stored."""

    queue: MessageQueue
    min_offset: int
    max_offset: int
    last_stored_ms: int | None

    @property
    def count(self) -> int:
        """Messages that can be read."""
        return self.max_offset - self.min_offset


@dataclass(slots=True, frozen=True)
class TopicReport:
    """Every queue of a topic, on all its brokers."""

    topic: str
    queues: tuple[QueueStats, ...]
    stored_per_second: float

    @property
    def count(self) -> int:
        return sum(one.count for one in self.queues)

    @property
    def last_stored_ms(self) -> int | None:
        return max(
            (one.last_stored_ms for one in self.queues if one.last_stored_ms is not None), default=None
        )


@dataclass(slots=True, frozen=True)
class QueueLag:
    """How far a group is with one queue."""

    queue: MessageQueue
    end_offset: int
    committed_offset: int
    """0 also when the group has committed nothing."""
    pulled_offset: int
    """Up to where it was given messages, done with or not; 0 from brokers that do not tell."""
    last_consumed_ms: int | None
    """When the last message it is done with was stored."""

    @property
    def lag(self) -> int:
        """Messages it has yet to be done with."""
        return max(self.end_offset - self.committed_offset, 0)

    @property
    def in_flight(self) -> int:
        """Messages it was given and is not done with."""
        return max(self.pulled_offset - self.committed_offset, 0)


@dataclass(slots=True, frozen=True)
class GroupLag:
    """How far a group is with everything it reads, its retries among them."""

    group: str
    queues: tuple[QueueLag, ...]
    consumed_per_second: float

    @property
    def total(self) -> int:
        """Messages; of no meaning without queues."""
        return sum(one.lag for one in self.queues)

    @property
    def in_flight(self) -> int:
        return sum(one.in_flight for one in self.queues)

    def by_topic(self) -> dict[str, int]:
        totals: dict[str, int] = {}
        for one in self.queues:
            totals[one.queue.topic] = totals.get(one.queue.topic, 0) + one.lag
        return totals


@dataclass(slots=True, frozen=True)
class GroupHealth:
    """Whether a group is behind because what it does fails."""

    group: str
    lag: int
    consumer_count: int
    silent_count: int
    """Consumers that did not tell."""
    failed: Mapping[str, int] = field(hash=False)
    """By topic, what consumers could not handle within the last hour; unknown when none of them tells."""
    waiting: int
    """Messages that came back and are to be handled once more now; not those whose delay is not over."""
    dead: int
    """Messages that were given up, as long as brokers keep them."""

    @property
    def is_failing(self) -> bool:
        return bool(self.failed or self.waiting or self.dead)


@dataclass(slots=True, frozen=True)
class GroupConnections:
    """Who of a group is there, and what they want."""

    group: str
    clients: tuple[ClientConnection, ...]
    consume_type: str
    message_model: str
    consume_from_where: str
    subscriptions: Mapping[str, Subscription] = field(hash=False)


class Fate(enum.Enum):
    """What a group has made of a message."""

    CONSUMED = "consumed"
    FILTERED = "passed over: its subscription does not ask for it"
    NOT_YET = "not yet"
    BROADCASTING = "unknown: each of its members keeps its own offsets"


@dataclass(slots=True, frozen=True)
class ConsumedBy:
    """One group and one message."""

    group: str
    fate: Fate
    committed: int | None
    """Up to where the group has consumed the message's queue."""
    is_online: bool
