"""What brokers, clients and administrators ask a name server."""

from __future__ import annotations

from hotfire.protocol.codes import RequestCode
from hotfire.protocol.fields import Int32, Int64, wire
from hotfire.protocol.request import Reply, Request, manage, peer


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


# --- broker -> name server ---


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


# --- anyone -> name server ---


class GetRouteInfoByTopic(Request, code=RequestCode.GET_ROUTEINFO_BY_TOPIC, reply=None, needs=[]):
    topic: str = ""  # none named: there is no such topic, as the reference says
    accept_standard_json_only: bool | None = None
    zone_mode: bool | None = wire("__ZONE_MODE", default=None)
    zone_name: str | None = wire("__ZONE_NAME", default=None)


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


# --- admin -> name server ---


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
    namespace: str = ""
    key: str = ""


class DeleteKvConfig(Request, code=RequestCode.DELETE_KV_CONFIG, reply=None, needs=[manage()]):
    namespace: str
    key: str


class GetKvListByNamespace(Request, code=RequestCode.GET_KVLIST_BY_NAMESPACE, reply=None, needs=[]):
    namespace: str = ""


class UpdateNamesrvConfig(Request, code=RequestCode.UPDATE_NAMESRV_CONFIG, reply=None, needs=[manage()]):
    body: bytes = b""


class GetNamesrvConfig(Request, code=RequestCode.GET_NAMESRV_CONFIG, reply=None, needs=[manage()]):
    """The name server's settings as `key=value` lines."""
