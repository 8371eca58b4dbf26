"""kill -9 at every durable step of delays and of retries: nothing is lost, repeated or early."""

from __future__ import annotations

import asyncio
import random
import signal
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest

from hotfire.errors import HotfireError
from hotfire.model import dlq_topic, retry_topic
from hotfire.net.clock import now_ms
from hotfire.net.peer import Peer
from hotfire.protocol.record import Record, iter_records
from tests.crash.doomed import MOMENTS
from tests.peers.hotfire import HotfireProcess
from tests.peers.jars import ROOT
from tests.peers.process import ProcessFailed
from tests.peers.pulling import pull
from tests.peers.remoting import create_topic
from tests.sim.parking import RETRIES_MAX, STEPS, Account, Place, Step, send_back
from tests.unit.broker.harness import send_request

pytestmark = [pytest.mark.crash, pytest.mark.timeout(300)]

SEED, KILLS_PER_STEP = 4242, 5
DELAY_MS = 1000
SETTINGS = ["--set", "messageDelayLevel=1s", "--set", "flushDelayOffsetInterval=50"]
WHEN_MAX = {("delay", "progress"): 3, ("retry", "send-back"): 1, ("retry", "dead letter"): 3}
"""How often a step may come before the kill; six times where nothing is said."""
TIMEOUT_S = 30.0


class DoomedHotfire(HotfireProcess):
    """Dies at `point` if there is one: step, moment, and how often that comes before."""

    point: tuple[Step, str, int] | None = None

    @property
    def report(self) -> Path:
        return self.directory / "struck"

    def _command(self) -> list[str]:
        command = super()._command()
        if self.point is None:
            return command
        step, moment, when = self.point
        doomed = [sys.executable, "-m", "tests.crash.doomed", *step, moment, str(when), str(self.report)]
        return ["env", f"PYTHONPATH={ROOT}", *doomed, *command[1:]]


class Clients:
    """A producer of delayed messages, and groups that fail at all they get. They outlive every broker."""

    def __init__(self) -> None:
        self.account = Account()
        self._count = 0
        self._groups: list[str] = []
        self._offsets: Counter[str] = Counter()
        self._peer: Peer

    async def work_at(self, address: str) -> None:
        """Until the broker dies. A new group comes with each life."""
        self._groups.append(f"G{len(self._groups)}")
        with suppress(HotfireError):
            async with await Peer.connect(address) as self._peer:
                while True:
                    await self._send()
                    await self._fail_first()
                    await self._fail_again(self._groups[-1 - self._count % min(4, len(self._groups))])

    async def _send(self) -> None:
        self._count += 1
        body = b"%d" % self._count
        place = Place("T", body)
        self.account.ask(place, now_ms() + DELAY_MS)
        named = {"DELAY": "1", "UNIQ_KEY": f"AC11000100002A9F{self._count:016X}"}
        reply = await self._peer.invoke(send_request(body=body, named=named), TIMEOUT_S)
        if reply.code == 0:
            self.account.promised.add(place)

    async def _fail_first(self) -> None:
        """The newest group fails at the next message of the topic."""
        for record in await self._pull("T", self._offsets["T"], 1):
            await self._give_back(record, self._groups[-1])
            self._offsets["T"] = record.queue_offset + 1

    async def _fail_again(self, group: str) -> None:
        """A group fails at what it is given again; what is not surely given back it gives back once more."""
        topic = retry_topic(group)
        for record in await self._pull(topic, self._offsets[topic], 8):
            await self._give_back(record, group)
            self._offsets[topic] = record.queue_offset + 1

    async def _give_back(self, record: Record, group: str) -> None:
        place = Place.after(record, group)
        self.account.ask(place, now_ms() + DELAY_MS * (record.reconsume_times < RETRIES_MAX))
        reply = await self._peer.invoke(send_back(record, group, 1), TIMEOUT_S)
        assert reply.code == 0, reply
        self.account.promised.add(place)

    async def _pull(self, topic: str, offset: int, count_max: int) -> list[Record]:
        reply = await self._peer.invoke(pull("reader", topic, 0, offset), TIMEOUT_S)
        return list(iter_records(reply.body))[:count_max] if reply.code == 0 else []

    # --- what came of it ---

    async def settle(self, address: str) -> int:
        """Wait until all that was promised is there, and hold the account against it."""
        topics = ["T", *(name(group) for group in self._groups for name in (retry_topic, dlq_topic))]
        async with await Peer.connect(address) as self._peer:
            with suppress(TimeoutError):
                async with asyncio.timeout(TIMEOUT_S):
                    while not await self._is_all_there(topics):  # noqa: ASYNC110  # no broker tells when
                        await asyncio.sleep(0.2)
            await asyncio.sleep(2 * DELAY_MS / 1000)  # and time for what must not come any more
            return self.account.settle(await self._all(topics))

    async def _is_all_there(self, topics: list[str]) -> bool:
        return self.account.promised <= {Place.of(record) for record in await self._all(topics)}

    async def _all(self, topics: list[str]) -> list[Record]:
        found: list[Record] = []
        for topic in topics:
            offset = 0
            while more := await self._pull(topic, offset, 32):
                found += more
                offset = more[-1].queue_offset + 1
        return found


def test_kills_at_every_step_lose_and_repeat_nothing(tmp_path: Path) -> None:
    """Five kills at each step, before it is on the disk or just behind it: all promised comes, and once."""
    rng = random.Random(SEED)
    server, clients = DoomedHotfire(tmp_path, arguments=SETTINGS), Clients()
    points = [(step, MOMENTS[kill % 2]) for step in STEPS for kill in range(KILLS_PER_STEP)]
    rng.shuffle(points)

    async def run() -> int:
        for step, moment in points:
            server.point = step, moment, rng.randint(1, WHEN_MAX.get(step, 6))
            with suppress(ProcessFailed):  # it died before it was ready
                await asyncio.to_thread(server.restart)
                await clients.work_at(server.broker)
            assert await asyncio.to_thread(server.process.wait, TIMEOUT_S) == -signal.SIGKILL, (step, moment)
        server.point = None
        await asyncio.to_thread(server.restart)
        return await clients.settle(server.broker)

    with server:
        create_topic(server.broker, "T", 1)
        server.kill9()
        found = asyncio.run(run())
    struck = Counter(line.partition(",")[0] for line in server.report.read_text().splitlines())
    assert {step: struck[" ".join(step)] for step in STEPS} == dict.fromkeys(STEPS, KILLS_PER_STEP), struck
    assert found > 5 * len(points), found
