"""The values every room shares: queues, topics, groups, subscriptions, routes.

Frozen and without behaviour beyond their own rules (which names are legal, what the next version is).
Nothing here knows how a value looks in JSON (`protocol.bodies`) or on disk (`store`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

from hotfire.errors import BrokerRefused


class Perm:
    """Bits of a topic's permission."""

    INHERIT = 1
    WRITE = 2
    READ = 4
    PRIORITY = 8
    READ_WRITE = READ | WRITE


# --- names -----------------------------------------------------------------------------------------

TOPIC_CHARACTERS_MAX = 127
RETRY_TOPIC_CHARACTERS_MAX = 255
GROUP_CHARACTERS_MAX = 120
TOPIC_QUEUES_MAX = 4096
"""Of one topic; each costs memory whether it is used or not. The largest of our own has 1024."""

RETRY_PREFIX = "%RETRY%"
DLQ_PREFIX = "%DLQ%"
LMQ_PREFIX = "%LMQ%"
SYSTEM_TOPIC_PREFIX = "rmq_sys_"
SYSTEM_GROUP_PREFIX = "CID_RMQ_SYS_"

AUTO_CREATE_TOPIC = "TBW102"
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
BENCHMARK_TOPIC = "BenchmarkTest"
HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
HALF_OP_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
CHECK_MAX_TIME_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"
TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"
SELF_TEST_TOPIC = "SELF_TEST_TOPIC"
OFFSET_MOVED_TOPIC = "OFFSET_MOVED_EVENT"
CHECKPOINT_TOPIC = "CHECKPOINT_TOPIC"
TIMER_TOPIC = "rmq_sys_wheel_timer"

TRANSACTION_GROUP = "CID_RMQ_SYS_TRANS"
"""Its offsets of the two topics of halves say how far transactions are dealt with."""

SYSTEM_TOPICS = frozenset(
    {
        AUTO_CREATE_TOPIC,
        SCHEDULE_TOPIC,
        BENCHMARK_TOPIC,
        HALF_TOPIC,
        HALF_OP_TOPIC,
        CHECK_MAX_TIME_TOPIC,
        TRACE_TOPIC,
        SELF_TEST_TOPIC,
        OFFSET_MOVED_TOPIC,
        CHECKPOINT_TOPIC,
    }
)

SEND_FORBIDDEN_TOPICS = frozenset(
    {SCHEDULE_TOPIC, HALF_TOPIC, HALF_OP_TOPIC, CHECK_MAX_TIME_TOPIC, SELF_TEST_TOPIC, OFFSET_MOVED_TOPIC}
)
"""Only the broker itself writes here; a client's send is answered with NO_PERMISSION."""

SYSTEM_GROUPS = (
    "TOOLS_CONSUMER",
    "FILTERSRV_CONSUMER",
    "SELF_TEST_C_GROUP",
    "CID_ONS-HTTP-PROXY",
    "CID_ONSAPI_PULL",
    "CID_ONSAPI_PERMISSION",
    "CID_ONSAPI_OWNER",
    TRANSACTION_GROUP,
)
"""Groups that exist from the first start."""

_NAME = re.compile(r"[%|a-zA-Z0-9_-]+")
_INVALID_PARAMETER = 29


def is_system_topic(topic: str) -> bool:
    """Whether `topic` belongs to the broker. The cluster's and broker's own topics are not known here."""
    return topic in SYSTEM_TOPICS or topic.startswith(SYSTEM_TOPIC_PREFIX)


def is_system_group(group: str) -> bool:
    return group in SYSTEM_GROUPS or group.startswith(SYSTEM_GROUP_PREFIX)


def retry_topic(group: str) -> str:
    return RETRY_PREFIX + group


def dlq_topic(group: str) -> str:
    return DLQ_PREFIX + group


