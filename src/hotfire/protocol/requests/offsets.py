"""What clients ask a broker about offsets."""

from __future__ import annotations

from hotfire.protocol.codes import RequestCode
from hotfire.protocol.fields import Int32, Int64, wire
from hotfire.protocol.request import NoFields, Reply, Request, manage, read, use


class OffsetReply(Reply):
    offset: Int64


class TimestampReply(Reply):
    timestamp: Int64


# --- client -> broker: offsets ---


class QueryConsumerOffset(
    Request,
    code=RequestCode.QUERY_CONSUMER_OFFSET,
    reply=OffsetReply,
    needs=[read("topic"), use("consumer_group")],
):
    consumer_group: str
    topic: str
    queue_id: Int32
    set_zero_if_not_found: bool | None = None
    broker_name: str | None = wire("bname", default=None)


class UpdateConsumerOffset(
    Request,
    code=RequestCode.UPDATE_CONSUMER_OFFSET,
    reply=NoFields,
    needs=[read("topic"), use("consumer_group")],
):
    consumer_group: str
    topic: str
    queue_id: Int32
    commit_offset: Int64
    broker_name: str | None = wire("bname", default=None)


class SearchOffsetByTimestamp(
    Request, code=RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, reply=OffsetReply, needs=[read("topic")]
):
    topic: str
    queue_id: Int32
    timestamp: Int64
    boundary_type: str | None = None  # "upper" in any case, everything else is the lower boundary
    broker_name: str | None = wire("bname", default=None)


class GetMaxOffset(Request, code=RequestCode.GET_MAX_OFFSET, reply=OffsetReply, needs=[read("topic")]):
    topic: str
    queue_id: Int32
    committed: bool = True
    broker_name: str | None = wire("bname", default=None)


class GetMinOffset(Request, code=RequestCode.GET_MIN_OFFSET, reply=OffsetReply, needs=[read("topic")]):
    topic: str
    queue_id: Int32
    broker_name: str | None = wire("bname", default=None)


class GetEarliestStoreTime(
    Request, code=RequestCode.GET_EARLIEST_MSG_STORETIME, reply=TimestampReply, needs=[read("topic")]
):
    topic: str
    queue_id: Int32
    broker_name: str | None = wire("bname", default=None)


# --- admin -> broker ---


class ResetOffset(
    Request,
    code=RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
    reply=None,
    needs=[read("topic"), manage("group")],
):
    """Where a group goes on reading: all queues or one, by store time or by hand."""

    topic: str
    group: str
    timestamp: Int64
    """Below zero: behind the newest message."""
    is_force: bool = True
    queue_id: Int32 | None = -1
    offset: Int64 | None = None


# --- broker -> client ---


class ResetConsumerOffset(Request, code=RequestCode.RESET_CONSUMER_CLIENT_OFFSET, reply=None, needs=[]):
    """Where a consumer goes on; the offsets are in the body. Brokers that keep resets ask nobody."""

    topic: str
    group: str
    timestamp: Int64
    is_force: bool = True
    queue_id: Int32 | None = -1
    offset: Int64 | None = None
    body: bytes = b""


# --- admin -> broker: how late ---


class QueryConsumeTimeSpan(
    Request, code=RequestCode.QUERY_CONSUME_TIME_SPAN, reply=None, needs=[read("topic"), manage("group")]
):
    topic: str
    group: str
