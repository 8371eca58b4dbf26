"""Ready-made pipelines, and how one is written.

A pipeline is a module here, of the name it is run by, and a line in PIPELINES. It has:

    OPTIONS     a frozen dataclass of `options.option(...)` fields, made from `options.Common` or `Reading`:
                command line, help and the docs' table are all made from it
    CONFS       what it wants of Spark, if anything: `{"spark.sql...": "value"}`
    check       `check(options) -> None`, if there is more to refuse than single values: raises ConfigError.
                Runs before Spark starts, and may ask a broker
    run         `run(job) -> exit code`; `job.spark` is the session, `job.options` the dataclass, filled in

so that the smallest one is

    @dataclass(frozen=True, kw_only=True)
    class Options(Common):
        topic: str = option("the topic to count")

    def run(job: Job[Options]) -> int:
        read = job.spark.read.format("hotfire").options(**job.options.connection())
        with job.batch("counting"):
            count = read.option("subscribe", job.options.topic).load().count()
        print(count)
        return 0

The module is imported for help too, so it imports neither pyspark nor the client at its top: name their
types below `if TYPE_CHECKING:`, and import what is used inside the functions, or put it into a neighbour
module that `run` imports. A test holds every module here to that.

What `job` does for it (`hotfire.spark.job`):

    with job.batch("what", rows=N):     Spark jobs in here are shown as rows, rate and estimated end
    end = job.stream(query, ...)        waits for streaming queries, shows rows, lag, rate, estimated end;
                                        raises what a query failed of; `end.rows`, `end.was_stopped`
    job.say("one line")                 to stderr, without running into the status line
    job.is_stopping                     Ctrl-C or SIGTERM came

Output for programs and pipes goes to stdout by `print`. On Ctrl-C or SIGTERM a stream finishes the batch
under way and `job.stream` returns as if it had ended (exit code 0); Spark jobs of a batch are cancelled,
which raises in `run`, and the frame makes 130 or 143 of it. Errors: raise ConfigError or any HotfireError
with the next step; what Spark raises is told in one line by the frame (`hotfire.spark.run`).
"""

from __future__ import annotations

import importlib
from types import ModuleType

from hotfire.errors import ConfigError

PIPELINES = {
    "archive": "a topic to Parquet, by topic and date, each message once; small files are put together",
    "aggregate": "windows over a topic, counted or summed, to a topic and to Parquet",
    "sql": "a query over topics, archives and stores: a table, CSV or Parquet",
    "replay": "what was stored, sent again: by time, key or condition, at a rate, in order per key",
    "reshard": "a backlog moved to a topic with N times the queues, for N times the consumers; and back",
    "reconcile": "sent, stored, consumed and dead letters held against each other; 1 when one is lost",
    "dlq": "dead letters by kind; a reviewed part of them sent again, once",
    "latency": "born, stored, consumed: how long and how many, by topic, queue and minute; a picture",
}
"""Each is the module of that name here, and what it does."""


def pipeline(name: str) -> ModuleType:
    """The module of a ready-made pipeline; ConfigError tells which there are."""
    if name not in PIPELINES:
        raise ConfigError(
            f"there is no pipeline {name}: {', '.join(PIPELINES)}; or give a job file, which ends in .yml"
        )
    return importlib.import_module(f"hotfire.spark.pipelines.{name}")
