"""Consuming with a group: messages are brought to a listener, shared with the group's other members.

This is the front: what can be said to a consumer, and the order in which its parts are started and stopped.
Underneath, each queue that is ours is pulled by a task of its own (`pullloop`), queues come and go with the
group's members (`queuetable`), and what was pulled is handled at once (`concurrent`) or in order (`orderly`).
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hotfire.allocation import Strategy
from hotfire.client import asked
from hotfire.client.addresses import AddressSource
from hotfire.client.checks import check_group, check_hooks, check_text
from hotfire.client.consumersettings import ConsumeFrom, ConsumerSettings
from hotfire.client.dialling import TlsChoice, tls_context
from hotfire.client.handling import ConsumeHook
from hotfire.client.instance import CLOSE_TIMEOUT_S, ClientInstance, Member
from hotfire.client.listening import Calling, Listener, calling
from hotfire.client.offsets import LocalOffsets, OffsetStore, RemoteOffsets
from hotfire.client.rebalance import strategy_of
from hotfire.client.results import SendResult
from hotfire.client.running import RunningConsumer
from hotfire.client.subscriptions import Subscriptions, subscription
from hotfire.client.tracing import TraceConsumption, trace_topic
from hotfire.errors import ConfigError, NotRunning
from hotfire.model import ConsumerData, MessageQueue, ReceivedMessage, retry_topic
from hotfire.net.clock import now_ms
from hotfire.protocol.command import Command
from hotfire.protocol.request import Request

log = logging.getLogger("hotfire.client")

BROADCASTING_INSTANCE = "DEFAULT"
"""Broadcasting needs a client id that is the same after a restart: its offsets are filed under it."""


class Consumer(Member):
    """Brings the messages of topics to listeners.

    >>> async def handle(message: ReceivedMessage) -> None:
    ...     print(message.body)
    >>> async def example() -> None:
    ...     async with Consumer("127.0.0.1:9876", group="billing") as consumer:
    ...         consumer.subscribe("orders", handle, tags="pay || refund")
    ...         await asyncio.Event().wait()

    A listener that returns is done with its message; one that raises, or returns ConsumeResult.RETRY, gets it
    again later. A coroutine function runs in the loop, `concurrency` at a time; a plain one in `threads`.
    `trace` tells the broker's trace topic, or the one named, of each call.
    """

    def __init__(
        self,
        name_servers: str | Sequence[str] | None = None,
        *,
        group: str,
        orderly: bool = False,
        broadcasting: bool = False,
        consume_from: ConsumeFrom = ConsumeFrom.LAST,
        batch_max: int = 1,
        concurrency: int = 20,
        threads: int = 20,
        max_rate: float | None = None,
        allocation: str | Strategy = "AVG",
        hooks: Sequence[ConsumeHook] = (),
        trace: bool | str = False,
        instance_name: str | None = None,
        offsets_directory: Path | str | None = None,
        tls: TlsChoice = False,
        rng: random.Random | None = None,
        **limits: Any,
    ) -> None:
        """`limits` are the further fields of ConsumerSettings, such as `queue_count_max`, by name."""
        check_group(group)
        check_text("instance_name", instance_name)
        unknown = sorted(limits.keys() - ConsumerSettings.__dataclass_fields__.keys())
        if unknown:
            raise ConfigError(f"group {group}: a consumer has no setting {', '.join(unknown)}")
        self.group = group
        self.settings = ConsumerSettings(
            group, broadcasting, orderly, consume_from, batch_max=batch_max, concurrency=concurrency,
            threads=threads, max_rate=max_rate, **limits,
        )  # fmt: skip
        self.settings.check()
        AddressSource(name_servers)  # a mistake is told now
        tls_context(tls)
        self._tls = tls
        self._name_servers = name_servers
        self._allocation = strategy_of(allocation)
        self._hooks: Sequence[ConsumeHook] = check_hooks(hooks)
        traces_to = trace_topic(trace)
        self._tracing = None if traces_to is None else TraceConsumption(traces_to, group)
        self._instance_name = instance_name or (BROADCASTING_INSTANCE if broadcasting else None)
        self._offsets_directory = offsets_directory
        self._rng = rng
        self._listeners: dict[str, Calling] = {}
        self._subscriptions = Subscriptions()
        self._parts: RunningConsumer | None = None
        self._leaving: asyncio.Task[None] | None = None

    # --- what is wanted --------------------------------------------------------------------------------

    def subscribe(
        self,
        topic: str,
        listener: Listener,
        tags: str | Sequence[str] = "*",
        *,
        sql: str | None = None,
        filter: str | None = None,
    ) -> None:
        """Bring the topic's messages to `listener`: all, those with one of the tags, as a condition says, or
        those that the named filter of the brokers' filter servers lets through.

        May be called before and after start; again for the same topic and listener, other tags or another
        condition replace those before.
        """
        how = calling(listener, takes_batch=self.settings.batch_max > 1)
        wanted = subscription(topic, tags, sql=sql, filter=filter, version=now_ms())
        if not how.is_async and not self.settings.threads:
            raise ConfigError(
                f"topic {topic}: the listener is a plain function and threads=0; give it threads, or make it "
                "a coroutine function"
            )
        if topic in self._listeners and self._listeners[topic].function != listener:
            raise ConfigError(
                f"group {self.group} has a listener for topic {topic} already; messages go to one listener "
                "of a group: choose by message.tag in it, use another group, or unsubscribe the topic first"
            )
        self._listeners[topic] = how
        retries = retry_topic(self.group)
        if not self.settings.broadcasting and retries not in self._subscriptions:
            # not before there is somebody to take what waits there
            self._subscriptions.put(subscription(retries, version=1))
        self._subscriptions.put(wanted)
        if self._parts is not None:
            self._parts.subscribed(topic, how)

    def listens_to(self, topic: str) -> bool:
        return topic in self._listeners

    def unsubscribe(self, topic: str) -> None:
        """Read the topic no more. Its queues go to the group's other members."""
        self._subscriptions.remove(topic)
        self._listeners.pop(topic, None)
        if self._parts is not None:
            self._parts.unsubscribed(topic)

    async def reply(
        self, request: ReceivedMessage, body: bytes, *, properties: Mapping[str, str] | None = None
    ) -> SendResult:
        """Send the reply to a request that `Producer.request` made.

        >>> async def sell(address: str) -> None:
        ...     consumer = Consumer(address, group="prices")
        ...     async def serve(message: ReceivedMessage) -> None:
        ...         await consumer.reply(message, b"3.20")
        ...     consumer.subscribe("prices", serve)

        Raises BrokerRefused when who asked could not be reached: its time is up, mostly.
        """
        return await self._running.reply(request, body, properties)

    def suspend(self) -> None:
        """Call no listener and pull nothing until `resume`; calls that run are not interrupted."""
        self._running.handling.suspend()

    def resume(self) -> None:
        self._running.handling.resume()

    @property
    def queues(self) -> tuple[MessageQueue, ...]:
        """The queues that are ours just now."""
        return tuple(one.queue for one in self._running.table.held())

    @property
    def damaged_count(self) -> int:
        """Messages passed over since the start because they came damaged, twice; the log says which."""
        return self._running.damaged_count

    # --- start and end ---------------------------------------------------------------------------------

    async def start(self) -> None:
        """Join the group. Where brokers or name servers are not there yet it goes on trying by itself."""
        if self._parts is not None:
            raise NotRunning("this consumer is already started")
        for wanted in self._subscriptions.all():  # a consumer may be started long after it was made
            self._subscriptions.renew(wanted.topic, now_ms())
        self._subscriptions.told(self._subscriptions.all())
        instance = await ClientInstance.join(
            self, self._name_servers, instance_name=self._instance_name, rng=self._rng, tls=self._tls
        )
        try:
            offsets = self._offset_store(instance)
            await offsets.load()
            hooks = self._hooks
            if self._tracing is not None:
                self._tracing.started(instance)
                hooks = (*hooks, self._tracing)
            self._parts = RunningConsumer(
                instance, self.settings, self._subscriptions, offsets, self._allocation, hooks
            )
            for topic, listener in self._listeners.items():
                self._parts.handling.listen(topic, listener)
            await self._parts.start()
        except BaseException:
            await self._stop(instance)
            raise

    def _offset_store(self, instance: ClientInstance) -> OffsetStore:
        if self.settings.broadcasting:
            return LocalOffsets(instance.client_id, self.group, self._offsets_directory)
        return RemoteOffsets(instance, self.group)

    async def ready(self) -> None:
        """Return when the subscriptions made so far took effect: our queues are known, and their starts."""
        await self._running.ready()

    async def close(self) -> None:
        """Leave the group within 3 s: listeners that run get a moment, offsets are kept, queues unlocked."""
        if self._parts is not None:
            self._parts.instance.check_usable("consumer")  # in a child, goodbyes would be the parent's
            await self._stop(self._parts.instance)

    async def _stop(self, instance: ClientInstance) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + CLOSE_TIMEOUT_S
        parts, self._parts = self._parts, None
        if parts is not None:
            await parts.close()
        if self._tracing is not None:
            await self._tracing.close()
        left_s = max(deadline - loop.time(), 0.0)
        self._leaving = loop.create_task(instance.leave(self, left_s))
        await asyncio.wait({self._leaving}, timeout=left_s)

    async def __aenter__(self) -> Consumer:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def _running(self) -> RunningConsumer:
        if self._parts is None:
            raise NotRunning(f"the consumer is not running; use {self.begun_by} or start() first")
        return self._parts

    # --- as a member of its instance -------------------------------------------------------------------

    def consumer_data(self) -> ConsumerData:
        return ConsumerData(
            group=self.group,
            message_model="BROADCASTING" if self.settings.broadcasting else "CLUSTERING",
            consume_from_where=self.settings.consume_from.value,
            subscriptions=self._subscriptions.all(),
        )

    def topics(self) -> tuple[str, ...]:
        return self._subscriptions.topics()

    async def routes_changed(self) -> None:
        if self._parts is not None:
            self._parts.routes_changed()

    async def persist_offsets(self) -> None:
        if self._parts is not None:
            await self._parts.persist()

    async def rebalance(self) -> bool:
        return self._parts is None or await self._parts.rebalance()

    def asked(self, request: Request) -> Command | Awaitable[Command | None] | None:
        return None if self._parts is None else asked.answer(self._parts, request)
