"""What a task knows of itself: its partition and attempt, and of which batch of which query it is."""

from __future__ import annotations

import gc
import sys
from dataclasses import dataclass
from functools import cache

from pyspark import TaskContext

from hotfire.memory import keep_freed_memory

QUERY_ID, BATCH_ID = "sql.streaming.queryId", "streaming.sql.batchId"


@dataclass(frozen=True, slots=True)
class TaskFacts:
    partition: int = 0
    attempt: int = 0
    query_id: str | None = None
    batch_id: str | None = None

    def __str__(self) -> str:
        return f"partition {self.partition}, attempt {self.attempt}"


def task_facts() -> TaskFacts:
    """Of the task that runs in this process; on the driver there is none."""
    context = TaskContext.get()
    if context is None:
        return TaskFacts()
    return TaskFacts(
        context.partitionId(),
        context.attemptNumber(),
        context.getLocalProperty(QUERY_ID),
        context.getLocalProperty(BATCH_ID),
    )


@cache
def keep_imports() -> None:
    """What one of Spark's workers has imported stays, and so does the memory of its rows: Spark has all of it
    looked through after each task."""
    if getattr(getattr(sys.modules["__main__"], "__spec__", None), "name", None) == "pyspark.daemon":
        gc.collect()
        gc.freeze()
        keep_freed_memory()
