"""What administrators ask a broker."""

from __future__ import annotations

from hotfire.protocol.codes import RequestCode
from hotfire.protocol.fields import Int32, Int64
from hotfire.protocol.request import Reply, Request, manage, peer, read


class BrokerConfigReply(Reply):
    version: str


class TopicTableReply(Reply):
    total_topic_num: Int32


class GroupTableReply(Reply):
    total_group_num: Int32


# --- topics ---


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
    attributes: str | None = None  # +key=value,-key
    force: bool | None = None


class UpdateAndCreateTopicList(
    Request, code=RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, reply=None, needs=[manage("body")]
):
    body: bytes = b""


class DeleteTopicInBroker(
    Request, code=RequestCode.DELETE_TOPIC_IN_BROKER, reply=None, needs=[manage("topic")]
):
    topic: str


class GetTopicConfig(Request, code=RequestCode.GET_TOPIC_CONFIG, reply=None, needs=[read("topic")]):
    topic: str
    lo: bool | None = None


class GetAllTopicConfig(
    Request, code=RequestCode.GET_ALL_TOPIC_CONFIG, reply=TopicTableReply, needs=[manage()]
):
    """All topics; or, with any of its fields, a page of them in order of their names."""

    topic_seq: Int32 | None = None
    data_version: str | None = None
    max_topic_num: Int32 | None = None


class GetSystemTopicListFromBroker(
    Request, code=RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, reply=None, needs=[]
):
    """Topics that belong to the broker."""


# --- groups ---


class UpdateAndCreateSubscriptionGroup(
    Request, code=RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, reply=None, needs=[manage("body")]
):
    body: bytes = b""


class UpdateAndCreateSubscriptionGroupList(
    Request, code=RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, reply=None, needs=[manage("body")]
):
    body: bytes = b""


class GetAllSubscriptionGroupConfig(
    Request, code=RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, reply=GroupTableReply, needs=[manage()]
):
    """All groups; or, with any of its fields, a page of them in order of their names."""

    group_seq: Int32 | None = None
    data_version: str | None = None
    max_group_num: Int32 | None = None


class GetSubscriptionGroupConfig(
    Request, code=RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, reply=None, needs=[manage("group")]
):
    group: str


class DeleteSubscriptionGroup(
    Request, code=RequestCode.DELETE_SUBSCRIPTIONGROUP, reply=None, needs=[manage("group_name")]
):
    group_name: str
    clean_offset: bool = False


class UpdateAndGetGroupForbidden(
    Request, code=RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN, reply=None, needs=[manage("group")]
):
    """Whether a group may read a topic; without `readable` nothing is changed."""

    group: str
    topic: str
    readable: bool | None = None


# --- statistics ---


class GetTopicStatsInfo(Request, code=RequestCode.GET_TOPIC_STATS_INFO, reply=None, needs=[read("topic")]):
    topic: str


class GetConsumeStats(
    Request, code=RequestCode.GET_CONSUME_STATS, reply=None, needs=[manage("consumer_group")]
):
    consumer_group: str
    topic: str | None = None
    topic_list: str | None = None  # separated by ';'


class GetBrokerConsumeStats(Request, code=RequestCode.GET_BROKER_CONSUME_STATS, reply=None, needs=[manage()]):
    is_order: bool


class QueryCorrectionOffset(
    Request, code=RequestCode.QUERY_CORRECTION_OFFSET, reply=None, needs=[manage("topic")]
):
    """The lowest offset any group has of each queue of a topic."""

    filter_groups: str | None = None  # those not looked at, separated by ','
    compare_group: str
    topic: str


class CloneGroupOffset(
    Request,
    code=RequestCode.CLONE_GROUP_OFFSET,
    reply=None,
    needs=[manage("src_group"), manage("dest_group")],
):
    src_group: str
    dest_group: str
    topic: str | None = None
    offline: bool = False


class ViewBrokerStatsData(Request, code=RequestCode.VIEW_BROKER_STATS_DATA, reply=None, needs=[manage()]):
    stats_name: str
    stats_key: str


class QueryConsumeQueue(Request, code=RequestCode.QUERY_CONSUME_QUEUE, reply=None, needs=[read("topic")]):
    topic: str
    queue_id: Int32
    index: Int64
    count: Int32
    consumer_group: str | None = None


class GetBrokerRuntimeInfo(Request, code=RequestCode.GET_BROKER_RUNTIME_INFO, reply=None, needs=[manage()]):
    """Counters and sizes as a table of texts."""


# --- tables that a slave copies ---


class GetAllConsumerOffset(Request, code=RequestCode.GET_ALL_CONSUMER_OFFSET, reply=None, needs=[peer()]):
    """Every group's offsets."""


class GetAllDelayOffset(Request, code=RequestCode.GET_ALL_DELAY_OFFSET, reply=None, needs=[peer()]):
    """How far each delay level has been delivered."""


class GetTimerCheckPoint(Request, code=RequestCode.GET_TIMER_CHECK_POINT, reply=None, needs=[peer()]):
    """How far the timer wheel is, for a slave."""


class GetTimerMetrics(Request, code=RequestCode.GET_TIMER_METRICS, reply=None, needs=[peer()]):
    """How many messages of each topic wait in the timer wheel."""


class SetMessageRequestMode(
    Request, code=RequestCode.SET_MESSAGE_REQUEST_MODE, reply=None, needs=[manage("body")]
):
    """Whether a group pulls or pops a topic, where its brokers decide."""

    body: bytes = b""


class GetAllMessageRequestMode(
    Request, code=RequestCode.GET_ALL_MESSAGE_REQUEST_MODE, reply=None, needs=[peer()]
):
    """Which groups pop instead of pull."""


# --- settings and clean-ups ---


class UpdateBrokerConfig(Request, code=RequestCode.UPDATE_BROKER_CONFIG, reply=None, needs=[manage()]):
    body: bytes = b""


class GetBrokerConfig(Request, code=RequestCode.GET_BROKER_CONFIG, reply=BrokerConfigReply, needs=[manage()]):
    """The broker's settings as `key=value` lines."""


class DeleteExpiredCommitLog(
    Request, code=RequestCode.DELETE_EXPIRED_COMMITLOG, reply=None, needs=[manage()]
):
    """Remove expired files of the log now."""


class CleanExpiredConsumeQueue(
    Request, code=RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE, reply=None, needs=[manage()]
):
    """Remove queue files whose messages have left the log."""


class CleanUnusedTopic(Request, code=RequestCode.CLEAN_UNUSED_TOPIC, reply=None, needs=[manage()]):
    """Remove queues of topics that do not exist."""
