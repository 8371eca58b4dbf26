"""A pull: check, read a queue, answer now, from the disk, or when a message arrives.

Nothing new means the call is parked, not refused; the second run of a parked call always answers. This is the
specification of the compiled lane's pulls.
"""

from __future__ import annotations

import dataclasses
import logging
import os
from typing import TYPE_CHECKING, cast

from hotfire.broker.call import PARKED, Answer, Call, Outcome, handles
from hotfire.broker.handlers.wanted import (
    FORBIDDEN_BROKER,
    FORBIDDEN_GROUP,
    FORBIDDEN_TOPIC,
    SUBSCRIPTION,
    Wanted,
    forbidden,
    wanted_by,
)
from hotfire.broker.parked import ParkedPull
from hotfire.errors import BrokerRefused
from hotfire.model import SubscriptionGroup, TopicConfig
from hotfire.protocol.codes import ResponseCode
from hotfire.protocol.command import Command
from hotfire.protocol.requests import LitePullMessage, PullMessage, PullReply
from hotfire.store.reading import BYTES_MAX_MEMORY, Read, ReadStatus

if TYPE_CHECKING:
    from hotfire.broker.broker import Broker

log = logging.getLogger("hotfire.broker")

COMMIT_OFFSET, SUSPEND = 1, 2
BYTES_MAX = 0x7FFFFFFF
HOLD_MS_MAX = 600_000
"""Longest wait of a pull. Clients ask for 15 to 30 s and give up soon after."""

CODES = {
    ReadStatus.FOUND: ResponseCode.SUCCESS,
    ReadStatus.NO_MATCHED_MESSAGE: ResponseCode.PULL_RETRY_IMMEDIATELY,
    ReadStatus.MESSAGE_WAS_REMOVING: ResponseCode.PULL_RETRY_IMMEDIATELY,
    ReadStatus.OFFSET_FOUND_NULL: ResponseCode.PULL_NOT_FOUND,
    ReadStatus.OFFSET_OVERFLOW_ONE: ResponseCode.PULL_NOT_FOUND,
    ReadStatus.OFFSET_OVERFLOW_BADLY: ResponseCode.PULL_OFFSET_MOVED,
    ReadStatus.OFFSET_TOO_SMALL: ResponseCode.PULL_OFFSET_MOVED,
}
"""NO_MESSAGE_IN_QUEUE depends on the offset asked for: an empty queue is not moved away from 0."""


@handles(PullMessage, LitePullMessage)
def pull(broker: Broker, call: Call[PullMessage]) -> Outcome:
    group, topic = check_pull(broker, call)
    request = call.request
    wanted = wanted_by(broker, request, call.now_ms)
    if request.sys_flag & COMMIT_OFFSET and _is_within(broker, topic.name, request):
        broker.offsets.carry(topic.name, group.name, request.queue_id, request.commit_offset)
    may_be_granted = wanted.sieve is None or wanted.is_agreed
    is_ordinary = may_be_granted and not broker.config.slave_read_enable
    if is_ordinary and not broker.offsets.has_resets(topic.name, group.name):
        broker.fast.grant(
            group.name,
            topic.name,
            expression=(request.subscription or "") if request.sys_flag & SUBSCRIPTION else None,
            version=wanted.version,
            codes=wanted.codes,
            program=None if wanted.sieve is None else wanted.sieve.program,
            group_flag=group.sys_flag,
        )
    may_park = bool(request.sys_flag & SUSPEND)
    # to find thousands of messages, and then that there is no room for them, takes a millisecond each time
    if is_bulk(request) and broker.cold.must_wait(call.connection):
        return wait_in_line(broker, kept(call), request.queue_offset, wanted, may_park=may_park)
    return run(broker, call, request.queue_offset, wanted, may_park=may_park)


def _is_within(broker: Broker, topic: str, request: PullMessage) -> bool:
    """Not behind the queue's end: who is there has read what this log has lost, and the places may be taken
    anew before that is told."""
    queue = broker.store.find_queue(topic, request.queue_id)
    return request.commit_offset <= (0 if queue is None else queue.max)


def check_pull(broker: Broker, call: Call[PullMessage]) -> tuple[SubscriptionGroup, TopicConfig]:
    request = call.request
    if not broker.config.broker_permission & 4:
        raise forbidden(FORBIDDEN_BROKER, f"the broker[{broker.store_host.ip}] pulling message is forbidden")
    if isinstance(request, LitePullMessage) and not broker.config.lite_pull_message_enable:
        raise forbidden(
            FORBIDDEN_BROKER, f"the broker[{broker.store_host.ip}] for lite pull consumer is forbidden"
        )
    group = broker.groups.require(request.consumer_group, call.now_ms)
    if not group.consume_enable:
        raise forbidden(FORBIDDEN_GROUP, f"subscription group no permission, {group.name}")
    topic = broker.topics.require(request.topic, " ")
    if not topic.readable:
        raise forbidden(FORBIDDEN_TOPIC, f"the topic[{topic.name}] pulling message is forbidden")
    if not 0 <= request.queue_id < topic.read_queues:
        host, port = call.connection.peer
        raise BrokerRefused(
            ResponseCode.INVALID_PARAMETER,
            f"queueId[{request.queue_id}] is illegal, topic:[{topic.name}] "
            f"topicConfig.readQueueNums:[{topic.read_queues}] consumer:[/{host}:{port}]",
        )
    return group, topic


