"""`hotfire up` that kills itself, as kill -9 does, at a named step of a timer message.

    python -m tests.crash.timerdying HITS STEP MOMENT WHEN up ...

STEP is one of `hotfire.broker.timers.DURABLE_STEPS`, but for the clock's: no test sets that of the machine.
MOMENT is `placed`, with the step in memory alone or not begun, or `written`, with it done and nobody told. It
dies when that happens for the WHENth time, and writes step and moment into the file HITS before. What the
compiled lane has done is looked at when it returns.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

from hotfire.broker import timing
from hotfire.broker.timerdelivery import Batch, Delivery
from hotfire.broker.timers import DURABLE_STEPS
from hotfire.broker.transactions import Transactions
from hotfire.cli import main
from hotfire.model import TIMER_TOPIC
from hotfire.protocol.record import Record, parse_properties
from hotfire.store.store import Appended, Store
from hotfire.store.timercheck import TimerCheckFile
from hotfire.store.timerlog import TimerLog
from hotfire.store.timerwheel import TimerWheel
from tests.crash.dying import Fate

STEPS = tuple(step for step in DURABLE_STEPS if step != "shift")


def step_of(record: Record) -> str | None:
    named = parse_properties(record.properties)
    if record.topic == TIMER_TOPIC:
        return "roll" if timing.ROLL_TIMES in named else "park"
    return "re-put" if timing.OUT_MS in named else None


def doom(fate: Fate) -> None:
    assert fate.step in STEPS, fate.step
    append = Store.append_all

    def append_all(self: Store, records: Sequence[Record], now_ms: int) -> list[Appended]:
        placed = append(self, records, now_ms)
        if fate.met(step_of(records[0])):
            fate.strike(self)
        return placed

    by_lane = {"park": 0, "re-put": 0}
    served, copied = Transactions.lane_has_served, Delivery._copy_by_lane

    def count(store: Store, step: str, done: int) -> None:
        while by_lane[step] < done:
            by_lane[step] += 1
            if fate.met(step):
                fate.strike(store)

    def lane_has_served(self: Transactions, now_ms: int) -> None:
        served(self, now_ms)
        if (lane := self._broker.fast.lane) is not None:  # nothing but timer messages is sent here
            count(self._store, "park", lane.sends)

    def copy_by_lane(self: Delivery, batch: Batch) -> None:
        copied(self, batch)
        if self.lane is not None:
            count(self._store, "re-put", self.lane.delivered)

    Store.append_all = append_all  # type: ignore[method-assign]
    Transactions.lane_has_served = lane_has_served  # type: ignore[method-assign]
    Delivery._copy_by_lane = copy_by_lane  # type: ignore[method-assign]
    steps: list[tuple[str, type, str]] = [
        ("log", TimerLog, "write"), ("wheel", TimerWheel, "put"), ("wheel", TimerWheel, "clear"),
        ("checkpoint", TimerCheckFile, "write"),
    ]  # fmt: skip
    for step, owner, name in steps:
        setattr(owner, name, struck(fate, step, getattr(owner, name)))


def struck(fate: Fate, step: str, inner: Callable[..., Any]) -> Callable[..., Any]:
    """The same, with a kill before it or behind it."""

    def outer(*args: Any) -> Any:
        is_met = fate.met(step)
        if is_met and fate.moment == "placed":
            fate.strike()
        result = inner(*args)
        if is_met:
            fate.strike()
        return result

    return outer


if __name__ == "__main__":
    doom(Fate(sys.argv[2], sys.argv[3], int(sys.argv[4]), sys.argv[1]))
    sys.exit(main(sys.argv[5:]))
