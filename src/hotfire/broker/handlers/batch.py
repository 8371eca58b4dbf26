"""A batch: several messages in the body of one send, stored one behind the other, all of them or none.

They share topic, queue, birth and system flag; body, flag and properties are each message's own and are
stored as they came: the reference adds nothing to them. This is the specification of the compiled lane's
batches.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hotfire import model
from hotfire.broker.call import Answer, AnswerWhenReadable, Call, Outcome
from hotfire.broker.put import choose_queue
from hotfire.errors import BrokerRefused, LocalProtocolError
from hotfire.model import TopicConfig
from hotfire.protocol.batch import BatchMessage, decode_batch
from hotfire.protocol.codes import ResponseCode
from hotfire.protocol.record import (
    CRC_PROPERTY,
    TOPIC_BYTES_MAX_V1,
    Host,
    Record,
    SysFlag,
    encode_properties,
    offset_message_id,
    parse_properties,
)
from hotfire.protocol.requests import SendMessage, SendReply

if TYPE_CHECKING:
    from hotfire.broker.broker import Broker

MESSAGES_MAX = 32_767
"""The reference counts the messages of a batch in 16 bits."""


def send_batch(broker: Broker, call: Call[SendMessage], topic: TopicConfig) -> Outcome:
    """Store the messages of a checked request; its body is a batch."""
    request = call.request
    named = parse_properties((request.properties or "").encode("utf-8", "replace"))
    refuse_kind(request, named)
    messages = decode_batch(request.body)
    if len(messages) > MESSAGES_MAX:
        raise illegal(f"the batch has {len(messages)} messages, at most {MESSAGES_MAX} are taken at once")
    queue_id = choose_queue(broker, topic, request.queue_id, call.now_ms)
    address, port = call.connection.born_host[:-4], int.from_bytes(call.connection.born_host[-4:])
    born, stored = Host(address, port), broker.store_host
    sys_flag = request.sys_flag & ~(SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6)
    sys_flag |= SysFlag.BORN_HOST_V6 if born.is_v6 else 0
    sys_flag |= SysFlag.STORE_HOST_V6 if stored.is_v6 else 0
    records = [
        Record(
            topic=request.topic,
            queue_id=queue_id,
            body=message.body,
            born_timestamp=request.born_timestamp,
            born_host=born,
            store_timestamp=0,
            store_host=stored,
            properties=kept_properties(message, number),
            flag=message.flag,
            sys_flag=sys_flag,
            reconsume_times=request.reconsume_times or 0,
        )
        for number, message in enumerate(messages)
    ]
    try:
        placed = broker.store.append_all(records, call.now_ms)
    except LocalProtocolError as error:
        raise illegal(str(error)) from None
    broker.sends_handled += len(placed)
    reply = SendReply(
        queue_id=queue_id,
        transaction_id=named.get("UNIQ_KEY"),
        msg_id=",".join(offset_message_id(stored.address, stored.port, at.physical_offset) for at in placed),
        trace_on=broker.config.trace_on,
        region_id=broker.config.region_id,
        queue_offset=placed[0].queue_offset,
    )
    return AnswerWhenReadable(0 if named.get("WAIT") == "false" else placed[-1].end, Answer(reply))


def refuse_kind(request: SendMessage, named: dict[str, str]) -> None:
    """What the whole batch may not be."""
    if len(request.topic) > TOPIC_BYTES_MAX_V1:
        raise illegal(f"message topic length too long {len(request.topic)}")
    if request.topic.startswith(model.RETRY_PREFIX):
        raise illegal(f"batch request does not support retry group {request.topic}")
    if request.sys_flag & SysFlag.TRANSACTION_MASK:
        raise illegal("a batch cannot be part of a transaction: send its messages one by one")
    if request.sys_flag & SysFlag.INNER_BATCH:
        raise illegal(f"topic[{request.topic}] does not keep batches whole")
    refuse_delay(named, "the batch")


def kept_properties(message: BatchMessage, number: int) -> bytes:
    """As they came, but for a checksum: it belongs to the record it was made for."""
    named = parse_properties(message.properties)
    refuse_delay(named, f"message {number} of the batch")
    if CRC_PROPERTY not in named:
        return message.properties
    del named[CRC_PROPERTY]
    return encode_properties(named)


def refuse_delay(named: dict[str, str], what: str) -> None:
    """Batches are never delayed: to deliver one of these at once would be a lie."""
    level = named.get("DELAY", "0")
    if level != "0":
        raise illegal(f"{what} asks for delay level {level:.20}: send delayed messages one by one")
    if any(name.startswith("TIMER_DEL") for name in named):
        raise illegal(f"{what} asks for a delivery time: send delayed messages one by one")


def illegal(remark: str) -> BrokerRefused:
    return BrokerRefused(ResponseCode.MESSAGE_ILLEGAL, remark)
