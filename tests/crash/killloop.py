"""A producer that tries again, a consumer group and a broker that dies: who promised what, and what came.

Producers and consumer live in the test's process, so their books outlive every broker. Each producer owns one
queue and has one send under way: it goes on to its next message only when the one before was acknowledged,
whatever it takes, so that the first copies in a queue are in its order. A send whose reply never came is of
unknown outcome and is sent again: each such send may leave one more copy, and nothing else may.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from hotfire.errors import ServiceNotAvailable, Unreachable
from hotfire.model import retry_topic
from hotfire.net.peer import Peer
from hotfire.protocol.batch import BatchMessage, encode_batch
from hotfire.protocol.codes import ResponseCode
from hotfire.protocol.record import Record, iter_records, parse_properties
from hotfire.protocol.requests import (
    ConsumerSendMsgBack,
    HeartBeat,
    QueryConsumerOffset,
    SendBatchMessage,
    SendMessage,
    SendMessageV2,
    UpdateConsumerOffset,
)
from tests.peers.pulling import pull

TOPIC, GROUP, QUEUES = "KillLoop", "KillLoopGroup", 8
DELAY_LEVEL, DELAY_MS = 1, 1000
TIMEOUT_S = 20.0
BATCH_SIZE = 4
SEND_BACK_EVERY = 97
KINDS = {"single": 12, "old": 3, "keyed": 3, "batch": 1, "delayed": 1, "oneway": 1}
"""How often each is chosen; a batch counts as one."""


@dataclass
class Books:
    """What was promised, what is unknown, what was delivered."""

    acknowledged: dict[str, int] = field(default_factory=dict)
    """Each message by its unique id: the moment in milliseconds before which it may not be delivered."""
    messages_sent: set[str] = field(default_factory=set)
    oneway: set[str] = field(default_factory=set)
    """Sent once, without an answer: there once or not at all."""
    oneway_passed: set[str] = field(default_factory=set)
    """Of these, those behind which a send on the same connection was acknowledged: they are there."""
    unknown_copies: int = 0
    """Messages in sends whose reply never came: each of those may have left a copy."""
    kinds: Counter[str] = field(default_factory=Counter)
    delivered: list[tuple[int, int, str]] = field(default_factory=list)
    """Queue, offset, unique id; in the order they came to the consumer."""
    uncovered: int = 0
    """Deliveries behind the offset the broker came back with: those come again."""
    persisted: dict[int, int] = field(default_factory=dict)
    """The group's offset by queue, as the file had it when the broker was dead."""
    sent_back: set[str] = field(default_factory=set)
    unknown_backs: int = 0


class Cluster:
    """Where the broker is, when it is there at all."""

    def __init__(self) -> None:
        self.address: str | None = None
        self._up = asyncio.Event()
        self.stopped = False

    def is_up(self, address: str) -> None:
        self.address = address
        self._up.set()

    def goes_down(self) -> None:
        """To be said before it is killed: nobody dials until it is up again."""
        self._up.clear()

    def stop(self) -> None:
        self.stopped = True
        self._up.set()

    async def connect(self) -> Peer | None:
        """A connection, as soon as there can be one; None when all is over."""
        while True:
            await self._up.wait()
            if self.stopped or self.address is None:
                return None
            try:
                return await Peer.connect(self.address)
            except Unreachable:
                await asyncio.sleep(0.01)  # killed between the word and the call


