"""What travels in bodies: JSON <-> the values of `model`, declared as tables.

A table lists, per value, the JSON names in the order Java writes them (alphabetical), the attribute
each fills, and how it is read. `encode_body` and `decode_body` do the rest: None is left out, unknown
names are ignored, absent ones keep their default, and anything else wrong is RemoteProtocolError.
The shape of the text itself (bare keys) is in `javajson`; the registration's second form in
`registration`.

>>> from hotfire.model import DataVersion
>>> decode_body(DataVersion, encode_body(DataVersion(0, 1700000000000, 5))).counter
5
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from hotfire.errors import RemoteProtocolError
from hotfire.model import (
    BrokerData,
    BrokerRegistration,
    ClusterInfo,
    ConsumerData,
    DataVersion,
    Heartbeat,
    MessageQueue,
    ProducerData,
    QueueData,
    RouteData,
    Subscription,
    SubscriptionGroup,
    TopicConfig,
    TopicTable,
)
from hotfire.protocol.command import Buffer
from hotfire.protocol.javajson import dumps as dumps
from hotfire.protocol.javajson import dumps_bare_keys as dumps_bare_keys
from hotfire.protocol.javajson import loads as loads
from hotfire.protocol.javajson import loads_standard as loads_standard
from hotfire.protocol.javajson import spelled as spelled

Value = TypeVar("Value")
Reader = Callable[[Any], Any]

_DECIMAL = re.compile(r"-?[0-9]{1,20}")

# --- values that exist only as bodies --------------------------------------------------------------


@dataclass(slots=True, frozen=True)
class TopicList:
    topics: tuple[str, ...] = ()
    broker_addr: str | None = None


@dataclass(slots=True, frozen=True)
class ConsumerList:
    """Client ids of a group's members."""

    client_ids: tuple[str, ...] = ()


@dataclass(slots=True, frozen=True)
class KVTable:
    table: Mapping[str, str] = field(default_factory=dict, hash=False)


@dataclass(slots=True, frozen=True)
class LockBatch:
    """Queues a member of a group wants to lock or unlock. 4.9 clients do not send `only_this_broker`."""

    consumer_group: str
    client_id: str
    queues: tuple[MessageQueue, ...] = ()
    only_this_broker: bool | None = False


@dataclass(slots=True, frozen=True)
class LockedQueues:
    """Queues the broker did lock."""

    queues: tuple[MessageQueue, ...] = ()


@dataclass(slots=True, frozen=True)
class ClientConfig:
    """A subscription to be checked before a consumer starts."""

    client_id: str
    group: str
    subscription: Subscription | None = None
    namespace: str | None = None


@dataclass(slots=True, frozen=True)
class BrokerMemberGroup:
    """The brokers that share a name."""

    cluster: str
    broker_name: str
    addresses: Mapping[int, str] = field(hash=False)


@dataclass(slots=True, frozen=True)
class MemberGroupReply:
    group: BrokerMemberGroup | None = None


# --- readers of single values; ValueError says what is wrong ---------------------------------------


def text(value: Any) -> str:
    if isinstance(value, str):
        return value
    raise ValueError(f"is {type(value).__name__}, not a string")


def integer(bits: int) -> Reader:
    low, high = -(1 << bits - 1), (1 << bits - 1) - 1

    def read(value: Any) -> int:
        if isinstance(value, str) and _DECIMAL.fullmatch(value):
            value = int(value)  # a quoted key, or fastjson's leniency
        if type(value) is int and low <= value <= high:
            return value
        raise ValueError(f"is {value!r:.40}, not a {bits}-bit integer")

    return read


