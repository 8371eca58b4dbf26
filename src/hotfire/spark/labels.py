"""Names of what was begun: a partition leaves its name in a topic before it sends its first row.

Who finds its own name there knows that another attempt has been before, and may have sent some of its rows.
A name also keeps the time that the ids of its rows carry, so that they come out the same the next time.
"""

from __future__ import annotations

import asyncio
import json
import logging
from contextlib import suppress
from dataclasses import dataclass

from hotfire.client.admin import Admin
from hotfire.client.instance import CALL_TIMEOUT_S
from hotfire.client.prepared import PreparedProducer
from hotfire.client.uniques import patiently
from hotfire.errors import HotfireError
from hotfire.model import Message, ReceivedMessage
from hotfire.net.clock import now_ms
from hotfire.protocol.ids import UniqueIds
from hotfire.spark.points import reached
from hotfire.spark.sinkoptions import SinkOptions
from hotfire.spark.task import TaskFacts

log = logging.getLogger("hotfire.spark")

QUEUES = 1
"""On each broker: names are few, and asking takes a question to every queue."""


@dataclass(frozen=True, slots=True)
class Label:
    """A name that was left."""

    id_time: bytes
    """Four bytes, as ids have them."""
    stored_ms: int


class Labels:
    """The names of one task, on the client's loop."""

    def __init__(self, producer: PreparedProducer, options: SinkOptions, facts: TaskFacts) -> None:
        self._producer = producer
        self._options = options
        self._facts = facts
        self._topic: str = options["labelTopic"]
        self._patience_s: float = options["deliveryTimeoutMs"] / 1000

    async def found(self, name: str) -> list[Label]:
        """Those left under this name, oldest first; brokers that were away when it was left get it now."""
        # A broker may have taken a name that its index does not show yet.
        if not await self._producer.uniques(self._topic, self._patience_s).all_shown():
            return []
        messages = await patiently(lambda: self._producer.by_key(self._topic, name), self._patience_s)
        left: dict[bytes, tuple[Label, set[str]]] = {}
        for message in messages:
            if (label := _read(message)) is not None:
                oldest, brokers = left.get(label.id_time, (label, set()))
                oldest = min(oldest, label, key=lambda one: one.stored_ms)
                left[label.id_time] = oldest, {*brokers, message.queue.broker_name}
        for label, brokers in left.values():
            await self._store(name, label, brokers)
        return sorted((label for label, _ in left.values()), key=lambda one: one.stored_ms)

    async def leave(self, name: str) -> Label:
        """Leave the name at every broker, so that it is found while any of them is there."""
        if not await self._producer.uniques(self._topic, self._patience_s).all_shown():
            await patiently(self._make_topic, self._patience_s)
        now = now_ms()
        id_time = (now - UniqueIds(b"", 0, 0).month_ms(now)).to_bytes(4, "big")
        label = Label(id_time, now)
        await self._store(name, label, set())
        reached("sink.label-written")
        return label

    async def _store(self, name: str, label: Label, having: set[str]) -> None:
        """At one queue of each broker that is not among those `having` it.

        All of them: one without the name might be the only one there when it is looked for. A broker that
        has left the route is waited for no longer, and gets it by `found`.
        """
        told = {
            "name": name,
            "idTime": label.id_time.hex(),
            "stored": label.stored_ms,
            "attempt": self._facts.attempt,
        }
        message = Message(self._topic, json.dumps(told).encode(), keys=(name,))
        await patiently(lambda: self._store_missing(message, having), self._patience_s)

    async def _store_missing(self, message: Message, having: set[str]) -> None:
        queues = {queue.broker_name: queue for queue in await self._producer.queues(self._topic)}
        missing = [queue for broker, queue in queues.items() if broker not in having]
        sends = (self._producer.send(message, queue=queue) for queue in missing)
        outcomes = await asyncio.gather(*sends, return_exceptions=True)
        failed = None
        for queue, outcome in zip(missing, outcomes, strict=True):
            if isinstance(outcome, BaseException):
                failed = outcome
                failed.add_note(f"topic {self._topic}: broker {queue.broker_name} did not take a name")
            else:
                having.add(queue.broker_name)
        if failed is not None:
            with suppress(HotfireError):  # then the route we have must do
                await self._producer.refresh(self._topic, CALL_TIMEOUT_S)
            raise failed

    async def _make_topic(self) -> None:
        async with Admin(self._options["nameServers"], tls=self._options["tls"]) as admin:
            await admin.create_topic(self._topic, queues=QUEUES)
        log.info("topic=%s made, for the names of what is written", self._topic)


def _read(message: ReceivedMessage) -> Label | None:
    """The time is that of the first copy: what another broker got later stands for the same rows."""
    try:
        told = json.loads(message.body)
        id_time = bytes.fromhex(told["idTime"])
        stored_ms = min(int(told.get("stored", message.store_timestamp_ms)), message.store_timestamp_ms)
    except (ValueError, KeyError, TypeError, AttributeError):
        id_time, stored_ms = b"", 0
    if len(id_time) != 4:
        log.warning("topic=%s message=%s is no name, and left alone", message.topic, message.message_id)
        return None
    return Label(id_time, stored_ms)
