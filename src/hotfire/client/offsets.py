"""How far each queue is consumed: in memory, kept by brokers (clustering) or in a file here (broadcasting).

An offset is that of the next message to consume. Writing never goes backwards unless it is told to; brokers
are told again every time, changed or not: one that was killed may have forgotten the last seconds.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Literal

from hotfire.client.checks import check_number, check_queue
from hotfire.client.instance import CALL_TIMEOUT_S, ClientInstance
from hotfire.errors import (
    BrokerRefused,
    ConfigError,
    HotfireError,
    NoRoute,
    QueryNotFound,
    RemoteProtocolError,
)
from hotfire.model import MessageQueue
from hotfire.protocol.javajson import loads
from hotfire.protocol.request import Request
from hotfire.protocol.requests import (
    GetMaxOffset,
    GetMinOffset,
    OffsetReply,
    QueryConsumerOffset,
    SearchOffsetByTimestamp,
    UpdateConsumerOffset,
)

log = logging.getLogger("hotfire.client")

DIRECTORY_VARIABLE = "ROCKETMQ_CLIENT_LOCALOFFSETSTOREDIR"
DIRECTORY = ".rocketmq_offsets"
FILE = "offsets.json"

Boundary = Literal["lower", "upper"]


class OffsetStore(ABC):
    """Offsets of one group, by queue."""

    def __init__(self) -> None:
        self._offsets: dict[MessageQueue, int] = {}
        self._frozen: set[MessageQueue] = set()

    def get(self, queue: MessageQueue) -> int | None:
        """What is consumed of the queue as far as this process knows."""
        return self._offsets.get(queue)

    def advance(self, queue: MessageQueue, offset: int) -> None:
        """All before `offset` is consumed; one that is lower than before changes nothing."""
        if offset > self._offsets.get(queue, -1) and not (self._frozen and queue in self._frozen):
            self._offsets[queue] = offset

    def set(self, queue: MessageQueue, offset: int, *, freeze: bool = False) -> None:
        """Go on from `offset`, be it lower; frozen it stays there until the queue is forgotten."""
        if queue not in self._frozen:
            self._offsets[queue] = offset
        if freeze:
            self._frozen.add(queue)

    def forget(self, queue: MessageQueue) -> None:
        """The queue is not ours any more; what is kept elsewhere stays."""
        self._offsets.pop(queue, None)
        self._frozen.discard(queue)

    def of_topic(self, topic: str) -> dict[MessageQueue, int]:
        return {queue: offset for queue, offset in self._offsets.items() if queue.topic == topic}

    @abstractmethod
    async def load(self) -> None:
        """Make ready, before the first read."""

    @abstractmethod
    async def read(self, queue: MessageQueue) -> int | None:
        """What is kept for the queue; None when nothing is. HotfireError when it cannot be known now."""

    @abstractmethod
    async def persist(self, queues: Iterable[MessageQueue]) -> None:
        """Keep the offsets of these. Never raises for the world's sake: it is tried again soon."""


class RemoteOffsets(OffsetStore):
    """Kept by each queue's broker."""

    def __init__(self, instance: ClientInstance, group: str) -> None:
        super().__init__()
        self._instance = instance
        self._group = group

    async def load(self) -> None:
        """Nothing: every offset is asked for when its queue becomes ours."""

    async def read(self, queue: MessageQueue) -> int | None:
        request = QueryConsumerOffset(
            consumer_group=self._group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            broker_name=queue.broker_name,
        )
        try:
            return await ask_offset(self._instance, queue, request)
        except QueryNotFound:
            return None

    async def persist(self, queues: Iterable[MessageQueue]) -> None:
        silent: set[str] = set()
        for queue in queues:
            offset = self._offsets.get(queue)
            if offset is None or queue.broker_name in silent:
                continue
            request = UpdateConsumerOffset(
                consumer_group=self._group,
                topic=queue.topic,
                queue_id=queue.queue_id,
                commit_offset=offset,
                broker_name=queue.broker_name,
            )
            try:
                address = await broker_address(self._instance, queue)
                peer = await self._instance.connection(address, CALL_TIMEOUT_S)
                await peer.invoke_oneway(request, CALL_TIMEOUT_S)
            except HotfireError as error:
                silent.add(queue.broker_name)  # dialling it for each of its queues would hold the others up
                log.warning(
                    "topic=%s queue=%s/%d offset=%d not kept for now: %s",
                    queue.topic, queue.broker_name, queue.queue_id, offset, error,
                )  # fmt: skip


