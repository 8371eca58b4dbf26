"""Pipelines run in the test's process, on the session all tests share."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from pyspark.sql import SparkSession

from hotfire.spark.job import Job
from hotfire.spark.progress import BatchFigures, Shown
from hotfire.spark.stopping import Stop


class QuietJob(Job[Any]):
    """Shows no progress: nobody looks on."""

    @contextmanager
    def batch(self, what: str | None = None, *, rows: int | None = None) -> Iterator[BatchFigures]:
        yield BatchFigures(rows)


def run_pipeline(spark: SparkSession, module: ModuleType, **said: Any) -> int:
    """Its exit code; what is wrong with the options is raised before, as for the command."""
    options = module.OPTIONS(**said)
    getattr(module, "check", lambda _: None)(options)
    job = QuietJob(module.__name__.rpartition(".")[2], spark, options, stop=Stop(), shown=Shown())
    code: int = module.run(job)
    return code
