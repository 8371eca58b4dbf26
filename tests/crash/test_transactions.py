"""kill -9 at every durable step of transactions: nothing committed is lost or repeated, no half is seen."""

from __future__ import annotations

import asyncio
import random
import signal
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest

from hotfire.broker.halves import STEPS
from hotfire.errors import HotfireError, Unreachable
from hotfire.model import HALF_TOPIC, TRANSACTION_GROUP, Heartbeat, ProducerData
from hotfire.net.peer import Peer
from hotfire.protocol.bodies import encode_body
from hotfire.protocol.command import Command
from hotfire.protocol.record import iter_records
from hotfire.protocol.requests import (
    CheckTransactionState,
    GetMaxOffset,
    HeartBeat,
    OffsetReply,
    QueryConsumerOffset,
    SendReply,
)
from tests.crash.dying import MOMENTS
from tests.peers.hotfire import HotfireProcess
from tests.peers.jars import ROOT
from tests.peers.process import ProcessFailed
from tests.peers.remoting import create_topic
from tests.unit.broker.harness import bodies, pull_request
from tests.unit.broker.transacting import COMMIT, GROUP, ROLLBACK, UNKNOWN, answer, half_request, outcome

pytestmark = [pytest.mark.crash, pytest.mark.timeout(400)]

SEED, KILLS_PER_STEP, SLOW_KILLS_PER_STEP = 7373, 5, 40
SETTINGS = [
    "transactionTimeOut=300", "transactionCheckInterval=300", "transactionCheckMax=10000",
    "flushConsumerOffsetInterval=50",
]  # fmt: skip
TIMEOUT_S = 60.0


class DyingHotfire(HotfireProcess):
    """Dies at `point` if there is one: step, moment, and how often that comes before."""

    point: tuple[str, str, int] | None = None
    lane = True

    @property
    def met(self) -> Path:
        """A line for each point it died at."""
        return self.directory / "points.met"

    def _command(self) -> list[str]:
        command = [*super()._command(), "--set", f"fastLaneEnable={str(self.lane).lower()}"]
        if self.point is None:
            return command
        dying = [sys.executable, "-m", "tests.crash.dying", *map(str, self.point), str(self.met)]
        return ["env", f"PYTHONPATH={ROOT}", *dying, *command[1:]]


