"""Transactions and power loss: what was committed comes once, what was rolled back never, no half is seen.

A life is a broker on a simulated disk with a producer that sends halves, tells some outcomes, loses others
and answers when it is asked; in every third life it is asked once only, and what was laid aside is committed
late or resumed. The power goes at any operation; the broker starts again and goes on. Which step the cut fell
into is what the next start misses first. Failures name the seed.
"""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Iterator

import pytest

from hotfire.broker import halves, transactions
from hotfire.broker.broker import Broker
from hotfire.broker.config import BrokerConfig, FlushDiskType
from hotfire.broker.handlers import transactions as handlers
from hotfire.broker.late import Late
from hotfire.broker.outcomes import Outcomes
from hotfire.model import (
    CHECK_MAX_TIME_TOPIC,
    HALF_OP_TOPIC,
    HALF_TOPIC,
    TRANSACTION_GROUP,
    Heartbeat,
    ProducerData,
    TopicConfig,
)
from hotfire.protocol.bodies import encode_body
from hotfire.protocol.command import encode
from hotfire.protocol.record import Record, iter_records
from hotfire.protocol.requests import (
    CheckTransactionState,
    HeartBeat,
    Request,
    ResumeCheckHalfMessage,
    SendReply,
)
from hotfire.store.store import Store
from hotfire.testing import PowerCut
from hotfire.testing.cuts import Fate, survivors
from hotfire.testing.inodes import File, reachable
from tests.sim.lanedisk import LaneSpans, ToldDisk, told_disk
from tests.unit.broker.harness import START_MS, STORE_HOST, FakeConnection
from tests.unit.broker.transacting import COMMIT, GROUP, ROLLBACK, UNKNOWN, answer, half_request, outcome
from tests.unit.store.driven import ring

LIVES, CUTS, GUARD_LIVES_MAX = 16, 12, 12
SLOW_LIVES = 200
HITS_MIN = 5
"""Power losses, not counting kills, that fell into each step."""
LANE_STEPS = "half", "copy"
"""What the lane places; ops are written at the end of the turn by whoever ends it."""
NEVER = 1 << 62
STEP_OF = {HALF_TOPIC: "half", "T": "copy", HALF_OP_TOPIC: "op", CHECK_MAX_TIME_TOPIC: "aside"}


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Hundreds of unclean starts have much to say, and nothing new."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