def check_topic_name(topic: str) -> None:
    """Raise InvalidParameter (29) unless `topic` may name a topic.

    >>> check_topic_name("%RETRY%group-1")
    >>> check_topic_name("two words")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    hotfire.errors.InvalidParameter: InvalidParameter (code 29): topic 'two words' holds characters ...
    """
    long = topic.startswith((RETRY_PREFIX, DLQ_PREFIX))
    _check_name("topic", topic, RETRY_TOPIC_CHARACTERS_MAX if long else TOPIC_CHARACTERS_MAX)


def check_group_name(group: str) -> None:
    """Raise InvalidParameter (29) unless `group` may name a producer or consumer group."""
    _check_name("group", group, GROUP_CHARACTERS_MAX)


def _check_name(what: str, name: str, characters_max: int) -> None:
    if not name or name.isspace():
        raise BrokerRefused(_INVALID_PARAMETER, f"the {what} is blank")
    if not _NAME.fullmatch(name):
        raise BrokerRefused(
            _INVALID_PARAMETER, f"{what} {name!r:.200} holds characters other than letters, digits and %|_-"
        )
    if len(name) > characters_max:
        raise BrokerRefused(
            _INVALID_PARAMETER,
            f"{what} {name!r:.300} has {len(name)} characters, at most {characters_max} fit",
        )


# --- messages --------------------------------------------------------------------------------------


@dataclass(slots=True, frozen=True)
class Message:
    """What an application sends.

    >>> Message("orders", b"paid", tag="pay", keys=("order-17",)).topic
    'orders'
    """

    topic: str
    body: bytes
    tag: str | None = None
    keys: tuple[str, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict, hash=False)
    flag: int = 0
    delay_level: int = 0
    """1 to 18 hold the message back for 1 s to 2 h; 0 does not."""
    wait_stored: bool = True
    """False lets the broker answer before the message is on disk or on a slave."""
    delay_ms: int = 0
    """Holds the message back for so long; at most three days, unless brokers allow more."""
    deliver_at: datetime | int | None = None
    """Or until then: a time with its zone, or an int, which is ms since 1970."""


@dataclass(slots=True, frozen=True)
class ReceivedMessage:
    """What an application gets: the message, and where and when it was stored.

    >>> async def handle(message: ReceivedMessage) -> None:
    ...     print(message.body, message.tag, message.queue.queue_id, message.queue_offset)
    """

    topic: str
    body: bytes
    tag: str | None
    keys: tuple[str, ...]
    properties: Mapping[str, str] = field(hash=False)
    flag: int
    queue: MessageQueue
    queue_offset: int
    message_id: str
    """The id its producer gave it, or else the one of its place in the log."""
    offset_message_id: str
    born_timestamp_ms: int
    born_host: str
    store_timestamp_ms: int
    store_host: str
    reconsume_times: int = 0
    compression: str | None = None
    """Set when the body does not unpack as its producer said: in which way; it is then as stored."""


# --- topics and routes -----------------------------------------------------------------------------


class MessageQueue(NamedTuple):
    """One queue of a topic on one broker. Ordered as the Java client orders queues.

    >>> MessageQueue("orders", "broker-a", 2) < MessageQueue("orders", "broker-b", 0)
    True
    """

    topic: str
    broker_name: str
    queue_id: int


@dataclass(slots=True, frozen=True)
class TopicConfig:
    """How one broker keeps one topic."""

    name: str
    read_queues: int = 8
    write_queues: int = 8
    perm: int = Perm.READ_WRITE
    filter_type: str = "SINGLE_TAG"
    sys_flag: int = 0
    order: bool = False
    attributes: Mapping[str, str] = field(default_factory=dict, hash=False)

    @property
    def readable(self) -> bool:
        return bool(self.perm & Perm.READ)

    @property
    def writeable(self) -> bool:
        return bool(self.perm & Perm.WRITE)


@dataclass(slots=True, frozen=True)
class DataVersion:
    """Which edition of a table this is; peers compare editions before they send the whole table."""

    state_version: int = 0
    timestamp: int = 0
    counter: int = 0

    def next(self, now_ms: int, state_version: int | None = None) -> DataVersion:
        state = self.state_version if state_version is None else state_version
        return DataVersion(state, now_ms, self.counter + 1)


