"""kill -9 at each durable step of a timer message: all acknowledged come, each once, and none early."""

from __future__ import annotations

import asyncio
import random
import shutil
import signal
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest

from hotfire import Message, Producer
from hotfire.broker.timers import DURABLE_STEPS
from hotfire.errors import HotfireError
from hotfire.net.clock import now_ms
from tests.crash.dying import MOMENTS
from tests.crash.timerdying import STEPS
from tests.crash.traffic import QUEUES, TOPIC, read_back
from tests.peers.hotfire import HotfireProcess
from tests.peers.jars import ROOT
from tests.peers.process import ProcessFailed
from tests.peers.remoting import create_topic

pytestmark = [pytest.mark.crash, pytest.mark.timeout(300)]

SEED, KILLS_PER_STEP = 4242, 5
SENT_MAX = 2000
DELAYS_MS = (20, 300, 900, 1400, 3200)
"""The last one goes beyond the window below, and is rolled."""
SETTINGS = ["timerFlushIntervalMs=50", "mappedFileSizeCommitLog=16777216", "timerRollWindowSlot=2"]
WHEN_MAX = {"park": 20, "log": 20, "wheel": 20, "roll": 3, "re-put": 20, "checkpoint": 4}
WAIT_S = 30.0


class DyingHotfire(HotfireProcess):
    """Dies at `point` if there is one: step, moment, and how often that comes before."""

    point: tuple[str, str, int] | None = None
    lane = True

    @property
    def hits(self) -> Path:
        return self.directory / "hits"

    def _command(self) -> list[str]:
        command = [*super()._command(), "--set", f"fastLaneEnable={str(self.lane).lower()}"]
        if self.point is None:
            return command
        dying = [sys.executable, "-m", "tests.crash.timerdying", str(self.hits), *map(str, self.point)]
        return ["env", f"PYTHONPATH={ROOT}", *dying, *command[1:]]


async def send_until_dead(server: DyingHotfire, acknowledged: dict[bytes, int], life: int) -> None:
    """Messages of several delays, until nobody answers any more."""
    with suppress(HotfireError):
        async with Producer(server.namesrv, timeout_s=2.0, retries=0) as producer:
            for number in range(SENT_MAX):
                delay_ms = DELAYS_MS[number % len(DELAYS_MS)]
                body, due = b"%d-%d" % (life, number), now_ms() + delay_ms
                await producer.send(Message(TOPIC, body, delay_ms=delay_ms))
                acknowledged[body] = due
                await asyncio.sleep(0.01)  # seconds of messages, not thousands of them


async def await_all(server: DyingHotfire, acknowledged: dict[bytes, int]) -> Counter[bytes]:
    """What is in the topic once all is there and has rested, or it takes too long; none of it early."""
    until, is_complete = time.monotonic() + WAIT_S, False
    while True:
        found = list((await read_back(server.broker)).values())
        for record in found:
            due = acknowledged.get(record.body, 0)
            assert record.store_timestamp >= due, f"{record.body!r} {due - record.store_timestamp} ms early"
        bodies = Counter(record.body for record in found)
        if is_complete or time.monotonic() > until:
            return bodies
        is_complete = acknowledged.keys() <= bodies.keys()
        await asyncio.sleep(1.0 if is_complete else 0.1)  # nobody tells; and copies would come by then


def test_the_table_names_every_step() -> None:
    """A new durable step needs a point to strike at; only the clock of the machine is not ours to set."""
    assert {*STEPS, "shift"} == DURABLE_STEPS.keys()
    assert WHEN_MAX.keys() == set(STEPS)


def kill_at_each_step(directory: Path, kills: int) -> None:
    """So many kills at each step, in any order, one life after the other on the same store."""
    rng = random.Random(SEED)
    server = DyingHotfire(directory, arguments=[word for pair in SETTINGS for word in ("--set", pair)])
    acknowledged: dict[bytes, int] = {}
    points = [(step, MOMENTS[kill % 2], kill // 2 % 2 == 0) for step in STEPS for kill in range(kills)]
    rng.shuffle(points)
    with server:
        create_topic(server.broker, TOPIC, QUEUES)
        server.kill9()
        for life, (step, moment, server.lane) in enumerate(points):
            server.point = step, moment, rng.randrange(1, WHEN_MAX[step])
            with suppress(ProcessFailed):  # it died before it was ready
                server.restart()
                asyncio.run(send_until_dead(server, acknowledged, life))
            assert server.process.wait(WAIT_S) == -signal.SIGKILL, f"life {life}: not struck at {step}"
        hits = Counter(line.split()[0] for line in server.hits.read_text().splitlines())
        assert hits == Counter(dict.fromkeys(STEPS, kills))
        server.point, server.lane = None, True
        server.restart()
        found = asyncio.run(await_all(server, acknowledged))
        assert not acknowledged.keys() - found.keys(), "acknowledged and not delivered"
        twice = [body for body, count in found.items() if count > 1]
        assert not twice, f"delivered twice: {twice}; each has a unique key, its copy can be found"
        assert len(acknowledged) > len(points)
        server.kill9()
    shutil.rmtree(server.store)


def test_killed_at_each_durable_step(tmp_path: Path) -> None:
    """Five kills at each step, with it in memory alone or just written, by the lane or by handlers: all come,
    each once, none early.
    """
    kill_at_each_step(tmp_path, KILLS_PER_STEP)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_killed_many_times_at_each_durable_step(tmp_path: Path) -> None:
    """The same with twenty."""
    kill_at_each_step(tmp_path, 4 * KILLS_PER_STEP)