class Life:
    """A broker, and a producer that knows how each of its transactions ended."""

    def __init__(self, seed: int, flush: FlushDiskType, *, lane: bool = False) -> None:
        self.rng = random.Random(seed)
        self.seed = seed
        self.lays_aside = seed % 3 == 2
        self.config = BrokerConfig(
            broker_name="broker-a",
            store_path_root_dir="/disk",
            mapped_file_size_commit_log=1 << 17,
            mapped_file_size_consume_queue=2000,
            max_hash_slot_num=8,
            max_index_num=200,
            flush_disk_type=flush,
            flush_consumer_offset_interval=self.rng.choice((10, 500)),
            transaction_time_out=600,
            transaction_check_interval=1500,
            transaction_check_max=1 if self.lays_aside else 1000,
            fast_lane_enable=lane,
            os_page_cache_busy_time_out_mills=1 << 40,
            wait_time_mills_in_send_queue=1 << 40,
            topics_max=20,
            cluster_topic_enable=False,
            broker_topic_enable=False,
        )
        self.disk: ToldDisk = told_disk(seed, lane=lane)
        self.now_ms = START_MS
        self.count = 0
        self.bodies: list[bytes] = []
        self.ends: dict[bytes, int] = {}
        """Body -> how its transaction ended, whoever knows."""
        self.sent: list[tuple[bytes, int]] = []
        self.open_halves: list[tuple[bytes, SendReply]] = []
        self.halves: list[tuple[bytes, SendReply]] = []
        """All of which the producer has heard."""
        self.safe: set[bytes] = set()
        self.appended: list[tuple[int, str, bool]] = []
        """End of each record that was handed to the flusher, its step, and whether the lane placed it."""
        self.broker: Broker = None  # type: ignore[assignment]  # until the first start
        self.progress: tuple[int | None, ...] = ()
        self.kind = "kill"
        self.is_aimed = False
        """The next cut is to leave a copy without its op, if the two lie in different sectors."""
        self.tally: Counter[str] = Counter()
        self.is_sure = False
        """The producer answers every question."""

    def live(self, cuts: int) -> Counter[str]:
        for _ in range(cuts):
            self.disk.cut_after(self.disk.operations + self.rng.randrange(self.rng.choice((60, 100, 300))))
            try:
                self.open()
                while True:
                    self.act()
            except PowerCut:
                self.tally["cuts"] += 1
                self.progress = self.kept()
            self.kind = "kill" if self.rng.random() < 0.3 and not self.is_aimed else "loss"
            if self.is_aimed:
                self.disk = self.without_the_last_sector()
            else:
                self.disk = self.disk.kill(self.rng) if self.kind == "kill" else self.disk.power_cut(self.rng)
            self.is_aimed = False
        self.disk.cut_after(NEVER)
        self.open()
        self.is_sure = True
        for _ in range(80):
            self.tick(100)
        for kept in self.laid_aside():
            for _ in range(2):
                self.receive(ResumeCheckHalfMessage(msg_id=kept.message_id))
        for _ in range(30):
            self.tick(100)
        self.check()
        self.disk.switch_off()
        return self.tally

    def open(self) -> None:
        self.store = Store(self.disk, self.config.store())
        self.store.open()
        end = self.store.recovered.end
        lost = [step for at, step, _ in self.appended if at > end]
        if lost:
            self.tally[f"{lost[0]} by {self.kind}"] += 1
            is_lanes = next(is_lanes for at, _, is_lanes in self.appended if at > end)
            self.tally[f"{lost[0]} of the lane by {self.kind}"] += is_lanes
            self.tally[f"some aside by {self.kind}"] += "aside" in lost
        self.appended = [one for one in self.appended if one[0] <= end]
        if lost and lost[0] == "op" and self.appended and self.appended[-1][1] == "copy":
            self.tally["copies without their op"] += 1
        self.sent = [one for one in self.sent if one[1] <= end]
        self.broker = Broker(self.config, self.store, STORE_HOST, self.now_ms)
        if self.progress and self.kept() != self.progress:
            self.tally[f"progress by {self.kind}"] += 1
        self.progress = ()
        assert self.disk.has_lane == self.broker.has_lane
        self.disk.told, self.lanes = self.handed_over, LaneSpans(self.store)
        self.connection = FakeConnection()
        if self.broker.topics.get("T") is None:
            self.broker.topics.put(TopicConfig("T", 1, 1), self.now_ms)
        self.receive(HeartBeat(body=encode_body(Heartbeat("c", (ProducerData(GROUP),)))))

    def handed_over(self, records: list[Record]) -> None:
        """The flusher has them, whoever placed them; nothing of them is written yet."""
        self.appended += [
            (one.physical_offset + one.size, STEP_OF[one.topic], self.lanes.hold(one)) for one in records
        ]

    def kept(self) -> tuple[int | None, ...]:
        if self.broker is None:
            return ()
        return tuple(
            self.broker.offsets.get(topic, TRANSACTION_GROUP, 0) for topic in (HALF_TOPIC, HALF_OP_TOPIC)
        )

    # --- what it does ---

    def receive(self, request: Request, *, oneway: bool = False) -> None:
        frame = encode(request.to_command(oneway=oneway, opaque=self.count))
        with self.lanes.noting(self.served_by_lane):
            self.broker.receive(self.connection, memoryview(frame), self.now_ms)

    def served_by_lane(self) -> int:
        lane = self.broker.fast.lane
        return 0 if lane is None else lane.sends + self.broker.transactions.outcomes.places.committed

    def act(self) -> None:
        tick = lambda: self.tick(self.rng.choice((1, 50, 400)))  # noqa: E731
        self.rng.choice((self.send, self.send, self.tell, self.tell, self.turn, tick))()
        if self.rng.random() < 0.03:
            self.rng.choice((self.strike, self.strike, self.hold))()
        if self.lays_aside and self.rng.random() < 0.04:
            self.rng.choice((self.resume, self.strike_aside))()
        if self.rng.random() < 0.01:
            self.set_clock()
        if self.rng.random() < 0.01:
            self.broker.close(self.now_ms)
            self.learn()
            self.tally["closed"] += 1
            self.open()

    def send(self) -> None:
        self.count += 1
        # what a copy and its op are torn apart by lies between two sectors of the disk
        body = b"%-*d" % (self.rng.choice((1, 1, 700, 5000)), self.count)
        self.bodies.append(body)
        self.ends[body] = self.rng.choice((COMMIT, ROLLBACK))
        end = self.store.end
        self.receive(half_request(self.count, body))
        if self.store.end > end:
            self.sent.append((body, self.store.end))

    def tell(self) -> None:
        """The end of some transaction, once, twice, late, or never."""
        if self.halves and self.rng.random() < 0.2:
            latest = self.halves[
                -self.rng.choice((4, len(self.halves))) :
            ]  # what a cut may have torn apart, too
            body, half = self.rng.choice(latest)
            self.receive(outcome(half, self.ends[body]), oneway=True)
        if not self.open_halves:
            return
        body, half = self.open_halves.pop(self.rng.randrange(len(self.open_halves)))
        kind = self.rng.choice((self.ends[body], self.ends[body], UNKNOWN, None))
        if kind is not None:
            self.receive(outcome(half, kind), oneway=True)
            if self.rng.random() < 0.2:
                self.open_halves.append((body, half))

    def strike(self) -> None:
        """The power goes while a turn of one commit alone is written."""
        self.turn()
        commits = [one for one in self.open_halves if self.ends[one[0]] == COMMIT]
        if commits:
            self.receive(outcome(self.rng.choice(commits)[1], COMMIT), oneway=True)
            self.is_aimed = self.rng.random() < 0.5
            self.disk.cut_after(self.disk.operations + (1 if self.is_aimed else self.rng.randrange(3)))
            self.turn()
            self.is_aimed = False

    def without_the_last_sector(self) -> ToldDisk:
        """The disk as the power leaves it when all was written but the end of the log: there an op begins."""
        disk = self.disk
        disk.system.notice()
        files = [node for node in reachable(disk.system.root) if isinstance(node, File) and node.sectors]
        fate = Fate(disk.system.root, disk.operations, self.rng, "kept")
        log = [file for file in files if len(file.data) == self.config.mapped_file_size_commit_log]
        if log:
            fate._kind, fate._chosen = "one lost", (log[-1], max(log[-1].sectors))
        after = type(disk)(self.rng.getrandbits(32), survivors(disk.system.root, fate))
        disk.switch_off()
        return after

    def strike_aside(self) -> None:
        """The power goes while something that is laid aside is written."""
        before = self.broker.transactions.laid_aside
        for _ in range(6):
            self.turn()
            self.now_ms += 400
            self.broker.tick(self.now_ms)
            if self.broker.transactions.laid_aside > before:
                self.disk.cut_after(self.disk.operations + self.rng.randrange(3))
                self.turn()

    def hold(self) -> None:
        """The power goes when the log has waited for the disk while the tables were written."""
        self.turn()
        for _ in range(len(self.open_halves)):
            self.tell()
        for _ in range(3):
            self.now_ms += 600
            self.broker.tick(self.now_ms)
        self.disk.cut_after(self.disk.operations)
        self.turn()

    def resume(self) -> None:
        """Ask again about something that was laid aside, perhaps twice."""
        if kept := self.laid_aside():
            for _ in range(self.rng.choice((1, 2))):
                self.receive(ResumeCheckHalfMessage(msg_id=self.rng.choice(kept).message_id))
            self.tally["resumed"] += 1

    def set_clock(self) -> None:
        """Mostly back: who waited for it to catch up would not be done when the life is."""
        by_ms = self.rng.choice((-600_000, -600_000, -3_000, 3_000, 600_000))
        self.now_ms += by_ms
        self.broker.clock_moved(by_ms)
        self.tally["clocks set"] += 1

    def turn(self) -> None:
        store = self.store
        while store.journal.busy or store.journal.pending or self.broker.wants_turn:
            self.broker.turn(self.now_ms)
            if store.journal.busy:
                ring(store.fileno())
                self.broker._turn_done(self.now_ms)
        while store.queries.waiting:
            ring(store.queries.fileno())
            self.broker._queries_done(self.now_ms)
        self.learn()
        self.hear()

    def tick(self, ms: int) -> None:
        self.now_ms += ms
        self.broker.tick(self.now_ms)
        if self.rng.random() < 0.7:
            self.turn()
        self.learn()
        self.see()

    def hear(self) -> None:
        """Replies and questions; a producer does not always know."""
        for frame in self.connection.take():
            if frame.is_response and frame.fields and "transactionId" in frame.fields:
                reply = SendReply.from_command(frame)
                number = int(str(reply.transaction_id)[-16:], 16)
                self.open_halves.append((self.bodies[number - 1], reply))
                self.halves.append(self.open_halves[-1])
            elif frame.code == CheckTransactionState.code and not frame.is_response:
                question = CheckTransactionState.from_command(frame)
                (shown,) = iter_records(question.body)
                self.tally["asked"] += 1
                if self.is_sure or self.rng.random() < (0.5 if self.lays_aside else 0.8):
                    self.receive(answer(question, self.ends[shown.body]), oneway=True)

    def learn(self) -> None:
        self.safe.update(body for body, end in self.sent if end <= self.store.flushed_end)

    # --- what came of it ---

    def records(self, topic: str) -> list[Record]:
        found: list[Record] = []
        while (read := self.store.read(topic, 0, len(found), count_max=32, bytes_max=1 << 30)).data:
            found.extend(iter_records(read.data))
        return found

    def visible(self) -> list[bytes]:
        return [record.body for record in self.records("T")]

    def laid_aside(self) -> list[Record]:
        return self.records(CHECK_MAX_TIME_TOPIC)

    def see(self) -> None:
        if self.rng.random() < 0.05:
            for body in self.visible():
                assert self.ends[body] == COMMIT, f"seed {self.seed}: {body!r} was rolled back and is seen"

    def check(self) -> None:
        found = Counter(self.visible())
        wrong = [body for body in found if self.ends[body] != COMMIT]
        assert not wrong, f"seed {self.seed}: rolled back and delivered {wrong}"
        twice = [body for body, count in found.items() if count > 1]
        assert not twice, f"seed {self.seed}: delivered twice {twice}"
        missing = {body for body in self.safe if self.ends[body] == COMMIT} - found.keys()
        assert not missing, f"seed {self.seed}: committed and not delivered {missing}"
        self.tally["delivered"] += len(found)
        aside = {record.body for record in self.laid_aside()}
        self.tally["delivered after they were laid aside"] += len(aside & found.keys())


