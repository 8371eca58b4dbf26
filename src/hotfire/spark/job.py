"""What a pipeline gets to work with: the session, its options, and someone who shows how far it is.

Streams and batches are watched by polling Spark's own figures a few times a second; batches from a thread,
because the main thread is inside Spark then. A signal is seen the same way.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from hotfire.figures import duration_text
from hotfire.spark.progress import BatchFigures, Shown, StreamFigures, line
from hotfire.spark.stopping import Stop

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

Given = TypeVar("Given")

POLL_S = 0.2
FINISH_S = 30.0
"""How long a batch under way may take to end after a signal before it is given up; Spark does it again."""


@dataclass(frozen=True, slots=True)
class StreamEnd:
    rows: int
    batches: int
    was_stopped: bool


class Job(Generic[Given]):
    """One run of a pipeline."""

    def __init__(self, name: str, spark: SparkSession, options: Given, *, stop: Stop, shown: Shown) -> None:
        self.name = name
        self.spark = spark
        self.options = options
        self._stop = stop
        self._shown = shown
        self._is_streaming = False
        self._has_streamed = False

    def say(self, text: str) -> None:
        self._shown.say(text)

    @property
    def is_stopping(self) -> bool:
        return self._stop.is_asked

    @property
    def exit_code_when_stopped(self) -> int:
        """A stream goes on next time where it was: that is no failure. A batch has to be done again."""
        return 0 if self._has_streamed else self._stop.exit_code

    # --- streams ---------------------------------------------------------------------------------

    def stream(self, *queries: StreamingQuery, what: str | None = None) -> StreamEnd:
        """Wait until the queries have ended or someone wants to stop; raises what one of them failed of.

        The first that fails stops the others: what is written to two places stays together.
        """
        began_s = time.monotonic()
        figures = {query.id: StreamFigures() for query in queries}
        self._is_streaming = self._has_streamed = True
        try:
            while any(query.isActive for query in queries) and not self.is_stopping:
                if any(not query.isActive and query.exception() is not None for query in queries):
                    break
                self._look(queries, figures, what)
                time.sleep(POLL_S)
            if self.is_stopping:
                self.say(
                    f"{what or self.name}: stopping after the batch under way; once more to stop at once"
                )
                self._finish_batches(queries)
            failed = next((error for query in queries if (error := query.exception()) is not None), None)
            for query in queries:
                query.stop()
            self._look(queries, figures, what)
        finally:
            self._is_streaming = False
            self._shown.clear()
        if failed is not None and not self.is_stopping:
            raise failed
        first = next(iter(figures.values()))
        took = duration_text(time.monotonic() - began_s)
        late = f", {first.late:,} came too late and count nowhere" if first.late else ""
        self.say(f"{what or self.name}: {first.rows:,} rows in {first.batches} batches, {took}{late}")
        return StreamEnd(first.rows, first.batches, self.is_stopping)

    def _look(
        self, queries: tuple[StreamingQuery, ...], figures: dict[str, StreamFigures], what: str | None
    ) -> None:
        now_s = time.monotonic()
        for query in queries:
            last = query.lastProgress
            if last is not None and not figures[query.id].has_seen(last):
                for progress in query.recentProgress:
                    figures[query.id].take(progress, now_s)
        # several queries of a pipeline read the same: the slowest one tells
        slowest = max(figures.values(), key=lambda one: one.lag or 0)
        self._shown.status(line(what or self.name, slowest))

    def _finish_batches(self, queries: tuple[StreamingQuery, ...]) -> None:
        """Until each query is between batches, or has begun another one, or it takes too long."""
        deadline_s = time.monotonic() + FINISH_S
        under_way = {query.id: query.status.get("isTriggerActive", False) for query in queries}
        reached = {query.id: _last_batch(query) for query in queries}
        while time.monotonic() < deadline_s:
            waiting = [
                query
                for query in queries
                if under_way[query.id]
                and query.isActive
                and query.status.get("isTriggerActive", False)
                and _last_batch(query) == reached[query.id]
            ]
            if not waiting:
                return
            time.sleep(POLL_S / 4)
        self.say(f"{self.name}: the batch under way took over {FINISH_S:g} s and is done again next time")

    # --- batches -----------------------------------------------------------------------------------

    @contextmanager
    def batch(self, what: str | None = None, *, rows: int | None = None) -> Iterator[BatchFigures]:
        """Spark jobs in here are shown; a signal cancels them. `rows` is how many there will be, if known."""
        figures = BatchFigures(rows)
        ended = threading.Event()
        watching = threading.Thread(
            target=self._watch, args=(what or self.name, figures, ended), name="hotfire-progress", daemon=True
        )
        watching.start()
        try:
            yield figures
        finally:
            ended.set()
            if not self._stop.is_at_once:
                watching.join()
            self._shown.clear()

    def _watch(self, what: str, figures: BatchFigures, ended: threading.Event) -> None:
        from py4j.protocol import Py4JError

        try:
            self._look_on(what, figures, ended)
        except (Py4JError, ConnectionError):
            # Spark's process is gone, and whoever waits for its jobs is told so
            return

    def _look_on(self, what: str, figures: BatchFigures, ended: threading.Event) -> None:
        stages = _Stages(self.spark)
        while not ended.wait(POLL_S):
            if self.is_stopping and not self._is_streaming:
                # again and again: what runs may begin another job before it notices
                self.spark.sparkContext.cancelAllJobs()
                continue
            rows, tasks_done, tasks = stages.look()
            figures.take(rows, tasks_done, tasks, time.monotonic())
            self._shown.status(line(what, figures))


class _Stages:
    """Rows and tasks of the jobs that were begun since this was made, from Spark's own records of itself."""

    def __init__(self, spark: SparkSession) -> None:
        context: Any = spark.sparkContext
        self._tracker = context.statusTracker()
        # rows are told nowhere else; kept also where there is no user interface
        self._store: Any = context._jsc.sc().statusStore()
        self._before = frozenset(self._tracker.getJobIdsForGroup(None))
        self._done: dict[int, int] = {}

    def look(self) -> tuple[int, int, int]:
        """Rows of the stage with the most, read or written; tasks done and tasks of the stages under way."""
        rows = tasks_done = tasks = 0
        active = set(self._tracker.getActiveStageIds())
        for stage_id in self._stage_ids():
            stage_rows = self._done.get(stage_id)
            if stage_rows is None:
                stage_rows = self._rows(stage_id)
                if stage_id not in active and stage_rows:
                    self._done[stage_id] = stage_rows
            rows = max(rows, stage_rows)
            info = self._tracker.getStageInfo(stage_id) if stage_id in active else None
            if info is not None:
                tasks_done += info.numCompletedTasks
                tasks += info.numTasks
        return rows, tasks_done, tasks

    def _stage_ids(self) -> Iterator[int]:
        for job_id in self._tracker.getJobIdsForGroup(None):
            info = self._tracker.getJobInfo(job_id) if job_id not in self._before else None
            if info is not None:
                yield from info.stageIds

    def _rows(self, stage_id: int) -> int:
        from py4j.protocol import Py4JJavaError

        try:
            stage = self._store.lastStageAttempt(stage_id)
        except Py4JJavaError:  # one that was never begun, its result being there already
            return 0
        return max(int(stage.inputRecords()), int(stage.outputRecords()))


def _last_batch(query: StreamingQuery) -> int | None:
    last = query.lastProgress
    return None if last is None else int(last["batchId"])