class LocalOffsets(OffsetStore):
    """Kept in a file of this client, as the Java client writes it; the one before stays as `.bak`."""

    def __init__(self, client_id: str, group: str, directory: Path | str | None = None) -> None:
        super().__init__()
        root = Path(directory or os.environ.get(DIRECTORY_VARIABLE) or Path.home() / DIRECTORY)
        self.path = root / client_id / group / FILE
        self._kept: dict[MessageQueue, int] = {}
        """What belongs into the file; replaced as a whole, for it is read in threads."""
        self._written: dict[MessageQueue, int] = {}
        self._writing = threading.Lock()

    async def load(self) -> None:
        """Read the file, or the one before when it is not sound; none at all is a beginning."""
        self._kept = self._written = await asyncio.to_thread(_load, self.path)
        self._offsets.update(self._kept)

    async def read(self, queue: MessageQueue) -> int | None:
        return self._offsets.get(queue, self._kept.get(queue))

    async def persist(self, queues: Iterable[MessageQueue]) -> None:
        kept = {queue: self._offsets[queue] for queue in queues if queue in self._offsets}
        self._kept = self._kept | kept
        if self._kept == self._written:
            return
        try:
            await asyncio.to_thread(self._write_newest)
        except OSError as error:
            log.warning("offsets not kept in %s: %s; tried again soon", self.path, error)

    def _write_newest(self) -> None:
        """In a thread, which ends when it has written, whoever waits for it: so one after the other, and each
        what is true by then."""
        with self._writing:
            kept = self._kept
            if kept != self._written:
                _write(self.path, offsets_json(kept))
                self._written = kept


# --- the file --------------------------------------------------------------------------------------


def offsets_json(offsets: dict[MessageQueue, int]) -> bytes:
    """The file's text: Java's indented JSON, in which a queue is a key."""
    rows = ",".join(
        f'\n\t\t{{\n\t\t\t"brokerName":{_text(queue.broker_name)},\n\t\t\t"queueId":{queue.queue_id},'
        f'\n\t\t\t"topic":{_text(queue.topic)}\n\t\t}}:{offset}'
        for queue, offset in offsets.items()
    )
    end = "\n\t" if rows else ""
    return f'{{\n\t"offsetTable":{{{rows}{end}}}\n}}'.encode()


def _text(value: str) -> str:
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def parse_offsets(data: bytes) -> dict[MessageQueue, int]:
    """The offsets in a file; RemoteProtocolError when it is not one."""
    tree = loads(data)
    table = tree.get("offsetTable") if isinstance(tree, dict) else None
    if not isinstance(table, dict):
        raise RemoteProtocolError("it holds no offsetTable")
    for queue, offset in table.items():
        if not isinstance(queue, MessageQueue) or type(offset) is not int or offset < 0:
            raise RemoteProtocolError(f"offset {offset!r:.40} of {queue!r:.80} is not one of a queue")
    return table


def _load(path: Path) -> dict[MessageQueue, int]:
    problems = []
    for candidate in (path, path.with_name(path.name + ".bak")):
        try:
            data = candidate.read_bytes()
            if data.strip():
                return parse_offsets(data)
        except FileNotFoundError:
            continue
        except (OSError, RemoteProtocolError) as error:
            problems.append(f"{candidate}: {error}")
    if problems:
        raise ConfigError(f"offsets cannot be read: {'; '.join(problems)}; mend or remove the file")
    return {}


def _write(path: Path, data: bytes) -> None:
    """All of it or nothing, whenever the power fails: a whole new file takes the place of the old one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileNotFoundError):
        _replace(path.with_name(path.name + ".bak"), path.read_bytes())
    _replace(path, data)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _replace(path: Path, data: bytes) -> None:
    fresh = path.with_name(path.name + ".tmp")
    with fresh.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)


# --- asking brokers about a queue ------------------------------------------------------------------


async def broker_address(instance: ClientInstance, queue: MessageQueue) -> str:
    """The queue's master, or while there is none any of its brokers."""
    route = await instance.routes.to_read(queue.topic, CALL_TIMEOUT_S)
    address = route.any_address(queue.broker_name)
    if address is None:
        route = await instance.routes.refresh(queue.topic, CALL_TIMEOUT_S)
        address = route.any_address(queue.broker_name)
    if address is None:
        raise NoRoute(f"topic {queue.topic}: broker {queue.broker_name} does not exist any more")
    return address


async def ask_offset(instance: ClientInstance, queue: MessageQueue, request: Request) -> int:
    """The offset in a broker's answer to `request`."""
    deadline = asyncio.get_running_loop().time() + CALL_TIMEOUT_S
    reply = await instance.invoke(await broker_address(instance, queue), request, deadline)
    if reply.code:
        raise BrokerRefused(reply.code, reply.remark or "")
    return OffsetReply.from_command(reply).offset


async def min_offset(instance: ClientInstance, queue: MessageQueue) -> int:
    check_queue(queue)
    request = GetMinOffset(topic=queue.topic, queue_id=queue.queue_id, broker_name=queue.broker_name)
    return await ask_offset(instance, queue, request)


async def max_offset(instance: ClientInstance, queue: MessageQueue) -> int:
    check_queue(queue)
    request = GetMaxOffset(topic=queue.topic, queue_id=queue.queue_id, broker_name=queue.broker_name)
    return await ask_offset(instance, queue, request)


async def offset_at(
    instance: ClientInstance, queue: MessageQueue, timestamp_ms: int, boundary: Boundary = "lower"
) -> int:
    """The first message stored at or after a time; `upper`: the last one not after it."""
    check_queue(queue)
    check_number("timestamp_ms", timestamp_ms)
    if boundary not in ("lower", "upper"):
        raise ConfigError(f"boundary={boundary!r:.60} is neither 'lower' nor 'upper'")
    request = SearchOffsetByTimestamp(
        topic=queue.topic,
        queue_id=queue.queue_id,
        timestamp=timestamp_ms,
        boundary_type=boundary.upper(),
        broker_name=queue.broker_name,
    )
    return await ask_offset(instance, queue, request)