def lived(seeds: range, flush: FlushDiskType, *, lane: bool) -> Counter[str]:
    tally: Counter[str] = Counter()
    for seed in seeds:
        tally += Life(seed, flush, lane=lane).live(CUTS)
    assert tally["cuts"] == len(seeds) * CUTS
    steps = [f"{step} by loss" for step in (*halves.STEPS, "some aside")]
    if lane:
        steps += [f"{step} of the lane by loss" for step in LANE_STEPS]
    assert {step: tally[step] for step in steps if tally[step] < HITS_MIN} == {}, tally
    assert tally["delivered after they were laid aside"] > len(seeds) // 3, tally
    return tally


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("flush", FlushDiskType)
def test_more_power_losses(flush: FlushDiskType) -> None:
    """The same, for longer."""
    for lane in (False, True):
        lived(range(LIVES, LIVES + SLOW_LIVES), flush, lane=lane)


@pytest.mark.parametrize("lane", [False, True], ids=["handlers", "lane"])
@pytest.mark.parametrize("flush", FlushDiskType)
def test_power_loss_at_every_step_loses_none_and_repeats_none(flush: FlushDiskType, lane: bool) -> None:
    """Power lost before half, copy, op, progress and one laid aside are safe, five times each or more, and
    as often before the lane's halves, and its copies.
    """
    tally = lived(range(LIVES), flush, lane=lane)
    assert tally["delivered"] > 5 * LIVES, tally
    assert tally["asked"] > 5 * LIVES, tally
    assert tally["closed"], tally
    assert tally["clocks set"], tally