def is_bulk(request: PullMessage) -> bool:
    """The reference passes over what clients say of bytes: less than its own bound means nothing here too."""
    return (request.max_msg_bytes or 0) > BYTES_MAX_MEMORY


def run(broker: Broker, call: Call[PullMessage], offset: int, wanted: Wanted, *, may_park: bool) -> Outcome:
    request = call.request
    broker.store.queue(request.topic, request.queue_id)  # a queue of the topic exists, be it empty
    moved = broker.offsets.take_reset(request.topic, request.consumer_group, request.queue_id)
    if moved is not None:
        return answer_reset(broker, request, moved)
    bulk = is_bulk(request)
    found = broker.store.read(
        request.topic,
        request.queue_id,
        offset,
        count_max=max(1, request.max_msg_nums),
        bytes_max=request.max_msg_bytes if bulk and request.max_msg_bytes else BYTES_MAX,
        codes=wanted.codes,
        sieve=wanted.sieve,
        bulk=bulk,
    )
    if found.status is ReadStatus.OFFSET_OVERFLOW_ONE and offset > request.queue_offset:
        found.status = ReadStatus.NO_MATCHED_MESSAGE  # it waited, and looked in vain at what came
    broker.offsets.pulled((request.topic, request.consumer_group), request.queue_id, found.next_offset)
    broker.waking.worked(len(found.data or b"") + found.effort)
    code = CODES.get(found.status)
    if code is None:
        code = ResponseCode.PULL_OFFSET_MOVED if request.queue_offset else ResponseCode.PULL_NOT_FOUND
    if code == ResponseCode.PULL_NOT_FOUND and may_park and broker.parked.has_room(call.connection):
        park(broker, call, offset, wanted, call.now_ms + hold_ms(broker, request))
        return PARKED
    if found.status is ReadStatus.FOUND and found.data is None:
        if not broker.cold.has_room(call.connection):
            return wait_in_line(broker, kept(call), offset, wanted, may_park=False)
        read_cold(broker, kept(call), found)
        return PARKED
    return answer(broker, request, found, code)


def read_cold(broker: Broker, call: Call[PullMessage], found: Read) -> None:
    """Have the bytes read beside the loop."""
    size = found.size
    broker.store.fetch_beside(found, (call.request.topic, call.request.queue_id), (call, found, size))
    broker.cold.began(call.connection, size)


def wait_in_line(
    broker: Broker, call: Call[PullMessage], offset: int, wanted: Wanted, *, may_park: bool
) -> Outcome:
    """Run the pull when there is room for its bytes; if too many wait already its peer is to ask again."""

    def again() -> None:
        broker.serve(call, PullMessage, lambda: run(broker, call, offset, wanted, may_park=may_park))

    if broker.cold.stand_in_line(call.connection, again):
        return PARKED
    queue = broker.store.queue(call.request.topic, call.request.queue_id)
    nothing = Read(ReadStatus.FOUND, offset, queue.min, queue.max)
    return answer(broker, call.request, nothing, ResponseCode.PULL_RETRY_IMMEDIATELY)


def answer(broker: Broker, request: PullMessage, found: Read, code: int) -> Answer:
    topic, group = broker.topics.get(request.topic), broker.groups.get(request.consumer_group)
    fields = PullReply(
        suggest_which_broker_id=suggested_broker(broker, group, found),
        group_sys_flag=group.sys_flag if group else 0,
        next_begin_offset=found.next_offset,
        max_offset=found.max_offset,
        min_offset=found.min_offset,
        topic_sys_flag=topic.sys_flag if topic else 0,
    )
    data = found.data or b""
    broker.statistics.delivered(
        (request.topic, request.consumer_group), found.count if data else 0, len(data)
    )
    return Answer(fields, code=code, remark=found.status.value, body=data)


def answer_reset(broker: Broker, request: PullMessage, offset: int) -> Answer:
    """The group was moved: whatever it asked for, it goes on at `offset`."""
    broker.offsets.pulled((request.topic, request.consumer_group), request.queue_id, offset)
    queue = broker.store.queue(request.topic, request.queue_id)
    group, topic = broker.groups.get(request.consumer_group), broker.topics.get(request.topic)
    fields = PullReply(
        suggest_which_broker_id=group.broker_id if group and broker.config.slave_read_enable else 0,
        group_sys_flag=group.sys_flag if group else 0,
        next_begin_offset=offset,
        max_offset=queue.max,
        min_offset=queue.min,
        topic_sys_flag=topic.sys_flag if topic else 0,
    )
    return Answer(fields, code=ResponseCode.PULL_OFFSET_MOVED, remark="OFFSET_RESET")


