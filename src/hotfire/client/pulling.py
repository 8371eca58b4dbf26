"""One pull: which broker of a queue to ask, the request, and what its answer means.

Keeps for each queue the broker id that the last answer suggested. Does not loop, wait or keep offsets: those
who pull have their own rules for that.
"""

from __future__ import annotations

import asyncio
import enum
from dataclasses import dataclass

from hotfire.client.consumersettings import BATCH_BYTES
from hotfire.client.damage import Damage, Damages
from hotfire.client.instance import CALL_TIMEOUT_S, ClientInstance
from hotfire.client.routes import TopicRoute
from hotfire.client.unpacking import unpack_messages
from hotfire.errors import BrokerRefused, NoRoute
from hotfire.model import MessageQueue, ReceivedMessage, Subscription
from hotfire.protocol.codes import ResponseCode
from hotfire.protocol.command import Buffer, Command
from hotfire.protocol.requests import PullMessage, PullReply

BATCH_COUNT = 32
SUSPEND_MS = 15_000
PULL_TIMEOUT_S = 30.0

COMMIT, SUSPEND, SUBSCRIPTION, CLASS_FILTER, LITE = 1, 2, 4, 8, 16
"""Bits of a pull's system flag."""

MASTER_ID = 0
RESET = "OFFSET_RESET"
"""Remark of an answer that moves a group because its offsets were set from outside."""


class PullStatus(enum.Enum):
    """What a broker made of a pull. FOUND may still hold no message, when only hashes of tags were equal."""

    FOUND = ResponseCode.SUCCESS
    NOTHING_NEW = ResponseCode.PULL_NOT_FOUND
    NOTHING_MATCHED = ResponseCode.PULL_RETRY_IMMEDIATELY
    OFFSET_MOVED = ResponseCode.PULL_OFFSET_MOVED
    """The offset asked for is not there; `next_offset` is the nearest one, or where the group was sent."""


_STATUS: dict[int, PullStatus] = {status.value: status for status in PullStatus}


@dataclass(slots=True, frozen=True)
class Pulled:
    """An answer. Offsets are those of the queue at the broker; `bytes` is the size of what came."""

    status: PullStatus
    messages: list[ReceivedMessage]
    next_offset: int
    min_offset: int
    max_offset: int
    bytes: int
    is_reset: bool


@dataclass(slots=True, frozen=True)
class Fetched:
    """An answer as it came: `body` holds stored records one behind the other, of which nothing is checked."""

    status: PullStatus
    body: Buffer
    next_offset: int
    min_offset: int
    max_offset: int


