"""The filter server's heart: a pull goes on to the broker; of what it answers, the filter's choice goes back.

Records are passed on byte by byte as they are stored. Which filter a pull means it says itself; or it is the
class its group registered for the topic, as Java's consumers up to 4.9 do, whose source is dropped unread:
what runs here is what the operator installed; or the class the group's heartbeats name, as later ones do.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Mapping
from typing import Protocol

from hotfire.errors import HotfireError, MalformedRequest
from hotfire.filtersrv.workers import FilterBusy, FilterProcess
from hotfire.net.heart import CommandHeart, Connection
from hotfire.protocol.bodies import decode_body
from hotfire.protocol.codes import ResponseCode
from hotfire.protocol.command import Buffer, Command, encode
from hotfire.protocol.members import GroupSubscription
from hotfire.protocol.requests import (
    PullMessage,
    PullReply,
    QuerySubscriptionByConsumer,
    RegisterMessageFilterClass,
    Request,
    decode_request,
)

log = logging.getLogger("hotfire.filtersrv")

GROUP = "FILTERSRV_CONSUMER"
"""Exists on every broker for this."""
SUSPEND, SUBSCRIPTION = 2, 4
ANSWER_S = 10.0
"""What a broker may take beyond the time it holds a pull."""
SUSPEND_MS_MAX = 30_000
REGISTERED_MAX = 100_000
PULLS_MAX = 20_000
"""Under way at once; most are held by the broker."""
SIZE_BYTES = 4

LEARNT_S = 10.0
"""What a group's heartbeats named is asked for again after so long."""
ASK_S = 3.0


class Ask(Protocol):
    """Asks the broker, within so many seconds; for a filter, on a connection of that filter's."""

    def __call__(self, request: Request, timeout_s: float, name: str | None = None) -> Awaitable[Command]: ...