def suggested_broker(broker: Broker, group: SubscriptionGroup | None, found: Read) -> int:
    """Whom to ask next: us, or, where slaves may be read, the one the group names for when it is slow."""
    if group is None or not broker.config.slave_read_enable:
        return 0
    behind = 0 if found.last is None else broker.store.readable_end - found.last
    is_slow = behind > broker.store.memory_window
    return group.which_broker_when_consume_slowly if is_slow else group.broker_id


# --- later ---


def hold_ms(broker: Broker, request: PullMessage) -> int:
    config = broker.config
    if not config.long_polling_enable:
        return config.short_polling_time_mills
    return min(request.suspend_timeout_millis, HOLD_MS_MAX)


def kept(call: Call[PullMessage]) -> Call[PullMessage]:
    """The call less what its answer does not need: a peer may send megabytes with each pull it leaves."""
    command, request = call.command, call.request
    return Call(
        call.connection,
        Command(command.code, command.opaque, command.flag),
        dataclasses.replace(
            request, subscription=None, expression_type=None, proxy_forward_client_id=None, broker_name=None
        ),
        call.now_ms,
    )


def park(broker: Broker, call: Call[PullMessage], offset: int, wanted: Wanted, deadline_ms: int) -> None:
    queue = broker.store.queue(call.request.topic, call.request.queue_id)
    broker.parked.add(ParkedPull(call.connection, queue, offset, deadline_ms, kept(call), wanted))


def arrived(broker: Broker, parked: ParkedPull) -> None:
    """Entries came to the queue: answer if one is wanted, else stay and remember how far was looked."""
    try:
        if has_filter(parked) and not has_wanted(broker, parked):
            if parked.scanned < parked.queue.max:
                broker.waking.look_again(parked)
            return
    except OSError as error:  # the second run will say so to the one it concerns
        log.error("held pull could not look at its queue reason=%s", error)
    broker.parked.remove(parked)
    resume(broker, parked)


def has_wanted(broker: Broker, parked: ParkedPull) -> bool:
    """Whether the filter lets something through of what came since; if not, remembers how far was looked."""
    if parked.scanned < parked.queue.min:
        return True
    topic, queue_id = parked.queue.key
    looked = broker.store.read(  # looks at so many entries only
        topic,
        queue_id,
        parked.scanned,
        count_max=1,
        bytes_max=BYTES_MAX,
        codes=wanted_of(parked).codes,
        sieve=wanted_of(parked).sieve,
    )
    broker.waking.worked(looked.effort)
    if looked.status is not ReadStatus.NO_MATCHED_MESSAGE:
        if looked.pieces:  # what lies before need not be looked at twice
            parked.scanned = looked.pieces[0][2]
        return True
    parked.scanned = looked.next_offset
    return False


def wanted_of(parked: ParkedPull) -> Wanted:
    return cast("Wanted", parked.wanted)


def has_filter(parked: ParkedPull) -> bool:
    wanted = wanted_of(parked)
    return wanted.codes is not None or wanted.sieve is not None


def group_of(parked: ParkedPull) -> str:
    return cast("Call[PullMessage]", parked.call).request.consumer_group


def resume(broker: Broker, parked: ParkedPull) -> None:
    """Run a call that is no longer parked for the last time: whatever it finds is the answer."""
    call = cast("Call[PullMessage]", parked.call)
    broker.serve(
        call, PullMessage, lambda: run(broker, call, parked.scanned, wanted_of(parked), may_park=False)
    )


def topic_gone(broker: Broker, parked: ParkedPull) -> None:
    """The topic was deleted while the pull was held, or all it had."""
    call = cast("Call[PullMessage]", parked.call)

    def work() -> Outcome:
        broker.topics.require(call.request.topic, " ")
        return run(broker, call, parked.scanned, wanted_of(parked), may_park=False)

    broker.serve(call, PullMessage, work)


def fail(broker: Broker, parked: ParkedPull, error: Exception) -> None:
    """Our own mistake, told to the one whose pull met it."""
    call = cast("Call[PullMessage]", parked.call)
    remark = f"{type(error).__name__}: {error}"
    broker.answer(
        call.connection, call.command, PullMessage, Answer(code=ResponseCode.SYSTEM_ERROR, remark=remark)
    )


def fetched(broker: Broker, token: object, error: int) -> None:
    """Messages of a cold pull came from the disk, or an error number."""
    call, found, size = cast("tuple[Call[PullMessage], Read, int]", token)
    try:
        if not call.connection.closed:
            broker.answer(call.connection, call.command, PullMessage, answer_cold(broker, call, found, error))
    finally:
        broker.cold.ended(call.connection, size)


def answer_cold(broker: Broker, call: Call[PullMessage], found: Read, error: int) -> Answer:
    if error:
        remark = f"log read at offset {found.pieces[0][0]} failed: {os.strerror(error)}"
        return Answer(code=ResponseCode.SYSTEM_ERROR, remark=remark)
    return answer(broker, call.request, found, CODES[found.status])
