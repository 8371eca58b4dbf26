"""A reply to a request: given to the client that waits for it, by its connection, and kept in the log too.

The requester is a producer that beats its heart here; its client id stands in the reply's properties. Who
replied learns whether it was reached: the client's own answer is waited for, and the log.
"""

from __future__ import annotations

import dataclasses
import logging
from typing import TYPE_CHECKING

from hotfire.broker.call import PARKED, Answer, AnswerWhenReadable, Call, Outcome, handles
from hotfire.broker.handlers.beside import without_body
from hotfire.broker.handlers.send import check_send
from hotfire.broker.put import choose_queue, put
from hotfire.errors import BrokerRefused, StoreError
from hotfire.protocol.codes import ResponseCode
from hotfire.protocol.command import Command
from hotfire.protocol.record import (
    Host,
    Record,
    SysFlag,
    encode_properties,
    offset_message_id,
    parse_properties,
)
from hotfire.protocol.requests import (
    PushReplyMessageToClient,
    SendMessage,
    SendReply,
    SendReplyMessage,
    SendReplyMessageV2,
)

if TYPE_CHECKING:
    from hotfire.broker.broker import Broker

log = logging.getLogger("hotfire.broker")

PUSH_MS_MAX = 10_000
"""How long the requester may take to say that it has the reply, as the reference waits."""
REPLY_TO, PUSHED_AT = "REPLY_TO_CLIENT", "PUSH_REPLY_TIME"
NOT_STORED = "0"
"""What stands for the message id of a reply that was passed on and not kept."""


@dataclasses.dataclass(slots=True, frozen=True)
class Kept:
    """Where the reply lies; without a place of its own it was passed on only."""

    queue_id: int
    end: int = 0
    message_id: str = NOT_STORED
    queue_offset: int = 0


@handles(SendReplyMessage, SendReplyMessageV2)
def send_reply(broker: Broker, call: Call[SendMessage]) -> Outcome:
    request = call.request
    topic = check_send(broker, request, call.now_ms)
    queue_id = choose_queue(broker, topic, request.queue_id, call.now_ms)
    # before it is passed on: with a full turn this call comes again, and must not pass it on twice
    kept = keep(broker, call, queue_id)
    named = parse_properties((request.properties or "").encode("utf-8", "replace"))
    client_id = named.get(REPLY_TO)
    if client_id is None:
        return outcome(broker, kept, f"reply message properties[{REPLY_TO}] is null")
    connection = broker.clients.producer(client_id)
    if connection is None:
        return outcome(broker, kept, f"push reply message fail, channel of <{client_id}> not found.")

    waiting, declared = without_body(call), type(request)

    def answered(answer: Command | None) -> None:
        reached = answer is not None and answer.code == ResponseCode.SUCCESS
        remark = None if reached else f"push reply message to {client_id}fail."
        if not waiting.connection.closed:
            now = dataclasses.replace(waiting, now_ms=broker.now_ms)
            broker.serve(now, declared, lambda: outcome(broker, kept, remark))

    push = pushed(broker, call, named | {PUSHED_AT: str(call.now_ms)})
    broker.asks.ask(connection, push.to_command(), answered, call.now_ms + PUSH_MS_MAX)
    return PARKED


def keep(broker: Broker, call: Call[SendMessage], queue_id: int) -> Kept:
    """Place the reply in this turn. One that cannot be kept is passed on all the same."""
    if not broker.config.store_reply_message_enable:
        return Kept(queue_id)
    request, stored = call.request, broker.store_host
    born = Host(call.connection.born_host[:-4], int.from_bytes(call.connection.born_host[-4:]))
    record = Record(
        topic=request.topic,
        queue_id=queue_id,
        body=request.body,
        born_timestamp=request.born_timestamp,
        born_host=born,
        store_timestamp=0,
        store_host=stored,
        # as they came: nothing of the broker's is added to a reply
        properties=(request.properties or "").encode("utf-8", "replace"),
        flag=request.flag,
        # The reference forgets that a body is compressed, and nobody can read what it keeps of one.
        sys_flag=request.sys_flag & (SysFlag.COMPRESSED | SysFlag.COMPRESSION_MASK)
        | (SysFlag.BORN_HOST_V6 if born.is_v6 else 0)
        | (SysFlag.STORE_HOST_V6 if stored.is_v6 else 0),
        reconsume_times=request.reconsume_times or 0,
    )
    try:
        placed = put(broker, record, call.now_ms)
    except (BrokerRefused, StoreError) as error:
        log.warning("topic=%s reply is passed on and not kept: %s", request.topic, error)
        return Kept(queue_id)
    broker.sends_handled += 1
    message_id = offset_message_id(stored.address, stored.port, placed.physical_offset)
    return Kept(queue_id, placed.end, message_id, placed.queue_offset)


def pushed(broker: Broker, call: Call[SendMessage], named: dict[str, str]) -> PushReplyMessageToClient:
    request = call.request
    return PushReplyMessageToClient(
        producer_group=request.producer_group,
        topic=request.topic,
        default_topic=request.default_topic,
        default_topic_queue_nums=request.default_topic_queue_nums,
        queue_id=request.queue_id,
        sys_flag=request.sys_flag,
        born_timestamp=request.born_timestamp,
        flag=request.flag,
        properties=encode_properties(named).decode(),
        reconsume_times=request.reconsume_times,
        unit_mode=request.unit_mode,
        born_host="{}:{}".format(*call.connection.peer),
        store_host=broker.address,
        store_timestamp=call.now_ms,
        body=request.body,
    )


def outcome(broker: Broker, kept: Kept, failure: str | None) -> Outcome:
    """The place of the reply is told also when nobody was there to take it."""
    reply = None
    if failure is None or kept.message_id != NOT_STORED:
        reply = SendReply(
            queue_id=kept.queue_id,
            msg_id=kept.message_id,
            queue_offset=kept.queue_offset,
            trace_on=broker.config.trace_on,
            region_id=broker.config.region_id,
        )
    code = ResponseCode.SUCCESS if failure is None else ResponseCode.SYSTEM_ERROR
    return AnswerWhenReadable(kept.end, Answer(reply, code, failure))
