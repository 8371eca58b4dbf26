"""A send: check, resolve topic and queue, place the record in this turn, reply when it is safe.

This is the specification of the compiled lane's sends: where both serve a message, the bytes stored and the
bytes answered are the same.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import TYPE_CHECKING

from hotfire import model
from hotfire.broker.call import Answer, AnswerWhenReadable, Call, Outcome, handles
from hotfire.broker.halves import HALF_MARK, half
from hotfire.broker.handlers.batch import send_batch
from hotfire.broker.handlers.sendback import dead_letters, require_group
from hotfire.broker.put import choose_queue, delay_level, due_ms, put
from hotfire.broker.timing import handle_for
from hotfire.errors import BrokerRefused, LocalProtocolError
from hotfire.model import TopicConfig
from hotfire.protocol.codes import VERSION_3_4_9, ResponseCode
from hotfire.protocol.record import (
    CRC_PROPERTY,
    Host,
    Record,
    SysFlag,
    encode_properties,
    offset_message_id,
    parse_properties,
)
from hotfire.protocol.requests import SendBatchMessage, SendMessage, SendMessageV2, SendReply
from hotfire.store.store import Appended

if TYPE_CHECKING:
    from hotfire.broker.broker import Broker

_WELL_FORMED = re.compile(r"(?:[^\x01\x02]+\x01[^\x01\x02]+(?:\x02|$))*")
_OURS = frozenset({"MSG_REGION", "TRACE_ON", "CLUSTER", "POP_CK", CRC_PROPERTY})
"""Properties the broker writes or removes: a message that brings one is rewritten."""


@handles(SendMessage, SendMessageV2, SendBatchMessage)
def send(broker: Broker, call: Call[SendMessage]) -> Outcome:
    request, config = call.request, broker.config
    topic = check_send(broker, request, call.now_ms)
    if request.batch:
        return send_batch(broker, call, topic)
    properties, named = stored_properties(broker, request.properties or "", call.now_ms)
    queue_id = choose_queue(broker, topic, request.queue_id, call.now_ms)
    target = topic.name, queue_id
    if topic.name.startswith(model.RETRY_PREFIX) and is_dead_letter(broker, call):
        dead = dead_letters(broker, topic.name.removeprefix(model.RETRY_PREFIX), call.now_ms)
        target = dead.name, 0
        named["DELAY"] = "-1"
        properties = encode_properties(parse_properties(properties) | {"DELAY": "-1"})
    is_half = kind_of(broker, request, named)
    address, port = call.connection.born_host[:-4], int.from_bytes(call.connection.born_host[-4:])
    born, stored = Host(address, port), broker.store_host
    sys_flag = request.sys_flag & ~(SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6)
    record = Record(
        topic=target[0],
        queue_id=target[1],
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
    due = None if is_half else due_ms(broker, record, named, call.now_ms)
    placed = put_half(broker, record, named, call.now_ms) if is_half else put(broker, record, call.now_ms)
    broker.sends_handled += 1
    reply = SendReply(
        queue_id=queue_id,
        transaction_id=named["UNIQ_KEY"],
        msg_id=offset_message_id(stored.address, stored.port, placed.physical_offset),
        trace_on=config.trace_on,
        region_id=config.region_id,
        queue_offset=placed.queue_offset,
        recall_handle=None if due is None else handle_for(config.broker_name, record, named["UNIQ_KEY"], due),
    )
    # WAIT=false asks not to wait for the disk: answered as soon as it is placed
    return AnswerWhenReadable(0 if named.get("WAIT") == "false" else placed.end, Answer(reply))


def check_send(broker: Broker, request: SendMessage, now_ms: int) -> TopicConfig:
    """The topic to store into, after every check of the reference in its order."""
    config = broker.config
    if config.is_slave:
        raise BrokerRefused(
            ResponseCode.SERVICE_NOT_AVAILABLE,
            f"service not available now: broker[{config.broker_name}] is a slave, messages go to its master",
        )
    check_load(broker, now_ms)
    if now_ms < config.start_accept_send_request_time_stamp:
        until = datetime.fromtimestamp(config.start_accept_send_request_time_stamp / 1000).astimezone()
        raise BrokerRefused(
            ResponseCode.SYSTEM_ERROR,
            f"broker unable to service, until {until:%Y-%m-%d %H:%M:%S},{until.microsecond // 1000:03d}",
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
    if request.queue_id >= 0:
        broker.backlogs.check(topic, request.queue_id, now_ms)
    return topic


def check_load(broker: Broker, now_ms: int) -> None:
    """While others wait for a slow disk, to take more would only make all of them wait longer."""
    age_ms, limit_ms = broker.waiting.longest_ms(now_ms), broker.config.wait_time_mills_in_send_queue
    if age_ms > limit_ms:
        broker.store.check_writeable()  # a full disk, or a broken one, is the better reason
        raise BrokerRefused(
            ResponseCode.SYSTEM_BUSY,
            "[TIMEOUT_CLEAN_QUEUE]broker busy, start flow control for a while, "
            f"period in queue: {age_ms}ms, size of queue: {len(broker.waiting)}; "
            f"so long have sends waited for the disk, waitTimeMillsInSendQueue is {limit_ms}ms",
        )


def is_dead_letter(broker: Broker, call: Call[SendMessage]) -> bool:
    """Whether a message that a consumer itself puts into its retry topic has failed too often for that."""
    request = call.request
    name = request.topic.removeprefix(model.RETRY_PREFIX)
    group = require_group(broker, name, call.now_ms)
    times_max = group.retry_times_max
    if call.command.version >= VERSION_3_4_9 and request.max_reconsume_times is not None:
        times_max = request.max_reconsume_times
    # who holds queues locked consumes in order, and has tried as often as it wants to before it sends here
    return (request.reconsume_times or 0) > times_max or broker.locks.holds(name, call.now_ms)


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


def kind_of(broker: Broker, request: SendMessage, named: dict[str, str]) -> bool:
    """Whether it is a half message. Kinds not served are refused: to store one as any other is a lie."""
    level = delay_level(named)
    # clients before 4.6.1 leave the mark on what a consumer sends back
    is_half = named.get(HALF_MARK, "").lower() == "true" and not (request.reconsume_times and level > 0)
    if is_half and broker.config.reject_transaction_message:
        address = broker.config.broker_ip1 or broker.address
        raise BrokerRefused(
            ResponseCode.NO_PERMISSION, f"the broker[{address}] sending transaction message is forbidden"
        )
    if request.sys_flag & SysFlag.TRANSACTION_MASK and not is_half:
        raise BrokerRefused(
            ResponseCode.MESSAGE_ILLEGAL,
            f"the system flag {request.sys_flag:#x} is a transaction's, and property {HALF_MARK} is not true",
        )
    return is_half


def put_half(broker: Broker, record: Record, named: dict[str, str], now_ms: int) -> Appended:
    """Place a half message in this turn. A delay level waits for the commit."""
    try:
        placed = broker.store.append(half(record, named), now_ms)
    except LocalProtocolError as error:
        raise BrokerRefused(ResponseCode.MESSAGE_ILLEGAL, str(error)) from None
    broker.transactions.stored(placed.queue_offset, now_ms)
    return placed
