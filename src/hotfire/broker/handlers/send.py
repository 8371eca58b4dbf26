"""A send: check, resolve topic and queue, place the record in this turn, reply when it is safe.

This is the specification of the compiled lane's sends: where both serve a message, the bytes stored and the
bytes answered are the same.
"""

from __future__ import annotations

import random
import re
from typing import TYPE_CHECKING

from hotfire import model
from hotfire.broker.call import Answer, AnswerWhenReadable, Call, Outcome, handles
from hotfire.broker.config import BrokerRole
from hotfire.errors import BrokerRefused, LocalProtocolError
from hotfire.model import TopicConfig
from hotfire.protocol.codes import ResponseCode
from hotfire.protocol.record import (
    CRC_PROPERTY,
    Host,
    Record,
    SysFlag,
    encode_properties,
    offset_message_id,
    parse_properties,
)
from hotfire.protocol.requests import SendMessage, SendMessageV2, SendReply

if TYPE_CHECKING:
    from hotfire.broker.broker import Broker

_WELL_FORMED = re.compile(r"(?:[^\x01\x02]+\x01[^\x01\x02]+(?:\x02|$))*")
_OURS = frozenset({"MSG_REGION", "TRACE_ON", "CLUSTER", "POP_CK", CRC_PROPERTY})
"""Properties the broker writes or removes: a message that brings one is rewritten."""


@handles(SendMessage, SendMessageV2)
def send(broker: Broker, call: Call[SendMessage]) -> Outcome:
    request = call.request
    topic = check_send(broker, request, call.now_ms)
    properties, named = stored_properties(broker, request.properties or "", call.now_ms)
    refuse_unserved(request, named)
    queue_id = request.queue_id
    if queue_id < 0:
        queue_id = random.randrange(topic.write_queues)  # spreading, not secrecy
    address, port = call.connection.born_host[:-4], int.from_bytes(call.connection.born_host[-4:])
    born, stored = Host(address, port), broker.store_host
    sys_flag = request.sys_flag & ~(SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6)
    record = Record(
        topic=request.topic,
        queue_id=queue_id,
        body=request.body,
        born_timestamp=request.born_timestamp,
        born_host=born,
        store_timestamp=0,
        store_host=stored,
        properties=properties,
        flag=request.flag,
        sys_flag=sys_flag
        | (SysFlag.BORN_HOST_V6 if born.is_v6 else 0)
        | (SysFlag.STORE_HOST_V6 if stored.is_v6 else 0),
        reconsume_times=request.reconsume_times or 0,
    )
    try:
        placed = broker.store.append(record, call.now_ms)
    except LocalProtocolError as error:
        raise BrokerRefused(ResponseCode.MESSAGE_ILLEGAL, str(error)) from None
    broker.sends_handled += 1
    reply = SendReply(
        queue_id=queue_id,
        transaction_id=named["UNIQ_KEY"],
        msg_id=offset_message_id(stored.address, stored.port, placed.physical_offset),
        trace_on=broker.config.trace_on,
        region_id=broker.config.region_id,
        queue_offset=placed.queue_offset,
    )
    # WAIT=false asks not to wait for the disk: answered as soon as it is placed
    return AnswerWhenReadable(0 if named.get("WAIT") == "false" else placed.end, Answer(reply))


def check_send(broker: Broker, request: SendMessage, now_ms: int) -> TopicConfig:
    """The topic to store into, after every check of the reference in its order."""
    config = broker.config
    if config.broker_role is BrokerRole.SLAVE:
        raise BrokerRefused(
            ResponseCode.SERVICE_NOT_AVAILABLE,
            f"service not available now: broker[{config.broker_name}] is a slave, messages go to its master",
        )
    topic = broker.topics.get(request.topic)
    if not config.broker_permission & model.Perm.WRITE and topic is not None and topic.order:
        raise BrokerRefused(
            ResponseCode.NO_PERMISSION,
            f"the broker[{config.broker_ip1 or broker.address}] sending message is forbidden",
        )
    model.check_topic_name(request.topic)
    if request.topic in model.SEND_FORBIDDEN_TOPICS:
        raise BrokerRefused(
            ResponseCode.NO_PERMISSION, f"Sending message to topic[{request.topic}] is forbidden."
        )
    topic = broker.topics.for_send(
        request.topic, request.default_topic, request.default_topic_queue_nums, now_ms
    )
    queues = max(topic.write_queues, topic.read_queues)
    if request.queue_id >= queues:
        raise BrokerRefused(
            ResponseCode.INVALID_PARAMETER,
            f"request queueId[{request.queue_id}] is illegal, topic[{topic.name}] has {queues} queues",
        )
    if not request.body:
        raise BrokerRefused(ResponseCode.MESSAGE_ILLEGAL, f"message to topic[{topic.name}] has no body")
    if len(request.body) > config.max_message_size:
        raise BrokerRefused(
            ResponseCode.MESSAGE_ILLEGAL,
            f"the message is illegal, maybe msg body or properties length not matched. msg body length limit "
            f"{config.max_message_size}B, this one has {len(request.body)}B",
        )
    return topic


def stored_properties(broker: Broker, text: str, now_ms: int) -> tuple[bytes, dict[str, str]]:
    """The properties as stored, and by name. A well-formed string is kept as it is, ours behind it."""
    named = parse_properties(text.encode("utf-8", "replace"))
    if "UNIQ_KEY" in named and not _OURS & named.keys() and _WELL_FORMED.fullmatch(text):
        kept = text if text.endswith("\x02") else text + "\x02"
        return kept.encode("utf-8", "replace") + broker.suffix, named
    for name in _OURS:
        named.pop(name, None)
    named.setdefault("UNIQ_KEY", broker.unique_ids.next(now_ms))
    return encode_properties(named) + broker.suffix, named


def refuse_unserved(request: SendMessage, named: dict[str, str]) -> None:
    """Kinds of message not served yet are refused; to store one as an ordinary message would be a lie."""
    if named.get("TRAN_MSG") == "true" or request.sys_flag & SysFlag.TRANSACTION_MASK:
        raise BrokerRefused(
            ResponseCode.NO_PERMISSION, "transactional messages are not served by this broker"
        )
    if named.get("DELAY", "0") not in ("0", "") or any(name.startswith("TIMER_DEL") for name in named):
        raise BrokerRefused(ResponseCode.MESSAGE_ILLEGAL, "delayed messages are not served by this broker")
    if request.batch:
        raise BrokerRefused(ResponseCode.MESSAGE_ILLEGAL, "batches are not served by this broker")