class KillLoop:
    """Producers and a consumer around one cluster, and the books they keep."""

    def __init__(self, seed: int, *, producers: int = 64, connections: int = 8) -> None:
        self.books = Books()
        self.cluster = Cluster()
        self.seed = seed
        self._producers = producers
        self._connections = connections
        self._progress = asyncio.Condition()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as tasks:
            shares = [range(at, self._producers, self._connections) for at in range(self._connections)]
            for share in shares:
                tasks.create_task(self._produce([Producer(number, self) for number in share]))
            tasks.create_task(self._consume())
            try:
                yield
            finally:
                self.cluster.stop()

    async def acknowledged(self, count: int) -> None:
        async with self._progress:
            await self._progress.wait_for(lambda: len(self.books.acknowledged) >= count)

    async def progressed(self) -> None:
        async with self._progress:
            self._progress.notify_all()

    async def _produce(self, producers: list[Producer]) -> None:
        while not self.cluster.stopped:
            peer = await self.cluster.connect()
            if peer is None:
                return
            async with peer:
                await asyncio.gather(*(producer.run(peer) for producer in producers))

    async def _consume(self) -> None:
        positions: dict[int, int] = {}
        while not self.cluster.stopped:
            peer = await self.cluster.connect()
            if peer is None:
                return
            async with peer:
                try:
                    await Consumer(peer, self.books, positions).run(self.cluster)
                except Unreachable:
                    continue


class Producer:
    """One queue's writer: unique ids `producer-sequence`, one send under way."""

    def __init__(self, number: int, loop: KillLoop) -> None:
        self.number, self.queue_id = number, number % QUEUES
        self._loop = loop
        self._rng = random.Random(loop.seed * 1000 + number)
        self._sequence = itertools.count()
        self._pending: tuple[str, list[str], SendMessage] | None = None
        self._silent: list[str] = []
        """Sent without an answer since the last acknowledgement on this connection."""

    async def run(self, peer: Peer) -> None:
        """Send until the connection breaks or all is over; what was under way is sent again by the next."""
        books = self._loop.books
        self._silent = []
        while not self._loop.cluster.stopped:
            if self._pending is None:
                self._pending = self._next()
            kind, ids, request = self._pending
            try:
                if kind == "oneway":
                    await self._send_silently(peer, ids, request)
                    continue
                await peer.ask(request, TIMEOUT_S)
            except ServiceNotAvailable:
                return  # it is stopping, and has not stored it
            except Unreachable:
                books.unknown_copies += len(ids)
                return
            books.kinds[kind] += 1
            books.oneway_passed.update(self._silent)
            self._silent = []
            due = request.born_timestamp + DELAY_MS if kind == "delayed" else 0
            books.acknowledged.update(dict.fromkeys(ids, due))
            self._pending = None
            await self._loop.progressed()

    async def _send_silently(self, peer: Peer, ids: list[str], request: SendMessage) -> None:
        """Never sent again, so it may not leave a second copy, whatever becomes of the first."""
        self._pending = None
        self._loop.books.oneway.update(ids)
        await peer.invoke_oneway(request)
        self._loop.books.kinds["oneway"] += 1
        self._silent += ids

    def _next(self) -> tuple[str, list[str], SendMessage]:
        (kind,) = self._rng.choices(list(KINDS), list(KINDS.values()))
        ids = [f"{self.number}-{next(self._sequence)}" for _ in range(BATCH_SIZE if kind == "batch" else 1)]
        self._loop.books.messages_sent.update(ids)
        return kind, ids, self._request(kind, ids)

    def _request(self, kind: str, ids: list[str]) -> SendMessage:
        declared = {"old": SendMessage, "batch": SendBatchMessage}.get(kind, SendMessageV2)
        extra = {"keyed": f"KEYS\x01key-{ids[0]}\x02", "delayed": f"DELAY\x01{DELAY_LEVEL}\x02"}.get(kind, "")
        if kind == "batch":
            body = encode_batch(BatchMessage(self._body(), f"UNIQ_KEY\x01{id_}\x02".encode()) for id_ in ids)
            properties = "WAIT\x01true\x02"
        else:
            body, properties = self._body(), f"UNIQ_KEY\x01{ids[0]}\x02{extra}"
        return declared(
            producer_group="killloop",
            topic=TOPIC,
            default_topic="TBW102",
            default_topic_queue_nums=QUEUES,
            queue_id=self.queue_id,
            sys_flag=0,
            born_timestamp=time.time_ns() // 1_000_000,
            flag=0,
            properties=properties,
            batch=kind == "batch",
            body=body,
        )

    def _body(self) -> bytes:
        return self._rng.randbytes(self._rng.randrange(1, 200))


