"""Everyday administration over the wire."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hotfire import model
from hotfire.broker.call import Answer, Call, Outcome, handles
from hotfire.errors import BrokerRefused
from hotfire.model import Perm, TopicConfig
from hotfire.protocol.bodies import KVTable, encode_body
from hotfire.protocol.codes import VERSION, ResponseCode
from hotfire.protocol.requests import DeleteExpiredCommitLog, GetBrokerRuntimeInfo, UpdateAndCreateTopic

if TYPE_CHECKING:
    from hotfire.broker.broker import Broker

QUEUES_MAX = 4096
"""Of one topic; each costs memory whether it is used or not. The largest of our own has 1024."""


@handles(UpdateAndCreateTopic)
def update_topic(broker: Broker, call: Call[UpdateAndCreateTopic]) -> Outcome:
    request = call.request
    model.check_topic_name(request.topic)
    if model.is_system_topic(request.topic):
        raise BrokerRefused(
            ResponseCode.INVALID_PARAMETER, f"The topic[{request.topic}] is conflict with system topic."
        )
    for name, count in (
        ("readQueueNums", request.read_queue_nums),
        ("writeQueueNums", request.write_queue_nums),
    ):
        if not 0 < count <= QUEUES_MAX:
            raise BrokerRefused(
                ResponseCode.INVALID_PARAMETER,
                f"{name} {count} of topic[{request.topic}]: 1 to {QUEUES_MAX} are possible",
            )
    if request.perm & ~(Perm.READ_WRITE | Perm.INHERIT | Perm.PRIORITY):
        raise BrokerRefused(
            ResponseCode.INVALID_PARAMETER, f"perm {request.perm} of topic[{request.topic}] has unknown bits"
        )
    broker.topics.put(
        TopicConfig(
            request.topic,
            request.read_queue_nums,
            request.write_queue_nums,
            request.perm,
            request.topic_filter_type,
            request.topic_sys_flag or 0,
            request.order,
        ),
        call.now_ms,
    )
    return Answer(
        remark="not set any response code"
    )  # what the reference says on success; clients look at the code


@handles(DeleteExpiredCommitLog)
def delete_expired(broker: Broker, call: Call[DeleteExpiredCommitLog]) -> Outcome:
    broker.store.delete_expired()
    return Answer()


@handles(GetBrokerRuntimeInfo)
def runtime_info(broker: Broker, call: Call[GetBrokerRuntimeInfo]) -> Outcome:
    return Answer(body=encode_body(KVTable(runtime_table(broker, call.now_ms))))


def runtime_table(broker: Broker, now_ms: int) -> dict[str, str]:
    """What `clusterList` and `brokerStatus` print. Positions are offsets in the log."""
    store = broker.store
    none = "0.0 0.0 0.0"
    return {
        "brokerVersionDesc": "V5_5_0",
        "brokerVersion": str(VERSION),
        "brokerActive": "true" if store.fault is None else "false",
        "bootTimestamp": str(broker.started_ms),
        "runtime": f"[ {(now_ms - broker.started_ms) // 1000} seconds ]",
        "putTps": none,
        "getTransferedTps": none,
        "getTransferredTps": none,
        "getTotalTps": none,
        "getFoundTps": none,
        "getMissTps": none,
        "msgPutTotalYesterdayMorning": "0",
        "msgPutTotalTodayMorning": "0",
        "msgPutTotalTodayNow": str(broker.messages_stored),
        "msgGetTotalYesterdayMorning": "0",
        "msgGetTotalTodayMorning": "0",
        "msgGetTotalTodayNow": "0",
        "sendThreadPoolQueueSize": "0",
        "sendThreadPoolQueueCapacity": "10000",
        "sendThreadPoolQueueHeadWaitTimeMills": "0",
        "pullThreadPoolQueueSize": str(len(broker.parked)),
        "pullThreadPoolQueueCapacity": str(broker.config.parked_pulls_max),
        "pullThreadPoolQueueHeadWaitTimeMills": "0",
        "queryThreadPoolQueueSize": "0",
        "queryThreadPoolQueueCapacity": "20000",
        "queryThreadPoolQueueHeadWaitTimeMills": "0",
        "ackThreadPoolQueueSize": "0",
        "ackThreadPoolQueueCapacity": "100000",
        "timerReadBehind": "0",
        "timerOffsetBehind": "0",
        "timerCongestNum": "0",
        "timerEnqueueTps": "0.0",
        "timerDequeueTps": "0.0",
        "pageCacheLockTimeMills": "0",
        "earliestMessageTimeStamp": "-1",
        "startAcceptSendRequestTimeStamp": "0",
        "commitLogMinOffset": str(store.min_offset),
        "commitLogMaxOffset": str(store.end),
        "commitLogDiskRatio": f"{store.disk_used_ratio():.4f}",
        "consumeQueueDiskRatio": f"{store.disk_used_ratio():.4f}",
        "dispatchBehindBytes": str(store.dispatch_behind),
        "remainHowManyDataToFlush": f"{store.end - store.flushed_end} B",
        "remainTransientStoreBufferNumbs": "2147483647",
        "putMessageTimesTotal": str(broker.messages_stored),
        "putMessageSizeTotal": str(store.end - store.recovered.end),
    }
