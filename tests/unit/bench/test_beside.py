"""Sends beside others: what fell into the measured time is counted, and the end is when the others end."""

import itertools
import re
import signal
import subprocess
import threading
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from bench.beside import Held, Told
from bench.drivers import OUR_SOURCES
from bench.others import DRAIN_BATCH, DRAIN_BODY_BYTES, DRAIN_QUEUES, Progress, progress_of, started
from tests.unit.bench.answering import Answering, Reply

STORED = 100
"""Messages in each queue of the broker that is drained here."""


def test_only_what_fell_into_the_measured_time_is_counted() -> None:
    """Steps before its begin and after its end, and a line that was cut, are not in the count."""
    progress = Progress("1.0 10\n2.0 30\n3.0 70\n4.0 90\n5.0")
    assert progress.between(1.5, 3.5) == 60
    assert progress.between(0.0, 9.0) == 90
    assert progress.between(4.5, 9.0) == 0
    assert progress.ended_s == 4.0


def test_what_held_the_loop_is_told_of_each_turn() -> None:
    """How often during the turn; the longest of all time is that of the turn only if it grew."""
    told = Told()
    for before, after in ((Held(1, 7), Held(3, 9)), (Held(2, 7), Held(3, 7)), (Held(2, 7), Held(2, 7))):
        told.held["drain"].append(after.since(before))
    assert told.facts() == {"loop held > 5 ms, drain": "2 (longest 9 ms), 1 (each ≤ 7 ms), 0"}


def queues(_: int, fields: Mapping[str, str], __: bytes) -> Reply:
    """The broker's answer to a pull: as many as were asked for, and nothing behind the end."""
    offset = int(fields["queueOffset"])
    if offset >= STORED:
        return 19, {"nextBeginOffset": str(offset)}, b""
    following = min(offset + int(fields["maxMsgNums"]), STORED)
    return 0, {"nextBeginOffset": str(following)}, bytes((following - offset) * DRAIN_BODY_BYTES)


def test_a_drain_ends_with_what_was_wanted_or_with_all_there_is() -> None:
    """It tells how many bytes it had at its end, and when that was."""
    whole = DRAIN_QUEUES * STORED * DRAIN_BODY_BYTES
    half = whole // 2
    for wanted, least in ((1 << 40, whole), (half, half)):
        with Answering(queues) as broker, started("drain", broker, "--bytes", wanted) as draining:
            assert draining.wait(20) == 0
            taken = progress_of(draining).between(0.0, time.monotonic())
        assert least <= taken <= min(whole, least + DRAIN_QUEUES * DRAIN_BATCH * DRAIN_BODY_BYTES)


@pytest.mark.parametrize("told_at", [1, 400])
def test_the_sender_ends_early_when_told_and_not_before_it_measured(tmp_path: Path, told_at: int) -> None:
    """SIGTERM in its first second is obeyed after it, later at once; the rate is of the time measured."""
    program = tmp_path / "tailgen"
    source = OUR_SOURCES / "tailgen.c"
    subprocess.run(["gcc", "-O1", "-Wall", "-Wextra", "-Werror", "-o", program, source], check=True)
    came = itertools.count(1)
    reached = threading.Event()

    def reply(*_: object) -> Reply:
        if next(came) == told_at:
            reached.set()
        return 0, {}, b""

    with Answering(reply) as broker:
        host, _, port = broker.rpartition(":")
        words = [program, host, port, "t", 0, 200, 64, 32, 60, 0, 1]
        with subprocess.Popen(list(map(str, words)), stdout=subprocess.PIPE, text=True) as sender:
            assert reached.wait(20)
            sender.send_signal(signal.SIGTERM)
            output, _ = sender.communicate(timeout=30)
    said = re.search(r"(\d+) msg/s acked=(\d+) bad=0", output)
    assert sender.returncode == 0
    assert said is not None, output
    assert int(said[2]) >= max(told_at, 100)  # most of a second's, on a busy machine too
    if told_at > 200:
        assert 100 <= int(said[1]) <= 400, output
        assert "p99=-1" not in output
