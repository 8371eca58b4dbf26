"""Masters and slaves as they are deployed, on simulated machines: what travels, and who serves."""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import Iterator

import pytest

from hotfire import Message, Producer
from hotfire.broker.config import BrokerRole
from hotfire.broker.metadata import PERIOD_S
from hotfire.client.reader import TopicReader
from hotfire.errors import HotfireError
from hotfire.model import RouteData, SubscriptionGroup
from hotfire.net.peer import Peer
from hotfire.protocol import javajson
from hotfire.protocol.bodies import decode_body, encode_body
from hotfire.protocol.codes import ResponseCode
from hotfire.protocol.command import Command
from hotfire.protocol.request import Request
from hotfire.protocol.requests import (
    GetRouteInfoByTopic,
    UpdateAndCreateSubscriptionGroup,
    UpdateAndCreateTopic,
    UpdateConsumerOffset,
)
from hotfire.store.commitlog import ROOT as LOG_ROOT
from hotfire.testing.simnet import SimTransport
from hotfire.testing.simulation import SimBroker, Simulation
from tests.unit.broker.harness import bodies, pull_request, send_request

TOPIC, OK = "orders", ResponseCode.SUCCESS
HA_PORT = 10912
REPORT, HEADER = struct.Struct(">q"), struct.Struct(">qi")
REPORT_S = 5.0
"""Of a slave with nothing to say."""
SAVE_S = 6.0
"""Tables are written every five seconds, beside the loop."""


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


async def pair(
    sim: Simulation, role: BrokerRole, *, name: str = "pair", slaves: int = 1
) -> tuple[SimBroker, list[SimBroker]]:
    """A master of this role and slaves that follow it."""
    settings = {"ha_listen_port": HA_PORT} if role is BrokerRole.ASYNC_MASTER else {}
    master = await sim.add_broker(broker_role=role, broker_name=name, **settings)
    await asyncio.sleep(1)
    followers = [
        await sim.add_broker(broker_role=BrokerRole.SLAVE, broker_id=number, broker_name=name)
        for number in range(1, slaves + 1)
    ]
    await asyncio.sleep(8)
    return master, followers


def log_of(broker: SimBroker) -> bytes:
    """The log up to its last record."""
    files = broker.disk.tree()
    return b"".join(files[name] for name in sorted(files) if name.startswith(LOG_ROOT + "/")).rstrip(b"\0")


async def ask(address: str, request: Request) -> Command:
    async with await Peer.connect(address) as peer:
        return await peer.invoke(request, 5.0)


async def create_topic(master: SimBroker, *, queues: int = 4) -> None:
    request = UpdateAndCreateTopic(
        topic=TOPIC, default_topic="TBW102", read_queue_nums=queues, write_queue_nums=queues, perm=6,
        topic_filter_type="SINGLE_TAG",
    )  # fmt: skip
    assert (await ask(master.address, request)).code == OK


async def send(sim: Simulation, count: int, *, first: int = 0, delay_level: int = 0) -> list[int]:
    """The codes of so many sends by a producer of its own."""
    async with Producer(sim.namesrv, instance_name=f"p{first}", timeout_s=5.0, rng=sim.fork()) as producer:
        messages = [
            Message(TOPIC, b"%d" % number, delay_level=delay_level) for number in range(first, first + count)
        ]
        return [(await producer.send(message)).code for message in messages]


async def read(sim: Simulation) -> list[int]:
    """What a reader of the topic finds, in order of the numbers sent."""
    async with TopicReader(sim.namesrv, TOPIC, start="earliest", follow=False, rng=sim.fork()) as reader:
        return sorted([int(message.body) async for message in reader])


# --- on the wire ---


