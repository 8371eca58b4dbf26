"""What a pull's group wants of a topic: checked, and made into what the store reads by.

By tags or by an SQL92 condition; said by the request itself, agreed on by the members' heartbeats, or, just
after a restart, remembered from the table of conditions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from hotfire.broker.call import Answer, Refused
from hotfire.errors import BrokerRefused
from hotfire.model import RETRY_PREFIX, Subscription
from hotfire.protocol.codes import FAQ, ResponseCode
from hotfire.protocol.filters import tag_subscription
from hotfire.protocol.requests import PullMessage
from hotfire.protocol.sql92 import SQL92, ConditionError, compile_condition
from hotfire.store.sifting import Sieve

if TYPE_CHECKING:
    from hotfire.broker.broker import Broker

SUBSCRIPTION = 4
"""Of a pull's flags: it brings its own."""
FORBIDDEN_BROKER, FORBIDDEN_GROUP, FORBIDDEN_TOPIC, FORBIDDEN_BROADCAST, FORBIDDEN_SUBSCRIPTION = range(1, 6)
EXPRESSION_CHARACTERS_MAX, TAGS_MAX = 65_536, 1000
"""Of one subscription. Larger than any that people write; each held pull keeps the hashes of its tags."""


class Wanted(NamedTuple):
    """Tag hashes to let through, None for all; or what a message has to pass."""

    version: int
    codes: tuple[int, ...] | None = None
    sieve: Sieve | None = None
    is_agreed: bool = False
    """The sieve is the condition that the group's members agreed on: it holds until the next heartbeat."""


def forbidden(kind: int, remark: str) -> Refused:
    """NO_PERMISSION of a pull says which of broker, group, topic or mode forbids it."""
    return Refused(Answer({"forbiddenType": str(kind)}, code=ResponseCode.NO_PERMISSION, remark=remark))


def wanted_by(broker: Broker, request: PullMessage, now_ms: int) -> Wanted:
    """The request's own subscription, or what the members of its group agreed on."""
    if request.sys_flag & SUBSCRIPTION:
        return _own(broker, request)
    group = broker.clients.consumers.get(request.consumer_group)
    if group is None:
        known = broker.conditions.remembered(request.topic, request.consumer_group, now_ms)
        if known is None or known.version < request.sub_version:
            raise BrokerRefused(
                ResponseCode.SUBSCRIPTION_NOT_EXIST, "the consumer's group info not exist" + FAQ
            )
        _check_may_read(broker, request)
        check_kind(broker, SQL92)
        return Wanted(known.version, sieve=known.sieve)
    config = broker.groups.get(request.consumer_group)
    if config is not None and not config.consume_broadcast_enable and group.is_broadcast:
        raise forbidden(
            FORBIDDEN_BROADCAST, f"the consumer group[{config.name}] can not consume by broadcast way"
        )
    _check_may_read(broker, request)
    wanted = group.subscriptions.get(request.topic)
    if wanted is None:
        raise BrokerRefused(
            ResponseCode.SUBSCRIPTION_NOT_EXIST, "the consumer's subscription not exist" + FAQ
        )
    if wanted.version < request.sub_version:
        raise BrokerRefused(ResponseCode.SUBSCRIPTION_NOT_LATEST, "the consumer's subscription not latest")
    if wanted.kind == SQL92:
        return _agreed(broker, request, wanted)
    check_kind(broker, wanted.kind)
    return by_tags(wanted)


def by_tags(wanted: Subscription) -> Wanted:
    if wanted.expression in ("", "*") or wanted.class_filter:
        return Wanted(wanted.version)
    return Wanted(wanted.version, tuple(wanted.codes))


def _own(broker: Broker, request: PullMessage) -> Wanted:
    expression = request.subscription or ""
    if check_kind(broker, request.expression_type):
        known = broker.conditions.get(request.topic, request.consumer_group)
        is_known = known is not None and known.expression == expression  # then its bits count, too
        sieve = known.sieve if known and is_known else Sieve(compiled(request.topic, expression))
        return _by_condition(broker, request, Wanted(request.sub_version, sieve=sieve))
    if expression and not expression.replace("||", ""):
        raise BrokerRefused(
            ResponseCode.SUBSCRIPTION_PARSE_FAILED, "parse the consumer's subscription failed"
        )
    check_size(request.topic, expression, expression.count("||") + 1)
    return by_tags(tag_subscription(request.topic, request.subscription, request.sub_version))


def _agreed(broker: Broker, request: PullMessage, wanted: Subscription) -> Wanted:
    condition = broker.conditions.hurry(request.topic, request.consumer_group, broker.now_ms)
    if condition is None:
        try:
            compile_condition(wanted.expression)
            reason = f"{len(broker.conditions)} conditions are known already"
        except ConditionError as error:
            reason = str(error)
        raise BrokerRefused(
            ResponseCode.FILTER_DATA_NOT_EXIST,
            f"The broker's consumer filter data is not exist!Your expression may be wrong! {reason}",
        )
    if condition.version < request.sub_version:
        raise BrokerRefused(
            ResponseCode.FILTER_DATA_NOT_LATEST,
            f"the consumer's consumer filter data not latest: the broker has edition {condition.version}, "
            f"asked for is {request.sub_version}",
        )
    check_kind(broker, SQL92)
    version = min(wanted.version, condition.version)
    return _by_condition(broker, request, Wanted(version, sieve=condition.sieve, is_agreed=True))


def _by_condition(broker: Broker, request: PullMessage, wanted: Wanted) -> Wanted:
    """Of messages that came back, if the broker is told to, by the condition they were first read by."""
    if broker.config.filter_support_retry and request.topic.startswith(RETRY_PREFIX):
        group = request.topic.removeprefix(RETRY_PREFIX)
        return Wanted(wanted.version, sieve=broker.conditions.for_retry(group, broker.now_ms))
    return wanted


def _check_may_read(broker: Broker, request: PullMessage) -> None:
    if not broker.groups.may_read(request.consumer_group, request.topic):
        raise forbidden(
            FORBIDDEN_SUBSCRIPTION,
            f"the consumer group[{request.consumer_group}] is forbidden for topic[{request.topic}]",
        )


def compiled(topic: str, expression: str) -> bytes:
    """The program of a condition, refused with the place of what is wrong with it."""
    try:
        return compile_condition(expression)
    except ConditionError as error:
        raise BrokerRefused(
            ResponseCode.SUBSCRIPTION_PARSE_FAILED,
            f"parse the consumer's subscription failed, topic[{topic:.255}], condition: {error}",
        ) from None


def check_size(topic: str, expression: str, tags: int) -> None:
    if len(expression) > EXPRESSION_CHARACTERS_MAX or tags > TAGS_MAX:
        raise BrokerRefused(
            ResponseCode.SUBSCRIPTION_PARSE_FAILED,
            f"subscription of topic[{topic:.255}] has {len(expression)} characters and {tags} tags, at most "
            f"{EXPRESSION_CHARACTERS_MAX} and {TAGS_MAX} are taken",
        )


def check_kind(broker: Broker, kind: str | None) -> bool:
    """Whether it is a condition. To ignore one would deliver what nobody asked for."""
    if kind in (None, "", "TAG"):
        return False
    if kind != SQL92 or not broker.config.enable_property_filter:
        raise BrokerRefused(
            ResponseCode.SYSTEM_ERROR, f"The broker does not support consumer to filter message by {kind:.40}"
        )
    return True
