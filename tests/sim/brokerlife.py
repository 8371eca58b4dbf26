"""One broker after another on a simulated disk: it works, loses its power at any operation, and starts again.

Owns the broker's start, its turns, its ticks and the cuts. What is done in a life, and what must be true when
it is over, is for whoever derives from it: `act` and `check`, and `opened` after each start.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

from hotfire.broker.broker import Broker
from hotfire.broker.config import BrokerConfig, FlushDiskType
from hotfire.model import TopicConfig
from hotfire.protocol.command import encode
from hotfire.protocol.record import Record, iter_records
from hotfire.protocol.requests import Request
from hotfire.store.reading import ReadStatus
from hotfire.store.store import Store
from hotfire.testing import PowerCut
from tests.sim.lanedisk import ToldDisk, told_disk
from tests.unit.broker.harness import START_MS, STORE_HOST, FakeConnection
from tests.unit.store.driven import ring

NEVER = 1 << 62
TICKS_LEFT, TICK_MS = 130, 50
"""After the last cut: time for what is parked to come."""


class BrokerLife:
    """A broker that is sent to by hand. Failures are to name the seed."""

    kill_chance = 0.3
    """How often only the process dies, and the disk keeps what was never synced."""

    def __init__(self, seed: int, flush: FlushDiskType, *, lane: bool = False) -> None:
        self.rng = random.Random(seed)
        self.seed = seed
        made: dict[str, Any] = {
            "broker_name": "broker-a",
            "store_path_root_dir": "/disk",
            "mapped_file_size_commit_log": self.rng.choice((8192, 1 << 16)),
            "mapped_file_size_consume_queue": 200,
            "max_hash_slot_num": 8,
            "max_index_num": 20,
            "flush_disk_type": flush,
            "fast_lane_enable": lane,
            "os_page_cache_busy_time_out_mills": 1 << 40,
            "wait_time_mills_in_send_queue": 1 << 40,
            "topics_max": 10,
            "cluster_topic_enable": False,
            "broker_topic_enable": False,
        }
        self.config = BrokerConfig(**(made | self.settings()))
        self.disk: ToldDisk = told_disk(seed, lane=lane)
        self.now_ms = START_MS
        self.store: Store
        self.broker: Broker
        self.connection: FakeConnection
        self.is_last = False
        """The power stays on from now on."""
        self.tally: Counter[str] = Counter()

    def live(self, cuts: int) -> Counter[str]:
        """So many times the power goes; what happened, counted. The disk is off afterwards, whatever came."""
        try:
            for _ in range(cuts):
                self.disk.cut_after(self.cut_at())
                try:
                    self.open()
                    while True:
                        self.act()
                except PowerCut:
                    self.tally["cuts"] += 1
                    self.was_cut()
                is_kill = self.rng.random() < self.kill_chance
                self.disk = self.disk.kill(self.rng) if is_kill else self.disk.power_cut(self.rng)
            self.disk.cut_after(NEVER)
            self.is_last = True
            self.open()
            for _ in range(TICKS_LEFT):
                self.tick(TICK_MS)
            self.check()
        finally:
            self.disk.switch_off()
        return self.tally

    def open(self) -> None:
        self.store = Store(self.disk, self.config.store())
        self.store.open()
        self.broker = Broker(self.config, self.store, STORE_HOST, self.now_ms)
        assert self.disk.has_lane == self.broker.has_lane
        self.connection = FakeConnection()
        if self.broker.topics.get("T") is None:
            self.broker.topics.put(TopicConfig("T", 1, 1), self.now_ms)
        self.opened()

    # --- what a life is made of ---

    def settings(self) -> dict[str, Any]:
        """Settings of its own."""
        return {}

    def cut_at(self) -> int:
        """The operation the power goes at next."""
        return self.disk.operations + self.rng.randrange(self.rng.choice((40, 300, 900)))

    def opened(self) -> None:
        """The broker has started, for the first time or after a cut."""

    def was_cut(self) -> None:
        """The power went, and the broker is as it was at that moment."""

    def act(self) -> None:
        """One thing someone does."""
        raise NotImplementedError

    def learn(self) -> None:
        """Something may have become safe."""

    def check(self) -> None:
        """All that must be true in the end."""
        raise NotImplementedError

    # --- what it does ---

    def receive(self, request: Request) -> None:
        self.broker.receive(self.connection, memoryview(encode(request.to_command())), self.now_ms)

    def turn(self) -> None:
        store = self.store
        while store.journal.busy or store.journal.pending or store.queries.waiting:
            self.broker.turn(self.now_ms)
            if store.journal.busy:
                ring(store.fileno())
                self.broker._turn_done(self.now_ms)
            if store.queries.waiting:
                self.broker._queries_done(self.now_ms)
        self.learn()

    def tick(self, ms: int) -> None:
        self.now_ms += ms
        self.broker.tick(self.now_ms)
        if self.rng.random() < 0.7:
            self.turn()
        self.learn()

    def reopen(self) -> None:
        """An orderly end, and a start."""
        self.broker.close(self.now_ms)
        self.learn()
        self.tally["closed"] += 1
        self.open()

    # --- what is there ---

    def records(self, topic: str, offset: int = 0) -> list[Record]:
        """All that consumers can get of the topic's first queue, from an offset on."""
        found: list[Record] = []
        while (read := self.store.read(topic, 0, offset, count_max=32, bytes_max=1 << 30)).data:
            assert read.status is ReadStatus.FOUND
            found += iter_records(read.data)
            offset = read.next_offset
        return found
