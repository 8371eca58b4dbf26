"""A pipeline from its command line to its exit code: `python -m hotfire.spark.run NAME|job.yml [options]`.

`hotfire pipeline run` is the same thing, and so is `spark-submit .../hotfire/spark/run.py NAME|job.yml`;
`--where` prints the file to hand to spark-submit. What is wrong with options or job file is told before Spark
starts. Owns the order of things, and how an error looks: one line on stderr.

    0    done; or a stream that was asked to stop, and did
    1    could not be done
    2    wrong usage
    130  a batch interrupted by Ctrl-C, 143 by SIGTERM; so is what had not begun, or was asked to stop twice
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if __name__ == "__main__":
    # As a script our own folder is where modules are looked for first: its `progress` or `options` would
    # be taken for someone else's.
    sys.path[:] = [place for place in sys.path if Path(place or ".").resolve() != Path(__file__).parent]

from hotfire.errors import ConfigError, HotfireError
from hotfire.spark.pipelines import PIPELINES, pipeline
from hotfire.spark.pipelines.options import Common, parse

if TYPE_CHECKING:
    from hotfire.spark.job import Job
    from hotfire.spark.progress import Shown
    from hotfire.spark.stopping import Stop

EXIT_FAILED, EXIT_USAGE, EXIT_INTERRUPTED = 1, 2, 130
JOB_FILES = (".yml", ".yaml")
_OURS = re.compile(r"\bhotfire\.errors\.\w+: (.+)")
_TOLD_MAX = 600


@dataclass(frozen=True)
class Plan:
    """What is to be run, understood and checked."""

    name: str
    options: Common
    confs: Mapping[str, str]
    run: Callable[[Job[Any]], int]


def main(argv: Sequence[str] | None = None, *, prog: str = "hotfire pipeline run") -> int:
    """The whole of it; for a command of its own, errors are told here."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words == ["--where"]:
        sys.stdout.write(f"{Path(__file__).resolve()}\n")
        return 0
    if not words or words[0].startswith("-"):
        names = ", ".join(PIPELINES)
        sys.stderr.write(f"usage: {prog} NAME|job.yml [options]\nNAME is one of {names}; each has --help\n")
        return 0 if words and words[0] in ("-h", "--help") else EXIT_USAGE
    try:
        return execute(understood(words[0], words[1:], prog=prog))
    except HotfireError as error:
        tell(error, prog)
        return EXIT_FAILED


def understood(what: str, words: Sequence[str], *, prog: str = "hotfire pipeline run") -> Plan:
    """Options or job file read and checked, without Spark; ConfigError says what is wrong with them."""
    if what.endswith(JOB_FILES):
        from hotfire.spark import jobrun

        return Plan(*jobrun.understood(what, words, prog=f"{prog} {what}"))
    module = pipeline(what)
    options = parse(module.OPTIONS, words, prog=f"{prog} {what}", says=PIPELINES[what])
    check: Callable[[Any], None] = getattr(module, "check", lambda _: None)
    check(options)
    return Plan(what, options, getattr(module, "CONFS", {}), module.run)


def tell(error: HotfireError, prog: str) -> None:
    """One line; of a job file one for each mistake."""
    for line in getattr(error, "mistakes", (str(error),)):
        sys.stderr.write(f"{prog}: {one_line(line)}\n")


def execute(plan: Plan) -> int:
    """Start Spark, run it, stop Spark."""
    return execute_all([plan])


def execute_all(plans: Sequence[Plan]) -> int:
    """Several in one session, whose options are the first one's; the first that fails is the last."""
    from hotfire.spark.progress import Shown
    from hotfire.spark.stopping import Stop

    stop, shown = Stop(), Shown()
    stop.install()
    try:
        spark = _started(plans[0], shown)
        stop.begin()
        try:
            code = 0
            for plan in plans:
                code = _run(plan, spark, stop, shown)
                if code or stop.is_asked:
                    break
            return code
        finally:
            shown.clear()
            _end(spark, stop)
    except KeyboardInterrupt:  # of Spark's own handler, which is in place for a moment
        return EXIT_INTERRUPTED
    finally:
        stop.restore()


def _started(plan: Plan, shown: Shown) -> Any:
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    from hotfire.spark.session import session
    from hotfire.spark.stopping import kill_children

    options = plan.options
    try:
        return session(
            options.master,
            options.name or f"hotfire {plan.name}",
            {**plan.confs, **options.confs()},
            log_level=options.spark_log,
            say=shown.say,
        )
    except (PySparkException, Py4JError, ConnectionError) as error:
        raise ConfigError(f"Spark did not start: {cause(error)}") from error
    except (SystemExit, KeyboardInterrupt):
        kill_children()
        raise


def _end(spark: Any, stop: Stop) -> None:
    from py4j.protocol import Py4JError

    if stop.is_at_once:
        return
    try:
        spark.stop()
    except (Py4JError, ConnectionError):
        if not stop.is_asked:
            raise
        # who stopped us stopped Spark's process as well


def _run(plan: Plan, spark: Any, stop: Stop, shown: Shown) -> int:
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    from hotfire.spark.job import Job

    job: Job[Any] = Job(plan.name, spark, plan.options, stop=stop, shown=shown)
    try:
        return plan.run(job)
    except (PySparkException, Py4JError, ConnectionError) as error:
        if stop.is_asked:
            # its jobs were cancelled; or who stopped us stopped Spark's process as well
            return job.exit_code_when_stopped
        raise ConfigError(f"{plan.name}: {cause(error)}") from error


def cause(error: Exception) -> str:
    """What a person needs of Spark's many lines: our own words where an error of ours is behind it."""
    text = str(error)
    ours = _OURS.findall(text)
    lines = [line.strip(" :") for line in text.splitlines() if line.strip(" :")]
    if len(lines) > 1 and lines[0].startswith("An error occurred while calling"):
        del lines[0]  # of the bridge to Java; what it is follows
    if ours:
        return one_line(ours[-1])
    return f"{one_line(lines[0] if lines else type(error).__name__)}; --spark-log error shows all of it"


def one_line(text: str) -> str:
    told = "".join(one if one.isprintable() else " " for one in text)
    return told if len(told) <= _TOLD_MAX else f"{told[:_TOLD_MAX]}…"


if __name__ == "__main__":
    sys.exit(main(prog="hotfire.spark.run"))
