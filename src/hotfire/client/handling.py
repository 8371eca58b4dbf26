"""One call of a listener, whichever way messages are consumed: gate, rate, hooks, the call, counts.

Knows nothing of queues and offsets: what becomes of the messages is up to who asked.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

from hotfire.client.consumersettings import ConsumerSettings
from hotfire.client.consumestats import TopicCounts
from hotfire.client.listening import Calling, ConsumeContext, ConsumeResult, Threads, meaning
from hotfire.errors import ConfigError
from hotfire.model import MessageQueue, ReceivedMessage, retry_topic
from hotfire.net.clock import now_ms, time_of

log = logging.getLogger("hotfire.client")


@dataclass(slots=True)
class Consumption:
    """One call of a listener, as hooks see it; `result` and `error` are there afterwards."""

    group: str
    queue: MessageQueue
    messages: Sequence[ReceivedMessage]
    result: ConsumeResult | None = None
    error: Exception | None = None
    spent_s: float = 0.0
    began_ms: int = field(default_factory=now_ms)
    call_id: str = ""
    """By which a message trace knows this call."""


class ConsumeHook(Protocol):
    """Told before and after each call of a listener. What a hook raises is logged and changes nothing."""

    def before(self, consumption: Consumption) -> None: ...
    def after(self, consumption: Consumption) -> None: ...


class NobodyListens(Exception):
    """Of a topic that is subscribed to later, or no more: its message is not tried, and keeps its tries."""


class Rate:
    """Lets so many through per second, evenly."""

    def __init__(self, per_s: float) -> None:
        self._gap_s = 1.0 / per_s
        self._next_s = 0.0

    async def take(self, count: int) -> None:
        now_s = asyncio.get_running_loop().time()
        at_s = max(now_s, self._next_s)
        self._next_s = at_s + count * self._gap_s
        if at_s > now_s:
            await asyncio.sleep(at_s - now_s)


class Handling:
    """Calls the listeners of one consumer."""

    def __init__(self, settings: ConsumerSettings, hooks: Sequence[ConsumeHook] = ()) -> None:
        self._group = settings.group
        self._hooks = tuple(hooks)
        self._rate = None if settings.max_rate is None else Rate(settings.max_rate)
        self._threads = Threads(settings.threads, f"hotfire-{settings.group}") if settings.threads else None
        self._retry_topic = retry_topic(settings.group)
        self._time = time_of(asyncio.get_running_loop())
        self._listeners: dict[str, Calling] = {}
        self.gives_contexts = False
        """Whether any listener sees, and may change, the context of its call."""
        self.running_count = 0
        self.may_start = asyncio.Event()
        """Set unless the consumer is suspended."""
        self.may_start.set()
        self.is_free = self._rate is None
        """Whether `admit` would let anyone through at once."""

    def suspend(self) -> None:
        """Start no listener until `resume`."""
        self.may_start.clear()
        self.is_free = False

    def resume(self) -> None:
        self.may_start.set()
        self.is_free = self._rate is None

    def listen(self, topic: str, calling: Calling) -> None:
        if not calling.is_async and self._threads is None:
            raise ConfigError(
                f"topic {topic}: the listener is a plain function and threads=0; give it threads, or make it "
                "a coroutine function"
            )
        self._listeners[topic] = calling
        self.gives_contexts |= calling.takes_context

    def ignore(self, topic: str) -> None:
        self._listeners.pop(topic, None)

    def original(self, message: ReceivedMessage) -> ReceivedMessage:
        """A message of the retry topic as it was sent: with the topic it had."""
        if message.topic != self._retry_topic:
            return message
        topic = message.properties.get("RETRY_TOPIC")
        return message if topic is None else replace(message, topic=topic)

    def originals(self, topic: str, messages: Sequence[ReceivedMessage]) -> Sequence[ReceivedMessage]:
        """All of them, pulled from `topic`."""
        return messages if topic != self._retry_topic else [self.original(message) for message in messages]

    def listener(self, message: ReceivedMessage) -> Calling | None:
        return self._listeners.get(message.topic)

    async def admit(self, count: int) -> None:
        """Wait until so many messages may be handled: while suspended, and as the rate says."""
        while not self.may_start.is_set():
            await self.may_start.wait()
        if self._rate is not None:
            await self._rate.take(count)

    async def handle(
        self,
        messages: Sequence[ReceivedMessage],
        context: ConsumeContext,
        counts: TopicCounts,
        began_s: float,
    ) -> tuple[ConsumeResult, Exception | None, float]:
        """The listener's verdict on messages of one topic, and when it was given; what it raises is RETRY."""
        consumption = None
        if self._hooks:
            consumption = Consumption(self._group, context.queue, messages)
            self._tell("before", consumption)
            began_s = self._time()
        error: Exception | None = None
        result = ConsumeResult.DONE
        listener = self._listeners.get(messages[0].topic)
        if listener is None:
            raise NobodyListens(f"nobody here listens to topic {messages[0].topic}")
        self.running_count += 1
        try:
            arguments = listener.arguments(messages, context)
            if listener.is_async:
                told = await listener.function(*arguments)
            else:
                assert self._threads is not None
                told = await self._threads.run(partial(listener.function, *arguments))
            if told is not None:
                result = meaning(told)
        except Exception as raised:  # the listener's failure is its message's, not ours
            result, error = ConsumeResult.RETRY, raised
            log.warning(
                "group=%s topic=%s queue=%s/%d offset=%d message=%s listener failed",
                self._group, messages[0].topic, context.queue.broker_name, context.queue.queue_id,
                messages[0].queue_offset, messages[0].message_id, exc_info=raised,
            )  # fmt: skip
        finally:
            self.running_count -= 1
        ended_s = self._time()
        spent_s = ended_s - began_s
        counts.calls += 1
        counts.busy_s += spent_s
        if consumption is not None:
            consumption.result, consumption.error, consumption.spent_s = result, error, spent_s
            self._tell("after", consumption)
        return result, error, ended_s

    def _tell(self, moment: str, consumption: Consumption) -> None:
        for hook in self._hooks:
            try:
                getattr(hook, moment)(consumption)
            except Exception:
                log.exception("group=%s hook %s failed", self._group, hook)

    def close(self) -> None:
        if self._threads is not None:
            self._threads.close()