class Puller:
    """Pulls for one group. Any number of queues may be pulled at a time."""

    def __init__(
        self,
        instance: ClientInstance,
        group: str,
        *,
        request: type[PullMessage] = PullMessage,
        count_max: int = BATCH_COUNT,
        bytes_max: int = BATCH_BYTES,
        suspend_ms: int = SUSPEND_MS,
        timeout_s: float = PULL_TIMEOUT_S,
        flags: int = 0,
        passes_damaged: bool = False,
    ) -> None:
        """`flags` go with each request: SUBSCRIPTION sends the expression along, LITE: offsets are ours.

        With `passes_damaged` a message that comes damaged twice is left out; otherwise it is raised.
        """
        self._instance = instance
        self._group = group
        self._request = request
        self._count_max = count_max
        self._bytes_max = bytes_max
        self._suspend_ms = suspend_ms
        self._timeout_s = timeout_s
        self._flags = flags
        self._damages = Damages(group, may_pass=passes_damaged)
        self._suggested: dict[MessageQueue, int] = {}

    @property
    def damaged_count(self) -> int:
        """Messages that were left out."""
        return self._damages.passed_count

    def forget(self, queue: MessageQueue) -> None:
        """The queue is not ours any more."""
        self._suggested.pop(queue, None)
        self._damages.forget(queue)

    async def pull(
        self,
        queue: MessageQueue,
        offset: int,
        wanted: Subscription,
        *,
        commit_offset: int | None = None,
        suspend: bool = True,
        suspend_ms: int | None = None,
        count_max: int | None = None,
        bytes_max: int | None = None,
        timeout_s: float | None = None,
    ) -> Pulled:
        """The messages from `offset` on; with `suspend` the broker waits for some to come.

        `commit_offset` is kept by the broker on the way, if it is the master. Raises HotfireError when there
        is no answer, or one that is not about messages.
        """
        reply = await self._ask(
            queue, offset, wanted, commit_offset, suspend, suspend_ms, count_max, bytes_max, timeout_s
        )
        return self._read(queue, offset, wanted, reply)

    async def fetch(
        self,
        queue: MessageQueue,
        offset: int,
        wanted: Subscription,
        *,
        count_max: int,
        bytes_max: int,
        timeout_s: float | None = None,
    ) -> Fetched:
        """What lies there from `offset` on, not taken apart: for who reads a queue in bulk."""
        reply = await self._ask(queue, offset, wanted, None, False, None, count_max, bytes_max, timeout_s)
        status, fields = self._judge(queue, reply)
        return Fetched(status, reply.body, fields.next_begin_offset, fields.min_offset, fields.max_offset)

    async def _ask(
        self,
        queue: MessageQueue,
        offset: int,
        wanted: Subscription,
        commit_offset: int | None,
        suspend: bool,
        suspend_ms: int | None,
        count_max: int | None,
        bytes_max: int | None,
        timeout_s: float | None,
    ) -> Command:
        timeout_s = self._timeout_s if timeout_s is None else timeout_s
        deadline = asyncio.get_running_loop().time() + timeout_s
        address, is_master = await self._address(queue, timeout_s)
        flags = self._flags
        if wanted.class_filter:
            address, is_master = await self._filter_server(queue, address, timeout_s), False
            flags |= SUBSCRIPTION | CLASS_FILTER
        commits = commit_offset is not None and is_master
        carries = bool(flags & SUBSCRIPTION)
        request = self._request(
            consumer_group=self._group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            queue_offset=offset,
            max_msg_nums=self._count_max if count_max is None else count_max,
            sys_flag=flags | (COMMIT if commits else 0) | (SUSPEND if suspend else 0),
            commit_offset=commit_offset if commit_offset is not None and commits else 0,
            suspend_timeout_millis=(suspend_ms or self._suspend_ms) if suspend else 0,
            subscription=wanted.expression if carries else None,
            sub_version=wanted.version,
            expression_type=wanted.kind,
            max_msg_bytes=self._bytes_max if bytes_max is None else bytes_max,
            broker_name=queue.broker_name,
        )
        return await self._instance.invoke(address, request, deadline)

    def _judge(self, queue: MessageQueue, reply: Command) -> tuple[PullStatus, PullReply]:
        status = _STATUS.get(reply.code)
        if status is None:
            raise BrokerRefused(reply.code, reply.remark or "")
        fields = PullReply.from_command(reply)
        self._suggested[queue] = fields.suggest_which_broker_id
        return status, fields

    def _read(self, queue: MessageQueue, offset: int, wanted: Subscription, reply: Command) -> Pulled:
        status, fields = self._judge(queue, reply)
        messages: list[ReceivedMessage] = []
        next_offset = fields.next_begin_offset
        if status is PullStatus.FOUND:
            # Brokers compare hashes of tags only.
            tags = () if wanted.class_filter else wanted.tags
            damages: list[Damage] = []
            messages = unpack_messages(reply.body, queue, tags, damages)
            if damages:
                messages, next_offset = self._damages.sound(queue, offset, next_offset, messages, damages)
            if messages and messages[0].queue_offset < offset:  # a batch may begin before it
                messages = [message for message in messages if message.queue_offset >= offset]
        return Pulled(
            status,
            messages,
            next_offset,
            fields.min_offset,
            fields.max_offset,
            len(reply.body),
            reply.remark == RESET,
        )

    async def _address(self, queue: MessageQueue, timeout_s: float) -> tuple[str, bool]:
        """Whom to ask, and whether it is the master."""
        routes = self._instance.routes
        broker_id = self._suggested.get(queue, MASTER_ID)
        found = _choose(await routes.to_read(queue.topic, timeout_s), queue, broker_id)
        if found is None:
            found = _choose(await routes.refresh(queue.topic, CALL_TIMEOUT_S), queue, broker_id)
        if found is None:
            raise NoRoute(f"topic {queue.topic}: broker {queue.broker_name} does not exist any more")
        return found

    async def _filter_server(self, queue: MessageQueue, broker_address: str, timeout_s: float) -> str:
        """One of the filter servers of a broker."""
        routes = self._instance.routes
        for route in (await routes.to_read(queue.topic, timeout_s), None):
            known = route or await routes.refresh(queue.topic, CALL_TIMEOUT_S)
            if servers := known.data.filter_servers.get(broker_address):
                return self._instance.rng.choice(servers)
        raise NoRoute(
            f"topic {queue.topic}: broker {queue.broker_name} at {broker_address} has no filter server; "
            "start one beside it with hotfire filtersrv"
        )


def _choose(route: TopicRoute, queue: MessageQueue, broker_id: int) -> tuple[str, bool] | None:
    """The broker of that id; for a slave that is gone the next one; else any."""
    broker = route.broker(queue.broker_name)
    if broker is None or not broker.addresses:
        return None
    ids = [broker_id] if broker_id == MASTER_ID else [broker_id, broker_id + 1]
    chosen = next((one for one in ids if one in broker.addresses), min(broker.addresses))
    return broker.addresses[chosen], chosen == MASTER_ID