class Wire:
    """What slaves and their master write to each other."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reported: list[tuple[float, bytes]] = []
        self.sent = b""
        self.diallers: set[str] = set()
        write = SimTransport.write

        def noted(transport: SimTransport, data: bytes) -> None:
            if transport.get_extra_info("peername")[1] == HA_PORT:
                self.diallers.add(transport.host.ip)
                self.reported.append((transport._loop.time(), bytes(data)))
            if transport.get_extra_info("sockname")[1] == HA_PORT:
                self.sent += bytes(data)
            write(transport, data)

        monkeypatch.setattr(SimTransport, "write", noted)

    def offsets(self) -> list[tuple[float, int]]:
        assert all(len(data) == REPORT.size for _, data in self.reported)
        return [(at_s, REPORT.unpack(data)[0]) for at_s, data in self.reported]

    def batches(self) -> list[tuple[int, bytes]]:
        """Each header is twelve bytes, and so much of the log behind it as it says."""
        found, at = [], 0
        while at < len(self.sent):
            offset, size = HEADER.unpack_from(self.sent, at)
            data = self.sent[at + HEADER.size : at + HEADER.size + size]
            assert len(data) == size
            found.append((offset, data))
            at += HEADER.size + size
        return found


@pytest.mark.promise(58)
def test_a_slave_dials_says_where_it_ends_and_gets_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """8-byte reports: where its log ends first, then after what it got, and every 5 s; 12-byte headers."""
    wire = Wire(monkeypatch)

    async def main(sim: Simulation) -> None:
        await sim.add_name_server()
        master, (slave,) = await pair(sim, BrokerRole.SYNC_MASTER)
        assert wire.diallers == {slave.host.ip}
        assert wire.offsets()[0][1] == 0
        assert await send(sim, 30) == [OK] * 30
        await slave.stop()
        ended = len(log_of(slave))
        assert log_of(slave) == log_of(master)
        wire.reported.clear()
        wire.sent = b""
        await slave.start()
        await asyncio.sleep(8)
        assert 0 < wire.offsets()[0][1] <= ended, "begins where its log ends, or a little before"
        before = len(wire.reported)
        assert await send(sim, 5, first=30) == [OK] * 5
        at_s, last = wire.offsets()[-1]
        assert last == len(log_of(master)) > ended
        assert len(wire.reported) > before
        await asyncio.sleep(5 * REPORT_S)
        idle = [one for one in wire.offsets() if one[0] > at_s]
        assert {offset for _, offset in idle} == {last}
        assert 4 <= len(idle) <= 6
        copied = log_of(slave)
        assert log_of(master).startswith(copied)
        assert len(copied) == last
        batches = wire.batches()
        assert all(copied[offset : offset + len(data)] == data for offset, data in batches)
        assert any(not data for _, data in batches), "a word of the master's, too, when there is nothing"

    Simulation(11).run(main)


@pytest.mark.promise(59)
def test_every_table_is_the_masters_within_a_period() -> None:
    """Topics, groups, offsets and delays, changed on the master twice: the same JSON on the slave's disk."""
    tables = ("topics", "subscriptionGroup", "consumerOffset", "delayOffset")

    def on_disk(broker: SimBroker) -> dict[str, object]:
        files = broker.disk.tree()
        return {name: javajson.loads(files[f"config/{name}.json"]) for name in tables}

    async def main(sim: Simulation) -> None:
        await sim.add_name_server()
        master, (slave,) = await pair(sim, BrokerRole.SYNC_MASTER)
        before: dict[str, object] = {}
        for turn in (1, 2):
            await create_topic(master, queues=2 * turn)
            group = SubscriptionGroup("billing", retry_times_max=turn)
            await ask(master.address, UpdateAndCreateSubscriptionGroup(body=encode_body(group)))
            assert await send(sim, 8, first=100 * turn, delay_level=1) == [OK] * 8
            commit = UpdateConsumerOffset(
                consumer_group="billing", topic=TOPIC, queue_id=0, commit_offset=turn
            )
            await ask(master.address, commit)
            await asyncio.sleep(SAVE_S)
            wanted = on_disk(master)
            assert all(wanted[name] != before.get(name) for name in tables)
            before = wanted
            await asyncio.sleep(PERIOD_S + SAVE_S)
            found = on_disk(slave)
            for name in tables:
                assert found[name] == wanted[name], name

    Simulation(5).run(main)


@pytest.mark.promise(60)
def test_a_slave_is_read_from_and_not_written_to() -> None:
    """Asked to its face: a send is refused and nothing is stored; a pull gives what the master took."""

    async def main(sim: Simulation) -> None:
        await sim.add_name_server()
        master, (slave,) = await pair(sim, BrokerRole.SYNC_MASTER)
        await create_topic(master, queues=1)
        assert await send(sim, 5) == [OK] * 5
        end = len(log_of(slave))
        for request in (send_request(topic=TOPIC), send_request(topic=TOPIC, v1=True)):
            refused = await ask(slave.address, request)
            assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
            assert "is a slave" in (refused.remark or "")
        assert len(log_of(slave)) == end
        found = bodies(await ask(slave.address, pull_request(topic=TOPIC)))
        assert found == [b"%d" % number for number in range(5)]

    Simulation(6).run(main)


# --- how brokers are deployed ---


async def members_of(sim: Simulation, topic: str = TOPIC) -> dict[str, dict[int, str]]:
    """Addresses of the brokers a route tells, by name and id."""
    reply = await ask(sim.name_servers[0].address, GetRouteInfoByTopic(topic=topic))
    return {one.name: dict(one.addresses) for one in decode_body(RouteData, reply.body).brokers}


