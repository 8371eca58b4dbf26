"""Power loss at every durable step of delays and of retries: nothing is lost, repeated or early.

A life is a broker with a producer of delayed messages and consumers that fail at all they get, until it is a
dead letter. The power goes at the step the life is about, while that is on its way to the disk. Failures name
the seed.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from hotfire.broker import schedule
from hotfire.broker.config import FlushDiskType
from hotfire.model import DLQ_PREFIX, RETRY_PREFIX, retry_topic
from hotfire.protocol.record import Record
from hotfire.store.store import Appended
from hotfire.testing import PowerCut
from tests.sim.brokerlife import NEVER, BrokerLife
from tests.sim.parking import STEPS, TABLES, Account, Place, Step, send_back, step_of
from tests.unit.broker.harness import send_request

LADDER_MS = 1000, 2000
HITS_MIN, CUTS, LIVES, GUARD_LIVES_MAX = 5, 4, 2, 60
OPERATIONS_MAX = {True: 8, False: 3}
"""Of the write of a table, and of a turn of the log: the power goes at any of them."""


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Hundreds of unclean starts have much to say, and nothing new."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


class Life(BrokerLife):
    """Parks, delivers, fails, and loses its power at one step again and again."""

    kill_chance = 0.0

    def __init__(self, seed: int, flush: FlushDiskType, step: Step, *, lane: bool = False) -> None:
        super().__init__(seed, flush, lane=lane)
        self.step = step
        self.left = 0
        """How often the step comes before the power goes; 0 once it has."""
        self.struck_end = NEVER
        self.placed: list[tuple[int, Place, int]] = []
        """Log end, place and earliest time of all that is parked or a dead letter."""
        self.promised: set[Place] = set()
        self.groups: list[str] = []
        self.offsets: Counter[str] = Counter()

    def settings(self) -> dict[str, Any]:
        period_ms = self.rng.choice((10, 1000))
        return {
            "message_delay_level": "1s 2s",
            "topics_max": 1000,
            "flush_delay_offset_interval": period_ms,
        }

    # --- the step ---

    def cut_at(self) -> int:
        return NEVER

    def opened(self) -> None:
        end = self.store.recovered.end
        self.placed = [one for one in self.placed if one[0] <= end]
        self.struck_end, self.left = NEVER, NEVER if self.is_last else self.rng.randrange(1, 8)
        self._watch_log()
        owner, name = (
            (self.broker.schedule._table, "_write") if self.step == TABLES[0] else (self.broker.topics, "put")
        )
        if self.step in TABLES:
            self._watch_table(owner, name)

    def _watch_log(self) -> None:
        inner = self.store.append_all

        def append_all(records: Sequence[Record], now_ms: int) -> list[Appended]:
            placed = inner(records, now_ms)
            step = step_of(records[0])
            if step in (("delay", "park"), ("retry", "park")):
                due_ms = now_ms + LADDER_MS[records[0].queue_id]
                self.placed.append((placed[-1].end, Place.of(records[0]), due_ms))
            elif step == ("retry", "dead letter"):
                self.placed.append((placed[-1].end, Place.of(records[0]), 0))
            if step == self.step and self._strikes():
                self.struck_end = placed[-1].end
            return placed

        self.store.append_all = append_all  # type: ignore[method-assign]

    def _watch_table(self, owner: object, name: str) -> None:
        inner: Callable[..., Any] = getattr(owner, name)

        def write(*args: Any) -> Any:
            is_retry = self.step == TABLES[0] or args[0].name.startswith(RETRY_PREFIX)
            is_struck = is_retry and self._strikes()
            try:
                return inner(*args)
            except PowerCut:
                self.tally["hits"] += is_struck
                raise

        setattr(owner, name, write)

    def _strikes(self) -> bool:
        self.left -= 1
        if self.left == 0:
            self.disk.cut_after(
                self.disk.operations + self.rng.randrange(OPERATIONS_MAX[self.step in TABLES])
            )
        return self.left == 0

    def was_cut(self) -> None:
        """A hit is a cut while nobody knew yet that the record is safe."""
        self.learn()
        self.tally["hits"] += self.store.flushed_end < self.struck_end < NEVER

    # --- what is done ---

    def act(self) -> None:
        self.rng.choice((self.send, self.fail, self.fail_again, self.turn, self.wait))()
        if self.rng.random() < 0.01:
            self.reopen()

    def send(self) -> None:
        body = b"%x" % self.rng.getrandbits(60)
        named = {"DELAY": str(self.rng.randrange(1, 3)), "UNIQ_KEY": body.decode().upper()}
        self.receive(send_request(body=body, named=named))

    def fail(self) -> None:
        """A group, perhaps a new one, gives one of the last messages back."""
        if not self.groups or self.rng.random() < 0.2:
            self.groups.append(f"G{len(self.groups)}")
        if seen := self.records("T", max(0, self.store.queue("T", 0).max - 5)):
            self._give_back(self.rng.choice(seen), self.rng.choice(self.groups[-3:]))

    def fail_again(self) -> None:
        """A group reads on in its retries, and fails at them all."""
        if not self.groups:
            return
        group = self.rng.choice(self.groups[-3:])
        topic = retry_topic(group)
        # without a sync of each turn, what it has read may be gone
        offset = min(self.offsets[topic], self.store.queue(topic, 0).max)
        for record in self.records(topic, offset):
            self._give_back(record, group)
            offset = record.queue_offset + 1
        self.offsets[topic] = offset

    def _give_back(self, record: Record, group: str) -> None:
        self.receive(send_back(record, group, self.rng.randrange(1, 3)))
        if self.rng.random() < 0.7:
            self.broker._queries_done(self.now_ms)

    def wait(self) -> None:
        self.tick(self.rng.choice((1, 50, 700)))

    def learn(self) -> None:
        self.promised.update(place for end, place, _ in self.placed if end <= self.store.flushed_end)

    # --- what came of it ---

    def check(self) -> None:
        account = Account()
        account.promised = self.promised
        for _, place, due_ms in self.placed:
            account.ask(place, due_ms)
        names = [t.name for t in self.broker.topics if t.name.startswith((RETRY_PREFIX, DLQ_PREFIX))]
        found = [record for name in ("T", *names) for record in self.records(name)]
        try:
            self.tally["found"] += account.settle(found)
        except AssertionError as error:
            raise AssertionError(f"seed {self.seed}, {self.step}: {error}") from None
        self.tally["dead"] += sum(record.topic.startswith(DLQ_PREFIX) for record in found)


@pytest.mark.parametrize("lane", [False, True], ids=["handlers", "lane"])
@pytest.mark.parametrize("flush", FlushDiskType)
@pytest.mark.parametrize("step", STEPS, ids=[" ".join(step) for step in STEPS])
def test_power_loss_at_each_durable_step(step: Step, flush: FlushDiskType, lane: bool) -> None:
    """Five cuts at the step at least: all that was safe comes, once, and none too soon.

    The lane leaves these messages to the handlers; under them lies the compiled journal then.
    """
    tally: Counter[str] = Counter()
    for seed in range(LIVES):
        tally += Life(seed, flush, step, lane=lane).live(CUTS)
    assert tally["hits"] >= HITS_MIN, tally
    assert tally["found"] > LIVES * CUTS, tally


# --- the test above notices ---


def hasty_settle(self: schedule.Schedule) -> None:
    """Progress as soon as a copy is placed."""
    for level in self._levels:
        while level.copies:
            level.done = level.copies.popleft()[0]


def forgetful(self: schedule.Schedule) -> None:
    """Copies made before a crash are not looked for."""


@pytest.mark.parametrize(
    ("name", "broken"),
    [("_settle", hasty_settle), ("_find_copies", forgetful)],
    ids=["progress too soon", "copies not looked for"],
)
def test_a_careless_schedule_is_noticed(monkeypatch: pytest.MonkeyPatch, name: str, broken: object) -> None:
    """Progress before a copy is safe loses, copies that are not looked for repeat: lives like these fail."""
    monkeypatch.setattr(schedule.Schedule, name, broken)
    for seed in range(GUARD_LIVES_MAX):
        try:
            Life(seed, FlushDiskType.ASYNC_FLUSH, ("delay", "progress")).live(CUTS)
        except AssertionError:
            return
    pytest.fail("not noticed")
