"""A master that waits for its slave, and then loses its power and its disk: nothing acknowledged is lost.

Each life: a SYNC_MASTER with SYNC_FLUSH and its slave, two producers, and faults of the lines between them
and of the slave's power; at a moment of the seed's choosing the master's machine is gone, with its disk. The
slave is stopped, set to be a master, started; all that was answered SEND_OK is there, at the same offset.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import random
from collections.abc import Iterator
from contextlib import suppress

import pytest

from hotfire import Message, Producer
from hotfire.broker.config import BrokerRole
from hotfire.broker.master import CopyWaiting
from hotfire.client.reader import TopicReader
from hotfire.client.results import SendResult
from hotfire.errors import HotfireError
from hotfire.model import TopicConfig
from hotfire.protocol.codes import ResponseCode
from hotfire.store.commitlog import ROOT as LOG_ROOT
from hotfire.store.store import Store
from hotfire.testing.simulation import LoopDisk, SimBroker, Simulation

SEEDS, BLOCK = 40, 10
GUARD_SEEDS_MAX = 40
TOPIC, NAME = "orders", "pair"


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


class Life:
    """One pair, from its start to the slave's first day as a master."""

    def __init__(self, seed: int, *, has_faults: bool = True) -> None:
        self.sim = Simulation(seed)
        self.rng = random.Random(seed)
        self._has_faults = has_faults
        self.answered: dict[tuple[int, int], bytes] = {}
        self.codes: list[int] = []

    def live(self) -> None:
        self.sim.run(self._live)

    async def _live(self, sim: Simulation) -> None:
        await sim.add_name_server()
        role = {"broker_role": BrokerRole.SYNC_MASTER, "broker_name": NAME, "slave_timeout": 500}
        master = await sim.add_broker(**role)
        await asyncio.sleep(1)
        slave = await sim.add_broker(broker_role=BrokerRole.SLAVE, broker_id=1, broker_name=NAME)
        await asyncio.sleep(self.rng.uniform(0, 8))
        senders = [sim.on(sim.network.host(f"10.0.3.{n}"), self._send(n)) for n in (1, 2)]
        if self._has_faults:
            sim.on(sim.network.host("10.0.3.9"), self._break(master, slave))
        await asyncio.sleep(self.rng.uniform(0.5, 20))
        before = _log(master)
        master.power_off()
        for sender in senders:
            sender.cancel()
        await asyncio.gather(*senders, return_exceptions=True)
        sim.network.heal()
        if not slave.is_running:
            await slave.start()
        await slave.stop()
        end = _end(slave)
        assert before[:end] == _log(slave)[:end], "the slave's log is no prefix of the master's"
        await self._promote(slave)

    async def _send(self, number: int) -> None:
        async with Producer(
            self.sim.namesrv, instance_name=f"p{number}", timeout_s=2.0, rng=self.sim.fork()
        ) as producer:
            count = 0
            while True:
                count += 1
                body = b"%d-%d " % (number, count) + bytes(self.rng.randrange(2000))
                try:
                    result = await producer.send(Message(TOPIC, body))
                except HotfireError:
                    await asyncio.sleep(0.1)
                    continue
                self.codes.append(result.code)
                if result.code == ResponseCode.SUCCESS:
                    self._acknowledged(result, body)
                await asyncio.sleep(self.rng.uniform(0, 0.2))

    def _acknowledged(self, result: SendResult, body: bytes) -> None:
        place = result.queue.queue_id, result.queue_offset
        assert place not in self.answered, f"{place} given twice"
        self.answered[place] = body

    async def _break(self, master: SimBroker, slave: SimBroker) -> None:
        """Lines are cut and hang; the slave loses its power and comes back."""
        while True:
            await asyncio.sleep(self.rng.uniform(1, 10))
            fault = self.rng.randrange(3)
            if fault == 0:
                self.sim.network.cut([master.host], [slave.host])
            elif fault == 1:
                self.sim.network.partition([master.host], [slave.host])
                await asyncio.sleep(self.rng.uniform(0.1, 3))
                self.sim.network.heal()
            elif slave.is_running and master.is_running:
                slave.power_off()
                await asyncio.sleep(self.rng.uniform(0.1, 2))
                if master.is_running:
                    await slave.start()

    async def _promote(self, slave: SimBroker) -> None:
        slave.config = dataclasses.replace(slave.config, broker_role=BrokerRole.ASYNC_MASTER, broker_id=0)
        await slave.start()
        await asyncio.sleep(1)
        found = {}
        if self.answered:
            async with TopicReader(
                self.sim.namesrv, TOPIC, start="earliest", follow=False, rng=self.sim.fork()
            ) as reader:
                found = {
                    (message.queue.queue_id, message.queue_offset): message.body async for message in reader
                }
        for place, body in self.answered.items():
            assert found.get(place) == body, (
                f"queue {place[0]} offset {place[1]} was acknowledged and is lost"
            )


