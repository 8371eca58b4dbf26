"""Every broker of a cluster is stopped for an upgrade, one after the other, and its users notice nothing."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress

import pytest

from hotfire import ConsumeFrom, Consumer, Message, Producer
from hotfire.client.admin import Admin
from hotfire.errors import HotfireError
from hotfire.net.peer import Peer
from hotfire.protocol.requests import AddWritePermOfBroker, Request, WipeWritePermOfBroker
from hotfire.testing import Cluster
from hotfire.testing.cluster import BrokerNode
from tests.unit.client.consuming import Seen, run, settles

REFRESHED_S = 35
"""Clients ask for routes every 30 s."""
UPGRADE_S = 120
PAUSE_S = 0.5


class Sending:
    """A program that sends all the time, each message once: a failure is one its user sees."""

    def __init__(self, producer: Producer) -> None:
        self.brokers: Counter[str] = Counter()
        self.sent: list[int] = []
        self.failures: list[HotfireError] = []
        self._producer = producer
        self._task = asyncio.create_task(self._send())

    async def _send(self) -> None:
        number = 0
        while True:
            number += 1
            try:
                result = await self._producer.send(Message("T", b"%d" % number))
            except HotfireError as error:
                self.failures.append(error)
            else:
                self.sent.append(number)
                self.brokers[result.queue.broker_name] += 1
            await asyncio.sleep(PAUSE_S)

    async def stop(self) -> None:
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task


async def tell_names(cluster: Cluster, request: Request) -> None:
    async with await Peer.connect(cluster.name_servers[0].address) as names:
        await names.ask(request, 5.0)


async def upgrade(cluster: Cluster, broker: BrokerNode, sending: Sending, admin: Admin) -> None:
    """Wipe its write permission, wait until it is drained, restart it, give the permission back."""
    await tell_names(cluster, WipeWritePermOfBroker(broker_name=broker.name))
    await cluster.clock.turn(REFRESHED_S)
    before = sending.brokers[broker.name]
    await cluster.clock.turn(10)
    assert sending.brokers[broker.name] == before, "sends go elsewhere"

    lag = await admin.lag("readers", "T")
    left = {one.queue.queue_id: one.lag for one in lag.queues if one.queue.broker_name == broker.name}
    assert len(left) == 4
    assert not any(left.values()), "all it held is consumed"

    await broker.stop()
    await cluster.clock.turn(UPGRADE_S)
    assert sending.brokers[broker.name] == before
    await broker.start()
    await tell_names(cluster, AddWritePermOfBroker(broker_name=broker.name))
    await cluster.clock.turn(REFRESHED_S + 10)
    assert sending.brokers[broker.name] > before, "it takes its share again"


@pytest.mark.promise(193)
@pytest.mark.timeout(180)
def test_brokers_are_upgraded_while_all_goes_on() -> None:
    """Wiped, drained, restarted, added back, one more added: no send fails, without retries; none is lost."""

    async def scenario(cluster: Cluster) -> None:
        first, second, third = cluster.brokers
        await third.stop()
        await cluster.create_topic("T", queues=4)
        seen = Seen()
        reading = Consumer(cluster.namesrv, group="readers", consume_from=ConsumeFrom.FIRST)
        reading.subscribe("T", seen)
        async with reading, Producer(cluster.namesrv, retries=0) as producer, Admin(cluster.namesrv) as admin:
            await reading.ready()
            sending = Sending(producer)
            await cluster.clock.turn(10)
            for broker in (first, second):
                await upgrade(cluster, broker, sending, admin)
            await third.start()
            await cluster.create_topic("T", queues=4)
            await cluster.clock.turn(2 * REFRESHED_S)
            assert sending.brokers[third.name] > 0, "a new one takes its share"
            await sending.stop()
            await settles(cluster, lambda: len({*seen.bodies}) >= len(sending.sent), within_s=60)
        assert not sending.failures
        assert {*map(int, seen.bodies)} == {*sending.sent}
        assert len(sending.sent) > 500

    run(scenario, brokers=3)
