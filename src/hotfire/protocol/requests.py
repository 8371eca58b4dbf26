"""Every request Hotfire speaks, declared once: code, fields, reply, permissions.

This table is the only place that says what a request looks like. Broker, name server, client, access
control and the docs read it; a handler is registered for one of these classes, so a handler for an
undeclared code cannot exist, and a code declared twice fails at import. `reply` is the struct of a
successful reply's fields: `None` when Java sends no field map at all, `NoFields` when it sends an
empty one. Field order of replies is the order seen on the wire. What travels in a body is in `bodies`;
what a request is, in `request`.
"""

from __future__ import annotations

from hotfire.protocol.codes import RequestCode
from hotfire.protocol.command import Command
from hotfire.protocol.fields import Int32, Int64, wire
from hotfire.protocol.request import REQUESTS as REQUESTS
from hotfire.protocol.request import Permission as Permission
from hotfire.protocol.request import Reply as Reply
from hotfire.protocol.request import Request as Request
from hotfire.protocol.request import manage, peer, read, use, write


def decode_request(command: Command) -> Request | None:
    """The typed request, or None when its code is not declared here (answer: not supported)."""
    declared = REQUESTS.get(command.code)
    return None if declared is None else declared.from_command(command)


# --- replies ---------------------------------------------------------------------------------------


class NoFields(Reply):
    """An empty field map, which Java sends where a header class exists and nothing is set."""


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


class OffsetReply(Reply):
    offset: Int64


class TimestampReply(Reply):
    timestamp: Int64


class QueryReply(Reply):
    index_last_update_phyoffset: Int64  # the small o is the wire's
    index_last_update_timestamp: Int64


class HeartbeatReply(Reply):
    supports_v2: bool = wire("IS_SUPPORT_HEART_BEAT_V2", default=True)
    subscription_changed: bool = wire("IS_SUB_CHANGE", default=False)


class BrokerConfigReply(Reply):
    version: str


class RegisterBrokerReply(Reply):
    ha_server_addr: str | None = None
    master_addr: str | None = None


class DataVersionReply(Reply):
    changed: bool


class KvReply(Reply):
    value: str | None = None


class WipeWritePermReply(Reply):
    wipe_topic_count: Int32


class AddWritePermReply(Reply):
    add_topic_count: Int32


# --- client -> broker: messages --------------------------------------------------------------------


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


# --- client -> broker: offsets ---------------------------------------------------------------------


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


# --- client -> broker: looking for messages --------------------------------------------------------


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


# --- client -> broker: membership ------------------------------------------------------------------


class HeartBeat(Request, code=RequestCode.HEART_BEAT, reply=HeartbeatReply, needs=[use("body")]):
    body: bytes = b""


class UnregisterClient(Request, code=RequestCode.UNREGISTER_CLIENT, reply=NoFields, needs=[]):
    client_id: str = wire("clientID")
    producer_group: str | None = None
    consumer_group: str | None = None


class GetConsumerListByGroup(
    Request, code=RequestCode.GET_CONSUMER_LIST_BY_GROUP, reply=NoFields, needs=[use("consumer_group")]
):
    consumer_group: str


class LockBatchMq(Request, code=RequestCode.LOCK_BATCH_MQ, reply=None, needs=[use("body")]):
    body: bytes = b""


class UnlockBatchMq(Request, code=RequestCode.UNLOCK_BATCH_MQ, reply=None, needs=[use("body")]):
    body: bytes = b""


class CheckClientConfig(Request, code=RequestCode.CHECK_CLIENT_CONFIG, reply=None, needs=[use("body")]):
    body: bytes = b""


# --- broker -> client ------------------------------------------------------------------------------


class NotifyConsumerIdsChanged(Request, code=RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, reply=None, needs=[]):
    consumer_group: str


# --- admin -> broker -------------------------------------------------------------------------------


class DeleteExpiredCommitLog(
    Request, code=RequestCode.DELETE_EXPIRED_COMMITLOG, reply=None, needs=[manage()]
):
    """Remove expired files of the log now."""


class UpdateAndCreateTopic(
    Request, code=RequestCode.UPDATE_AND_CREATE_TOPIC, reply=None, needs=[manage("topic")]
):
    topic: str
    default_topic: str
    read_queue_nums: Int32
    write_queue_nums: Int32
    perm: Int32
    topic_filter_type: str
    topic_sys_flag: Int32 | None = None
    order: bool = False
    attributes: str | None = None
    force: bool | None = None


class GetBrokerConfig(Request, code=RequestCode.GET_BROKER_CONFIG, reply=BrokerConfigReply, needs=[manage()]):
    """The broker's settings as `key=value` lines."""


class GetBrokerRuntimeInfo(Request, code=RequestCode.GET_BROKER_RUNTIME_INFO, reply=None, needs=[manage()]):
    """Counters and sizes as a table of texts."""


