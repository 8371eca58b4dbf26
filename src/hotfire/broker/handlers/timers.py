"""Messages that wait for a time of their own: taken back, counted, and how far their wheel is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hotfire import model
from hotfire.broker import timing
from hotfire.broker.call import Answer, AnswerWhenReadable, Call, Outcome, Refused, handles
from hotfire.broker.handlers.beside import answer_beside
from hotfire.broker.put import put
from hotfire.errors import BrokerRefused
from hotfire.protocol.bodies import dumps_bare_keys
from hotfire.protocol.codes import ResponseCode
from hotfire.protocol.recall import Handle
from hotfire.protocol.record import Host, Record, SysFlag, encode_properties
from hotfire.protocol.requests import GetTimerCheckPoint, GetTimerMetrics, RecallMessage, RecallReply

if TYPE_CHECKING:
    from hotfire.broker.broker import Broker

RECALL_BODY, RECALL_TAG = b"0", "_RECALL_TAG_"


@handles(RecallMessage)
def recall(broker: Broker, call: Call[RecallMessage]) -> Outcome:
    """Store a message that deletes another of the same second. It takes effect when that second comes."""
    try:
        handle = check_recall(broker, call.request, call.now_ms)
        placed = put(broker, recalling(broker, call, handle), call.now_ms)
    except BrokerRefused as error:
        fields = {"MSG_REGION": broker.config.region_id}
        raise Refused(Answer(fields, code=error.code, remark=error.remark)) from None
    broker.sends_handled += 1
    reply = RecallReply(msg_id=handle.unique_key, region_id=broker.config.region_id)
    return AnswerWhenReadable(placed.end, Answer(reply))


def check_recall(broker: Broker, request: RecallMessage, now_ms: int) -> Handle:
    """The message meant, after every check of the reference in its order."""
    config = broker.config
    if not config.recall_message_enable:
        raise _refused(ResponseCode.NO_PERMISSION, "operation is forbidden: recallMessageEnable is false")
    if config.is_slave:
        raise _refused(ResponseCode.SLAVE_NOT_AVAILABLE, "broker service not available: it is a slave")
    if now_ms < config.start_accept_send_request_time_stamp:
        raise _refused(ResponseCode.SERVICE_NOT_AVAILABLE, "broker service not available: not yet")
    if not config.broker_permission & model.Perm.WRITE:
        raise _refused(
            ResponseCode.SERVICE_NOT_AVAILABLE,
            "broker service not available: its brokerPermission is no write",
        )
    if broker.topics.get(request.topic) is None:
        raise _refused(ResponseCode.TOPIC_NOT_EXIST, f"the topic[{request.topic:.255}] not exist")
    handle = Handle.decode(request.recall_handle)
    if handle is None:
        raise BrokerRefused(ResponseCode.ILLEGAL_OPERATION, "recall handle is invalid")
    if handle.topic != request.topic:
        raise _refused(
            ResponseCode.ILLEGAL_OPERATION, f"topic not match: the handle is for {handle.topic:.255}"
        )
    if handle.broker_name != config.broker_name:
        raise _refused(
            ResponseCode.ILLEGAL_OPERATION,
            f"broker service not available: the handle is for broker[{handle.broker_name:.255}]",
        )
    left_ms = handle.time_ms - now_ms
    if left_ms <= 0:
        raise _refused(
            ResponseCode.ILLEGAL_OPERATION,
            f"timestamp invalid: the message was due {-left_ms} ms ago, and can no longer be recalled",
        )
    if left_ms >= config.timer_max_delay_sec * 1000:
        raise _refused(
            ResponseCode.ILLEGAL_OPERATION,
            f"timestamp invalid: the message would be due in {left_ms} ms, and timerMaxDelaySec is "
            f"{config.timer_max_delay_sec}",
        )
    return handle


def _refused(code: ResponseCode, why: str) -> BrokerRefused:
    return BrokerRefused(code, f"recall failed, {why}")


def recalling(broker: Broker, call: Call[RecallMessage], handle: Handle) -> Record:
    """The message that deletes the one of a handle."""
    named = {
        "TAGS": RECALL_TAG,
        timing.DELETES: timing.delete_key(handle.topic, handle.unique_key),
        "UNIQ_KEY": handle.unique_key,
        timing.DELIVER_MS: str(handle.time_ms),
        "BORN_TIMESTAMP": str(call.now_ms),
    }
    if call.request.producer_group:
        named["PGROUP"] = call.request.producer_group
    address, port = call.connection.born_host[:-4], int.from_bytes(call.connection.born_host[-4:])
    born, stored = Host(address, port), broker.store_host
    return Record(
        topic=handle.topic,
        queue_id=0,
        body=RECALL_BODY,
        born_timestamp=call.now_ms,
        born_host=born,
        store_timestamp=0,
        store_host=stored,
        properties=encode_properties(named),
        sys_flag=(SysFlag.BORN_HOST_V6 if born.is_v6 else 0) | (SysFlag.STORE_HOST_V6 if stored.is_v6 else 0),
    )


@handles(GetTimerCheckPoint)
def check_point(broker: Broker, call: Call[GetTimerCheckPoint]) -> Outcome:
    return Answer(body=broker.timers.files.check.body())


@handles(GetTimerMetrics)
def metrics(broker: Broker, call: Call[GetTimerMetrics]) -> Outcome:
    """Of thousands of topics it takes long; and by the slow way, that lets the loop have the interpreter."""
    spell = broker.timers.metrics.spell()
    return answer_beside(broker, call, lambda _: dumps_bare_keys(spell()))
