"""Topics: made, changed, shown and deleted by administrators."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from hotfire import model
from hotfire.broker import changes
from hotfire.broker.attributes import TOPIC_ATTRIBUTES, changed, parse_changes
from hotfire.broker.call import Answer, Call, Outcome, handles
from hotfire.broker.handlers.beside import answer_beside, answer_registered
from hotfire.errors import BrokerRefused, RemoteProtocolError
from hotfire.model import DataVersion, Perm, TopicConfig, TopicTable
from hotfire.protocol.bodies import (
    TopicList,
    decode_body,
    dumps_bare_keys,
    encode_body,
    from_json,
    loads_standard,
    to_json,
)
from hotfire.protocol.codes import ResponseCode
from hotfire.protocol.reports import TopicConfigList
from hotfire.protocol.requests import (
    DeleteTopicInBroker,
    GetAllTopicConfig,
    GetSystemTopicListFromBroker,
    GetTopicConfig,
    TopicTableReply,
    UpdateAndCreateTopic,
    UpdateAndCreateTopicList,
)

if TYPE_CHECKING:
    from hotfire.broker.broker import Broker

TOPICS_PER_REQUEST_MAX = 10_000
PAGE_MAX = 2000
"""Topics or groups of one page, as the reference's `splitMetadataSize`."""
NOT_SET = "not set any response code"
"""What the reference says on some successes; clients look at the code."""


@handles(UpdateAndCreateTopic)
def update(broker: Broker, call: Call[UpdateAndCreateTopic]) -> Outcome:
    request = call.request
    wanted = TopicConfig(
        request.topic,
        request.read_queue_nums,
        request.write_queue_nums,
        request.perm,
        request.topic_filter_type,
        request.topic_sys_flag or 0,
        request.order,
        parse_changes(request.attributes),
    )
    broker.topics.put(checked(broker, wanted), call.now_ms)
    return answer_registered(broker, call, Answer(remark=NOT_SET))


@handles(UpdateAndCreateTopicList)
def update_list(broker: Broker, call: Call[UpdateAndCreateTopicList]) -> Outcome:
    """All of them in one write, or none."""
    wanted = decode_body(TopicConfigList, call.request.body).topics
    if len(wanted) > TOPICS_PER_REQUEST_MAX:
        raise BrokerRefused(
            ResponseCode.INVALID_PARAMETER,
            f"{len(wanted)} topics in one request, at most {TOPICS_PER_REQUEST_MAX} are taken",
        )
    broker.topics.put_all([checked(broker, topic) for topic in wanted], call.now_ms)
    return answer_registered(broker, call, Answer(remark=NOT_SET))


def checked(broker: Broker, wanted: TopicConfig) -> TopicConfig:
    """The topic as it is to be; what it names as attributes are changes to those it has."""
    name = wanted.name
    model.check_topic_name(name)
    refuse_system(broker, name)
    for what, count in (("readQueueNums", wanted.read_queues), ("writeQueueNums", wanted.write_queues)):
        if not 0 < count <= model.TOPIC_QUEUES_MAX:
            raise BrokerRefused(
                ResponseCode.INVALID_PARAMETER,
                f"{what} {count} of topic[{name}]: 1 to {model.TOPIC_QUEUES_MAX} are possible",
            )
    if wanted.perm & ~(Perm.READ_WRITE | Perm.INHERIT | Perm.PRIORITY):
        raise BrokerRefused(
            ResponseCode.INVALID_PARAMETER, f"perm {wanted.perm} of topic[{name}] has unknown bits"
        )
    if wanted.filter_type not in ("SINGLE_TAG", "MULTI_TAG"):
        raise BrokerRefused(
            ResponseCode.SYSTEM_ERROR, f"topicFilterType = [{wanted.filter_type:.40}] value invalid"
        )
    if wanted.attributes.get("+message.type") == "MIXED":
        raise BrokerRefused(ResponseCode.INVALID_PARAMETER, "MIXED message type is not supported.")
    now = broker.topics.get(name)
    attributes = changed(TOPIC_ATTRIBUTES, None if now is None else now.attributes, wanted.attributes)
    return dataclasses.replace(wanted, attributes=attributes)


def refuse_system(broker: Broker, name: str) -> None:
    if broker.topics.is_system(name):
        raise BrokerRefused(
            ResponseCode.INVALID_PARAMETER, f"The topic[{name}] is conflict with system topic."
        )


@handles(DeleteTopicInBroker)
def delete(broker: Broker, call: Call[DeleteTopicInBroker]) -> Outcome:
    name = call.request.topic
    if not name or name.isspace():
        raise BrokerRefused(ResponseCode.INVALID_PARAMETER, "The specified topic is blank.")
    refuse_system(broker, name)
    if broker.topics.get(name) is None:
        # Nothing to delete, which the reference calls success; and no such name reaches the disk.
        return Answer()
    pop_retry = [
        retry
        for group in broker.offsets.groups_of(name)
        for retry in (f"{model.RETRY_PREFIX}{group}+{name}", f"{model.RETRY_PREFIX}{group}_{name}")
        if broker.topics.get(retry) is not None
    ]
    changes.delete_topics(broker, [name, *pop_retry], call.now_ms)
    return Answer()


@handles(GetTopicConfig)
def show(broker: Broker, call: Call[GetTopicConfig]) -> Outcome:
    topic = broker.topics.get(call.request.topic)
    if topic is None:
        raise BrokerRefused(
            ResponseCode.TOPIC_NOT_EXIST, f"No topic in this broker. topic: {call.request.topic}"
        )
    return Answer(body=encode_body(topic))


@handles(GetAllTopicConfig)
def show_all(broker: Broker, call: Call[GetAllTopicConfig]) -> Outcome:
    request, topics = call.request, broker.topics
    table, version = topics.spelled(), topics.version
    names: list[str] | None = None
    if (request.topic_seq, request.data_version, request.max_topic_num) != (None, None, None):
        first = page_start(request.data_version, request.topic_seq, version)
        names = sorted(table)[first : first + page_size(request.max_topic_num)]
    tree = to_json(TopicTable(data_version=version, mapping_data_version=DataVersion()))

    def work(_: object) -> bytes:
        tree["topicConfigTable"] = table if names is None else {name: table[name] for name in names}
        return dumps_bare_keys(tree)

    return answer_beside(broker, call, work, TopicTableReply(total_topic_num=len(table)))


def page_start(told: str | None, wanted: int | None, version: DataVersion) -> int:
    """Where a page begins: a table that has changed since its first page is read from its beginning again."""
    try:
        known = from_json(DataVersion, loads_standard(told.encode())) if told else None
    except RemoteProtocolError:
        known = None
    return max(0, wanted or 0) if known == version else 0


def page_size(wanted: int | None) -> int:
    return PAGE_MAX if wanted is None else max(0, min(wanted, PAGE_MAX))


@handles(GetSystemTopicListFromBroker)
def system_topics(broker: Broker, call: Call[GetSystemTopicListFromBroker]) -> Outcome:
    return Answer(body=encode_body(TopicList(tuple(sorted(broker.topics.system_names())))))