@dataclass(slots=True, frozen=True)
class QueueData:
    """What a broker offers of a topic, as the name server tells it."""

    broker_name: str
    read_queues: int
    write_queues: int
    perm: int
    sys_flag: int = 0


@dataclass(slots=True, frozen=True)
class BrokerData:
    """A broker name and the addresses behind it; id 0 is the master."""

    cluster: str
    name: str
    addresses: Mapping[int, str] = field(hash=False)
    enable_acting_master: bool = False
    zone_name: str | None = None

    @property
    def master(self) -> str | None:
        return self.addresses.get(0)


@dataclass(slots=True, frozen=True)
class RouteData:
    """Where a topic can be written to and read from."""

    queues: tuple[QueueData, ...] = ()
    brokers: tuple[BrokerData, ...] = ()
    filter_servers: Mapping[str, tuple[str, ...]] = field(default_factory=dict, hash=False)
    order_topic_conf: str | None = None


@dataclass(slots=True, frozen=True)
class ClusterInfo:
    """Every broker a name server knows, and which cluster it belongs to."""

    brokers: Mapping[str, BrokerData] = field(default_factory=dict, hash=False)
    clusters: Mapping[str, tuple[str, ...]] = field(default_factory=dict, hash=False)


@dataclass(slots=True, frozen=True)
class TopicTable:
    """All topics of one broker, in one edition. The mappings are those of static topics, kept unread."""

    topics: Mapping[str, TopicConfig] = field(default_factory=dict, hash=False)
    data_version: DataVersion = DataVersion()
    mapping_data_version: DataVersion | None = None
    queue_mapping_details: Mapping[str, object] = field(default_factory=dict, hash=False)
    queue_mapping_infos: Mapping[str, object] = field(default_factory=dict, hash=False)


@dataclass(slots=True, frozen=True)
class BrokerRegistration:
    """What a broker tells the name servers about itself."""

    topic_table: TopicTable
    filter_servers: tuple[str, ...] = ()


# --- groups and clients ----------------------------------------------------------------------------


@dataclass(slots=True, frozen=True)
class Subscription:
    """What a group wants of a topic. `codes` are the Java hashes of `tags`."""

    topic: str
    expression: str = "*"
    kind: str = "TAG"
    tags: tuple[str, ...] = ()
    codes: tuple[int, ...] = ()
    version: int = 0
    class_filter: bool = False


@dataclass(slots=True, frozen=True)
class SubscriptionGroup:
    """How one broker serves one consumer group."""

    name: str
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    consume_message_orderly: bool = False
    retry_queues: int = 1
    retry_times_max: int = 16
    retry_policy: Mapping[str, object] = field(default_factory=lambda: {"type": "CUSTOMIZED"}, hash=False)
    broker_id: int = 0
    which_broker_when_consume_slowly: int = 1
    notify_consumer_ids_changed_enable: bool = True
    sys_flag: int = 0
    consume_timeout_minutes: int = 15
    subscriptions: tuple[Mapping[str, object], ...] | None = field(default=None, hash=False)
    attributes: Mapping[str, str] = field(default_factory=dict, hash=False)


@dataclass(slots=True, frozen=True)
class ProducerData:
    """A producer group a client belongs to."""

    group: str


@dataclass(slots=True, frozen=True)
class ConsumerData:
    """A consumer group a client belongs to, and how it consumes."""

    group: str
    consume_type: str = "CONSUME_PASSIVELY"
    message_model: str = "CLUSTERING"
    consume_from_where: str = "CONSUME_FROM_LAST_OFFSET"
    subscriptions: tuple[Subscription, ...] = ()
    unit_mode: bool = False


@dataclass(slots=True, frozen=True)
class Heartbeat:
    """What a client tells every broker it knows, every 30 seconds.

    `fingerprint` and `without_sub` are None when the client is older than 5.x and does not send them.
    """

    client_id: str
    producers: tuple[ProducerData, ...] = ()
    consumers: tuple[ConsumerData, ...] = ()
    fingerprint: int | None = 0
    without_sub: bool | None = False