# --- broker -> name server -------------------------------------------------------------------------


class RegisterBroker(Request, code=RequestCode.REGISTER_BROKER, reply=RegisterBrokerReply, needs=[peer()]):
    broker_name: str
    broker_addr: str
    cluster_name: str
    ha_server_addr: str
    broker_id: Int64
    heartbeat_timeout_millis: Int64 | None = None
    enable_acting_master: bool | None = None
    compressed: bool = False
    body_crc32: Int32 = 0
    zone_name: str | None = wire("__ZONE_NAME", default=None)
    body: bytes = b""


class UnregisterBroker(Request, code=RequestCode.UNREGISTER_BROKER, reply=None, needs=[peer()]):
    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Int64


class QueryDataVersion(Request, code=RequestCode.QUERY_DATA_VERSION, reply=DataVersionReply, needs=[peer()]):
    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Int64
    body: bytes = b""


class BrokerHeartbeat(Request, code=RequestCode.BROKER_HEARTBEAT, reply=None, needs=[peer()]):
    cluster_name: str
    broker_addr: str
    broker_name: str
    broker_id: Int64 | None = None
    epoch: Int32 | None = None
    max_offset: Int64 | None = None
    confirm_offset: Int64 | None = None
    heartbeat_timeout_mills: Int64 | None = None
    election_priority: Int32 | None = None


class RegisterTopicInNamesrv(Request, code=RequestCode.REGISTER_TOPIC_IN_NAMESRV, reply=None, needs=[peer()]):
    topic: str
    body: bytes = b""


class GetBrokerMemberGroup(Request, code=RequestCode.GET_BROKER_MEMBER_GROUP, reply=None, needs=[]):
    cluster_name: str
    broker_name: str


# --- anyone -> name server -------------------------------------------------------------------------


class GetRouteInfoByTopic(Request, code=RequestCode.GET_ROUTEINFO_BY_TOPIC, reply=None, needs=[]):
    topic: str
    accept_standard_json_only: bool | None = None


class GetBrokerClusterInfo(Request, code=RequestCode.GET_BROKER_CLUSTER_INFO, reply=None, needs=[]):
    """Every cluster, its brokers and their addresses."""


class GetAllTopicListFromNameserver(
    Request, code=RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, reply=None, needs=[]
):
    """Every topic the name server knows."""


class GetTopicsByCluster(Request, code=RequestCode.GET_TOPICS_BY_CLUSTER, reply=None, needs=[]):
    cluster: str


class GetSystemTopicListFromNs(Request, code=RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS, reply=None, needs=[]):
    """Cluster and broker names, which are topics too."""


class GetUnitTopicList(Request, code=RequestCode.GET_UNIT_TOPIC_LIST, reply=None, needs=[]):
    """Topics with the UNIT flag."""


class GetHasUnitSubTopicList(Request, code=RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST, reply=None, needs=[]):
    """Topics with the UNIT_SUB flag."""


class GetHasUnitSubUnunitTopicList(
    Request, code=RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST, reply=None, needs=[]
):
    """Topics with the UNIT_SUB flag and without the UNIT flag."""


# --- admin -> name server --------------------------------------------------------------------------


class WipeWritePermOfBroker(
    Request, code=RequestCode.WIPE_WRITE_PERM_OF_BROKER, reply=WipeWritePermReply, needs=[manage()]
):
    broker_name: str


class AddWritePermOfBroker(
    Request, code=RequestCode.ADD_WRITE_PERM_OF_BROKER, reply=AddWritePermReply, needs=[manage()]
):
    broker_name: str


class DeleteTopicInNamesrv(
    Request, code=RequestCode.DELETE_TOPIC_IN_NAMESRV, reply=None, needs=[manage("topic")]
):
    topic: str
    cluster_name: str | None = None


class PutKvConfig(Request, code=RequestCode.PUT_KV_CONFIG, reply=None, needs=[manage()]):
    namespace: str
    key: str
    value: str


class GetKvConfig(Request, code=RequestCode.GET_KV_CONFIG, reply=KvReply, needs=[]):
    namespace: str
    key: str


class DeleteKvConfig(Request, code=RequestCode.DELETE_KV_CONFIG, reply=None, needs=[manage()]):
    namespace: str
    key: str


class GetKvListByNamespace(Request, code=RequestCode.GET_KVLIST_BY_NAMESPACE, reply=None, needs=[]):
    namespace: str


class UpdateNamesrvConfig(Request, code=RequestCode.UPDATE_NAMESRV_CONFIG, reply=None, needs=[manage()]):
    body: bytes = b""


class GetNamesrvConfig(Request, code=RequestCode.GET_NAMESRV_CONFIG, reply=None, needs=[manage()]):
    """The name server's settings as `key=value` lines."""