def _log(broker: SimBroker) -> bytes:
    """The log's files as they are now, one behind the other."""
    files = broker.disk.tree()
    return b"".join(files[name] for name in sorted(files) if name.startswith(LOG_ROOT + "/"))


def _end(broker: SimBroker) -> int:
    """Where the log of a broker that was stopped in order ends."""
    store = Store(broker.disk, broker.config.store())
    store.open()
    end = store.end
    store.close()
    return end


@pytest.mark.promise(56, 188, 198)
@pytest.mark.timeout(240)
@pytest.mark.parametrize("first", range(0, SEEDS, BLOCK))
def test_nothing_acknowledged_is_lost_with_the_master_and_its_disk(first: int) -> None:
    """What was answered SEND_OK is on the slave at its place; the slave's log is a prefix of the master's."""
    codes: list[int] = []
    for seed in range(first, first + BLOCK):
        life = Life(seed)
        life.live()
        codes += life.codes
    assert codes.count(ResponseCode.SUCCESS) > 0.5 * len(codes) > 100
    assert ResponseCode.FLUSH_SLAVE_TIMEOUT in codes
    assert ResponseCode.SLAVE_NOT_AVAILABLE in codes


def test_without_the_wait_for_the_slave_something_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test above would see it: answered when the master alone is safe, a life soon loses a message."""
    monkeypatch.setattr(CopyWaiting, "safe_here", lambda self, end, replies, since, now: replies.send(now))

    def live_many() -> None:
        for seed in range(GUARD_SEEDS_MAX):
            Life(seed).live()

    with pytest.raises(AssertionError, match="was acknowledged and is lost"):
        live_many()


def test_tables_follow_the_master() -> None:
    """Topics, groups and offsets are the master's after a while, also after a line that hung."""

    async def main(sim: Simulation) -> None:
        await sim.add_name_server()
        master = await sim.add_broker(broker_role=BrokerRole.SYNC_MASTER, broker_name=NAME)
        slave = await sim.add_broker(broker_role=BrokerRole.SLAVE, broker_id=1, broker_name=NAME)
        await asyncio.sleep(8)
        async with Producer(sim.namesrv, instance_name="p", rng=sim.fork()) as producer:
            placed = [await producer.send(Message(TOPIC, b"x")) for _ in range(9)]
        assert master.program is not None
        assert slave.program is not None
        ours, theirs = slave.program.broker, master.program.broker
        theirs.groups.find("g", sim.loop.now_ms())
        theirs.offsets.commit(TOPIC, "g", placed[0].queue.queue_id, 1)
        sim.network.partition([master.host], [slave.host])
        await asyncio.sleep(12)
        assert ours.offsets.get(TOPIC, "g", placed[0].queue.queue_id) is None
        sim.network.heal()
        await asyncio.sleep(60)
        assert ours.topics.get(TOPIC) == theirs.topics.get(TOPIC)
        assert ours.topics.version == theirs.topics.version
        assert ours.groups.get("g") == theirs.groups.get("g") is not None
        assert ours.offsets.get(TOPIC, "g", placed[0].queue.queue_id) == 1

    Simulation(3).run(main)


def test_a_master_that_lost_its_disk_takes_no_table_along() -> None:
    """Started anew with nothing under its old name: the slave's tables stay what they were."""

    async def main(sim: Simulation) -> None:
        await sim.add_name_server()
        master = await sim.add_broker(broker_role=BrokerRole.SYNC_MASTER, broker_name=NAME)
        slave = await sim.add_broker(broker_role=BrokerRole.SLAVE, broker_id=1, broker_name=NAME)
        await asyncio.sleep(8)

        async def live(offset: int, count: int) -> None:
            assert master.program is not None
            theirs = master.program.broker
            async with Producer(sim.namesrv, instance_name=f"p{offset}", rng=sim.fork()) as producer:
                for _ in range(count):
                    with suppress(HotfireError):  # the slave's routes name queues that are no more
                        await producer.send(Message(TOPIC, b"x"))
            theirs.offsets.commit(TOPIC, "g", 0, offset)
            await asyncio.sleep(40)

        assert master.program is not None
        master.program.broker.topics.put(TopicConfig(TOPIC, 16, 16), sim.loop.now_ms())
        master.program.broker.groups.find("g", sim.loop.now_ms())
        await live(1, 32)
        assert slave.program is not None
        ours = slave.program.broker
        before = _tables(slave)
        assert ours.offsets.get(TOPIC, "g", 0) == 1
        master.power_off()
        master.disk = LoopDisk(1)
        await master.start()
        await live(7, 9)
        assert ours.topics.get(TOPIC) == TopicConfig(TOPIC, 16, 16)
        assert ours.offsets.get(TOPIC, "g", 0) == 1
        assert ours.groups.get("g") is not None
        assert _tables(slave) == before

    Simulation(3).run(main)


def _tables(broker: SimBroker) -> dict[str, bytes]:
    return {name: data for name, data in broker.disk.tree().items() if name.startswith("config/")}
