"""Ctrl-C and SIGTERM: a stream finishes its batch and ends well, a batch is cancelled."""

import io
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hotfire.spark import job as jobs
from hotfire.spark.job import Job
from hotfire.spark.progress import Shown
from hotfire.spark.stopping import Stop
from tests.peers.process import poll_until


@pytest.fixture
def stop() -> Iterator[Stop]:
    made = Stop()
    made.begin()
    yield made
    made.restore()


class Query:
    """A streaming query as `job.stream` sees it; each look at its state is one step of its life."""

    id = "q"

    def __init__(self, steps: dict[int, Callable[[], None]]) -> None:
        self.isActive = True
        self.is_busy = True
        self.batch = 0
        self.error: Exception | None = None
        self.was_stopped_when_busy: bool | None = None
        self._steps, self._looks = steps, 0

    @property
    def status(self) -> dict[str, Any]:
        self._looks += 1
        self._steps.get(self._looks, lambda: None)()
        return {"isTriggerActive": self.is_busy}

    @property
    def lastProgress(self) -> dict[str, Any]:
        return {"batchId": self.batch, "timestamp": f"t{self.batch}", "numInputRows": 5, "sources": []}

    @property
    def recentProgress(self) -> list[dict[str, Any]]:
        return [self.lastProgress]

    def exception(self) -> Exception | None:
        return self.error

    def stop(self) -> None:
        if self.was_stopped_when_busy is None:
            self.was_stopped_when_busy = self.is_busy
        self.isActive = False


def make_job(stop: Stop, log: io.StringIO) -> Job[None]:
    spark: Any = None
    return Job("archive", spark, None, stop=stop, shown=Shown(log))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stream_finishes_its_batch_and_then_ends(stop: Stop, number: int) -> None:
    """A signal during a batch: the query is stopped between batches, and that is a good end."""
    query: Any = Query({})

    def finish() -> None:
        query.is_busy = False
        query.batch += 1

    query._steps = {4: finish}
    log = io.StringIO()
    os.kill(os.getpid(), number)
    end = make_job(stop, log).stream(query)
    assert end.was_stopped
    assert query.was_stopped_when_busy is False
    assert "stopping after the batch under way" in log.getvalue()
    assert "archive: 10 rows in 2 batches" in log.getvalue() or "rows in" in log.getvalue()


def test_a_batch_that_takes_too_long_is_given_up(stop: Stop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not for ever: Spark does that batch again next time, and the person is told so."""
    monkeypatch.setattr(jobs, "FINISH_S", 0.2)
    query: Any = Query({})
    log = io.StringIO()
    os.kill(os.getpid(), signal.SIGTERM)
    assert make_job(stop, log).stream(query).was_stopped
    assert query.was_stopped_when_busy is True
    assert "is done again next time" in log.getvalue()


def test_what_a_stream_failed_of_is_raised(stop: Stop) -> None:
    """And the other queries of the pipeline are stopped with it."""
    failed: Any = Query({})
    failed.isActive, failed.error = False, RuntimeError("disk full")
    other: Any = Query({})
    other.id = "other"
    with pytest.raises(RuntimeError, match="disk full"):
        make_job(stop, io.StringIO()).stream(failed, other)
    assert not other.isActive


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_the_second_signal_ends_at_once(stop: Stop, number: int, code: int) -> None:
    """Whoever asks twice does not wait, and neither do we for Spark."""
    os.kill(os.getpid(), signal.SIGINT)
    assert stop.is_asked
    assert not stop.is_at_once
    with pytest.raises(SystemExit) as ended:
        os.kill(os.getpid(), number)
    assert ended.value.code == code
    assert stop.is_at_once


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_while_spark_starts_one_signal_is_enough(number: int, code: int) -> None:
    """There is nothing yet that could be left half done."""
    left: list[int] = []
    starting = Stop(left.append)
    starting.install()
    try:
        with pytest.raises(SystemExit) as ended:  # where leaving does not end the process
            os.kill(os.getpid(), number)
    finally:
        starting.restore()
    assert left == [ended.value.code] == [code]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_that_falls_where_exceptions_are_passed_over_ends_it_all_the_same(
    number: int, code: int
) -> None:
    """As in a hook of a fork, while Spark's process is started: nothing is said, and no child is left."""
    program = f"""
import os, signal, subprocess
from hotfire.spark.stopping import Stop
Stop().install()
child = subprocess.Popen(["sleep", "600"])
print(child.pid, flush=True)
class Dropped:
    def __del__(self):
        os.kill(os.getpid(), {number})
Dropped()
print("went on")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    child = int(done.stdout)
    assert done.returncode == code
    assert done.stderr == ""

    def has_ended() -> bool:
        try:
            return "(sleep) Z" in Path(f"/proc/{child}/stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            return True

    poll_until(has_ended, what="its end", timeout_s=20.0)  # it was told, and a busy machine takes a while


def test_handlers_are_put_back(stop: Stop) -> None:
    """What was there before is there after, whoever put one of their own in between."""
    stop.restore()
    before = signal.getsignal(signal.SIGINT)
    again = Stop()
    again.install()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # as Spark does when it starts
    again.begin()
    again.restore()
    assert signal.getsignal(signal.SIGINT) is before


def test_exit_codes_of_what_was_stopped(stop: Stop) -> None:
    """A stream goes on next time where it was: 0. A batch has to be done again: 130, 143."""
    job = make_job(stop, io.StringIO())
    os.kill(os.getpid(), signal.SIGTERM)
    assert job.exit_code_when_stopped == 143
    query: Any = Query({})
    query.isActive = False
    job.stream(query)
    assert job.exit_code_when_stopped == 0