class FilterServer(CommandHeart):
    """Serves pulls of consumers whose subscription names a filter."""

    def __init__(self, filters: Mapping[str, FilterProcess], ask: Ask) -> None:
        super().__init__()
        self._filters = filters
        self._ask = ask
        self._registered: OrderedDict[tuple[str, str], str] = OrderedDict()
        self._learnt: OrderedDict[tuple[str, str], tuple[str | None, float]] = OrderedDict()
        self._tasks: dict[asyncio.Task[None], Connection] = {}

    def handle(self, connection: Connection, command: Command, now_ms: int) -> Command | None:
        try:
            request = decode_request(command)
        except MalformedRequest as error:
            return command.reply(ResponseCode.SYSTEM_ERROR, remark=str(error))
        if isinstance(request, RegisterMessageFilterClass):
            return self._register(command, request)
        if isinstance(request, PullMessage) and len(self._tasks) >= PULLS_MAX:
            remark = f"{PULLS_MAX} pulls are under way here; try again later"
            return command.reply(ResponseCode.SYSTEM_BUSY, remark=remark)
        if isinstance(request, PullMessage):
            task = asyncio.get_running_loop().create_task(self._serve(connection, command, request))
            self._tasks[task] = connection
            task.add_done_callback(self._tasks.pop)
            return None
        return command.reply(
            ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=f" request type {command.code} not supported"
        )

    def disconnected(self, connection: Connection, now_ms: int) -> None:
        for task in [task for task, owner in self._tasks.items() if owner is connection]:
            task.cancel()

    async def close(self) -> None:
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for process in self._filters.values():
            await process.close()

    def _register(self, command: Command, request: RegisterMessageFilterClass) -> Command:
        if request.class_name not in self._filters:
            return command.reply(ResponseCode.SYSTEM_ERROR, remark=self._unknown(request.class_name))
        self._registered[request.consumer_group, request.topic] = request.class_name
        self._registered.move_to_end((request.consumer_group, request.topic))
        while len(self._registered) > REGISTERED_MAX:
            self._registered.popitem(last=False)
        return command.reply(ResponseCode.SUCCESS)

    def _unknown(self, name: str) -> str:
        there = ", ".join(sorted(self._filters)[:20])
        return (
            f"filter {name!r:.200} is not installed here, and none is taken from clients; there are {there}"
        )

    # --- one pull --------------------------------------------------------------------------------------

    async def _serve(self, connection: Connection, command: Command, request: PullMessage) -> None:
        try:
            reply = await self._answer(command, request)
        except FilterBusy as error:
            reply = command.reply(ResponseCode.SYSTEM_BUSY, remark=str(error))
        except HotfireError as error:
            reply = command.reply(ResponseCode.SYSTEM_ERROR, remark=str(error))
        except Exception as error:
            log.exception("pull failed group=%s topic=%s", request.consumer_group, request.topic)
            reply = command.reply(ResponseCode.SYSTEM_ERROR, remark=f"{type(error).__name__}: {error}")
        if not connection.closed:
            connection.write(encode(reply))

    async def _answer(self, command: Command, request: PullMessage) -> Command:
        chosen = await self._chosen(request)
        if chosen is None:
            remark = (
                f"Find Filter class failed, not registered: group {request.consumer_group} has named no "
                f"filter for topic {request.topic}"
            )
            return command.reply(ResponseCode.SYSTEM_ERROR, remark=remark)
        if chosen not in self._filters:
            return command.reply(ResponseCode.SYSTEM_ERROR, remark=self._unknown(chosen))
        hold_ms = min(max(request.suspend_timeout_millis, 0), SUSPEND_MS_MAX)
        suspends = bool(request.sys_flag & SUSPEND) and hold_ms > 0
        onward = PullMessage(
            consumer_group=GROUP,
            topic=request.topic,
            queue_id=request.queue_id,
            queue_offset=request.queue_offset,
            max_msg_nums=request.max_msg_nums,
            sys_flag=SUBSCRIPTION | (SUSPEND if suspends else 0),
            commit_offset=0,
            suspend_timeout_millis=hold_ms if suspends else 0,
            subscription="*",
            sub_version=0,
            expression_type="TAG",
            max_msg_bytes=request.max_msg_bytes,
        )
        answer = await self._ask(onward, hold_ms / 1000 + ANSWER_S, chosen)
        if answer.code != ResponseCode.SUCCESS:
            return command.reply(answer.code, fields=answer.fields, remark=answer.remark)
        fields = PullReply.from_command(answer).to_fields()
        records = bytes(answer.body)
        kept = kept_records(records, await self._filters[chosen].judge(records))
        if not kept:
            return command.reply(ResponseCode.PULL_RETRY_IMMEDIATELY, fields=fields)
        return command.reply(ResponseCode.SUCCESS, fields=fields, body=kept)

    async def _chosen(self, request: PullMessage) -> str | None:
        if request.sys_flag & SUBSCRIPTION and request.subscription:
            return request.subscription
        key = request.consumer_group, request.topic
        return self._registered.get(key) or await self._named_by_heartbeats(*key)

    async def _named_by_heartbeats(self, group: str, topic: str) -> str | None:
        """The broker hears them, and tells what a group wants."""
        now_s = asyncio.get_running_loop().time()
        name, until_s = self._learnt.get((group, topic), (None, now_s))
        if until_s > now_s:
            return name
        answer = await self._ask(QuerySubscriptionByConsumer(group=group, topic=topic), ASK_S)
        wanted = None
        if answer.code == ResponseCode.SUCCESS:
            wanted = decode_body(GroupSubscription, answer.body).subscription
        name = wanted.expression if wanted is not None and wanted.class_filter else None
        if name is not None:  # one that is not there yet may come with the next heartbeat
            self._learnt[group, topic] = name, now_s + LEARNT_S
            while len(self._learnt) > REGISTERED_MAX:
                self._learnt.popitem(last=False)
        return name


def kept_records(records: Buffer, verdicts: bytes) -> bytes:
    """The records with a verdict of 1."""
    parts: list[bytes] = []
    at = 0
    for verdict in verdicts:
        size = int.from_bytes(records[at : at + SIZE_BYTES])
        if verdict:
            parts.append(bytes(records[at : at + size]))
        at += size
    return b"".join(parts)
