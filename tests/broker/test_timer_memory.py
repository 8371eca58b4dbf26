"""A million messages that wait for their time, in a broker of its own: what they take of its memory."""

from __future__ import annotations

import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bench.drivers import OUR_SOURCES
from bench.meter import anonymous_bytes
from hotfire.protocol.bodies import loads
from tests.broker.programs import running
from tests.peers import remoting
from tests.peers.process import poll_until

MILLION, SOON, QUEUES = 1_000_000, 200_000, 4
FAR_MS, FAR_SPREAD_MS = 3_600_000, 7_200_000
SOON_MS, SOON_SPREAD_MS = 3_000, 4_000
BYTES_MAX = 60_000_000
LOOK_S = 0.01
GENERATOR_TIMEOUT_S, TAKEN_UP_TIMEOUT_S = 600, 60.0
LEFT, AWAITED = 2, 0
TIMER_METRICS = 61


@contextmanager
def watched(pid: int) -> Iterator[list[int]]:
    """Anonymous memory of a process, again and again while the block runs."""
    seen, over = [anonymous_bytes(pid)], threading.Event()

    def look() -> None:
        while not over.wait(LOOK_S):
            seen.append(anonymous_bytes(pid))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join()


def waiting(broker: str, topic: str) -> int:
    """How many of a topic the wheel has."""
    found = loads(remoting.call(broker, TIMER_METRICS).body)
    return int(found["timingCount"].get(topic, {"count": 0})["count"])


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_million_wait_and_dense_seconds_pass(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """A million that are due in an hour and later are taken, and then 200,000 that are due within four
    seconds are taken and delivered, each once: in at most 60 MB of anonymous memory, all of the broker's."""
    generator = tmp_path / "timergen"
    subprocess.run(["gcc", "-O2", "-o", generator, OUR_SOURCES / "timergen.c"], check=True)

    def generate(topic: str, count: int, ahead_ms: int, spread_ms: int, mode: int) -> None:
        remoting.create_topic(server.broker, topic, QUEUES)
        host, _, port = server.broker.rpartition(":")
        shape = map(str, (8, 64, 128, count, ahead_ms, spread_ms, QUEUES, mode))
        subprocess.run(
            [generator, host, port, topic, *shape],
            check=True, capture_output=True, timeout=GENERATOR_TIMEOUT_S,
        )  # fmt: skip

    words = ("up", "--data", str(tmp_path / "data"), "--namesrv-port", "0", "--broker-port", "0")
    with running(tmp_path, *words) as server:
        pid = server.process.pid
        before = anonymous_bytes(pid)
        with watched(pid) as taking:
            generate("far", MILLION, FAR_MS, FAR_SPREAD_MS, LEFT)
            poll_until(
                lambda: waiting(server.broker, "far") == MILLION,
                what="a million in the wheel",
                timeout_s=TAKEN_UP_TIMEOUT_S,
            )
        after = anonymous_bytes(pid)
        with watched(pid) as delivering:
            generate("soon", SOON, SOON_MS, SOON_SPREAD_MS, AWAITED)
        assert waiting(server.broker, "far") == MILLION
        assert sum(remoting.max_offsets(server.broker, "soon", QUEUES)) == SOON
        assert sum(remoting.max_offsets(server.broker, "far", QUEUES)) == 0
    shutil.rmtree(tmp_path / "data")
    figures = (before, max(taking), after, max(delivering))
    record_property(
        "MB of anonymous memory at rest, at most while a million are taken, with them, at most while "
        f"{SOON:,} are delivered",
        ", ".join(f"{size / 1e6:.1f}" for size in figures),
    )
    assert max(figures) <= BYTES_MAX, figures
