"""Who lives and who owns what: between clients and brokers, both ways."""

from __future__ import annotations

from hotfire.protocol.codes import RequestCode
from hotfire.protocol.fields import Int32, Int64, wire
from hotfire.protocol.request import NoFields, Reply, Request, manage, peer, read, use


class HeartbeatReply(Reply):
    supports_v2: bool = wire("IS_SUPPORT_HEART_BEAT_V2", default=True)
    subscription_changed: bool = wire("IS_SUB_CHANGE", default=False)


class RegisterFilterServerReply(Reply):
    filter_server_id: str
    broker_name: str


# --- client -> broker: membership ---


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


class QueryAssignment(Request, code=RequestCode.QUERY_ASSIGNMENT, reply=None, needs=[use("body")]):
    """Which queues are mine? Asked by members that let the broker share them."""

    body: bytes = b""


# --- filter servers ---


class RegisterFilterServer(
    Request,
    code=RequestCode.REGISTER_FILTER_SERVER,
    reply=RegisterFilterServerReply,
    needs=[peer()],
):
    """A filter server says to its broker that it is there, again and again."""

    filter_server_addr: str


class RegisterMessageFilterClass(
    Request,
    code=RequestCode.REGISTER_MESSAGE_FILTER_CLASS,
    reply=None,
    needs=[read("topic"), use("consumer_group")],
):
    """A consumer says to a filter server which class it filters by. The body is the source of the class."""

    consumer_group: str
    topic: str
    class_name: str
    class_crc: Int32 = wire("classCRC")
    body: bytes = b""


# --- admin -> broker: who is there ---


class GetConsumerConnectionList(
    Request, code=RequestCode.GET_CONSUMER_CONNECTION_LIST, reply=None, needs=[manage("consumer_group")]
):
    consumer_group: str


class GetProducerConnectionList(
    Request, code=RequestCode.GET_PRODUCER_CONNECTION_LIST, reply=None, needs=[manage("producer_group")]
):
    producer_group: str


class GetAllProducerInfo(Request, code=RequestCode.GET_ALL_PRODUCER_INFO, reply=None, needs=[manage()]):
    """Every producer, by group."""


class QueryTopicConsumeByWho(
    Request, code=RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, reply=None, needs=[manage("topic")]
):
    topic: str


class QueryTopicsByConsumer(
    Request, code=RequestCode.QUERY_TOPICS_BY_CONSUMER, reply=None, needs=[manage("group")]
):
    group: str


class QuerySubscriptionByConsumer(
    Request, code=RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER, reply=None, needs=[manage("group")]
):
    group: str
    topic: str


# --- admin -> broker -> client ---


class GetConsumerRunningInfo(
    Request, code=RequestCode.GET_CONSUMER_RUNNING_INFO, reply=None, needs=[manage("consumer_group")]
):
    consumer_group: str
    client_id: str
    jstack_enable: bool | None = None


class ConsumeMessageDirectly(
    Request,
    code=RequestCode.CONSUME_MESSAGE_DIRECTLY,
    reply=None,
    needs=[manage("consumer_group")],
):
    """One message again, to one consumer. The broker adds the message and the names it knows."""

    consumer_group: str
    client_id: str | None = None
    msg_id: str | None = None
    broker_name: str | None = None
    topic: str | None = None
    topic_sys_flag: Int32 | None = None
    group_sys_flag: Int32 | None = None
    body: bytes = b""


class GetConsumerStatus(
    Request,
    code=RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS,
    reply=None,
    needs=[read("topic"), manage("group")],
):
    topic: str
    group: str
    client_addr: str | None = None
    """A client id, whatever the name says."""


# --- broker -> client ---


class GetConsumerStatusFromClient(
    Request, code=RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, reply=None, needs=[]
):
    topic: str
    group: str
    client_addr: str | None = None


class NotifyConsumerIdsChanged(Request, code=RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, reply=None, needs=[]):
    consumer_group: str


class CheckTransactionState(Request, code=RequestCode.CHECK_TRANSACTION_STATE, reply=None, needs=[]):
    """How did this transaction end? The body is the half message; the answer is an EndTransaction."""

    topic: str | None = None
    tran_state_table_offset: Int64
    commit_log_offset: Int64
    msg_id: str | None = None
    transaction_id: str | None = None
    offset_msg_id: str | None = None
    broker_name: str | None = wire("bname", default=None)
    body: bytes = b""
