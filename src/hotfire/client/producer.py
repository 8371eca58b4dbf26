"""Sending messages: the producer an application holds.

Owns when a producer may be used, and the ways to send; `sending` does it, `choosing` says where to.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Literal, Self

from hotfire.client.addresses import AddressSource
from hotfire.client.batches import batch_results, prepare_batches
from hotfire.client.checks import (
    BODY_BYTES_MAX,
    check_callable,
    check_hooks,
    check_message,
    check_number,
    check_queue,
    check_text,
    check_topic,
)
from hotfire.client.choosing import Rotation, Selector, select
from hotfire.client.compression import Compression, check_compression
from hotfire.client.confirm import NotStored, Stored, confirm
from hotfire.client.dialling import TlsChoice, tls_context
from hotfire.client.faults import Faults
from hotfire.client.hooks import Mode, SendHook, SendHooks
from hotfire.client.instance import CLOSE_TIMEOUT_S, ClientInstance, Member
from hotfire.client.later import END_TIMEOUT_S, Later
from hotfire.client.limits import IN_FLIGHT_MAX, OnLimit, Permits, RateLimit
from hotfire.client.messages import COMPRESS_FROM_BYTES, prepare
from hotfire.client.pipeline import Pipelines
from hotfire.client.recalling import recall
from hotfire.client.replies import as_request, reply_to, reply_topic
from hotfire.client.results import SendResult, SendStatus
from hotfire.client.sending import Sender, Trial
from hotfire.client.tracing import TraceSends, trace_topic
from hotfire.errors import (
    BrokerRefused,
    ConfigError,
    HotfireError,
    LocalProtocolError,
    NotRunning,
    RequestTimeout,
)
from hotfire.model import Message, MessageQueue, ProducerData, ReceivedMessage, check_group_name
from hotfire.net.addresses import local_address
from hotfire.net.clock import now_ms
from hotfire.protocol.ids import UniqueIds
from hotfire.protocol.record import Host

__all__ = ["Producer", "SendResult", "SendStatus"]

DEFAULT_GROUP = "hotfire_producer"
JAVA_DEFAULT_GROUP = "DEFAULT_PRODUCER"
"""Java's clients refuse to start under it, and so do we: it is the sign of a group forgotten."""

SEND_TIMEOUT_S = 3.0
RETRIES = 2
CONFIRM_TIMEOUT_S = 30.0
FINISH_TIMEOUT_S = 1.0
"""What close() gives sends under way."""


