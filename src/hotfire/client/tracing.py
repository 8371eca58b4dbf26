"""Message trace: what became of each message, told by who sent and who consumed it, as messages of their own.

Entries wait in a bounded line and go out several to a message, when enough are there or after five seconds.
A trace never disturbs what it tells of: it is written beside it, what does not fit the line is dropped and
counted, and what cannot be sent is logged once for each cause.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from typing import NamedTuple

from hotfire.client.checks import check_topic
from hotfire.client.choosing import Rotation
from hotfire.client.faults import Faults
from hotfire.client.handling import Consumption
from hotfire.client.hooks import SendContext, SendHook, SendHooks
from hotfire.client.instance import ClientInstance
from hotfire.client.listening import ConsumeResult
from hotfire.client.messages import prepare
from hotfire.client.results import SendStatus
from hotfire.client.sending import Sender, Trial
from hotfire.errors import ConfigError, HotfireError
from hotfire.model import TRACE_TOPIC, Message, ReceivedMessage
from hotfire.net.addresses import local_address
from hotfire.net.clock import now_ms
from hotfire.protocol.ids import UniqueIds
from hotfire.protocol.record import Host
from hotfire.protocol.trace import (
    MessageKind,
    ReturnCode,
    encode_end_transaction,
    encode_pub,
    encode_recall,
    encode_sub_after,
    encode_sub_before,
)

log = logging.getLogger("hotfire.client")

WAITING_MAX = 2048
BATCH_COUNT = 10
"""Entries worth a message of their own; the numbers are Java's."""
BATCH_COUNT_MAX = 100
BODY_BYTES_MAX, KEYS_BYTES_MAX = 128_000, 10_000
FLUSH_S = 5.0
SEND_TIMEOUT_S = 5.0
CLOSE_TIMEOUT_S = 1.0
RETRIES = 1
DEFAULT_REGION = "DefaultRegion"
BROKERS_MAX = 1000
"""Of whom it is remembered whether they want traces."""


class Entry(NamedTuple):
    text: str
    keys: tuple[str, ...]
    """By which the entry is found: the message's id, and its keys."""


def trace_topic(chosen: bool | str) -> str | None:
    """Where traces go, if they are wanted: to the broker's own topic, or to the one named."""
    if chosen is False:
        return None
    if chosen is True:
        return TRACE_TOPIC
    if not isinstance(chosen, str):
        raise ConfigError(f"trace={chosen!r:.60}: give True, False or the name of a topic")
    check_topic(chosen)
    return chosen


