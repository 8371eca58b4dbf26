"""Senders that never give up and remember every acknowledgement; and the reader that counts it all up.

They live in the test's process: what they remember outlives any broker. A send whose reply did not come may
or may not be stored, so it is counted as neither and a new message is sent.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

from hotfire.errors import BrokerRefused, ServiceNotAvailable, SystemBusy, Unreachable
from hotfire.net.peer import Peer
from hotfire.protocol.record import Record, iter_records
from hotfire.protocol.requests import SendMessageV2
from tests.peers.pulling import pull

TOPIC, QUEUES = "Traffic", 4
SEND_TIMEOUT_S = 20.0
RETRY_S = 0.02


class Ack(NamedTuple):
    """What a reply promised."""

    queue_id: int
    queue_offset: int
    physical: int
    body: bytes


class Traffic:
    """So many connections with so many sends in flight on each, until told to stop."""

    def __init__(
        self,
        seed: int,
        *,
        connections: int = 4,
        in_flight: int = 16,
        body_bytes_max: int = 400,
        is_keyed: bool = False,
        is_patient: bool = False,
    ) -> None:
        """`is_keyed` gives each message a key of its own; `is_patient` senders go on after a refusal."""
        self.acks: list[Ack] = []
        self.bodies: set[bytes] = set()
        self.refusals: list[BrokerRefused] = []
        self._is_keyed = is_keyed
        self._is_patient = is_patient
        self._rng = random.Random(seed)
        self._numbers = itertools.count()
        self._connections = connections
        self._in_flight = in_flight
        self._body_bytes_max = body_bytes_max
        self._address: str | None = None
        self._up = asyncio.Event()
        self._stopped = False
        self._progress = asyncio.Condition()

    def broker_is_up(self, address: str) -> None:
        self._address = address
        self._up.set()

    def broker_goes_down(self) -> None:
        """To be said before it is killed: from then on nobody dials until it is up again."""
        self._up.clear()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as group:
            for _ in range(self._connections):
                group.create_task(self._connection())
            try:
                yield
            finally:
                self._stopped = True
                self._up.set()

    async def acknowledged(self, count: int) -> None:
        """Wait until so many sends have been acknowledged in all."""
        async with self._progress:
            await self._progress.wait_for(lambda: len(self.acks) >= count)

    async def refused(self, count: int) -> None:
        """Wait until so many sends have been refused in all."""
        async with self._progress:
            await self._progress.wait_for(lambda: len(self.refusals) >= count)

    async def one_more(self, address: str) -> bool:
        """A single message on a connection of its own; False if it was refused."""
        async with await Peer.connect(address) as peer:
            return await self._send(peer)

    async def _connection(self) -> None:
        while not self._stopped:
            await self._up.wait()
            if self._stopped or self._address is None:
                return
            try:
                async with await Peer.connect(self._address) as peer:
                    await asyncio.gather(*(self._sends(peer) for _ in range(self._in_flight)))
            except Unreachable:
                pass  # killed; whoever starts it again says so

    async def _sends(self, peer: Peer) -> None:
        while not self._stopped:
            await self._send(peer)
            async with self._progress:
                self._progress.notify_all()

    async def _send(self, peer: Peer) -> bool:
        number = next(self._numbers)
        body = b"%d-" % number + self._rng.randbytes(self._rng.randrange(self._body_bytes_max))
        self.bodies.add(body)
        key = f"key-{number}" if self._is_keyed else None
        try:
            reply = await peer.ask(request(self._rng.randrange(QUEUES), body, key), SEND_TIMEOUT_S)
        except (ServiceNotAvailable, SystemBusy) as refusal:
            if not self._is_patient:
                raise
            self.refusals.append(refusal)
            await asyncio.sleep(RETRY_S)
            return False
        assert reply.fields is not None
        said = reply.fields
        physical = int(said["msgId"][-16:], 16)
        self.acks.append(Ack(int(said["queueId"]), int(said["queueOffset"]), physical, body))
        return True


def request(queue_id: int, body: bytes, key: str | None = None, *, wait: bool = True) -> SendMessageV2:
    keys = "" if key is None else f"KEYS\x01{key}\x02"
    waits = "" if wait else "WAIT\x01false\x02"
    return SendMessageV2(
        producer_group="traffic",
        topic=TOPIC,
        default_topic="TBW102",
        default_topic_queue_nums=QUEUES,
        queue_id=queue_id,
        sys_flag=0,
        born_timestamp=1,
        flag=0,
        properties=f"UNIQ_KEY\x017F0000010000\x02{keys}{waits}",
        body=body,
    )


async def read_back(address: str) -> dict[tuple[int, int], Record]:
    """Every message of the topic by queue and offset, pulled as a consumer does, from each queue's first."""
    found: dict[tuple[int, int], Record] = {}
    async with await Peer.connect(address) as peer:
        for queue_id in range(QUEUES):
            offset, end = 0, 1
            while offset < end:
                reply = await peer.invoke(
                    pull("reader", TOPIC, queue_id, offset),
                    SEND_TIMEOUT_S,
                )
                assert reply.fields is not None
                offset = max(offset, int(reply.fields["minOffset"]))  # what was before has left the store
                for record in iter_records(reply.body):
                    assert record.queue_offset == offset, f"queue {queue_id} skips from {offset}"
                    found[queue_id, offset] = record
                    offset += 1
                end = int(reply.fields["maxOffset"])
                assert offset == int(reply.fields["nextBeginOffset"]), reply
    return found


def missing(acks: list[Ack], found: dict[tuple[int, int], Record]) -> list[str]:
    """Acknowledged messages that are not exactly where their reply said."""
    lost = []
    for ack in acks:
        record = found.get((ack.queue_id, ack.queue_offset))
        if record is None:
            lost.append(f"queue {ack.queue_id} offset {ack.queue_offset}: nothing there")
        elif (record.body, record.physical_offset) != (ack.body, ack.physical):
            lost.append(f"queue {ack.queue_id} offset {ack.queue_offset}: another message, {record}")
    return lost