class Shop:
    """A producer that knows how each of its local transactions ended, and outlives every broker."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self._count = 0
        self._peer: Peer
        self._answers: set[asyncio.Task[None]] = set()
        self.ends: dict[bytes, int] = {}
        """How each ended, decided before its half is sent: a broker may ask before we have heard of it."""
        self.acknowledged: set[bytes] = set()
        self.told: set[bytes] = set()
        """Ends that the broker has confirmed."""
        self.asked_again: set[bytes] = set()

    async def sell_at(self, address: str, *, at_least: int = 0) -> None:
        """Half after half, until the broker dies; or until so many transactions were made, if given."""
        try:
            async with await Peer.connect(address, on_request=self._asked) as self._peer:
                await self._greet()
                wanted = len(self.acknowledged) + at_least
                while not at_least or len(self.acknowledged) < wanted:
                    await self._sell()
        except HotfireError:
            assert not at_least, "the broker died of itself"

    async def _greet(self) -> None:
        beat = HeartBeat(body=encode_body(Heartbeat("shop", (ProducerData(GROUP),))))
        await self._peer.ask(beat, TIMEOUT_S)

    async def _sell(self) -> None:
        self._count += 1
        body = b"order %d" % self._count
        end = self.ends[body] = self._rng.choice((COMMIT, COMMIT, ROLLBACK))
        reply = await self._peer.invoke(half_request(self._count, body), TIMEOUT_S)
        if reply.code:
            return  # too slow a disk: stored, perhaps, and for us it was not
        half = SendReply.from_command(reply)
        self.acknowledged.add(body)
        told = outcome(half, self._rng.choice((end, end, UNKNOWN)))
        for _ in range(self._rng.choice((0, 1, 1, 1, 2))):
            if told.commit_or_rollback != UNKNOWN and self._rng.random() < 0.3:
                if (await self._peer.invoke(told, TIMEOUT_S)).code == 0:
                    self.told.add(body)
            else:
                await self._peer.invoke_oneway(told)

    def _asked(self, command: Command) -> None:
        question = CheckTransactionState.from_command(command)
        (half,) = iter_records(question.body)
        if half.body in self.told:
            self.asked_again.add(half.body)
        told = answer(question, self.ends[half.body])
        task = asyncio.ensure_future(self._tell(told.to_command(oneway=True)))
        self._answers.add(task)
        task.add_done_callback(self._answers.discard)

    async def _tell(self, told: Command) -> None:
        with suppress(Unreachable):
            await self._peer.invoke_oneway(told)

    # --- what came of it ---

    async def delivered(self, address: str) -> Counter[bytes]:
        """Everything in the topic, once no transaction is open any more."""
        async with await Peer.connect(address, on_request=self._asked) as self._peer:
            await self._greet()
            async with asyncio.timeout(TIMEOUT_S):
                while not await self._all_ended():  # noqa: ASYNC110  # no broker tells when
                    await asyncio.sleep(0.05)
            found: list[bytes] = []
            while more := bodies(await self._peer.invoke(pull_request(offset=len(found), flag=4), TIMEOUT_S)):
                found += more
            return Counter(found)

    async def _all_ended(self) -> bool:
        progress = QueryConsumerOffset(consumer_group=TRANSACTION_GROUP, topic=HALF_TOPIC, queue_id=0)
        done = await self._peer.invoke(progress, TIMEOUT_S)
        end = await self._peer.invoke(GetMaxOffset(topic=HALF_TOPIC, queue_id=0), TIMEOUT_S)
        return (
            done.code == 0 and OffsetReply.from_command(done).offset == OffsetReply.from_command(end).offset
        )


@pytest.mark.promise(136, 139, 144)
def test_kills_at_every_step_lose_and_repeat_nothing(tmp_path: Path) -> None:
    """Five kills at each step, with it in memory alone or just written, by the lane or by handlers: every end
    counts, and counts once.
    """
    kill_at_every_step(tmp_path, KILLS_PER_STEP)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_many_kills_at_every_step(tmp_path: Path) -> None:
    """The same, for longer."""
    kill_at_every_step(tmp_path, SLOW_KILLS_PER_STEP)


def kill_at_every_step(tmp_path: Path, kills_per_step: int) -> None:
    rng = random.Random(SEED)
    server = DyingHotfire(tmp_path, arguments=[word for pair in SETTINGS for word in ("--set", pair)])
    shop = Shop(SEED)
    points = [
        (step, MOMENTS[kill % 2], kill // 2 % 2 == 0) for step in STEPS for kill in range(kills_per_step)
    ]
    rng.shuffle(points)

    async def run() -> Counter[bytes]:
        for step, moment, lane in points:
            server.lane = lane
            server.point = step, moment, rng.randrange(1, 4 if step == "progress" else 40)
            with suppress(ProcessFailed):  # it died before it was ready
                await asyncio.to_thread(server.restart)
                await shop.sell_at(server.broker)
            assert await asyncio.to_thread(server.process.wait, TIMEOUT_S) == -signal.SIGKILL
        server.point, server.lane = None, True
        await asyncio.to_thread(server.restart)
        await shop.sell_at(server.broker, at_least=20)
        return await shop.delivered(server.broker)

    with server:
        create_topic(server.broker, "T", 1)
        server.kill9()
        found = asyncio.run(run())
    met = Counter(line.split()[0] for line in server.met.read_text().splitlines())
    assert met == dict.fromkeys(STEPS, kills_per_step)
    committed = {body for body, end in shop.ends.items() if end == COMMIT}
    wrong = sorted(found.keys() - committed)
    assert not wrong, f"rolled back and delivered: {wrong}"
    lost = sorted((committed & shop.acknowledged) - found.keys())
    assert not lost, f"committed and not delivered: {lost}"
    twice = sorted(body for body, count in found.items() if count > 1)
    assert not twice, f"delivered twice: {twice}"
    assert not shop.asked_again, f"confirmed, and asked about: {sorted(shop.asked_again)}"
    assert len(shop.told) > len(points)
    assert len(found) > 5 * len(points)
