"""Messages looked for across all brokers of a topic: by key, by time; and what was told of one on its way.

An answer says what it does not hold: whether there is more than was asked for, and which brokers could not be
asked. Each question goes to brokers' indexes or queues; none reads a whole topic.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

from hotfire.client.instance import CALL_TIMEOUT_S, ClientInstance
from hotfire.client.messages import received_messages
from hotfire.client.offsets import max_offset, offset_at
from hotfire.client.pulling import Puller
from hotfire.client.queries import END_OF_TIME_MS, ask_queue, has_key
from hotfire.client.spans import pull_below
from hotfire.client.subscriptions import subscription
from hotfire.errors import ConfigError, HotfireError, NoRoute, QueryNotFound
from hotfire.model import TRACE_TOPIC, MessageQueue, ReceivedMessage
from hotfire.protocol.requests import QueryMessage
from hotfire.protocol.trace import TraceEntry, decode_trace

PAGE = 64
"""Messages of one answer: no broker gives more, whatever is asked for."""
PAGE_BYTES = 8 << 20
"""An answer of our brokers ends with the message that makes it larger: then a short one is not the last."""
CROWDED_MS = 1000
"""What an index of keys cannot tell apart: it knows times to the second."""
FOUND_MAX = 10_000
TRACES_MAX = 1000
PULL_TIMEOUT_S = 20.0
PATIENCE_S = 5.0
"""For a queue whose broker answers and gives nothing; then it is named among the failures."""


@dataclass(slots=True, frozen=True)
class Found:
    """What was found, by store time. `is_more`: there is, or may be, more than was asked for.

    >>> async def look(address: str) -> None:
    ...     async with QueueReader(address) as reader:
    ...         found = await reader.find_by_key("orders", "order-17")
    ...     print(len(found.messages), found.is_more, found.failures)
    """

    messages: list[ReceivedMessage]
    is_more: bool
    failures: Mapping[str, HotfireError] = field(default_factory=dict)
    """Brokers that could not be asked, and why: what they have is missing."""
    crowded_ms: int | None = None
    """Messages with the key stored within a second fill an answer alone: of those before this moment, in the
    same second, a key finds no more. `find_by_time` does, and an `end_ms` a second less goes on before them.
    """


def _check_span(begin_ms: int, end_ms: int, count_max: int) -> None:
    if begin_ms > end_ms:
        raise ConfigError(f"from {begin_ms} to {end_ms}: the end is before the beginning")
    if not 1 <= count_max <= FOUND_MAX:
        raise ConfigError(f"count_max={count_max} is not within 1 to {FOUND_MAX}")


# --- by key --------------------------------------------------------------------------------------------


async def find_by_key(
    instance: ClientInstance,
    topic: str,
    key: str,
    *,
    begin_ms: int = 0,
    end_ms: int = END_OF_TIME_MS,
    count_max: int = PAGE,
    unique: bool = False,
) -> Found:
    """Of each broker the newest, up to so many in all; `unique`: the key is the id of a producer."""
    _check_span(begin_ms, end_ms, count_max)
    route = await instance.routes.to_read(topic, CALL_TIMEOUT_S)
    names = [broker.name for broker in route.data.brokers]
    asked = [
        _of_broker(instance, MessageQueue(topic, name, 0), key, begin_ms, end_ms, count_max, unique)
        for name in names
    ]
    answers = await asyncio.gather(*asked, return_exceptions=True)
    messages: list[ReceivedMessage] = []
    failures: dict[str, HotfireError] = {}
    is_more = False
    crowded: list[int] = []
    for name, answer in zip(names, answers, strict=True):
        if isinstance(answer, HotfireError):
            failures[name] = answer
        elif isinstance(answer, BaseException):
            raise answer
        else:
            messages += answer.messages
            is_more = is_more or answer.is_more
            crowded += [] if answer.crowded_ms is None else [answer.crowded_ms]
    if len(failures) == len(names):
        raise next(iter(failures.values()))
    messages.sort(key=lambda one: (one.store_timestamp_ms, one.queue, one.queue_offset))
    shown = messages[-count_max:]
    # older than what is shown, it is not what comes next
    crowded = [at for at in crowded if at >= shown[0].store_timestamp_ms]
    return Found(shown, is_more or len(messages) > count_max, failures, max(crowded, default=None))


async def _of_broker(
    instance: ClientInstance,
    anywhere: MessageQueue,
    key: str,
    begin_ms: int,
    end_ms: int,
    count_max: int,
    unique: bool,
) -> Found:
    """Page by page, from the newest backwards: the next ends where the oldest of this one was stored."""
    found: dict[str, ReceivedMessage] = {}
    while True:
        request = QueryMessage(
            topic=anywhere.topic,
            key=key,
            max_num=PAGE,
            begin_timestamp=begin_ms,
            end_timestamp=end_ms,
            unique=unique or None,
        )
        try:
            reply = await ask_queue(instance, anywhere, request)
        except QueryNotFound:
            return Found(list(found.values()), is_more=False)
        page = list(received_messages(reply.body, anywhere.broker_name))
        before = len(found)
        fitting = [one for one in page if has_key(one, key, unique)]
        found |= {
            one.offset_message_id: one for one in fitting if begin_ms <= one.store_timestamp_ms <= end_ms
        }
        if len(page) < (PAGE if not unique else PAGE // 2) and len(reply.body) <= PAGE_BYTES:
            return Found(list(found.values()), is_more=False)
        if len(found) > count_max:
            return Found(list(found.values()), is_more=True)
        oldest_ms = min(one.store_timestamp_ms for one in page)
        if len(found) == before:
            return Found(list(found.values()), is_more=True, crowded_ms=oldest_ms)
        end_ms = oldest_ms


# --- by time -------------------------------------------------------------------------------------------


async def find_by_time(
    instance: ClientInstance,
    puller: Puller,
    topic: str,
    *,
    begin_ms: int,
    end_ms: int,
    count_max: int = PAGE,
    tags: str = "*",
) -> Found:
    """What all queues of the topic got from one moment to another, both included: the oldest so many."""
    _check_span(begin_ms, end_ms, count_max)
    await instance.routes.refresh(topic, CALL_TIMEOUT_S)
    queues = (await instance.routes.to_read(topic, CALL_TIMEOUT_S)).read_queues
    asked = (_of_queue(instance, puller, queue, begin_ms, end_ms, count_max + 1, tags) for queue in queues)
    answers = await asyncio.gather(*asked, return_exceptions=True)
    parts: list[list[ReceivedMessage]] = []
    failures: dict[str, HotfireError] = {}
    for queue, answer in zip(queues, answers, strict=True):
        if isinstance(answer, HotfireError):
            failures[queue.broker_name] = answer
        elif isinstance(answer, BaseException):
            raise answer
        else:
            parts.append(answer)
    if not parts and failures:
        raise next(iter(failures.values()))
    merged = list(heapq.merge(*parts, key=lambda one: (one.store_timestamp_ms, one.queue)))
    return Found(merged[:count_max], len(merged) > count_max, failures)


async def _of_queue(
    instance: ClientInstance,
    puller: Puller,
    queue: MessageQueue,
    begin_ms: int,
    end_ms: int,
    count_max: int,
    tags: str,
) -> list[ReceivedMessage]:
    end = await max_offset(instance, queue)
    offset = await offset_at(instance, queue, begin_ms, "lower")
    wanted = subscription(queue.topic, tags)
    found: list[ReceivedMessage] = []
    while offset < end and len(found) < count_max:
        pull = partial(puller.pull, queue, offset, wanted, suspend=False, timeout_s=PULL_TIMEOUT_S)
        pulled = await pull_below(end, queue, offset, pull, patience_s=PATIENCE_S)
        for message in pulled.messages:
            if message.store_timestamp_ms > end_ms:
                return found[:count_max]
            if message.store_timestamp_ms >= begin_ms:
                found.append(message)
        offset = pulled.next_offset
    return found[:count_max]


# --- traces --------------------------------------------------------------------------------------------


async def message_trace(
    instance: ClientInstance, message_id: str, *, topic: str | None = None
) -> list[TraceEntry]:
    """What producers and consumers told of the message, in order of time; Apache's clients and ours alike."""
    where = topic or TRACE_TOPIC
    try:
        found = await find_by_key(instance, where, message_id, count_max=TRACES_MAX)
    except NoRoute as error:
        if topic is not None:
            raise
        raise NoRoute(
            f"{error}; brokers make it with traceTopicEnable=true, and clients write to it with trace=True"
        ) from None
    entries = {
        entry: None
        for message in found.messages
        for entry in decode_trace(message.body)
        if entry.message_id == message_id or message_id in entry.message_id.split(",")
    }
    began = {entry.request_id: entry.time_ms for entry in entries if entry.kind == "SubBefore"}
    order = {"Pub": 0, "EndTransaction": 1, "Recall": 1, "SubBefore": 2, "SubAfter": 3}

    def when(entry: TraceEntry) -> tuple[int, int]:
        # Java's 4.x clients do not say when a call ended
        at = entry.time_ms if entry.time_ms is not None else began.get(entry.request_id)
        return at or 0, order[entry.kind]

    return sorted(entries, key=when)