def flag(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    raise ValueError(f"is {type(value).__name__}, not a boolean")


def number(value: Any) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    raise ValueError(f"is {type(value).__name__}, not a number")


def anything(value: Any) -> Any:
    return value


def items(read: Reader) -> Reader:
    def read_all(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise ValueError(f"is {type(value).__name__}, not an array")
        return tuple(read(item) for item in value)

    return read_all


def table(read_key: Reader, read: Reader) -> Reader:
    def read_all(value: Any) -> dict[Any, Any]:
        if not isinstance(value, dict):
            raise ValueError(f"is {type(value).__name__}, not an object")
        return {read_key(key): read(item) for key, item in value.items()}

    return read_all


def nested(cls: type) -> Reader:
    return lambda value: _read(cls, value)


int32, int64 = integer(32), integer(64)
texts = items(text)

_TOPIC_KINDS = [dict, bool, int, int, str, str, int, int]


def topic_config(value: Any) -> TopicConfig:
    """A topic as brokers write it, at once; whatever looks otherwise takes the way of all bodies.

    Brokers tell their name servers thousands at a time.
    """
    try:
        fields = attributes, order, perm, read, kind, name, sys_flag, write = [
            value["attributes"], value["order"], value["perm"], value["readQueueNums"],
            value["topicFilterType"], value["topicName"], value["topicSysFlag"], value["writeQueueNums"],
        ]  # fmt: skip
    except (KeyError, TypeError):
        return cast(TopicConfig, _read(TopicConfig, value))
    numbers = (perm, read, write, sys_flag)
    is_common = not attributes and [type(one) for one in fields] == _TOPIC_KINDS
    if not is_common or min(numbers) < -(1 << 31) or max(numbers) >= 1 << 31:
        return cast(TopicConfig, _read(TopicConfig, value))
    return TopicConfig(name, read, write, perm, kind, sys_flag, order)


# --- the tables ------------------------------------------------------------------------------------

_TABLES: dict[type, tuple[tuple[str, str, Reader], ...]] = {
    MessageQueue: (
        ("brokerName", "broker_name", text),
        ("queueId", "queue_id", int32),
        ("topic", "topic", text),
    ),
    DataVersion: (
        ("counter", "counter", int64),
        ("stateVersion", "state_version", int64),
        ("timestamp", "timestamp", int64),
    ),
    TopicConfig: (
        ("attributes", "attributes", table(text, text)),
        ("order", "order", flag),
        ("perm", "perm", int32),
        ("readQueueNums", "read_queues", int32),
        ("topicFilterType", "filter_type", text),
        ("topicName", "name", text),
        ("topicSysFlag", "sys_flag", int32),
        ("writeQueueNums", "write_queues", int32),
    ),
    TopicTable: (
        ("dataVersion", "data_version", nested(DataVersion)),
        ("mappingDataVersion", "mapping_data_version", nested(DataVersion)),
        ("topicConfigTable", "topics", table(text, topic_config)),
        ("topicQueueMappingDetailMap", "queue_mapping_details", table(text, anything)),
        ("topicQueueMappingInfoMap", "queue_mapping_infos", table(text, anything)),
    ),
    BrokerRegistration: (
        ("filterServerList", "filter_servers", texts),
        ("topicConfigSerializeWrapper", "topic_table", nested(TopicTable)),
    ),
    QueueData: (
        ("brokerName", "broker_name", text),
        ("perm", "perm", int32),
        ("readQueueNums", "read_queues", int32),
        ("topicSysFlag", "sys_flag", int32),
        ("writeQueueNums", "write_queues", int32),
    ),
    BrokerData: (
        ("brokerAddrs", "addresses", table(int64, text)),
        ("brokerName", "name", text),
        ("cluster", "cluster", text),
        ("enableActingMaster", "enable_acting_master", flag),
        ("zoneName", "zone_name", text),
    ),
    RouteData: (
        ("brokerDatas", "brokers", items(nested(BrokerData))),
        ("filterServerTable", "filter_servers", table(text, texts)),
        ("orderTopicConf", "order_topic_conf", text),
        ("queueDatas", "queues", items(nested(QueueData))),
    ),
    ClusterInfo: (
        ("brokerAddrTable", "brokers", table(text, nested(BrokerData))),
        ("clusterAddrTable", "clusters", table(text, texts)),
    ),
    BrokerMemberGroup: (
        ("brokerAddrs", "addresses", table(int64, text)),
        ("brokerName", "broker_name", text),
        ("cluster", "cluster", text),
    ),
    MemberGroupReply: (("brokerMemberGroup", "group", nested(BrokerMemberGroup)),),
    Subscription: (
        ("classFilterMode", "class_filter", flag),
        ("codeSet", "codes", items(int32)),
        ("expressionType", "kind", text),
        ("subString", "expression", text),
        ("subVersion", "version", int64),
        ("tagsSet", "tags", texts),
        ("topic", "topic", text),
    ),
    ConsumerData: (
        ("consumeFromWhere", "consume_from_where", text),
        ("consumeType", "consume_type", text),
        ("groupName", "group", text),
        ("messageModel", "message_model", text),
        ("subscriptionDataSet", "subscriptions", items(nested(Subscription))),
        ("unitMode", "unit_mode", flag),
    ),
    ProducerData: (("groupName", "group", text),),
    Heartbeat: (
        ("clientID", "client_id", text),
        ("consumerDataSet", "consumers", items(nested(ConsumerData))),
        ("heartbeatFingerprint", "fingerprint", int32),
        ("producerDataSet", "producers", items(nested(ProducerData))),
        ("withoutSub", "without_sub", flag),
    ),
    SubscriptionGroup: (
        ("attributes", "attributes", table(text, text)),
        ("brokerId", "broker_id", int64),
        ("consumeBroadcastEnable", "consume_broadcast_enable", flag),
        ("consumeEnable", "consume_enable", flag),
        ("consumeFromMinEnable", "consume_from_min_enable", flag),
        ("consumeMessageOrderly", "consume_message_orderly", flag),
        ("consumeTimeoutMinute", "consume_timeout_minutes", int32),
        ("groupName", "name", text),
        ("groupRetryPolicy", "retry_policy", table(text, anything)),
        ("groupSysFlag", "sys_flag", int32),
        ("notifyConsumerIdsChangedEnable", "notify_consumer_ids_changed_enable", flag),
        ("retryMaxTimes", "retry_times_max", int32),
        ("retryQueueNums", "retry_queues", int32),
        ("subscriptionDataSet", "subscriptions", items(table(text, anything))),
        ("whichBrokerWhenConsumeSlowly", "which_broker_when_consume_slowly", int64),
    ),
    TopicList: (("brokerAddr", "broker_addr", text), ("topicList", "topics", texts)),
    ConsumerList: (("consumerIdList", "client_ids", texts),),
    KVTable: (("table", "table", table(text, text)),),
    LockBatch: (
        ("clientId", "client_id", text),
        ("consumerGroup", "consumer_group", text),
        ("mqSet", "queues", items(nested(MessageQueue))),
        ("onlyThisBroker", "only_this_broker", flag),
    ),
    LockedQueues: (("lockOKMQSet", "queues", items(nested(MessageQueue))),),
    ClientConfig: (
        ("clientId", "client_id", text),
        ("group", "group", text),
        ("namespace", "namespace", text),
        ("subscriptionData", "subscription", nested(Subscription)),
    ),
}

_ABSENT_MEANS_NONE: dict[type, tuple[str, ...]] = {
    # What an older peer does not send is unknown, not our default.
    Heartbeat: ("fingerprint", "without_sub"),
    LockBatch: ("only_this_broker",),
}

_FORMER_NAMES: dict[type, dict[str, str]] = {QueueData: {"topicSynFlag": "topicSysFlag"}}

_BARE_KEYED: set[type] = {ClusterInfo, MemberGroupReply}


def declare(cls: type, *columns: tuple[str, str, Reader], bare_keys: bool = False) -> None:
    """Make a body known: its JSON names in Java's order, the attribute each fills, how it is read."""
    if cls in _TABLES:
        raise TypeError(f"{cls.__name__} is declared twice")
    _TABLES[cls] = columns
    if bare_keys:
        _BARE_KEYED.add(cls)


# --- values <-> bytes ------------------------------------------------------------------------------


def encode_body(value: Any, *, bare_keys: bool | None = None) -> bytes:
    """The body of `value`, with bare keys where Java has them unless `bare_keys` says otherwise."""
    bare = type(value) in _BARE_KEYED if bare_keys is None else bare_keys
    return (dumps_bare_keys if bare else dumps)(to_json(value))


def decode_body(cls: type[Value], body: Buffer) -> Value:
    """The value of type `cls` in `body`."""
    # Only bodies with integer-keyed maps can hold the dialect; the others come from anyone and stay fast.
    dialect = cls in _BARE_KEYED or cls is RouteData
    return from_json(cls, loads(body) if dialect else loads_standard(body))


def to_json(value: Any) -> Any:
    """`value` as plain dicts, lists and scalars, names in Java's order."""
    columns = _TABLES.get(type(value))
    if columns is not None:
        pairs = ((name, getattr(value, attribute)) for name, attribute, _ in columns)
        return {name: to_json(item) for name, item in pairs if item is not None}
    if isinstance(value, Mapping):
        return {key: to_json(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [to_json(item) for item in value]
    return value


def from_json(cls: type[Value], tree: Any) -> Value:
    """The value of type `cls` that `tree` describes."""
    try:
        value: Value = _read(cls, tree)
    except ValueError as error:
        raise RemoteProtocolError(f"{cls.__name__} {error}") from None
    return value


def _read(cls: type, tree: Any) -> Any:
    if not isinstance(tree, dict):
        raise ValueError(f"is {type(tree).__name__}, not an object")
    for former, name in _FORMER_NAMES.get(cls, {}).items():
        if name not in tree and former in tree:
            tree = {**tree, name: tree[former]}
    values: dict[str, Any] = dict.fromkeys(_ABSENT_MEANS_NONE.get(cls, ()))
    for name, attribute, read in _TABLES[cls]:
        item = tree.get(name)
        if item is None:
            continue
        try:
            values[attribute] = read(item)
        except ValueError as error:
            raise ValueError(f"{name} {error}") from None
    for attribute in _mandatory(cls):
        if attribute not in values:
            raise ValueError(f"lacks {_json_name(cls, attribute)}")
    return cls(**values)


@functools.cache
def _mandatory(cls: type) -> tuple[str, ...]:
    given = inspect.signature(cls).parameters.values()
    return tuple(one.name for one in given if one.default is inspect.Parameter.empty)


def _json_name(cls: type, attribute: str) -> str:
    return next(name for name, filled, _ in _TABLES[cls] if filled == attribute)
