"""`hotfire up` that kills itself, as kill -9 does, at a named durable step of a delay or of a retry.

    python -m tests.crash.doomed KIND STEP MOMENT WHEN REPORT up ...

KIND and STEP are one of `tests.sim.parking.STEPS`. MOMENT is `placed`, before anything of the step is on the
disk, or `written`, with it there and nobody told. It dies when that happens for the WHENth time, and a line
at the end of the file REPORT says where.
"""

from __future__ import annotations

import os
import select
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from hotfire.broker.schedule import Schedule
from hotfire.broker.topics import Topics
from hotfire.cli import main
from hotfire.model import RETRY_PREFIX, TopicConfig
from hotfire.protocol.record import Record
from hotfire.store.store import Appended, Store
from tests.sim.parking import STEPS, TABLES, Step, step_of

MOMENTS = ("placed", "written")
FLUSH_S_MAX = 10


class Doom:
    """Counts, and strikes."""

    def __init__(self, step: Step, moment: str, when: int, report: Path) -> None:
        assert step in STEPS, step
        assert moment in MOMENTS, moment
        self.step, self.moment, self.left, self.report = step, moment, when, report

    def comes(self, step: Step | None) -> bool:
        self.left -= step == self.step
        return step == self.step and self.left <= 0

    def strike(self) -> None:
        with self.report.open("a") as report:
            report.write(f"{' '.join(self.step)}, {self.moment}\n")
        os.kill(os.getpid(), signal.SIGKILL)


def flush(store: Store) -> None:
    """The turn on the disk, and nobody told."""
    while store.journal.pending or store.journal.busy:
        store.submit()
        select.select([store.fileno()], [], [], FLUSH_S_MAX)
        store.journal.complete()


def doom_log(doom: Doom) -> None:
    append = Store.append_all

    def append_all(self: Store, records: Sequence[Record], now_ms: int) -> list[Appended]:
        placed = append(self, records, now_ms)
        if doom.comes(step_of(records[0])):
            if doom.moment == "written":
                flush(self)
            doom.strike()
        return placed

    Store.append_all = append_all  # type: ignore[method-assign]


def doom_progress(doom: Doom) -> None:
    save = Schedule._save_beside

    def save_beside(self: Schedule, now_ms: int) -> None:
        is_due = not self._table.is_writing and self._progress() != self._saved
        strikes = is_due and doom.comes(("delay", "progress"))
        if strikes and doom.moment == "placed":
            doom.strike()
        save(self, now_ms)
        if strikes:
            self._table.settle()
            doom.strike()

    Schedule._save_beside = save_beside  # type: ignore[method-assign]


def doom_topic(doom: Doom) -> None:
    inner = Topics.put

    def put(self: Topics, topic: TopicConfig, now_ms: int) -> TopicConfig:
        is_new = topic.name.startswith(RETRY_PREFIX) and self.get(topic.name) is None
        strikes = is_new and doom.comes(("retry", "send-back"))
        if strikes and doom.moment == "placed":
            doom.strike()
        made = inner(self, topic, now_ms)
        if strikes:
            doom.strike()
        return made

    Topics.put = put  # type: ignore[method-assign]


if __name__ == "__main__":
    chosen: Step = sys.argv[1], sys.argv[2]
    fate = Doom(chosen, sys.argv[3], int(sys.argv[4]), Path(sys.argv[5]))
    {TABLES[0]: doom_progress, TABLES[1]: doom_topic}.get(chosen, doom_log)(fate)
    sys.exit(main(sys.argv[6:]))