# --- the test above notices ---


def hasty_settle(self: Outcomes) -> None:
    """Progress as soon as an outcome is placed."""
    while self._marks:
        half, op, _ = self._marks.popleft()
        self._offsets.commit(HALF_TOPIC, TRANSACTION_GROUP, 0, half)
        self._offsets.commit(HALF_OP_TOPIC, TRANSACTION_GROUP, 0, op)


def forgetful(look: object, record: Record) -> transactions.Fate:
    """Nothing of former lives is looked up."""
    return transactions.Fate(newest=record.queue_offset)


def unaware(self: Late, of: halves.Identity, fate: transactions.Fate) -> transactions.Fate:
    """What was placed since the log was asked does not count."""
    return fate


def waiting(self: transactions.Transactions, offset: int) -> int:
    """Halves count from the clock, wherever it is."""
    return self._now_ms


@pytest.mark.parametrize("lane", [False, True], ids=["handlers", "lane"])
@pytest.mark.parametrize(
    "broken",
    [
        [(Outcomes, "settle", hasty_settle)],
        [(transactions, "look_up", forgetful)],
        [(transactions, "look_up", forgetful), (handlers, "look_up", forgetful)],
        [(Late, "corrected", unaware)],
        [(transactions.Transactions, "_came_ms", waiting)],
    ],
    ids=["settle", "look_up", "look_up at all", "late", "clock"],
)
def test_hasty_transactions_are_noticed(
    monkeypatch: pytest.MonkeyPatch, broken: list[tuple[object, str, object]], lane: bool
) -> None:
    """Progress before it is safe, copies not looked for, a clock waited for: such lives fail soon."""
    for owner, name, instead in broken:
        monkeypatch.setattr(owner, name, instead)
    for seed in range(GUARD_LIVES_MAX):
        life = Life(seed, FlushDiskType.SYNC_FLUSH, lane=lane)
        try:
            life.live(CUTS)
        except AssertionError:
            return
        finally:
            life.disk.switch_off()
    pytest.fail("not noticed")