class Consumer:
    """The group's one member: goes on from the offsets the broker knows, commits as it goes."""

    def __init__(self, peer: Peer, books: Books, positions: dict[int, int]) -> None:
        self._peer, self._books, self._positions = peer, books, positions

    async def run(self, cluster: Cluster) -> None:
        await self._peer.invoke(heartbeat(), TIMEOUT_S)
        for queue_id in range(QUEUES):
            await self._resume(queue_id)
        while not cluster.stopped:
            came = [await self._pull(queue_id) for queue_id in range(QUEUES)]
            if not any(came):
                await asyncio.sleep(0.01)

    async def _resume(self, queue_id: int) -> None:
        """Where the broker says that the group is; what came from behind there comes again."""
        known = QueryConsumerOffset(
            consumer_group=GROUP, topic=TOPIC, queue_id=queue_id, set_zero_if_not_found=True
        )
        reply = await self._peer.invoke(known, TIMEOUT_S)
        if reply.code not in (ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND):
            raise Unreachable(f"queue {queue_id}: the broker is stopping")
        offset = int((reply.fields or {}).get("offset", 0)) if reply.code == 0 else 0
        before = self._positions.get(queue_id, 0)
        assert offset <= before, f"queue {queue_id}: the broker says {offset}, only {before} were delivered"
        covered = self._books.persisted.get(queue_id, 0)
        assert offset >= covered, f"queue {queue_id}: the broker says {offset}, {covered} was persisted"
        self._books.uncovered += before - offset
        self._positions[queue_id] = offset

    async def _pull(self, queue_id: int) -> bool:
        offset = self._positions[queue_id]
        reply = await self._peer.invoke(pull(GROUP, TOPIC, queue_id, offset), TIMEOUT_S)
        for record in iter_records(reply.body):
            assert record.queue_offset == self._positions[queue_id], f"queue {queue_id} skips to {record}"
            self._positions[queue_id] += 1
            id_ = unique_id(record)
            self._books.delivered.append((queue_id, record.queue_offset, id_))
            if record.queue_offset % SEND_BACK_EVERY == 0 and id_ not in self._books.sent_back:
                await self._send_back(record, id_)
        if self._positions[queue_id] == offset:
            return False
        commit = UpdateConsumerOffset(
            consumer_group=GROUP, topic=TOPIC, queue_id=queue_id, commit_offset=self._positions[queue_id]
        )
        await self._peer.invoke_oneway(commit)
        return True

    async def _send_back(self, record: Record, id_: str) -> None:
        try:
            await self._peer.ask(
                ConsumerSendMsgBack(
                    offset=record.physical_offset, group=GROUP, delay_level=DELAY_LEVEL, origin_topic=TOPIC
                ),
                TIMEOUT_S,
            )
        except ServiceNotAvailable:
            return
        except Unreachable:
            self._books.unknown_backs += 1
            raise
        self._books.sent_back.add(id_)


def heartbeat() -> HeartBeat:
    subscription = f'{{"topic":"{TOPIC}","subString":"*","tagsSet":[],"codeSet":[],"subVersion":1}}'
    return HeartBeat(
        body=f'{{"clientID":"killloop","producerDataSet":[],"consumerDataSet":[{{"groupName":"{GROUP}",'
        '"consumeType":"CONSUME_PASSIVELY","messageModel":"CLUSTERING","consumeFromWhere":'
        f'"CONSUME_FROM_FIRST_OFFSET","subscriptionDataSet":[{subscription}],"unitMode":false}}]}}'.encode()
    )


def unique_id(record: Record) -> str:
    return parse_properties(record.properties)["UNIQ_KEY"]


async def stored(address: str, topic: str, queues: int) -> list[list[Record]]:
    """Every message of every queue, in order."""
    found: list[list[Record]] = []
    async with await Peer.connect(address) as peer:
        for queue_id in range(queues):
            records: list[Record] = []
            while True:
                reply = await peer.invoke(pull(GROUP, topic, queue_id, len(records)), TIMEOUT_S)
                came = list(iter_records(reply.body))
                if not came:
                    break
                records += came
            found.append(records)
    return found


RETRY_TOPIC = retry_topic(GROUP)
