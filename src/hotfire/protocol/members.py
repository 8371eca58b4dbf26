"""Bodies about a group's members and what they have read, as administrators see them.

Declared as in `bodies`, which turns them into JSON and back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from hotfire.model import MessageQueue, Subscription
from hotfire.protocol.bodies import declare, int32, int64, items, nested, table, text

Offsets = Mapping[MessageQueue, int]


@dataclass(slots=True, frozen=True)
class ClientConnection:
    """One client; `address` is host:port, `language` a name."""

    client_id: str
    address: str
    language: str
    version: int


@dataclass(slots=True, frozen=True)
class ConsumerConnection:
    """A consumer group: who is there, and what they agreed to read."""

    connections: tuple[ClientConnection, ...]
    consume_type: str
    message_model: str
    consume_from_where: str
    subscriptions: Mapping[str, Subscription] = field(hash=False)


@dataclass(slots=True, frozen=True)
class ProducerConnection:
    connections: tuple[ClientConnection, ...]


@dataclass(slots=True, frozen=True)
class ProducerInfo:
    """One producer; `remote_ip` is /host:port, as Java prints an address."""

    client_id: str
    remote_ip: str
    language: str
    version: int
    last_update_timestamp: int


@dataclass(slots=True, frozen=True)
class ProducerTable:
    groups: Mapping[str, tuple[ProducerInfo, ...]] = field(hash=False)


@dataclass(slots=True, frozen=True)
class GroupList:
    groups: tuple[str, ...]


@dataclass(slots=True, frozen=True)
class GroupSubscription:
    """What a group reads of a topic; nothing when nobody of it is there."""

    group: str
    topic: str
    subscription: Subscription | None = None


@dataclass(slots=True, frozen=True)
class ResetOffsets:
    """Where a group goes on."""

    offsets: Offsets = field(default_factory=dict, hash=False)


@dataclass(slots=True, frozen=True)
class ConsumerStatus:
    """Offsets clients hold: of one (`queues`, a client's answer) or by client id (a broker's)."""

    clients: Mapping[str, Offsets] = field(default_factory=dict, hash=False)
    queues: Offsets = field(default_factory=dict, hash=False)


@dataclass(slots=True, frozen=True)
class QueueTimeSpan:
    """Store times of a queue's first and last message and of the last one consumed; how late the next is."""

    queue: MessageQueue
    min_timestamp: int
    max_timestamp: int
    consume_timestamp: int
    delay_ms: int
    min_text: str
    max_text: str
    consume_text: str


@dataclass(slots=True, frozen=True)
class ConsumeTimeSpans:
    spans: tuple[QueueTimeSpan, ...]


def queue(value: object) -> MessageQueue:
    if not isinstance(value, MessageQueue):
        raise ValueError(f"key {value!r:.60} is not a queue")
    return value


_OFFSETS = table(queue, int64)

declare(
    ClientConnection,
    ("clientAddr", "address", text),
    ("clientId", "client_id", text),
    ("language", "language", text),
    ("version", "version", int32),
)
declare(
    ConsumerConnection,
    ("connectionSet", "connections", items(nested(ClientConnection))),
    ("consumeFromWhere", "consume_from_where", text),
    ("consumeType", "consume_type", text),
    ("messageModel", "message_model", text),
    ("subscriptionTable", "subscriptions", table(text, nested(Subscription))),
)
declare(ProducerConnection, ("connectionSet", "connections", items(nested(ClientConnection))))
declare(
    ProducerInfo,
    ("clientId", "client_id", text),
    ("language", "language", text),
    ("lastUpdateTimestamp", "last_update_timestamp", int64),
    ("remoteIP", "remote_ip", text),
    ("version", "version", int32),
)
declare(ProducerTable, ("data", "groups", table(text, items(nested(ProducerInfo)))))
declare(GroupList, ("groupList", "groups", items(text)))
declare(
    GroupSubscription,
    ("group", "group", text),
    ("subscriptionData", "subscription", nested(Subscription)),
    ("topic", "topic", text),
)
declare(ResetOffsets, ("offsetTable", "offsets", _OFFSETS), bare_keys=True)
declare(
    ConsumerStatus,
    ("consumerTable", "clients", table(text, _OFFSETS)),
    ("messageQueueTable", "queues", _OFFSETS),
    bare_keys=True,
)
declare(
    QueueTimeSpan,
    ("consumeTimeStamp", "consume_timestamp", int64),
    ("consumeTimeStampStr", "consume_text", text),
    ("delayTime", "delay_ms", int64),
    ("maxTimeStamp", "max_timestamp", int64),
    ("maxTimeStampStr", "max_text", text),
    ("messageQueue", "queue", nested(MessageQueue)),
    ("minTimeStamp", "min_timestamp", int64),
    ("minTimeStampStr", "min_text", text),
)
declare(ConsumeTimeSpans, ("consumeTimeSpanSet", "spans", items(nested(QueueTimeSpan))))
