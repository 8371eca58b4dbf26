"""Timer messages and power loss: what was acknowledged is delivered once, never early, and not for ever late.

A life is a broker on a simulated disk that parks, takes up, rolls, takes back and delivers, has its clock
set, loses its power at any operation, rests, starts again and goes on. Each step of `DURABLE_STEPS` is
cut at, by kill and by power loss, while handlers park and deliver and while the lane does. Failures name the
seed.
"""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial, partialmethod

import pytest

from hotfire.broker import timing
from hotfire.broker.broker import Broker
from hotfire.broker.config import BrokerConfig, FlushDiskType
from hotfire.broker.timerdelivery import Batch
from hotfire.broker.timers import DURABLE_STEPS, Timers
from hotfire.model import TIMER_TOPIC, TopicConfig
from hotfire.protocol.command import encode
from hotfire.protocol.recall import Handle
from hotfire.protocol.record import Record, iter_records, parse_properties
from hotfire.protocol.requests import RecallMessage
from hotfire.store import timerwheel
from hotfire.store.reading import ReadStatus
from hotfire.store.store import Store
from hotfire.store.tables import Table
from hotfire.store.timercheck import TimerCheckFile
from hotfire.store.timerfiles import TimerFiles
from hotfire.store.timerlog import TimerLog
from hotfire.store.timerwheel import Slot, TimerWheel
from hotfire.testing import PowerCut
from tests.crash.timerdying import step_of
from tests.sim.lanedisk import LaneSpans, ToldDisk, told_disk
from tests.unit.broker.harness import START_MS, STORE_HOST, FakeConnection, send_request
from tests.unit.store.driven import ring

