"""The cases of the comparison: what is asked of each server, by name. Owns the shapes of load and no figures.

A case is prepared once for each server and then driven in turns; what it measured is the drivers' word.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Protocol

from bench.drivers import LoadTools, Measured
from bench.rivals import Redis, run_java_producer
from tests.peers import remoting
from tests.peers.apache import ApacheCluster, FlushDiskType
from tests.peers.hotfire import HotfireProcess
from tests.peers.process import poll_until

FLUSHES: dict[str, FlushDiskType] = {"sync": "SYNC_FLUSH", "async": "ASYNC_FLUSH"}
FLUSH_TITLES = {"sync": "synced", "async": "not synced"}
BODY_BYTES = 128
QUEUES = 4  # loadgen's default, and what its first message creates
STORED_TIMEOUT_S = 20.0
QUEUES_WARM_S = 5
BESIDE_FRESH = ("apache", "fresh")
FIRST_RATE_MIN = 50  # a queue's first message makes its directory and its file
_numbers = itertools.count(1)


class Server(Protocol):
    """Anything that is measured: where it listens and which process pays."""

    @property
    def pid(self) -> int: ...
    @property
    def broker(self) -> str: ...


@dataclass(frozen=True)
class Fresh:
    """Another Hotfire with nothing in it, which gets the same load in its plain shape: what the many queues
    or groups of a case cost is the difference."""

    server: HotfireProcess

    @property
    def pid(self) -> int:
        return self.server.pid

    @property
    def broker(self) -> str:
        return self.server.broker


@dataclass(frozen=True)
class Case(ABC):
    """`rivals` beside Hotfire, `fresh` is a `Fresh` one; `pairs_max` where a run is long."""

    name: str
    title: str
    flush: str
    rivals: tuple[str, ...] = ("apache",)
    pairs_max: int = 1 << 30

    def prepare(self, tools: LoadTools, server: Server) -> None:  # noqa: B027  # most need nothing
        """What the server must hold before the first turn."""

    @abstractmethod
    def drive(self, tools: LoadTools, server: Server, seconds: int) -> Measured: ...


@dataclass(frozen=True)
class Send(Case):
    connections: int = 8
    window: int = 64
    body: int = BODY_BYTES

    def prepare(self, tools: LoadTools, server: Server) -> None:
        if isinstance(server, Redis):
            server.calibrate(connections=self.connections, window=self.window, body=self.body)

    def drive(self, tools: LoadTools, server: Server, seconds: int) -> Measured:
        if isinstance(server, Redis):
            return server.add(
                connections=self.connections, window=self.window, body=self.body, seconds=seconds
            )
        topic = f"bench-{next(_numbers)}"
        measured = tools.send(
            server.broker,
            topic,
            connections=self.connections,
            window=self.window,
            body=self.body,
            seconds=seconds,
        )
        if isinstance(server, HotfireProcess | ApacheCluster):
            check_stored(server, topic, measured.acked, in_flight_max=self.connections * self.window)
        return measured


@dataclass(frozen=True)
class Batches(Case):
    connections: int = 8
    window: int = 4
    batch: int = 64

    def drive(self, tools: LoadTools, server: Server, seconds: int) -> Measured:
        topic = f"bench-{next(_numbers)}"
        remoting.create_topic(server.broker, topic, QUEUES)
        measured = tools.send_batches(
            server.broker,
            topic,
            connections=self.connections,
            window=self.window,
            batch=self.batch,
            body=BODY_BYTES,
            seconds=seconds,
            queues=QUEUES,
        )
        check_stored(server, topic, measured.acked, in_flight_max=self.connections * self.window * self.batch)
        return measured


@dataclass(frozen=True)
class Pull(Case):
    """Every reader reads all queues again and again; both servers hold the same number of messages."""

    batch: int = 32
    body: int = 1024
    readers: int = 2
    stored: int = 200_000

    def prepare(self, tools: LoadTools, server: Server) -> None:
        remoting.create_topic(server.broker, self.name, QUEUES)
        tools.fill(server.broker, self.name, count=self.stored, body=self.body, queues=QUEUES)

    def drive(self, tools: LoadTools, server: Server, seconds: int) -> Measured:
        return tools.pull(
            server.broker, self.name, queues=QUEUES, readers=self.readers, batch=self.batch, seconds=seconds
        )


@dataclass(frozen=True)
class Tails(Case):
    """Groups that wait at the end of one queue, a fresh broker's is one; the percentiles are from the sending
    into each group."""

    groups: int = 8
    rate: int = 0
    window: int = 1

    def drive(self, tools: LoadTools, server: Server, seconds: int) -> Measured:
        topic = f"bench-{next(_numbers)}"
        remoting.create_topic(server.broker, topic, 1)
        return tools.tails(
            server.broker,
            topic,
            groups=1 if isinstance(server, Fresh) else self.groups,
            rate=self.rate,
            window=self.window,
            body=BODY_BYTES,
            seconds=seconds,
            first=0,
        )


@dataclass(frozen=True)
class Queues(Case):
    """Topics of many queues, of a fresh broker of few, message by message to the next; each queue has its
    first one already."""

    topics: int = 4
    queues: int = 2500

    def _queues_at(self, server: Server) -> int:
        return QUEUES if isinstance(server, Fresh) else self.queues

    def prepare(self, tools: LoadTools, server: Server) -> None:
        queues = self._queues_at(server)
        for number in range(self.topics):
            remoting.create_topic(server.broker, f"{self.name}-{number}", queues)
        tools.fill(
            server.broker,
            self.name,
            count=self.topics * queues,
            body=BODY_BYTES,
            queues=queues,
            topics=self.topics,
            rate_min=FIRST_RATE_MIN,
        )
        # what ten thousand new files leave to be written belongs to no turn
        self.drive(tools, server, QUEUES_WARM_S)

    def drive(self, tools: LoadTools, server: Server, seconds: int) -> Measured:
        return tools.send_batches(
            server.broker,
            self.name,
            connections=8,
            window=64,
            batch=1,
            body=BODY_BYTES,
            seconds=seconds,
            queues=self._queues_at(server),
            topics=self.topics,
        )


@dataclass(frozen=True)
class JavaProducer(Case):
    """Its first report is of a client still warming: the second is read, but in a run that is a taste."""

    reports: int = 2

    def prepare(self, tools: LoadTools, server: Server) -> None:
        remoting.create_topic(server.broker, self.name, QUEUES)

    def drive(self, tools: LoadTools, server: Server, seconds: int) -> Measured:
        assert isinstance(server, HotfireProcess | ApacheCluster), server
        before = sum(remoting.max_offsets(server.broker, self.name, QUEUES))
        measured = run_java_producer(
            server.directory, server.namesrv, self.name, reports=1 if seconds < 3 else self.reports
        )
        stored = sum(remoting.max_offsets(server.broker, self.name, QUEUES)) - before
        return replace(measured, acked=stored)


def check_stored(server: Server, topic: str, acked: int, *, in_flight_max: int) -> None:
    """A figure counts only if what was acknowledged is there to be read, and no more than was sent."""

    def stored() -> int:
        return sum(remoting.max_offsets(server.broker, topic, QUEUES))

    # Apache derives its queues beside the log: after a burst of batches they are behind for a moment.
    poll_until(lambda: stored() >= acked, what=f"{acked} messages in {topic}", timeout_s=STORED_TIMEOUT_S)
    if (there := stored()) > acked + in_flight_max:
        raise RuntimeError(f"{topic}: {acked} acknowledged, {in_flight_max} in flight, but {there} stored")


def _sends(flush: str) -> list[Case]:
    cases: list[Case] = []
    for connections, window in ((8, 64), (64, 1), (1, 1)):
        redis = ("redis",) if flush == "sync" and connections > 1 else ()
        cases.append(
            Send(
                f"send-{BODY_BYTES}-{connections}x{window}-{flush}",
                f"send {BODY_BYTES} B, {connections} × {window}, {FLUSH_TITLES[flush]}",
                flush,
                ("apache", "floor", *redis),
                connections=connections,
                window=window,
            )
        )
    for body in (1024, 4096):
        title = f"send {body // 1024} KiB, 8 × 64, {FLUSH_TITLES[flush]}"
        cases.append(Send(f"send-{body}-8x64-{flush}", title, flush, body=body))
    cases.append(
        Batches(f"batch-64-{flush}", f"batches of 64 × {BODY_BYTES} B, 8 × 4, {FLUSH_TITLES[flush]}", flush)
    )
    return cases


CASES: tuple[Case, ...] = (
    *_sends("sync"),
    Tails("tails-8", "8 groups at the tail, writer one by one, synced", "sync", BESIDE_FRESH),
    Tails(
        "tails-8-paced",
        "8 groups at the tail, 500 sends/s, synced",
        "sync",
        BESIDE_FRESH,
        rate=500,
        window=16,
    ),
    Queues(
        "queues-10000",
        f"send {BODY_BYTES} B, 8 × 64, synced, 10 000 queues in 4 topics",
        "sync",
        BESIDE_FRESH,
    ),
    *_sends("async"),
    Pull("pull-32", "pull 32 × 1 KiB, 4 queues × 2 readers", "async"),
    Pull("pull-1", "pull 1 × 1 KiB, 4 queues × 2 readers", "async", batch=1),
    JavaProducer("java-producer", "Java benchmark producer, 64 threads, not synced", "async", pairs_max=2),
)
TITLES: dict[str, str] = {
    **{case.name: case.title for case in CASES},
    "backlog-send": f"send {BODY_BYTES} B, 8 × 64, synced, beside a backlog",
    "backlog-tail": "one group at the tail, 500 sends/s, synced, beside a backlog",
    "backlog-drain": f"pull 32 × {BODY_BYTES} B from a backlog's start, in memory, beside its newest",
    "backlog-drain-cold": f"pull 32 × {BODY_BYTES} B from a backlog's start, not in memory",
    "beside-queries": "2000 sends/s, synced, beside 100 askers of key queries",
    "beside-queries-normal": "2000 sends/s, synced, beside 100 askers at the priority of everybody",
    "beside-drain": "2000 sends/s, synced, beside a reader of a cold log",
    "beside-siege": "2000 sends/s, synced, beside 10 000 idle peers, 500 slow readers, 500 half frames",
    "filters-raises": "pull 32 × 200 B through a filter, beside a filter that raises",
    "filters-hangs": "pull 32 × 200 B through a filter, beside a filter that hangs",
    "filters-spins": "pull 32 × 200 B through a filter, beside a filter that hangs and takes a processor",
    "filters-eats": "pull 32 × 200 B through a filter, beside a filter that eats memory",
    "transactions-sync": "transactions of 128 B, half and commit, 8 × 32, synced",
    "transactions-async": "transactions of 128 B, half and commit, 8 × 32, not synced",
    "sql92-pull": "pull 32 × 1 KiB by an SQL92 condition, true of one in ten, 4 queues × 2 readers",
    "key-queries": "queries by topic and key, 32 messages of 256 B each, 8 × 4",
    "timers-intake": "messages of 128 B due in 3 to 8 s, 8 × 64: taken, and delivered to readers",
    "timers-burst": "messages of 128 B, all due at one moment: delivered to readers",
    "client-produce": "client sends 128 B, 512 under way",
    "client-consume": "client's listener gets a backlog of 128 B messages one by one",
    "client-iterate": "client's loop takes a backlog of 128 B messages one by one",
    "client-idle": "from the send to the listener, one message each 10 ms",
    "client-pipeline": "client keeps a synced broker busy, 128 B, 512 under way",
    "spark-store": "Spark reads a store's files, all columns",
    "spark-batch": "Spark reads a topic, 128 B and keys",
    "spark-batch-all": "Spark reads a topic, 128 B and keys, all columns",
    "spark-now": "Spark reads a topic as a stream, AvailableNow",
    "spark-sink": "Spark writes to a topic, 128 B and keys",
    "spark-trigger": "one batch of a stream, 20 000 rows/s",
}
