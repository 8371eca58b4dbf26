"""Consumer groups: made, changed, shown and deleted by administrators; and what they may not read."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from hotfire import model
from hotfire.broker.attributes import GROUP_ATTRIBUTES, changed
from hotfire.broker.call import Answer, Call, Outcome, handles
from hotfire.broker.handlers.beside import answer_beside
from hotfire.broker.handlers.topics import page_size, page_start
from hotfire.errors import BrokerRefused
from hotfire.model import SubscriptionGroup
from hotfire.protocol.bodies import decode_body, dumps_bare_keys, encode_body, to_json
from hotfire.protocol.codes import ResponseCode
from hotfire.protocol.reports import GroupConfigList, GroupForbidden
from hotfire.protocol.requests import (
    DeleteSubscriptionGroup,
    GetAllSubscriptionGroupConfig,
    GetSubscriptionGroupConfig,
    GroupTableReply,
    UpdateAndCreateSubscriptionGroup,
    UpdateAndCreateSubscriptionGroupList,
    UpdateAndGetGroupForbidden,
)

if TYPE_CHECKING:
    from hotfire.broker.broker import Broker

GROUPS_PER_REQUEST_MAX = 10_000


@handles(UpdateAndCreateSubscriptionGroup)
def update(broker: Broker, call: Call[UpdateAndCreateSubscriptionGroup]) -> Outcome:
    put(broker, (decode_body(SubscriptionGroup, call.request.body),), call.now_ms)
    return Answer()


@handles(UpdateAndCreateSubscriptionGroupList)
def update_list(broker: Broker, call: Call[UpdateAndCreateSubscriptionGroupList]) -> Outcome:
    """All of them in one write, or none."""
    put(broker, decode_body(GroupConfigList, call.request.body).groups, call.now_ms)
    return Answer()


def put(broker: Broker, groups: tuple[SubscriptionGroup, ...], now_ms: int) -> None:
    if len(groups) > GROUPS_PER_REQUEST_MAX:
        raise BrokerRefused(
            ResponseCode.INVALID_PARAMETER,
            f"{len(groups)} groups in one request, at most {GROUPS_PER_REQUEST_MAX} are taken",
        )
    wanted = []
    for group in groups:
        model.check_group_name(group.name)
        if group.retry_queues > model.TOPIC_QUEUES_MAX:
            raise BrokerRefused(
                ResponseCode.INVALID_PARAMETER,
                f"retryQueueNums {group.retry_queues} of group[{group.name}]: "
                f"at most {model.TOPIC_QUEUES_MAX} are possible",
            )
        now = broker.groups.get(group.name)
        attributes = changed(GROUP_ATTRIBUTES, None if now is None else now.attributes, group.attributes)
        wanted.append(dataclasses.replace(group, attributes=attributes))
    broker.groups.put_all(wanted, now_ms)
    for group in wanted:
        broker.fast.revoke(group.name)


@handles(GetSubscriptionGroupConfig)
def show(broker: Broker, call: Call[GetSubscriptionGroupConfig]) -> Outcome:
    """Where groups are made by their first use, asking for one is a use, as with the reference."""
    try:
        group = broker.groups.find(call.request.group, call.now_ms)
    except BrokerRefused:  # no group may have that name
        group = None
    if group is None:
        raise BrokerRefused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "No group in this broker")
    return Answer(body=encode_body(group))


@handles(GetAllSubscriptionGroupConfig)
def show_all(broker: Broker, call: Call[GetAllSubscriptionGroupConfig]) -> Outcome:
    request, groups = call.request, broker.groups
    table, version, forbidden = groups.spelled(), groups.version, groups.forbidden()
    names: list[str] | None = None
    if (request.group_seq, request.data_version, request.max_group_num) != (None, None, None):
        first = page_start(request.data_version, request.group_seq, version)
        names = sorted(table)[first : first + page_size(request.max_group_num)]

    def work(_: object) -> bytes:
        shown = table if names is None else {name: table[name] for name in names}
        tree = {
            "dataVersion": to_json(version),
            "forbiddenTable": {name: topics for name, topics in forbidden.items() if name in shown},
            "subscriptionGroupTable": shown,
        }
        return dumps_bare_keys(tree)

    return answer_beside(broker, call, work, GroupTableReply(total_group_num=len(table)))


@handles(DeleteSubscriptionGroup)
def delete(broker: Broker, call: Call[DeleteSubscriptionGroup]) -> Outcome:
    """Its topics for retries and dead letters stay: whoever wants them gone deletes them."""
    name = call.request.group_name
    broker.groups.remove(name, call.now_ms)
    broker.modes.forget_group(name)
    broker.fast.revoke(name)
    if call.request.clean_offset:
        broker.offsets.forget_group(name)
    broker.statistics.forget_group(name)
    return Answer()


@handles(UpdateAndGetGroupForbidden)
def forbid(broker: Broker, call: Call[UpdateAndGetGroupForbidden]) -> Outcome:
    request = call.request
    if request.readable is not None:
        model.check_group_name(request.group)
        model.check_topic_name(request.topic)
        broker.groups.forbid_reading(request.group, request.topic, not request.readable, call.now_ms)
        broker.fast.revoke(request.group)
    readable = broker.groups.may_read(request.group, request.topic)
    return Answer(remark="", body=encode_body(GroupForbidden(request.group, request.topic, readable)))