LIVES, CUTS, GUARD_LIVES_MAX = 6, 4, 200
STRUCK_LIVES, STRIKES, STRIKES_MIN = 3, 8, 5
NEVER = 1 << 62
LEAP_MS = 100_000
TICKS, TICKS_MAX = 240, 1200
"""After the last cut: time for what is parked to come."""
RECORDS = "park", "roll", "re-put"
"""Steps that are records of the log; the others:"""
STEPS: dict[str, tuple[type, tuple[str, ...]]] = {
    "log": (TimerLog, ("write",)),
    "wheel": (TimerWheel, ("put", "clear")),
    "checkpoint": (TimerCheckFile, ("write",)),
    "shift": (Table, ("_write",)),
}
"""Where each is done."""
LANE_STEPS = "park", "re-put"
"""Records that the lane places; those that roll are left to handlers."""
OPERATIONS_MAX = 4
"""Of a turn of the log: written, synced, marked, and one behind it."""
SHIFTS_FILE = "config/timerShifts.json"


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Unclean starts have much to say, and nothing new; a wheel of weeks would be most of the time."""
    monkeypatch.setattr(timerwheel, "SLOTS", 512)
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


class Life:
    """A broker that sends to itself."""

    def __init__(
        self,
        seed: int,
        flush: FlushDiskType,
        step: str = "",
        *,
        kills: bool | None = None,
        lane: bool = False,
    ) -> None:
        """With `step`, it ends at operations of that durable step; by kill, by power loss, or by either."""
        self.rng = random.Random(seed)
        self.seed = seed
        self.step = step
        self.kills = kills
        self.config = BrokerConfig(
            broker_name="broker-a",
            store_path_root_dir="/disk",
            mapped_file_size_commit_log=self.rng.choice((8192, 1 << 16)),
            mapped_file_size_consume_queue=200,
            mapped_file_size_timer_log=self.rng.choice((4096, 1 << 16)),
            max_hash_slot_num=8,
            max_index_num=20,
            flush_disk_type=flush,
            timer_flush_interval_ms=self.rng.choice((10, 1000)),
            timer_roll_window_slot=2 if step == "roll" else self.rng.choice((2, 100)),
            recall_message_enable=True,
            fast_lane_enable=lane,
            os_page_cache_busy_time_out_mills=1 << 40,
            wait_time_mills_in_send_queue=1 << 40,
            topics_max=10,
            cluster_topic_enable=False,
            broker_topic_enable=False,
        )
        self.disk: ToldDisk = told_disk(seed, lane=lane)
        self.now_ms = START_MS
        self.sent: list[tuple[bytes, int]] = []
        """Body and where its parked record ends."""
        self.safe: set[bytes] = set()
        self.recalls: list[tuple[bytes, int]] = []
        """What was taken back, and where the recall ends."""
        self.asked_back: set[bytes] = set()
        self.taken_back: set[bytes] = set()
        """Recalls of them are safe, and were stored before their second began."""
        self.leaps: list[int] = []
        """Times at which the clock was set forward, and that was safe."""
        self.order: dict[bytes, int] = {}
        self.tally: Counter[str] = Counter()
        self.strikes = pytest.MonkeyPatch()
        self.is_starting = False
        self.left = 0
        """How many records of the step are handed to the flusher until the process ends at one."""
        self.struck_end = NEVER
        """Of that one."""
        self.is_lanes = False
        """The lane placed it."""

    def live(self, cuts: int) -> Counter[str]:
        for _ in range(cuts):
            self.disk.cut_after(self.disk.operations + self.rng.randrange(self.rng.choice((40, 300, 900))))
            if self.step:
                self.disk.cut_after(NEVER)
            try:
                self.open()
                while True:
                    self.act()
            except PowerCut:
                self.tally["cuts"] += 1
                self.was_cut()
            is_kill = self.rng.random() < 0.3 if self.kills is None else self.kills
            self.now_ms += self.rng.choice((0, 0, 3000, 60_000))
            self.disk = self.disk.kill(self.rng) if is_kill else self.disk.power_cut(self.rng)
            if self.rng.random() < 0.1:  # it follows from the timer log
                self.disk.remove(timerwheel.FILE)
        self.step = ""
        self.disk.cut_after(NEVER)
        self.open()
        for number in range(TICKS_MAX):
            self.tick(50)
            self.disk.finish()
            if number >= TICKS and not self.is_behind():
                break
        self.check()
        self.disk.switch_off()
        return self.tally

    def is_behind(self) -> bool:
        """Seconds that are over are still to be gone through, after many starts that were cut and leaps."""
        timers = self.broker.timers
        return timers.is_used and timers.read_s < self.now_ms // 1000 - 2

    # --- what it does ---

    def open(self) -> None:
        self.strikes.undo()
        self.left, self.struck_end = 0, NEVER
        nth = self.rng.randrange(1, self.rng.choice((3, 30)))
        if self.step in STEPS:  # a start has such steps too
            self.cut_at_step(nth)
        elif self.step:
            self.left = nth
        self.is_starting = True
        self.store = Store(self.disk, self.config.store())
        self.disk.told, self.lanes = self.handed_over, LaneSpans(self.store)
        self.store.open()
        self.broker = Broker(self.config, self.store, STORE_HOST, self.now_ms)
        self.is_starting = False
        assert self.disk.has_lane == self.broker.has_lane
        self.watch_deliveries()
        self.connection = FakeConnection()
        if self.broker.topics.get("T") is None:
            self.broker.topics.put(TopicConfig("T", 1, 1), self.now_ms)
        # what was on its way when the power went may be there or not; what lies behind it never was
        self.sent = [sent for sent in self.sent if sent[1] <= self.store.recovered.end]
        self.recalls = [sent for sent in self.recalls if sent[1] <= self.store.recovered.end]

    def cut_at_step(self, nth: int) -> None:
        """The process ends at the nth time this step begins or is done, or at an operation of it.

        What is stored into a map is no operation, and the process may end between two such stores.
        """
        owner, names = STEPS[self.step]
        seen = 0

        def struck(inner: Callable[..., object], *args: object) -> object:
            nonlocal seen
            seen += self.step != "shift" or getattr(args[0], "_file", "") == SHIFTS_FILE
            if seen != nth:
                return inner(*args)
            seen += 1
            is_behind, later = self.rng.random() < 0.5, self.rng.randrange(8)
            try:
                if later >= 4:  # perhaps at none of its own: then it is not struck
                    self.disk.cut_after(self.disk.operations + later - 4)
                    return inner(*args)
                if is_behind:
                    inner(*args)
                self.disk.cut_after(self.disk.operations)
                raise PowerCut(f"at {self.step}")
            except PowerCut:
                self.tally[self.step] += 1
                self.tally["in a start"] += self.is_starting
                raise

        for name in names:
            self.strikes.setattr(owner, name, partialmethod(partial(struck, getattr(owner, name))))

    def handed_over(self, records: list[Record]) -> None:
        """The flusher has them, whoever placed them; nothing of them is written yet."""
        for record in records:
            if step_of(record) != self.step:
                continue
            self.left -= 1
            if self.left == 0:
                self.disk.cut_after(self.disk.operations + self.rng.randrange(OPERATIONS_MAX))
                self.struck_end = record.physical_offset + record.size
                self.is_lanes = self.lanes.hold(record)

    def was_cut(self) -> None:
        """A record was struck if nobody knew yet that it is safe."""
        if self.struck_end < NEVER and self.store.flushed_end < self.struck_end:
            self.tally[self.step] += 1
            self.tally["of the lane"] += self.is_lanes

    def act(self) -> None:
        self.rng.choice((self.send, self.send, self.turn, lambda: self.tick(self.rng.choice((1, 50, 700)))))()
        if self.rng.random() < 0.1:
            self.recall()
        if self.rng.random() < (0.1 if self.step == "shift" else 0.005):
            self.leap()
        if self.rng.random() < 0.01:
            self.broker.close(self.now_ms)
            self.learn()
            self.tally["closed"] += 1
            self.open()

    def send(self) -> None:
        due = self.now_ms + self.rng.choice((1, 30, 400, 1000, 2345, 7000))
        body = b"%d %d" % (due, self.rng.getrandbits(60))
        named = {"UNIQ_KEY": body.decode().replace(" ", "-")}
        if self.rng.random() < 0.5:
            named["TIMER_DELIVER_MS"] = str(due)
        else:
            named["TIMER_DELAY_MS"] = str(due - self.now_ms)
            self.order[body] = len(self.leaps)
        frame = encode(send_request(body=body, named=named).to_command())
        end = self.store.end
        with self.lanes.noting(lambda: lane.sends if (lane := self.broker.fast.lane) is not None else 0):
            self.broker.receive(self.connection, memoryview(frame), self.now_ms)
        if self.store.end > end:
            self.sent.append((body, self.store.end))

    def watch_deliveries(self) -> None:
        delivery = self.broker.timers.delivery
        copy_by_lane = delivery._copy_by_lane

        def noted(batch: Batch) -> None:
            with self.lanes.noting(lambda: lane.delivered if (lane := delivery.lane) is not None else 0):
                copy_by_lane(batch)

        delivery._copy_by_lane = noted  # type: ignore[method-assign]

    def recall(self) -> None:
        """Take one back; refused when its second has begun."""
        if not self.sent:
            return
        body, _ = self.rng.choice(self.sent)
        handle = Handle(
            "T", "broker-a", timing.out_ms(int(body.split()[0])) + 1, body.decode().replace(" ", "-")
        )
        request = RecallMessage(producer_group="PG", topic="T", recall_handle=handle.encode())
        end = self.store.end
        self.broker.receive(self.connection, memoryview(encode(request.to_command())), self.now_ms)
        if self.store.end > end:
            self.asked_back.add(body)
            self.recalls.append((body, self.store.end))

    def leap(self) -> None:
        """The clock is set forward, and that is on the disk before anything else happens."""
        at_ms = self.now_ms
        self.now_ms += LEAP_MS
        self.broker.clock_moved(LEAP_MS)
        if self.broker.timers.is_used and self.broker.timers.shifts._table.settle():
            self.leaps.append(at_ms)
            self.tally["leaps"] += 1

    def turn(self) -> None:
        while self.store.journal.busy or self.store.journal.pending or self.store.queries.waiting:
            self.broker.turn(self.now_ms)
            if self.store.journal.busy:
                ring(self.store.fileno())
                self.broker._turn_done(self.now_ms)
            self.broker._queries_done(self.now_ms)
        self.learn()

    def tick(self, ms: int) -> None:
        self.now_ms += ms
        self.broker.tick(self.now_ms)
        if self.rng.random() < 0.7:
            self.turn()
        self.learn()

    def learn(self) -> None:
        self.safe.update(body for body, end in self.sent if end <= self.store.flushed_end)
        self.taken_back.update(body for body, end in self.recalls if end <= self.store.flushed_end)

    # --- what came of it ---

    def check(self) -> None:
        found: list[bytes] = []
        offset = 0
        while (read := self.store.read("T", 0, offset, count_max=32, bytes_max=1 << 30)).data:
            assert read.status is ReadStatus.FOUND
            for record in iter_records(read.data):
                early_ms = self.due_ms(record.body) - record.store_timestamp
                assert early_ms <= 0, f"seed {self.seed}: {record.body!r} {early_ms} ms early"
                found.append(record.body)
            offset = read.next_offset
        missing = self.safe - self.asked_back - set(found)
        assert not missing, f"seed {self.seed}: {len(missing)} acknowledged and not delivered"
        twice = [body for body, count in Counter(found).items() if count > 1]
        assert not twice, f"seed {self.seed}: {twice} delivered twice, and all have a unique key"
        back = self.taken_back & set(found)
        assert not back, f"seed {self.seed}: {sorted(back)} taken back and delivered"
        self.tally["delivered"] += len(set(found))
        self.tally["taken back"] += len(self.taken_back)
        self.tally["rolled"] += self.rolled()
        timers = self.broker.timers
        assert timers.position == self.store.queue(TIMER_TOPIC, 0).max, f"seed {self.seed}: not all taken up"

    def due_ms(self, body: bytes) -> int:
        """When it was to come: a delay that is not over ends later by what the clock was set forward."""
        due = int(body.split()[0])
        for at_ms in self.leaps[self.order[body] :] if body in self.order else []:
            due += LEAP_MS if due > at_ms else 0
        return due

    def rolled(self) -> int:
        """Records parked anew."""
        count = offset = 0
        while (read := self.store.read(TIMER_TOPIC, 0, offset, count_max=32, bytes_max=1 << 30)).data:
            for record in iter_records(read.data):
                count += timing.ROLL_TIMES in parse_properties(record.properties)
            offset = read.next_offset
        return count


LANE = pytest.mark.parametrize("lane", [False, True], ids=["handlers", "lane"])


@LANE
@pytest.mark.parametrize("flush", FlushDiskType)
def test_power_loss_at_any_point_loses_none_and_brings_none_early(flush: FlushDiskType, lane: bool) -> None:
    """6 lives of four cuts each, by kill or power loss: every safe message comes, none too soon."""
    tally: Counter[str] = Counter()
    for seed in range(LIVES):
        tally += Life(seed, flush, lane=lane).live(CUTS)
    assert tally["cuts"] == LIVES * CUTS
    assert tally["delivered"] > 15 * LIVES
    assert min(tally[seen] for seen in ("closed", "rolled", "taken back", "leaps")) > 0, f"not seen: {tally}"


@LANE
@pytest.mark.parametrize("kills", [False, True], ids=["power", "kill"])
@pytest.mark.parametrize("step", DURABLE_STEPS)
def test_struck_at_each_durable_step(step: str, kills: bool, lane: bool) -> None:
    """Each step is struck five times at least, by power loss and by kill, and the lane's as often when it did
    them: none lost, early, twice or back.
    """
    tally: Counter[str] = Counter()
    lives = 3 * STRUCK_LIVES if step == "wheel" else STRUCK_LIVES  # starts store into it too, and may be cut
    for seed in range(lives):
        life = Life(1000 + seed, FlushDiskType.SYNC_FLUSH, step, kills=kills, lane=lane)
        tally += life.live(STRIKES)
    assert tally[step] >= STRIKES_MIN, tally
    assert step != "wheel" or tally["in a start"] > 0
    assert not lane or step not in LANE_STEPS or tally["of the lane"] >= STRIKES_MIN, tally


def test_the_tables_name_every_step() -> None:
    """A new durable step needs a place to strike at."""
    assert {*RECORDS, *STEPS} == DURABLE_STEPS.keys()


# --- the tests above notice ---


def hasty_settle(timers: Timers) -> None:
    """Seconds are done with as soon as they are over."""
    while timers.read_s < timers.now_ms // 1000:
        timers.open.pop(timers.read_s, None)
        timers._has_progress = True
        timers.read_s += 1


def hasty_due(named: dict[str, str], stored_ms: int) -> int:
    return int(named["TIMER_OUT_MS"]) + 1


def hasty_repair(files: TimerFiles, start: int, end: int, read_s: int) -> None:
    """Slots that are wrong are emptied first, and filled again unit by unit."""
    files.wheel.make()
    bad = [slot for slot in files.wheel.all() if slot.last >= end]
    for slot in bad:
        files.wheel.clear(slot.time_s)
    for at, unit in files.log.units(min([start, *(max(slot.first, files.log.begin) for slot in bad)]), end):
        head = files.wheel.get(unit.slot)
        if unit.slot >= read_s and (head is None or head.last < at):
            files.wheel.put(Slot(unit.slot, at if head is None else head.first, at, 1))


@pytest.mark.parametrize(
    ("owner", "name", "broken", "step", "lane"),
    [
        (Timers, "_settle", hasty_settle, "", False),
        (Timers, "_settle", hasty_settle, "", True),
        (timing, "parked_due_ms", hasty_due, "", False),
        (TimerFiles, "_repair", hasty_repair, "wheel", False),
    ],
)
def test_hasty_timers_are_noticed(
    monkeypatch: pytest.MonkeyPatch, owner: object, name: str, broken: object, step: str, lane: bool
) -> None:
    """Seconds done with before their copies are safe, delivery before the time, or slots that are empty while
    a start mends them: lives like these fail."""
    monkeypatch.setattr(owner, name, broken)
    for seed in range(GUARD_LIVES_MAX):
        life = Life(seed, FlushDiskType.SYNC_FLUSH, step, lane=lane)
        try:
            life.live(CUTS)
        except AssertionError:
            return
        finally:
            life.strikes.undo()
            life.disk.switch_off()
    pytest.fail("not noticed")
