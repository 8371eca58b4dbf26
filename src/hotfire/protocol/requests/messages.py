"""What clients ask a broker about messages: send, pull, look for."""

from __future__ import annotations

from hotfire.protocol.codes import RequestCode
from hotfire.protocol.fields import Int32, Int64, wire
from hotfire.protocol.request import Reply, Request, manage, read, use, write


class SendReply(Reply):
    queue_id: Int32
    batch_uniq_id: str | None = None
    transaction_id: str | None = None
    msg_id: str
    trace_on: bool | None = wire("TRACE_ON", default=True)
    region_id: str | None = wire("MSG_REGION", default="DefaultRegion")
    recall_handle: str | None = None
    queue_offset: Int64


class PullReply(Reply):
    suggest_which_broker_id: Int64
    group_sys_flag: Int32 | None = None
    next_begin_offset: Int64
    forbidden_type: Int32 | None = None
    offset_delta: Int64 | None = None
    max_offset: Int64
    min_offset: Int64
    topic_sys_flag: Int32 | None = None


class QueryReply(Reply):
    index_last_update_phyoffset: Int64  # the small o is the wire's
    index_last_update_timestamp: Int64


# --- client -> broker: messages ---


class SendMessage(Request, code=RequestCode.SEND_MESSAGE, reply=SendReply, needs=[write("topic")]):
    """One message, or several when `batch`. The later codes only spell the fields differently."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: Int32
    queue_id: Int32
    sys_flag: Int32
    born_timestamp: Int64
    flag: Int32
    properties: str | None = None
    reconsume_times: Int32 | None = 0
    unit_mode: bool = False
    max_reconsume_times: Int32 | None = None
    batch: bool = False
    broker_name: str | None = wire("bname", default=None)
    body: bytes = b""


_LETTERS = {field.name: letter for field, letter in zip(SendMessage.fields, "abcdefghijklmn", strict=True)}


class SendMessageV2(
    SendMessage, code=RequestCode.SEND_MESSAGE_V2, reply=SendReply, needs=[write("topic")], names=_LETTERS
):
    """What every client since 2014 sends."""


class SendBatchMessage(
    SendMessage, code=RequestCode.SEND_BATCH_MESSAGE, reply=SendReply, needs=[write("topic")], names=_LETTERS
):
    """Several messages in one body."""


class RecallReply(Reply):
    msg_id: str
    region_id: str | None = wire("MSG_REGION", default="DefaultRegion")


class RecallMessage(Request, code=RequestCode.RECALL_MESSAGE, reply=RecallReply, needs=[write("topic")]):
    """A message that waits for its time is taken back, named by the handle its send was answered with."""

    producer_group: str | None = None
    topic: str
    recall_handle: str
    broker_name: str | None = wire("bname", default=None)


class SendReplyMessage(
    SendMessage, code=RequestCode.SEND_REPLY_MESSAGE, reply=SendReply, needs=[write("topic")]
):
    """The answer to a request; its properties say which client waits for it."""


class SendReplyMessageV2(
    SendMessage,
    code=RequestCode.SEND_REPLY_MESSAGE_V2,
    reply=SendReply,
    needs=[write("topic")],
    names=_LETTERS,
):
    """The same with short names."""


class PushReplyMessageToClient(
    Request, code=RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, reply=None, needs=[write("topic")]
):
    """Broker -> client: the reply one of its requests waits for."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: Int32
    queue_id: Int32
    sys_flag: Int32
    born_timestamp: Int64
    flag: Int32
    properties: str | None = None
    reconsume_times: Int32 | None = None
    unit_mode: bool = False
    born_host: str
    store_host: str
    store_timestamp: Int64
    body: bytes = b""


class ConsumerSendMsgBack(Request, code=RequestCode.CONSUMER_SEND_MSG_BACK, reply=None, needs=[use("group")]):
    """A message a consumer could not handle, named by its place in the log."""

    offset: Int64
    group: str
    delay_level: Int32
    origin_msg_id: str | None = None
    origin_topic: str | None = None
    unit_mode: bool = False
    max_reconsume_times: Int32 | None = None
    broker_name: str | None = wire("bname", default=None)


class EndTransaction(Request, code=RequestCode.END_TRANSACTION, reply=None, needs=[write("topic")]):
    """The outcome of a transaction, or that it is not known yet (0). Sent oneway."""

    topic: str | None = None
    producer_group: str
    tran_state_table_offset: Int64
    """The half message's place in its queue; `commit_log_offset` its place in the log."""
    commit_log_offset: Int64
    commit_or_rollback: Int32
    """The bits of a record's system flag: 8 commits, 12 rolls back."""
    from_transaction_check: bool | None = False
    msg_id: str
    transaction_id: str | None = None
    broker_name: str | None = wire("bname", default=None)


class ResumeCheckHalfMessage(
    Request, code=RequestCode.RESUME_CHECK_HALF_MESSAGE, reply=None, needs=[manage()]
):
    """Ask again about a half message that was laid aside because nobody knew its outcome."""

    topic: str | None = None
    msg_id: str | None = None


class PullMessage(
    Request, code=RequestCode.PULL_MESSAGE, reply=PullReply, needs=[read("topic"), use("consumer_group")]
):
    consumer_group: str
    topic: str
    queue_id: Int32
    queue_offset: Int64
    max_msg_nums: Int32
    sys_flag: Int32
    commit_offset: Int64
    suspend_timeout_millis: Int64
    subscription: str | None = None
    sub_version: Int64
    expression_type: str | None = None
    max_msg_bytes: Int32 | None = None
    request_source: Int32 | None = None
    # The misspelling is the wire's.
    proxy_forward_client_id: str | None = wire("proxyFrowardClientId", default=None)
    broker_name: str | None = wire("bname", default=None)


class LitePullMessage(
    PullMessage,
    code=RequestCode.LITE_PULL_MESSAGE,
    reply=PullReply,
    needs=[read("topic"), use("consumer_group")],
):
    """A pull of a client that keeps its own offsets."""


# --- client -> broker: looking for messages ---


class QueryMessage(Request, code=RequestCode.QUERY_MESSAGE, reply=QueryReply, needs=[read("topic")]):
    topic: str
    key: str
    max_num: Int32
    begin_timestamp: Int64
    end_timestamp: Int64
    index_type: str | None = None
    last_key: str | None = None
    unique: bool | None = wire("_UNIQUE_KEY_QUERY", default=None)
    broker_name: str | None = wire("bname", default=None)


class ViewMessageById(Request, code=RequestCode.VIEW_MESSAGE_BY_ID, reply=None, needs=[manage()]):
    offset: Int64
    topic: str | None = None
    broker_name: str | None = wire("bname", default=None)
