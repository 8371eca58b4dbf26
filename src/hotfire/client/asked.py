"""What brokers ask of a consumer, mostly for administrators: how it is, where it is, to go elsewhere."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import traceback
from collections.abc import Awaitable, Coroutine
from typing import Any

from hotfire.client.handling import NobodyListens
from hotfire.client.listening import ConsumeContext, ConsumeResult
from hotfire.client.messages import received_messages
from hotfire.client.processqueue import ProcessQueue
from hotfire.client.running import RunningConsumer
from hotfire.model import MessageQueue
from hotfire.net.clock import now_ms
from hotfire.protocol.bodies import decode_body, encode_body
from hotfire.protocol.codes import ResponseCode
from hotfire.protocol.command import Command
from hotfire.protocol.members import ConsumerStatus, ResetOffsets
from hotfire.protocol.request import Request
from hotfire.protocol.requests import (
    ConsumeMessageDirectly,
    GetConsumerRunningInfo,
    GetConsumerStatusFromClient,
    ResetConsumerOffset,
)
from hotfire.protocol.running import ConsumerRunningInfo, ConsumeStatus, DirectResult, QueueInfo

log = logging.getLogger("hotfire.client")

CLIENT_VERSION = "V5_5_0"
STACKS_CHARACTERS_MAX, DEPTH_MAX = 1 << 20, 64
_DIRECT = {
    ConsumeResult.DONE: "CR_SUCCESS",
    ConsumeResult.RETRY: "CR_LATER",
    ConsumeResult.COMMIT: "CR_COMMIT",
    ConsumeResult.ROLLBACK: "CR_ROLLBACK",
}


def answer(consumer: RunningConsumer, request: Request) -> Command | Awaitable[Command | None] | None:
    if isinstance(request, GetConsumerRunningInfo):
        return Command(
            ResponseCode.SUCCESS, body=encode_body(running_info(consumer, bool(request.jstack_enable)))
        )
    if isinstance(request, GetConsumerStatusFromClient):
        status = ConsumerStatus(queues=consumer.offsets.of_topic(request.topic))
        return Command(ResponseCode.SUCCESS, body=encode_body(status))
    if isinstance(request, ResetConsumerOffset):
        return _reset(consumer, request)
    if isinstance(request, ConsumeMessageDirectly):
        return _consume_directly(consumer, request)
    return None


async def _reset(consumer: RunningConsumer, request: ResetConsumerOffset) -> Command | None:
    offsets = decode_body(ResetOffsets, request.body).offsets
    log.info("group=%s topic=%s: %d queues are reset", request.group, request.topic, len(offsets))
    await consumer.reset(request.topic, offsets)
    return None


# --- how it is ---


def running_info(consumer: RunningConsumer, with_stacks: bool) -> ConsumerRunningInfo:
    loop = asyncio.get_running_loop()
    now_s, wall_ms = loop.time(), now_ms()
    topics = consumer.subscriptions.topics()
    statuses = {topic: consumer.stats.status(topic, now_s) for topic in topics}
    return ConsumerRunningInfo(
        properties=properties(consumer),
        subscriptions=consumer.subscriptions.all(),
        queues={
            queue: _queue_info(consumer, one, now_s, wall_ms) for queue, one in consumer.table.queues.items()
        },
        statuses={
            topic: ConsumeStatus(
                pull_rt=status.pull_ms,
                pull_tps=status.pull_tps,
                consume_rt=status.consume_ms,
                consume_ok_tps=status.done_tps,
                consume_failed_tps=status.failed_tps,
                consume_failed_count=status.failed_in_hour,
            )
            for topic, status in statuses.items()
        },
        stacks=_stacks() if with_stacks else None,
    )


def _queue_info(consumer: RunningConsumer, one: ProcessQueue, now_s: float, wall_ms: int) -> QueueInfo:
    def wall(at_s: float | None) -> int:
        return 0 if at_s is None else wall_ms - int((now_s - at_s) * 1000)

    return QueueInfo(
        commit_offset=consumer.offsets.get(one.queue) or 0,
        cached_min_offset=one.first_offset or 0,
        cached_max_offset=one.last_offset or 0,
        cached_count=len(one),
        cached_mib=one.bytes >> 20,
        locked=one.locked_at_s is not None,
        last_lock_ms=wall(one.locked_at_s),
        dropped=one.dropped,
        last_pull_ms=wall(one.pulled_at_s),
        last_consume_ms=wall(one.consumed_at_s),
    )


def properties(consumer: RunningConsumer) -> dict[str, str]:
    """Settings, under the names Java's client gives its own."""
    settings = consumer.settings
    width = settings.concurrency
    values: dict[str, object] = {
        "PROP_NAMESERVER_ADDR": ";".join(consumer.instance.name_servers.addresses) + ";",
        "PROP_CONSUME_TYPE": "CONSUME_PASSIVELY",
        "PROP_CLIENT_VERSION": CLIENT_VERSION,
        "PROP_CONSUMER_START_TIMESTAMP": consumer.started_ms,
        "PROP_CONSUMEORDERLY": settings.orderly,
        "PROP_THREADPOOL_CORE_SIZE": width,
        "consumerGroup": settings.group,
        "messageModel": "BROADCASTING" if settings.broadcasting else "CLUSTERING",
        "consumeFromWhere": settings.consume_from.value,
        "consumeThreadMin": width,
        "consumeThreadMax": width,
        "consumeConcurrentlyMaxSpan": settings.span_max,
        "pullThresholdForQueue": settings.queue_count_max,
        "pullThresholdSizeForQueue": settings.queue_bytes_max >> 20,
        "pullThresholdForTopic": -1 if settings.topic_count_max is None else settings.topic_count_max,
        "pullThresholdSizeForTopic": -1
        if settings.topic_bytes_max is None
        else settings.topic_bytes_max >> 20,
        "pullInterval": int(settings.pull_interval_s * 1000),
        "consumeMessageBatchMaxSize": settings.batch_max,
        "pullBatchSize": settings.pull_batch,
        "maxReconsumeTimes": -1 if settings.retries_max is None else settings.retries_max,
        "suspendCurrentQueueTimeMillis": settings.suspend_ms,
        "consumeTimeout": int(settings.consume_timeout_s // 60),
    }
    return {
        name: str(value).lower() if value in (True, False) and isinstance(value, bool) else str(value)
        for name, value in values.items()
    }


def _stacks() -> str:
    """Where every thread is, and every task of this loop, down to what it waits for."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    lines = []
    for ident, frame in sys._current_frames().items():
        lines += [f"thread {names.get(ident, '?')} {ident}\n", *traceback.format_stack(frame), "\n"]
    for task in asyncio.all_tasks():
        lines += [f"task {task.get_name()}\n", *_awaits(task.get_coro()), "\n"]
    told = "".join(lines)
    return told if len(told) <= STACKS_CHARACTERS_MAX else told[:STACKS_CHARACTERS_MAX] + "\n... and more\n"


def _awaits(waiting: object) -> list[str]:
    """A line for each coroutine that waits for the next."""
    lines: list[str] = []
    while (frame := getattr(waiting, "cr_frame", None)) is not None and len(lines) < DEPTH_MAX:
        lines += traceback.format_stack(frame, limit=1)
        waiting = getattr(waiting, "cr_await", None)
    return lines


# --- one message again ---


def _consume_directly(
    consumer: RunningConsumer, request: ConsumeMessageDirectly
) -> Coroutine[Any, Any, Command]:
    async def consume() -> Command:
        message = next(received_messages(request.body, request.broker_name or ""))
        message = consumer.handling.original(message)
        queue = MessageQueue(message.topic, request.broker_name or "", message.queue.queue_id)
        context = ConsumeContext(queue)
        began_s = asyncio.get_running_loop().time()
        error: Exception | None
        try:
            result, error, ended_s = await consumer.handling.handle(
                [message], context, consumer.stats.of(queue.topic), began_s
            )
        except NobodyListens as unheard:
            result, error, ended_s = ConsumeResult.RETRY, unheard, began_s
        told = DirectResult(
            result="CR_THROW_EXCEPTION" if error is not None else _DIRECT[result],
            order=consumer.settings.orderly,
            auto_commit=context.auto_commit,
            remark=None if error is None else f"{type(error).__name__}: {error}",
            spent_ms=int((ended_s - began_s) * 1000),
        )
        return Command(ResponseCode.SUCCESS, body=encode_body(told))

    return consume()
