"""Looking for messages: by key, by the offset in their id, by time. Answered beside the loop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hotfire.broker.call import PARKED, Answer, Call, Outcome, handles
from hotfire.errors import BrokerRefused
from hotfire.protocol.codes import ResponseCode
from hotfire.protocol.record import TAG_KEY
from hotfire.protocol.requests import (
    OffsetReply,
    QueryMessage,
    QueryReply,
    Request,
    SearchOffsetByTimestamp,
    ViewMessageById,
)

if TYPE_CHECKING:
    from hotfire.broker.broker import Broker

UNIQUE_MAX = 32
"""Messages looked for by a unique key, whatever was asked for."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A question under way: whose, and what to make of the store's answer."""

    call: Call[Any]
    declared: type[Request]
    answer: Callable[[Any], Outcome]


def check_room(broker: Broker) -> None:
    if not broker.store.queries.has_room:
        raise BrokerRefused(ResponseCode.SYSTEM_BUSY, "too many queries wait already; try again later")


def reply(timestamp: int, offset: int) -> QueryReply:
    return QueryReply(index_last_update_timestamp=timestamp, index_last_update_phyoffset=offset)


@handles(QueryMessage)
def by_key(broker: Broker, call: Call[QueryMessage]) -> Outcome:
    request = call.request
    check_room(broker)
    count_max = UNIQUE_MAX if request.unique else request.max_num
    if count_max < 0:
        raise BrokerRefused(ResponseCode.SYSTEM_ERROR, f"maxNum is {count_max}, ask for 1 message or more")
    timestamp, offset = broker.store.indexed_end

    def answer(found: bytes) -> Outcome:
        if found:
            return Answer(reply(timestamp, offset), body=found)
        why = (
            "can not find message, maybe time range not correct"
            if broker.config.message_index_enable
            else "can not find message, this broker keeps no index of keys: messageIndexEnable is false"
        )
        return Answer(reply(0, 0), code=ResponseCode.QUERY_NOT_FOUND, remark=why)

    broker.store.queries.by_key(
        request.topic,
        TAG_KEY + request.key if request.index_type == "T" else request.key,
        count_max,
        request.begin_timestamp,
        request.end_timestamp,
        Asked(call, QueryMessage, answer),
    )
    return PARKED


@handles(ViewMessageById)
def by_id(broker: Broker, call: Call[ViewMessageById]) -> Outcome:
    check_room(broker)
    offset = call.request.offset

    def answer(found: bytes | None) -> Outcome:
        if found is None:
            raise BrokerRefused(ResponseCode.SYSTEM_ERROR, f"can not find message by the offset, {offset}")
        return Answer(body=found)

    broker.store.queries.record_at(offset, Asked(call, ViewMessageById, answer))
    return PARKED


@handles(SearchOffsetByTimestamp)
def by_time(broker: Broker, call: Call[SearchOffsetByTimestamp]) -> Outcome:
    request = call.request
    check_room(broker)
    broker.store.offset_by_time(
        request.topic,
        request.queue_id,
        request.timestamp,
        upper=(request.boundary_type or "").lower() == "upper",
        token=Asked(call, SearchOffsetByTimestamp, lambda offset: Answer(OffsetReply(offset=offset))),
    )
    return PARKED
