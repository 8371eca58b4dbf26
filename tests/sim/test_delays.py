"""Delayed messages and power loss: what was acknowledged is delivered, at least once, in order, never early.

A life is a broker on a simulated disk that parks and delivers, loses its power at any operation, starts again
and goes on. Failures name the seed.
"""

from __future__ import annotations

import logging
import random
from collections import Counter

import pytest

from hotfire.broker.broker import Broker
from hotfire.broker.config import BrokerConfig, FlushDiskType
from hotfire.broker.schedule import Schedule
from hotfire.model import TopicConfig
from hotfire.protocol.command import encode
from hotfire.protocol.record import iter_records
from hotfire.store.reading import ReadStatus
from hotfire.store.store import Store
from hotfire.testing import PowerCut, SimDisk
from tests.unit.broker.harness import START_MS, STORE_HOST, FakeConnection, send_request
from tests.unit.store.driven import ring

LADDER_MS = 1000, 2000, 5000
LIVES, CUTS, GUARD_LIVES_MAX = 20, 4, 200
NEVER = 1 << 62


@pytest.fixture(autouse=True)
def quiet() -> object:
    """A thousand unclean starts have much to say, and nothing new."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


class Life:
    """A broker that sends to itself."""

    def __init__(self, seed: int, flush: FlushDiskType) -> None:
        self.rng = random.Random(seed)
        self.seed = seed
        self.config = BrokerConfig(
            broker_name="broker-a",
            store_path_root_dir="/disk",
            mapped_file_size_commit_log=self.rng.choice((8192, 1 << 16)),
            mapped_file_size_consume_queue=200,
            max_hash_slot_num=8,
            max_index_num=20,
            message_delay_level="1s 2s 5s",
            flush_disk_type=flush,
            flush_delay_offset_interval=self.rng.choice((10, 1000)),
            fast_lane_enable=False,
            os_page_cache_busy_time_out_mills=1 << 40,
            wait_time_mills_in_send_queue=1 << 40,
            topics_max=10,
            cluster_topic_enable=False,
            broker_topic_enable=False,
        )
        self.disk = SimDisk(seed)
        self.now_ms = START_MS
        self.sent: list[tuple[bytes, int, int]] = []
        """Body, level and where its parked record ends."""
        self.safe: set[bytes] = set()
        self.tally: Counter[str] = Counter()

    def live(self, cuts: int) -> Counter[str]:
        for _ in range(cuts):
            self.disk.cut_after(self.disk.operations + self.rng.randrange(self.rng.choice((40, 300, 900))))
            try:
                self.open()
                while True:
                    self.act()
            except PowerCut:
                self.tally["cuts"] += 1
            is_kill = self.rng.random() < 0.3
            self.disk = self.disk.kill(self.rng) if is_kill else self.disk.power_cut(self.rng)
        self.disk.cut_after(NEVER)
        self.open()
        for _ in range(130):
            self.tick(50)
        self.check()
        self.disk.switch_off()
        return self.tally

    # --- what it does ---

    def open(self) -> None:
        self.store = Store(self.disk, self.config.store())
        self.store.open()
        self.broker = Broker(self.config, self.store, STORE_HOST, self.now_ms)
        self.tally["copied"] += sum(len(level.copied) for level in self.broker.schedule._levels)
        self.connection = FakeConnection()
        if self.broker.topics.get("T") is None:
            self.broker.topics.put(TopicConfig("T", 1, 1), self.now_ms)
        # what was on its way when the power went may be there or not; what lies behind it never was
        self.sent = [sent for sent in self.sent if sent[2] <= self.store.recovered.end]

    def act(self) -> None:
        self.rng.choice((self.send, self.send, self.turn, lambda: self.tick(self.rng.choice((1, 50, 700)))))()
        if self.rng.random() < 0.01:
            self.broker.close(self.now_ms)
            self.learn()
            self.tally["closed"] += 1
            self.open()

    def send(self) -> None:
        level = self.rng.randrange(1, 4)
        body = b"%d %d %d" % (self.now_ms, LADDER_MS[level - 1], self.rng.getrandbits(60))
        frame = encode(send_request(body=body, named={"DELAY": str(level)}).to_command())
        end = self.store.end
        self.broker.receive(self.connection, memoryview(frame), self.now_ms)
        if self.store.end > end:
            self.sent.append((body, level, self.store.end))

    def turn(self) -> None:
        while self.store.journal.busy or self.store.journal.pending:
            self.broker.turn(self.now_ms)
            ring(self.store.fileno())
            self.broker._turn_done(self.now_ms)
        self.learn()

    def tick(self, ms: int) -> None:
        self.now_ms += ms
        self.broker.tick(self.now_ms)
        if self.rng.random() < 0.7:
            self.turn()
        self.learn()

    def learn(self) -> None:
        self.safe.update(body for body, _, end in self.sent if end <= self.store.flushed_end)

    # --- what came of it ---

    def check(self) -> None:
        found: list[bytes] = []
        offset = 0
        while (read := self.store.read("T", 0, offset, count_max=32, bytes_max=1 << 30)).data:
            assert read.status is ReadStatus.FOUND
            for record in iter_records(read.data):
                sent_ms, delay_ms, _ = map(int, record.body.split())
                early_ms = sent_ms + delay_ms - record.store_timestamp
                assert early_ms <= 0, f"seed {self.seed}: {record.body!r} {early_ms} ms early"
                found.append(record.body)
            offset = read.next_offset
        missing = self.safe - set(found)
        assert not missing, f"seed {self.seed}: {len(missing)} acknowledged and not delivered"
        firsts = list(dict.fromkeys(found))
        for level in (1, 2, 3):
            order = [body for body, of, _ in self.sent if of == level and body in self.safe]
            got = [body for body in firsts if body in set(order)]
            assert got == order, f"seed {self.seed}: level {level} out of order"
        self.tally["delivered"] += len(firsts)
        self.tally["twice"] += len(found) - len(firsts)


@pytest.mark.promise(133)
@pytest.mark.parametrize("flush", FlushDiskType)
def test_power_loss_at_any_point_loses_none_and_brings_none_early(flush: FlushDiskType) -> None:
    """20 lives of four cuts each, by kill or power loss: every safe parked message comes, none too soon."""
    tally: Counter[str] = Counter()
    for seed in range(LIVES):
        tally += Life(seed, flush).live(CUTS)
    assert tally["cuts"] == LIVES * CUTS
    assert tally["delivered"] > 20 * LIVES
    assert tally["copied"] + tally["twice"], "a poor test: no cut fell between a copy and its progress"
    assert tally["closed"]


# --- the tests above notice ---


def hasty_settle(schedule: Schedule) -> None:
    """Progress as soon as a copy is placed."""
    for level in schedule._levels:
        while level.copies:
            level.done = level.copies.popleft()[0]


def hasty_due(schedule: Schedule, level: object, index: int) -> int:
    return 0


@pytest.mark.parametrize(("name", "broken"), [("_settle", hasty_settle), ("_due", hasty_due)])
def test_a_hasty_schedule_is_noticed(monkeypatch: pytest.MonkeyPatch, name: str, broken: object) -> None:
    """Progress before the copy is safe, or delivery before the time: lives like those above fail."""
    monkeypatch.setattr(Schedule, name, broken)
    for seed in range(GUARD_LIVES_MAX):
        life = Life(seed, FlushDiskType.SYNC_FLUSH)
        try:
            life.live(CUTS)
        except AssertionError:
            return
        finally:
            life.disk.switch_off()
    pytest.fail("not noticed")