class Tracer:
    """The entries of one producer or consumer on their way to the trace topic."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.dropped_count = 0
        self._entries: deque[Entry] = deque()
        self._due = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._trouble: str | None = None

    def start(self, instance: ClientInstance, group: str) -> None:
        loop = asyncio.get_running_loop()
        faults = Faults(enabled=False, clock=loop.time)
        self._sender = Sender(
            instance, group, Rotation(instance.rng, faults), faults, SendHooks(()), retry_when_not_ok=False
        )
        address = Host.parse(local_address(), 0).address
        self.ids = UniqueIds(address, os.getpid(), instance.rng.getrandbits(32))
        self._task = loop.create_task(self._run())

    def add(self, entry: Entry) -> None:
        if len(self._entries) >= WAITING_MAX or self._task is None:
            self.dropped_count += 1
            return
        self._entries.append(entry)
        if len(self._entries) >= BATCH_COUNT:
            self._due.set()

    async def close(self) -> None:
        """Send what waits, for a second at most."""
        task, self._task = self._task, None
        if task is None:
            return
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self._flush()
        lost = self.dropped_count + len(self._entries)
        if lost:
            log.warning("topic=%s %d entries of the message trace were lost", self.topic, lost)

    async def _run(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(FLUSH_S):
                    await self._due.wait()
            self._due.clear()
            await self._flush()

    async def _flush(self) -> None:
        loop = asyncio.get_running_loop()
        while self._entries:
            message = self._next()
            try:
                outgoing = prepare(message, self.ids.next(now_ms()), is_ours=True)
                trial = Trial(outgoing, loop.time() + SEND_TIMEOUT_S)
                route = await self._sender.route(self.topic, trial.deadline)
                await self._sender.in_turn(trial, route, retries=RETRIES)
                self._trouble = None
            except HotfireError as error:
                if self._trouble != type(error).__name__:
                    self._trouble = type(error).__name__
                    log.warning("topic=%s message trace is not written: %s", self.topic, error)

    def _next(self) -> Message:
        """As many of those that wait as fit into one message."""
        texts: list[str] = []
        keys: dict[str, None] = {}
        size = key_bytes = 0
        while self._entries and len(texts) < BATCH_COUNT_MAX:
            text, named = self._entries[0]
            size += len(text.encode("utf-8", "replace"))
            key_bytes += sum(len(key.encode("utf-8", "replace")) + 1 for key in named)
            if texts and (size > BODY_BYTES_MAX or key_bytes > KEYS_BYTES_MAX):
                break
            self._entries.popleft()
            texts.append(text)
            keys.update(dict.fromkeys(named))
        return Message(self.topic, "".join(texts).encode("utf-8", "replace"), keys=tuple(keys))


class TraceSends(Tracer, SendHook):
    """Tells of each message that a broker acknowledged, unless the broker does not want traces.

    Also how each transaction ended, and what was taken back: none of these answers says whether traces are
    wanted, so the brokers' answers to sends count for them.
    """

    def __init__(self, topic: str) -> None:
        super().__init__(topic)
        self._unwanted: dict[str, None] = {}
        """Addresses of brokers that want no traces."""

    def started(self, instance: ClientInstance, group: str) -> None:
        self.start(instance, f"_INNER_TRACE_PRODUCER-{group}-PRODUCE-1")

    def after(self, context: SendContext) -> None:
        told, result = context.reply_fields or {}, context.result
        region = told.get("MSG_REGION")
        if told.get("TRACE_ON") == "false" and len(self._unwanted) < BROKERS_MAX:
            self._unwanted[context.broker_address] = None
        elif told:
            self._unwanted.pop(context.broker_address, None)
        if (
            result is None
            or not region
            or told.get("TRACE_ON") == "false"
            or context.queue.topic == self.topic
        ):
            return
        ids = context.ids or (context.message_id,)
        places = result.offset_message_id.split(",")
        spent_ms = max(0, now_ms() - context.began_ms) // len(ids)
        for number, (message, message_id) in enumerate(zip(context.messages, ids, strict=True)):
            text = encode_pub(
                time_ms=context.began_ms,
                region=region,
                group=context.group,
                topic=message.topic,
                message_id=message_id,
                tag=message.tag,
                keys=tuple(message.keys),
                store_host=context.broker_address,
                body_bytes=len(message.body),
                cost_ms=spent_ms,
                kind=_kind(message),
                offset_message_id=places[number] if number < len(places) else None,
                is_success=result.status is SendStatus.SEND_OK,
            )
            self.add(Entry(text, (message_id, *message.keys)))

    def ended(
        self,
        message: Message | ReceivedMessage,
        message_id: str,
        address: str,
        *,
        group: str,
        transaction_id: str | None,
        state: str,
        is_checked: bool,
    ) -> None:
        """The broker is told how a transaction ended; on its own or because it asked."""
        told = message.properties
        if address in self._unwanted or told.get("TRACE_ON") == "false" or message.topic == self.topic:
            return
        text = encode_end_transaction(
            time_ms=now_ms(),
            region=told.get("MSG_REGION") or DEFAULT_REGION,
            group=group,
            topic=message.topic,
            message_id=message_id,
            tag=message.tag,
            keys=tuple(message.keys),
            store_host=address,
            kind=MessageKind.COMMIT,  # whatever the end, as Java writes it
            transaction_id=transaction_id,
            state=state,
            is_checked=is_checked,
        )
        self.add(Entry(text, (message_id, *message.keys)))

    def recalled(
        self, message_id: str, topic: str, address: str, *, group: str, region: str | None, is_success: bool
    ) -> None:
        """A broker has answered the wish to have a message back."""
        if address in self._unwanted or not region or topic == self.topic:
            return
        text = encode_recall(
            time_ms=now_ms(),
            region=region,
            group=group,
            topic=topic,
            message_id=message_id,
            is_success=is_success,
        )
        self.add(Entry(text, (message_id,)))


def _kind(message: Message) -> MessageKind:
    if message.properties.get("TRAN_MSG", "").lower() == "true":
        return MessageKind.HALF
    is_late = message.delay_level or message.delay_ms or message.deliver_at is not None
    return MessageKind.DELAY if is_late else MessageKind.NORMAL


class TraceConsumption(Tracer):
    """Tells of each call of a listener, before and after."""

    def __init__(self, topic: str, group: str) -> None:
        super().__init__(topic)
        self._group = group

    def started(self, instance: ClientInstance) -> None:
        self.start(instance, f"_INNER_TRACE_PRODUCER-{self._group}-CONSUME-1")

    def before(self, consumption: Consumption) -> None:
        consumption.call_id = self.ids.next(now_ms())
        for message in self._traced(consumption.messages):
            text = encode_sub_before(
                time_ms=consumption.began_ms,
                region=message.properties.get("MSG_REGION") or DEFAULT_REGION,
                group=self._group,
                request_id=consumption.call_id,
                message_id=message.message_id,
                retries=message.reconsume_times,
                keys=message.keys,
            )
            self.add(Entry(text, (message.message_id, *message.keys)))

    def after(self, consumption: Consumption) -> None:
        for message in self._traced(consumption.messages):
            code = _return_code(consumption)
            text = encode_sub_after(
                request_id=consumption.call_id,
                message_id=message.message_id,
                cost_ms=int(consumption.spent_s * 1000) // len(consumption.messages),
                is_success=code is ReturnCode.SUCCESS,
                keys=message.keys,
                code=code,
                time_ms=now_ms(),
                group=self._group,
            )
            self.add(Entry(text, (message.message_id, *message.keys)))

    def _traced(self, messages: Iterable[ReceivedMessage]) -> list[ReceivedMessage]:
        """Also those of a batch, to which brokers add neither a region nor whether traces are wanted.

        Java's clients leave out what has no region.
        """
        return [
            message
            for message in messages
            if message.topic != self.topic and message.properties.get("TRACE_ON") != "false"
        ]


def _return_code(consumption: Consumption) -> ReturnCode:
    if consumption.error is not None:
        return ReturnCode.EXCEPTION
    is_done = consumption.result in (ConsumeResult.DONE, ConsumeResult.COMMIT)
    return ReturnCode.SUCCESS if is_done else ReturnCode.FAILED
