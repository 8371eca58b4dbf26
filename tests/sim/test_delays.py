"""Delayed messages and power loss: what was acknowledged is delivered, at least once, in order, never early.

A life is a broker on a simulated disk that parks and delivers, loses its power at any operation, starts again
and goes on. Failures name the seed.
"""

from __future__ import annotations

import logging
from collections import Counter
from typing import Any

import pytest

from hotfire.broker.config import FlushDiskType
from hotfire.broker.schedule import Schedule
from tests.sim.brokerlife import BrokerLife
from tests.unit.broker.harness import send_request

LADDER_MS = 1000, 2000, 5000
LIVES, CUTS, GUARD_LIVES_MAX = 10, 4, 200
GUARDS_FROM = {"_settle": 97, "_due": 0}
"""The seed at which to begin: one that notices comes soon then."""
SEEDS = sorted({*range(LIVES), *GUARDS_FROM.values()})
"""What is lived here has lives in it that would notice."""


@pytest.fixture(autouse=True)
def quiet() -> object:
    """A thousand unclean starts have much to say, and nothing new."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


class Life(BrokerLife):
    """A broker that sends to itself."""

    def __init__(self, seed: int, flush: FlushDiskType, *, lane: bool = False) -> None:
        super().__init__(seed, flush, lane=lane)
        self.sent: list[tuple[bytes, int, int]] = []
        """Body, level and where its parked record ends."""
        self.safe: set[bytes] = set()

    def settings(self) -> dict[str, Any]:
        period_ms = self.rng.choice((10, 1000))
        return {"message_delay_level": "1s 2s 5s", "flush_delay_offset_interval": period_ms}

    # --- what it does ---

    def opened(self) -> None:
        self.tally["copied"] += sum(len(level.copied) for level in self.broker.schedule._levels)
        # what was on its way when the power went may be there or not; what lies behind it never was
        self.sent = [sent for sent in self.sent if sent[2] <= self.store.recovered.end]

    def act(self) -> None:
        self.rng.choice((self.send, self.send, self.turn, lambda: self.tick(self.rng.choice((1, 50, 700)))))()
        if self.rng.random() < 0.01:
            self.reopen()

    def send(self) -> None:
        level = self.rng.randrange(1, 4)
        body = b"%d %d %d" % (self.now_ms, LADDER_MS[level - 1], self.rng.getrandbits(60))
        end = self.store.end
        self.receive(send_request(body=body, named={"DELAY": str(level)}))
        if self.store.end > end:
            self.sent.append((body, level, self.store.end))

    def learn(self) -> None:
        self.safe.update(body for body, _, end in self.sent if end <= self.store.flushed_end)

    # --- what came of it ---

    def check(self) -> None:
        found: list[bytes] = []
        for record in self.records("T"):
            sent_ms, delay_ms, _ = map(int, record.body.split())
            early_ms = sent_ms + delay_ms - record.store_timestamp
            assert early_ms <= 0, f"seed {self.seed}: {record.body!r} {early_ms} ms early"
            found.append(record.body)
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
@pytest.mark.parametrize("lane", [False, True], ids=["handlers", "lane"])
@pytest.mark.parametrize("flush", FlushDiskType)
def test_power_loss_at_any_point_loses_none_and_brings_none_early(flush: FlushDiskType, lane: bool) -> None:
    """Some ten lives of four cuts, by kill or power loss: every safe parked message comes, none too soon."""
    tally: Counter[str] = Counter()
    for seed in SEEDS:
        tally += Life(seed, flush, lane=lane).live(CUTS)
    assert tally["cuts"] == len(SEEDS) * CUTS
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
    for seed in range(GUARDS_FROM[name], GUARDS_FROM[name] + GUARD_LIVES_MAX):
        try:
            Life(seed, FlushDiskType.SYNC_FLUSH).live(CUTS)
        except AssertionError:
            return
    pytest.fail("not noticed")