class Producer(Member):
    """Sends messages. Any number of tasks may share one.

    >>> async def example() -> None:
    ...     async with Producer("127.0.0.1:9876", group="shop") as producer:
    ...         result = await producer.send(Message("orders", b"paid", tag="pay"))
    ...         print(result.queue, result.queue_offset)

    Without `name_servers` the environment's NAMESRV_ADDR counts; either may be the URL of an address service.
    `retries` are those of `send`, `retries_async` those of `send_soon`. `avoid_slow_brokers` keeps away for a
    while from brokers that failed or took long. `compression` is zlib, lz4, zstd or None, for bodies from
    `compress_from_bytes`. `max_rate` limits messages a second: those beyond wait, unless `on_limit` says
    otherwise. `trace` tells the broker's trace topic, or the one named, what became of each message; sends
    then take the ordinary way.
    """

    def __init__(
        self,
        name_servers: str | Sequence[str] | None = None,
        *,
        group: str = DEFAULT_GROUP,
        timeout_s: float = SEND_TIMEOUT_S,
        retries: int = RETRIES,
        retries_async: int = RETRIES,
        retry_another_broker_when_not_ok: bool = False,
        avoid_slow_brokers: bool = False,
        compression: Compression | None = "zlib",
        compress_from_bytes: int = COMPRESS_FROM_BYTES,
        message_bytes_max: int = BODY_BYTES_MAX,
        in_flight_max: int = IN_FLIGHT_MAX,
        max_rate: float | None = None,
        on_limit: OnLimit | None = None,
        hooks: Sequence[SendHook] = (),
        trace: bool | str = False,
        instance_name: str | None = None,
        tls: TlsChoice = False,
        rng: random.Random | None = None,
    ) -> None:
        _check_group(group)
        check_compression(compression)
        _check_numbers(timeout_s, retries, retries_async, in_flight_max)
        check_number("compress_from_bytes", compress_from_bytes)
        check_number("message_bytes_max", message_bytes_max)
        check_text("instance_name", instance_name)
        AddressSource(name_servers)
        tls_context(tls)
        self._tls = tls
        self.group = group
        self._name_servers = name_servers
        self._instance_name = instance_name
        self._timeout_s = timeout_s
        self._retries, self._retries_async = retries, retries_async
        self._retry_when_not_ok = retry_another_broker_when_not_ok
        self._avoid_slow_brokers = avoid_slow_brokers
        self._body_bytes_max = message_bytes_max
        least = message_bytes_max if compression is None else compress_from_bytes - 1
        self._plain_body_max = min(least, message_bytes_max)
        self._prepare_message = partial(
            prepare,
            body_bytes_max=message_bytes_max,
            compression=compression,
            compress_from_bytes=compress_from_bytes,
        )
        self._permits = Permits(in_flight_max)
        self._rate = RateLimit(max_rate, on_limit)
        traces_to = trace_topic(trace)
        self._tracing = None if traces_to is None else TraceSends(traces_to)
        told = check_hooks(hooks)
        self._hooks = SendHooks(told if self._tracing is None else (*told, self._tracing))
        self._rng = rng or random.Random()
        self._address = Host.parse(local_address(), 0).address
        self._ids = self._new_ids()
        self._state: Literal["not started", "start failed", "running", "closed"] = "not started"
        self._joined: ClientInstance | None = None
        self._rotation: Rotation | None = None

    # --- starting and ending -------------------------------------------------------------------------

    def producer_data(self) -> ProducerData:
        return ProducerData(self.group)

    def topics(self) -> tuple[str, ...]:
        return () if self._rotation is None else self._rotation.topics()

    async def start(self) -> None:
        """Begin. A producer is started once; one whose start failed is not to be used."""
        if self._state != "not started":
            state = "already started" if self._state == "running" else self._state
            raise NotRunning(f"this producer is {state}; make a new one to start")
        self._state = "start failed"
        faults = Faults(enabled=self._avoid_slow_brokers, clock=asyncio.get_running_loop().time)
        self._rotation = Rotation(self._rng, faults)
        self._joined = await ClientInstance.join(
            self, self._name_servers, instance_name=self._instance_name, rng=self._rng, tls=self._tls
        )
        self._sender = Sender(
            self._joined,
            self.group,
            self._rotation,
            faults,
            self._hooks,
            retry_when_not_ok=self._retry_when_not_ok,
        )
        if self._tracing is not None:
            self._tracing.started(self._joined, self.group)
        self._later = Later(self._sender, self._permits, self._prepare_message, retries=self._retries_async)
        if not (self._hooks or self._rate or self._avoid_slow_brokers):
            self._later.pipelines = Pipelines(
                self._joined,
                self.group,
                self._rotation,
                self._permits,
                self._later.go_on,
                new_ids=self._new_ids,
                plain_body_max=self._plain_body_max,
                timeout_s=self._timeout_s,
            )
        self._state = "running"

    async def close(self) -> None:
        """Say goodbye to the brokers and hang up, within 3 s. Sends still under way after a second fail."""
        if self._joined is None:
            return
        self._joined.check_usable("producer")  # in a child, goodbyes would be the parent's
        loop = asyncio.get_running_loop()
        deadline = loop.time() + CLOSE_TIMEOUT_S - END_TIMEOUT_S
        joined, self._joined, self._state = self._joined, None, "closed"
        await self._later.close(FINISH_TIMEOUT_S)
        if self._tracing is not None:
            await self._tracing.close()
        await joined.leave(self, max(deadline - loop.time(), 0.0))
        await self._later.end()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def _instance(self) -> ClientInstance:
        if self._joined is None:
            first = f"use {self.begun_by}, or start() before sending"
            step = first if self._state == "not started" else "make a new one"
            raise NotRunning(f"the producer is {self._state}; {step}")
        self._joined.check_usable("producer")
        return self._joined

    async def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """The queues a message to `topic` may go to."""
        check_topic(topic)
        return (await self._instance.routes.to_write(topic, self._timeout_s)).write_queues

    # --- sending -------------------------------------------------------------------------------------

    async def send(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        arg: Any = None,
        timeout_s: float | None = None,
    ) -> SendResult:
        """Store the message in the next queue, in the one given, or in the one `selector` chooses by `arg`.

        >>> async def pay(producer: Producer, order: str) -> None:
        ...     await producer.send(Message("orders", b"paid"), selector=by_key_hash, arg=order)

        Raises what the last attempt met: BrokerRefused, or Unreachable. When its `outcome_unknown` is true
        the message may be stored; `confirm` finds out. A given or selected queue is tried once.
        """
        trial = self._trial(message, timeout_s)
        _check_choice(queue, selector)
        with self._permits:
            return await self._send(trial, queue, selector, arg)

    def send_soon(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        arg: Any = None,
        timeout_s: float | None = None,
        on_done: Callable[[asyncio.Future[SendResult]], object] | None = None,
    ) -> asyncio.Future[SendResult]:
        """Begin to send, and go on: the future has the result, and `on_done` is called with it once.

        >>> async def many(producer: Producer) -> None:
        ...     sends = [producer.send_soon(Message("orders", b"%d" % n)) for n in range(1000)]
        ...     print(len(await asyncio.gather(*sends)))

        What was wrong before anything was sent is raised at once: a message no broker takes, or
        TooManyInFlight, upon which to wait for some of those under way.
        """
        self._instance  # noqa: B018  # raises unless we run
        future: asyncio.Future[SendResult] | None = None
        pipelines = self._later.pipelines
        if queue is None and selector is None and timeout_s is None and pipelines is not None:
            future = pipelines.send(message)
        if future is None:
            _check_choice(queue, selector)
            trial = self._trial(message, timeout_s, mode="async")
            future = self._later.begin(lambda: self._send(trial, queue, selector, arg))
        if on_done is not None:
            future.add_done_callback(on_done)
        return future

    async def send_oneway(self, message: Message, *, queue: MessageQueue | None = None) -> None:
        """Hand the message to the network once. Nobody says whether it was stored."""
        trial = self._trial(message, None, mode="oneway")
        _check_choice(queue, None)
        with self._permits:
            await self._rate.wait(message, trial.deadline)
            await self._sender.oneway(trial, queue, await self._sender.route(message.topic, trial.deadline))

    async def send_batch(
        self,
        messages: Iterable[Message],
        *,
        queue: MessageQueue | None = None,
        timeout_s: float | None = None,
    ) -> list[SendResult]:
        """Store messages of one topic together, in as few requests as they fit in; a result for each.

        >>> async def bulk(producer: Producer) -> None:
        ...     results = await producer.send_batch(Message("orders", b"%d" % n) for n in range(100))
        ...     print(results[0].queue_offset, results[-1].queue_offset)

        A request is stored as a whole, its messages one after the other in one queue. When a later one fails,
        `results` of the error are those of the requests before it. `timeout_s` is for all of them.
        """
        self._instance  # noqa: B018  # raises unless we run
        deadline = self._deadline(timeout_s)
        _check_choice(queue, None)
        batches = prepare_batches(messages, self._next_id, body_bytes_max=self._body_bytes_max)
        results: list[SendResult] = []
        with self._permits:
            for outgoing in tuple(batches):
                trial = Trial(outgoing, deadline)
                try:
                    results += batch_results(outgoing, await self._send(trial, queue, None, None))
                except HotfireError as error:
                    error.results = tuple(results)
                    raise
        return results

    async def request(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        arg: Any = None,
        timeout_s: float | None = None,
    ) -> ReceivedMessage:
        """Store the message and wait for the reply of whoever consumes it.

        >>> async def ask(producer: Producer) -> None:
        ...     try:
        ...         print((await producer.request(Message("prices", b"tea"), timeout_s=0.5)).body)
        ...     except errors.RequestTimeout:
        ...         print("nobody sells tea")

        `timeout_s` is for all of it. Raises RequestTimeout when the message is stored and no reply came, and
        what `send` raises when it is not, or may not be, stored.
        """
        check_message(message, body_bytes_max=self._body_bytes_max)
        _check_choice(queue, selector)
        instance, deadline = self._instance, self._deadline(timeout_s)
        left_s = self._timeout_s if timeout_s is None else timeout_s
        asking = as_request(message, self._rng, instance.client_id, left_s)
        await self._be_reachable(message.topic, deadline)
        reply = instance.replies.expect(asking)
        try:
            outgoing = self._prepare_message(asking, self._next_id(), is_ours=True)
            trial = Trial(outgoing, deadline, mode="async", asks_back=True)
            try:
                with self._permits:
                    await self._send(trial, queue, selector, arg)
            except HotfireError:
                if not reply.done():  # a reply says more than the answer of the broker
                    raise
            async with asyncio.timeout_at(deadline):
                return await reply
        except TimeoutError:
            raise RequestTimeout(
                f"topic {message.topic}: request {trial.outgoing.message_id} is stored, and no reply came "
                f"within {left_s:g} s; look whether a consumer of the topic replies"
            ) from None
        finally:
            instance.replies.forget(asking)

    async def _be_reachable(self, topic: str, deadline: float) -> None:
        """Replies come by the brokers that know us: those of the topic, and those with its reply topic."""
        route = await self._sender.route(topic, deadline)
        for cluster in dict.fromkeys(broker.cluster for broker in route.data.brokers):
            with suppress(HotfireError):  # then they come by the topic's own brokers
                await self._sender.route(reply_topic(cluster), deadline)
        await self._instance.greetings.meet_others(deadline)

    async def reply(
        self,
        request: ReceivedMessage,
        body: bytes,
        *,
        properties: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> SendResult:
        """Send the reply to a request that was consumed; refused when who asked could not be reached."""
        self._instance  # noqa: B018  # raises unless we run
        deadline = self._deadline(timeout_s)
        outgoing = self._prepare_message(reply_to(request, body, properties), self._next_id(), is_ours=True)
        return await self._sender.reply(request, outgoing, deadline, retries=self._retries)

    async def confirm(
        self,
        sent: HotfireError | SendResult | str,
        topic: str | None = None,
        *,
        timeout_s: float = CONFIRM_TIMEOUT_S,
    ) -> Stored | NotStored:
        """Whether a message of unknown outcome was stored: given the error of its send, or its id and topic.

        >>> async def surely(producer: Producer, message: Message) -> None:
        ...     try:
        ...         await producer.send(message)
        ...     except errors.Unreachable as error:
        ...         if isinstance(await producer.confirm(error), NotStored):
        ...             await producer.send(message)

        The answer holds for good: `confirm` says how. It takes half a second at least. Raises Timeout when a
        broker that may have the message could not be asked in time; ask again later.
        """
        return await confirm(self._instance, sent, topic, self._deadline(timeout_s))

    async def recall(self, sent: SendResult | str, *, timeout_s: float | None = None) -> str:
        """Take back a message that waits for its time: given what its send came to, or the handle in that.

        >>> async def cancel(producer: Producer) -> None:
        ...     result = await producer.send(Message("orders", b"remind", delay_ms=3_600_000))
        ...     try:
        ...         print("taken back", await producer.recall(result))
        ...     except errors.BrokerRefused as refused:
        ...         print("comes all the same", refused.remark)

        The id of the message it is for. Possible until the second in which it is due begins; brokers must be
        set to allow it (recallMessageEnable), else BrokerRefused says so.
        """
        return await recall(self._instance, self.group, sent, self._deadline(timeout_s), self._tracing)

    # --- what all ways share -------------------------------------------------------------------------

    async def _send(
        self, trial: Trial, queue: MessageQueue | None, selector: Selector | None, arg: Any
    ) -> SendResult:
        message = trial.outgoing.messages[0]
        await self._rate.wait(message, trial.deadline, len(trial.outgoing.messages))
        route = await self._sender.route(message.topic, trial.deadline)
        if selector is not None:
            queue = select(selector, route.write_queues, message, arg)
        if queue is not None:
            return await self._sender.to_queue(trial, queue, route)
        if trial.mode == "sync":
            return await self._sender.in_turn(trial, route, retries=self._retries)
        result = await self._sender.in_turn(trial, route, retries=self._retries_async)
        self._later.went(message.topic)
        return result

    def _trial(self, message: Message, timeout_s: float | None, mode: Mode = "sync") -> Trial:
        self._instance  # noqa: B018  # raises unless we run
        deadline = self._deadline(timeout_s)  # to compress takes time, too
        return Trial(self._prepare_message(message, self._next_id()), deadline, mode=mode)

    def _new_ids(self) -> UniqueIds:
        return UniqueIds(self._address, os.getpid(), self._rng.getrandbits(32))

    def _next_id(self) -> str:
        return self._ids.next(now_ms())

    def _deadline(self, timeout_s: float | None) -> float:
        given_s = self._timeout_s if timeout_s is None else timeout_s
        try:
            return asyncio.get_running_loop().time() + given_s
        except TypeError:
            check_number("timeout_s", given_s)
            raise


def _check_choice(queue: MessageQueue | None, selector: Selector | None) -> None:
    if queue is not None:
        check_queue(queue)
    if selector is not None:
        check_callable("selector", selector)


def _check_group(group: str) -> None:
    check_text("group", group)
    try:
        check_group_name(group)
    except BrokerRefused as refused:
        raise LocalProtocolError(refused.remark) from None
    if group == JAVA_DEFAULT_GROUP:
        raise LocalProtocolError(f"group {group} is everyone's default; give the producer a group of its own")


def _check_numbers(timeout_s: float, retries: int, retries_async: int, in_flight_max: int) -> None:
    check_number("timeout_s", timeout_s)
    check_number("retries", retries)
    check_number("retries_async", retries_async)
    check_number("in_flight_max", in_flight_max)
    retries = min(retries, retries_async)
    if timeout_s <= 0:
        raise ConfigError(f"timeout_s={timeout_s:g}: a send needs more than 0 s")
    if retries < 0:
        raise ConfigError(f"retries={retries}: 0 tries once, without retries; fewer cannot be")
    if in_flight_max < 1:
        raise ConfigError(f"in_flight_max={in_flight_max}: at least 1 send must be allowed")