@pytest.mark.promise(184)
def test_a_single_master_serves_and_is_back_with_everything() -> None:
    """While it is gone nobody takes a send; nothing it acknowledged went with its power."""

    async def main(sim: Simulation) -> None:
        await sim.add_name_server()
        only = await sim.add_broker()
        await asyncio.sleep(1)
        assert await send(sim, 20) == [OK] * 20
        only.power_off()
        with pytest.raises(HotfireError):
            await send(sim, 1, first=20)
        await only.start()
        await asyncio.sleep(5)
        assert await send(sim, 20, first=21) == [OK] * 20
        assert await read(sim) == [*range(20), *range(21, 41)]

    Simulation(1).run(main)


@pytest.mark.promise(184)
def test_of_several_masters_one_may_be_lost() -> None:
    """Sends go to all; to the others while one is gone, whose messages are there when it is back."""

    async def main(sim: Simulation) -> None:
        await sim.add_name_server()
        first, second = await sim.add_broker(), await sim.add_broker()
        await asyncio.sleep(1)
        for master in (first, second):
            await create_topic(master)
        assert await send(sim, 20) == [OK] * 20
        ends = len(log_of(first)), len(log_of(second))
        assert min(ends) > 0
        first.power_off()
        assert await send(sim, 20, first=20) == [OK] * 20
        assert len(log_of(second)) > ends[1]
        await first.start()
        await asyncio.sleep(5)
        assert await read(sim) == list(range(40))

    Simulation(2).run(main)


@pytest.mark.promise(184)
def test_masters_with_slaves_that_nobody_waits_for() -> None:
    """SEND_OK also while the slave hears nothing; a master lost, its slave gives out what it has."""

    async def main(sim: Simulation) -> None:
        await sim.add_name_server()
        first, (its_slave,) = await pair(sim, BrokerRole.ASYNC_MASTER, name="a")
        second, _ = await pair(sim, BrokerRole.ASYNC_MASTER, name="b")
        for master in (first, second):
            await create_topic(master)
        assert {name: sorted(ids) for name, ids in (await members_of(sim)).items()} == {
            "a": [0, 1],
            "b": [0, 1],
        }
        assert await send(sim, 40) == [OK] * 40
        await asyncio.sleep(2)
        assert log_of(its_slave) == log_of(first)
        sim.network.partition([first.host], [its_slave.host])
        assert await send(sim, 40, first=40) == [OK] * 40
        first.power_off()
        sim.network.heal()
        await asyncio.sleep(130)
        assert sorted((await members_of(sim))["a"]) == [1]
        assert await send(sim, 20, first=80) == [OK] * 20
        found = await read(sim)
        assert set(range(40)) | set(range(80, 100)) <= set(found)
        assert len(found) < 100, "what was never copied is gone with the master"

    Simulation(3).run(main)


@pytest.mark.promise(184)
def test_masters_that_write_twice() -> None:
    """SEND_OK says that a slave has it, without one the answer says so; a lost master takes none along."""

    async def main(sim: Simulation) -> None:
        await sim.add_name_server()
        first, (its_slave,) = await pair(sim, BrokerRole.SYNC_MASTER, name="a")
        second, _ = await pair(sim, BrokerRole.SYNC_MASTER, name="b")
        for master in (first, second):
            await create_topic(master)
        codes = await send(sim, 40)
        assert codes == [OK] * 40
        sim.network.partition([first.host], [its_slave.host])
        told = set(await send(sim, 40, first=40))
        assert OK in told, "the other pair is whole"
        assert told & {ResponseCode.FLUSH_SLAVE_TIMEOUT, ResponseCode.SLAVE_NOT_AVAILABLE}
        sim.network.heal()
        await asyncio.sleep(30)
        assert await send(sim, 40, first=80) == [OK] * 40
        first.power_off()
        await asyncio.sleep(130)
        assert await read(sim) == list(range(120))

    Simulation(4).run(main)


@pytest.mark.promise(189)
def test_nothing_is_promoted_by_itself() -> None:
    """An hour without its master: two slaves are slaves, refuse sends, and the route has no broker 0."""

    async def main(sim: Simulation) -> None:
        await sim.add_name_server()
        master, slaves = await pair(sim, BrokerRole.SYNC_MASTER, slaves=2)
        await create_topic(master)
        assert await send(sim, 10) == [OK] * 10
        master.power_off()
        for _ in range(6):
            await asyncio.sleep(600)
            assert sorted((await members_of(sim))["pair"]) == [1, 2]
            for slave in slaves:
                assert (await ask(slave.address, send_request(topic=TOPIC))).code != OK
            with pytest.raises(HotfireError):
                await send(sim, 1, first=10)
        await master.start()
        await asyncio.sleep(30)
        assert sorted((await members_of(sim))["pair"]) == [0, 1, 2]
        assert await send(sim, 10, first=10) == [OK] * 10
        assert await read(sim) == list(range(20))

    Simulation(7).run(main)
