"""`hotfire up` that kills itself, as kill -9 does, at a named step of a transaction.

    python -m tests.crash.dying STEP MOMENT WHEN LOG up ...

STEP is one of `hotfire.broker.halves.STEPS`. MOMENT is `placed`, with the record in memory alone, or
`written`, with it in the log and nobody told. It dies when that happens for the WHENth time, and writes the
point to LOG first: whoever counts them sees those alone that were met. What the compiled lane has done is
looked at when it returns.
"""

from __future__ import annotations

import os
import select
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from hotfire.broker import halves
from hotfire.broker.offsets import Offsets
from hotfire.broker.transactions import Transactions
from hotfire.cli import main
from hotfire.model import HALF_OP_TOPIC, HALF_TOPIC
from hotfire.protocol.record import Record, SysFlag
from hotfire.store.store import Appended, Store

MOMENTS = ("placed", "written")


def step_of(record: Record) -> str | None:
    if record.topic in (HALF_TOPIC, HALF_OP_TOPIC):
        return "half" if record.topic == HALF_TOPIC else "op"
    return "copy" if record.sys_flag & SysFlag.TRANSACTION_MASK == SysFlag.TRANSACTION_COMMIT else None


class Fate:
    """Counts, and strikes."""

    def __init__(self, step: str, moment: str, when: int, log: str) -> None:
        assert moment in MOMENTS, moment
        self.step, self.moment, self.left, self.log = step, moment, when, Path(log)
        self.by_lane = {"half": 0, "copy": 0}
        """Halves and copies that the lane has placed, and that were counted; nothing else is sent here."""

    def met(self, step: str | None) -> bool:
        self.left -= step == self.step
        return step == self.step and self.left <= 0

    def strike(self, store: Store | None = None) -> None:
        if store is not None and self.moment == "written":
            while store.journal.pending or store.journal.busy:
                store.submit()
                select.select([store.fileno()], [], [], 10)
                store.journal.complete()
        with self.log.open("a") as log:
            log.write(f"{self.step} {self.moment}\n")
        os.kill(os.getpid(), signal.SIGKILL)


def doom(fate: Fate) -> None:
    assert fate.step in halves.STEPS, fate.step
    append, save, served = Store.append_all, Offsets.save_beside, Transactions.lane_has_served

    def append_all(self: Store, records: Sequence[Record], now_ms: int) -> list[Appended]:
        placed = append(self, records, now_ms)
        if fate.met(step_of(records[0])):
            fate.strike(self)
        return placed

    def lane_has_served(self: Transactions, now_ms: int) -> None:
        served(self, now_ms)
        lane = self._broker.fast.lane
        if lane is None:
            return
        for step, count in (("half", lane.sends), ("copy", self.outcomes.places.committed)):
            while fate.by_lane[step] < count:
                fate.by_lane[step] += 1
                if fate.met(step):
                    fate.strike(self._store)

    def save_beside(self: Offsets, now_ms: int) -> bool:
        is_due = self._dirty and self.get(HALF_TOPIC, "CID_RMQ_SYS_TRANS", 0) is not None
        if fate.moment == "placed" and is_due and fate.met("progress"):
            fate.strike()
        saved = save(self, now_ms)
        if fate.moment == "written" and is_due and fate.met("progress"):
            while self._table.is_writing:
                select.select([], [], [], 0.001)
            fate.strike()
        return saved

    Store.append_all = append_all  # type: ignore[method-assign]
    Transactions.lane_has_served = lane_has_served  # type: ignore[method-assign]
    Offsets.save_beside = save_beside  # type: ignore[method-assign]


if __name__ == "__main__":
    doom(Fate(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]))
    sys.exit(main(sys.argv[5:]))
