"""One send: its attempts, its deadline, and what is told when it fails.

A send has one deadline. Time spent on routes, dialling and failed attempts counts against it, and an
attempt after a failure goes to another broker when there is one. The message keeps its id over all
attempts, so a consumer can tell a repeated one.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from hotfire.client.choosing import Rotation
from hotfire.client.faults import Faults
from hotfire.client.hooks import Mode, SendContext, SendHooks
from hotfire.client.instance import ClientInstance
from hotfire.client.messages import Outgoing, send_request
from hotfire.client.results import SendResult, SendStatus, send_result
from hotfire.client.routes import TopicRoute
from hotfire.errors import (
    BrokerRefused,
    HotfireError,
    LocalProtocolError,
    NoRoute,
    RemoteProtocolError,
    Timeout,
    Unreachable,
)
from hotfire.model import MessageQueue, ReceivedMessage
from hotfire.net.clock import now_ms
from hotfire.net.peer import Peer
from hotfire.protocol.request import Request

REFRESH_TIMEOUT_S = 1.0


class Unanswered(NamedTuple):
    """An attempt whose outcome is unknown: to which queue, and over which connection."""

    queue: MessageQueue
    peer: Peer


@dataclass(slots=True)
class Trial:
    """A message on its way: what was tried so far."""

    outgoing: Outgoing
    deadline: float
    mode: Mode = "sync"
    began: float = field(default_factory=lambda: _now())
    asks_back: bool = False
    """The broker will have something to ask, or to bring, of who sent it: it must know us first."""
    tried: list[str] = field(default_factory=list)
    unanswered: list[Unanswered] = field(default_factory=list)
    failed: HotfireError | None = None
    reserved: SendResult | None = None
    """Stored, with reservations; another broker was asked to do better."""

    def note(self, error: HotfireError) -> None:
        """Tell with the error what a caller may need to go on."""
        error.topic = self.outgoing.topic
        error.message_id = self.outgoing.message_id
        error.outcome_unknown = bool(self.unanswered)
        error.unanswered = tuple(self.unanswered)
        if len(self.tried) > 1:
            error.add_note(
                f"sending to topic {error.topic} failed {len(self.tried)} times: {', '.join(self.tried)}"
            )


class Sender:
    """How the messages of one producer are sent."""

    def __init__(
        self,
        instance: ClientInstance,
        group: str,
        rotation: Rotation,
        faults: Faults,
        hooks: SendHooks,
        *,
        retry_when_not_ok: bool,
    ) -> None:
        self._instance = instance
        self._group = group
        self._rotation = rotation
        self._faults = faults
        self._hooks = hooks
        self._retry_when_not_ok = retry_when_not_ok

    async def route(self, topic: str, deadline: float) -> TopicRoute:
        self._rotation.use(topic)
        return await self._instance.routes.to_write(topic, max(deadline - _now(), 0.0))

    async def in_turn(
        self, trial: Trial, route: TopicRoute, *, retries: int, first: MessageQueue | None = None
    ) -> SendResult:
        """Send to the next queue; after a failure to one of another broker, while tries and time are left.

        The first try may be told where to go.
        """
        while len(trial.tried) <= retries:
            queue = first or self._rotation.next(route, avoid=trial.tried[-1] if trial.tried else None)
            first = None
            try:
                result = await self._attempt(trial, queue, route)
                if result.status is SendStatus.SEND_OK or not self._retry_when_not_ok:
                    return result
                trial.reserved = result
            except HotfireError as error:
                trial.failed = error
                if not _may_retry(error, trial.mode):
                    break
                if error.refresh_route and len(trial.tried) <= retries:
                    route = await self.newer_route(route, trial.deadline)
            if _now() >= trial.deadline:
                break
        if trial.reserved is not None:
            return trial.reserved
        assert trial.failed is not None
        trial.note(trial.failed)
        raise trial.failed

    async def to_queue(self, trial: Trial, queue: MessageQueue, route: TopicRoute) -> SendResult:
        """Send to this queue, once."""
        _check_topic(trial, queue)
        try:
            return await self._attempt(trial, queue, route)
        except HotfireError as error:
            trial.note(error)
            raise

    async def reply(
        self, request: ReceivedMessage, outgoing: Outgoing, deadline: float, *, retries: int
    ) -> SendResult:
        """Send a reply: first by the broker the request came by, for who asked is surely known there."""
        trial = Trial(outgoing, deadline)
        route = await self.route(outgoing.topic, deadline)
        by = request.queue.broker_name
        first = next((queue for queue in route.write_queues if queue.broker_name == by), None)
        return await self.in_turn(trial, route, retries=retries, first=first)

    async def oneway(self, trial: Trial, queue: MessageQueue | None, route: TopicRoute) -> None:
        """Hand the message to the network, once."""
        queue = queue or self._rotation.next(route, avoid=None)
        _check_topic(trial, queue)
        address, request = await self._addressed(trial, queue, route)
        context = self._before(trial, queue, address)
        try:
            peer = await self._instance.connection(address, max(trial.deadline - _now(), 0.0))
            await peer.invoke_oneway(request, max(trial.deadline - _now(), 0.0))
        except HotfireError as error:
            if context is not None:
                context.error = error
            trial.note(error)
            raise
        finally:
            self._after(context)

    # --- one attempt -------------------------------------------------------------------------------

    async def _attempt(self, trial: Trial, queue: MessageQueue, route: TopicRoute) -> SendResult:
        started = _now()
        trial.tried.append(queue.broker_name)
        address, request = await self._addressed(trial, queue, route)
        context = self._before(trial, queue, address)
        try:
            result = await self._exchange(trial, queue, address, request, context)
        except HotfireError as error:
            self._faults.failed(queue.broker_name, reachable=isinstance(error, Unreachable))
            if context is not None:
                context.error = error
            raise
        else:
            self._faults.answered(queue.broker_name, _now() - started)
            if context is not None:
                context.result = result
            return result
        finally:
            self._after(context)

    async def _exchange(
        self,
        trial: Trial,
        queue: MessageQueue,
        address: str,
        request: Request,
        context: SendContext | None,
    ) -> SendResult:
        peer = await self._instance.connection(address, max(trial.deadline - _now(), 0.0))
        is_sent, left_s = False, max(trial.deadline - _now(), 0.0)
        try:
            if trial.asks_back:
                await self._instance.greetings.before_use(peer, trial.deadline)
                left_s = max(trial.deadline - _now(), 0.0)
            is_sent = True
            reply = await peer.invoke(request, left_s)
            if context is not None:
                context.reply_fields = reply.fields
            return send_result(reply, trial.outgoing.message_id, queue)
        except (Unreachable, RemoteProtocolError) as error:
            if is_sent:
                trial.unanswered.append(Unanswered(queue, peer))
            # Who waits for one answer may well have a dead connection; who has many under way, a slow broker.
            if isinstance(error, Timeout) and trial.mode == "sync":
                whole_s = trial.deadline - trial.began
                self._instance.connections.unanswered(peer, left_s=left_s, timeout_s=whole_s)
            raise

    async def _addressed(self, trial: Trial, queue: MessageQueue, route: TopicRoute) -> tuple[str, Request]:
        """The master's address, asked for once more when unknown; and what to send there."""
        address = route.master(queue.broker_name)
        if address is None:
            newer = await self.newer_route(route, trial.deadline)
            address = newer.master(queue.broker_name)
        if address is None:
            raise NoRoute(
                f"topic {queue.topic}: broker {queue.broker_name} does not exist, or has no master; "
                f"name servers {';'.join(self._instance.name_servers.addresses)}"
            )
        if _now() >= trial.deadline:
            raise Timeout(f"topic {queue.topic}: no time left to send to {queue.broker_name}")
        return address, send_request(trial.outgoing, queue, group=self._group, now_ms=now_ms())

    async def newer_route(self, route: TopicRoute, deadline: float) -> TopicRoute:
        """The route as name servers have it now; the one we have when they cannot be asked."""
        with suppress(HotfireError):  # then the one we have must do
            left_s = min(deadline - _now(), REFRESH_TIMEOUT_S)
            newer = await self._instance.routes.refresh(route.topic, max(left_s, 0.0))
            return newer if newer.write_queues or not route.write_queues else route
        return route

    # --- hooks -------------------------------------------------------------------------------------

    def _before(self, trial: Trial, queue: MessageQueue, address: str) -> SendContext | None:
        if not self._hooks:
            return None
        outgoing = trial.outgoing
        context = SendContext(
            self._group, outgoing.messages, outgoing.message_id, queue, address, trial.mode, outgoing.ids
        )
        self._hooks.before(context)
        return context

    def _after(self, context: SendContext | None) -> None:
        if context is not None:
            self._hooks.after(context)


def _may_retry(error: HotfireError, mode: Mode) -> bool:
    # Java's asynchronous sends take a refusal as final, whatever its code.
    return error.retriable and (mode == "sync" or not isinstance(error, BrokerRefused))


def _check_topic(trial: Trial, queue: MessageQueue) -> None:
    if queue.topic != trial.outgoing.topic:
        raise LocalProtocolError(
            f"message to {trial.outgoing.topic}: the queue given is one of topic {queue.topic}"
        )


def _now() -> float:
    return asyncio.get_running_loop().time()
