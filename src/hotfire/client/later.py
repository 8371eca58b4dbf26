"""Sends whose results come later: which are under way, and how they end.

The quick way (`pipeline`) is tried first where it is open. What strands there goes on here in the ordinary
way, under its own id, with its first attempt counted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from hotfire.client.limits import Permits
from hotfire.client.messages import Outgoing
from hotfire.client.pipeline import Pipelines, Stranded
from hotfire.client.results import SendResult, send_result
from hotfire.client.sending import Sender, Trial, Unanswered
from hotfire.errors import BrokerRefused, HotfireError, NotRunning, Unreachable
from hotfire.model import Message
from hotfire.net.peer import Peer
from hotfire.protocol.command import Command

END_TIMEOUT_S = 0.2


class Later:
    """The sends of one producer that are under way by themselves."""

    def __init__(
        self,
        sender: Sender,
        permits: Permits,
        prepare: Callable[[Message, str], Outgoing],
        *,
        retries: int,
    ) -> None:
        self.pipelines: Pipelines | None = None
        """The quick way of sends, where it is open."""
        self._sender = sender
        self._permits = permits
        self._prepare = prepare
        self._retries = retries
        self._tasks: set[asyncio.Task[SendResult]] = set()
        self._is_closing = False

    def begin(self, send: Callable[[], Coroutine[Any, Any, SendResult]]) -> asyncio.Task[SendResult]:
        """Begin to send the ordinary way; TooManyInFlight when too many are under way."""
        self._permits.__enter__()
        return self._run(self._told(send))

    async def _told(self, send: Callable[[], Coroutine[Any, Any, SendResult]]) -> SendResult:
        """Whoever awaits a send that we end is not cancelled: it failed."""
        try:
            return await send()
        except asyncio.CancelledError:
            if self._is_closing:
                raise NotRunning("the producer was closed") from None
            raise

    def _run(self, send: Coroutine[Any, Any, SendResult]) -> asyncio.Task[SendResult]:
        task = asyncio.get_running_loop().create_task(send)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[SendResult]) -> None:
        self._permits.__exit__()
        self._tasks.discard(task)

    def went(self, topic: str) -> None:
        """A send to this topic went well: the next may go quicker."""
        if self.pipelines is not None:
            self.pipelines.learn(topic)

    def go_on(self, stranded: Stranded, peer: Peer, why: Command | HotfireError) -> None:
        """A send of the quick way was not answered, or not plainly."""
        trial = Trial(
            self._prepare(stranded.message, stranded.message_id),
            stranded.deadline,
            mode="async",
            tried=[stranded.queue.broker_name],
        )
        self._run(self._finish(trial, stranded, peer, why)).add_done_callback(
            partial(_hand_over, stranded.future)
        )

    async def _finish(
        self, trial: Trial, stranded: Stranded, peer: Peer, why: Command | HotfireError
    ) -> SendResult:
        try:
            if isinstance(why, HotfireError):
                raise why
            return send_result(why, stranded.message_id, stranded.queue)
        except HotfireError as error:
            trial.failed = error
            if not isinstance(error, BrokerRefused):
                trial.unanswered.append(Unanswered(stranded.queue, peer))
            in_time = asyncio.get_running_loop().time() < trial.deadline and not self._is_closing
            if not in_time or not isinstance(error, Unreachable):  # a refusal ends a later send
                trial.note(error)
                raise
        route = await self._sender.route(trial.outgoing.topic, trial.deadline)
        return await self._sender.in_turn(trial, route, retries=self._retries)

    async def close(self, timeout_s: float) -> None:
        """Wait a while for what is under way; from then on nothing is tried again."""
        under_way = [*self._tasks, *(self.pipelines.under_way() if self.pipelines is not None else ())]
        if under_way:
            await asyncio.wait(under_way, timeout=timeout_s)
        self._is_closing = True

    async def end(self) -> None:
        """Once the connections are closed: tell those who still wait."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=END_TIMEOUT_S)  # most find out by themselves
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def _hand_over(future: asyncio.Future[SendResult], task: asyncio.Task[SendResult]) -> None:
    error = NotRunning("the producer was closed") if task.cancelled() else task.exception()
    if future.done():
        return  # given up by its owner; nobody is left to be told
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(task.result())
