"""One client id is one instance: its connections, and what it does by itself as time passes."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from itertools import pairwise
from unittest import mock

import pytest

from hotfire import Consumer, Message, Producer
from hotfire.net.peer import Peer
from hotfire.protocol.codes import RequestCode
from hotfire.protocol.command import Command
from hotfire.protocol.request import Request
from hotfire.testing import Cluster
from tests.unit.client.consuming import Seen, run, turn, until
from tests.unit.client.test_addresses import service

WATCHED_S = 65.0
PERIODS_S = {
    RequestCode.GET_ROUTEINFO_BY_TOPIC: 30.0,
    RequestCode.HEART_BEAT: 30.0,
    RequestCode.UPDATE_CONSUMER_OFFSET: 5.0,
}


def connection_count(cluster: Cluster) -> int:
    program = cluster.brokers[0].program
    assert program is not None
    return len(program.server.connections)


@pytest.mark.promise(75)
def test_members_of_one_instance_share_their_connections() -> None:
    """A producer and two consumers of one instance name have one connection to their broker; another name
    has one of its own, and the shared one stays until the last member leaves."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.create_topic("T", queues=2)
        await until(lambda: connection_count(cluster) == 0)  # who made the topic has left
        seen, other = Seen(), Seen()
        async with Producer(cluster.namesrv, instance_name="one") as producer:
            async with (
                Consumer(cluster.namesrv, group="g", instance_name="one") as first,
                Consumer(cluster.namesrv, group="h", instance_name="one") as second,
            ):
                first.subscribe("T", seen)
                second.subscribe("T", other)
                await asyncio.gather(first.ready(), second.ready())
                await producer.send(Message("T", b"x"))
                await asyncio.gather(seen.count(1), other.count(1))
                assert connection_count(cluster) == 1
                async with Producer(cluster.namesrv, instance_name="two") as apart:
                    await apart.send(Message("T", b"y"))
                    assert connection_count(cluster) == 2
            await producer.send(Message("T", b"z"))
            await until(lambda: connection_count(cluster) == 1)

    run(scenario)


@pytest.mark.promise(76)
@pytest.mark.timeout(120)
def test_each_timer_has_its_period() -> None:
    """A producer and a consumer for a turned minute: routes and heartbeats every 30 s, offsets every 5 s."""
    times: dict[int, list[float]] = defaultdict(list)
    invoke, oneway = Peer.invoke, Peer.invoke_oneway

    def note(request: Request | Command) -> None:
        times[request.code].append(asyncio.get_running_loop().time())

    async def seen_invoke(peer: Peer, request: Request | Command, timeout_s: float) -> Command:
        note(request)
        return await invoke(peer, request, timeout_s)

    async def seen_oneway(peer: Peer, request: Request | Command, timeout_s: float = 3.0) -> None:
        note(request)
        await oneway(peer, request, timeout_s)

    async def scenario(cluster: Cluster) -> None:
        await cluster.create_topic("T", queues=1)
        seen = Seen()
        async with (
            Consumer(cluster.namesrv, group="g") as consumer,
            Producer(cluster.namesrv) as producer,
        ):
            consumer.subscribe("T", seen)
            await consumer.ready()
            await producer.send(Message("T", b"x"))
            await seen.count(1)
            await turn(cluster, 12.0)  # what a start does once
            with (
                mock.patch.object(Peer, "invoke", seen_invoke),
                mock.patch.object(Peer, "invoke_oneway", seen_oneway),
            ):
                await turn(cluster, WATCHED_S)

    run(scenario)
    for code, period_s in PERIODS_S.items():
        rounds = [at for before, at in pairwise([-1e9, *sorted(times[code])]) if at - before > 1.0]
        gaps = [later - earlier for earlier, later in pairwise(rounds)]
        assert gaps, f"{code.name} came {len(rounds)} times in {WATCHED_S:g} s"
        assert all(abs(gap - period_s) <= 0.1 * period_s + 1.5 for gap in gaps), (code.name, gaps)


@pytest.mark.promise(76)
@pytest.mark.timeout(120)
def test_addresses_of_name_servers_are_asked_for_again() -> None:
    """An address service is asked at the start, after 10 s, and every two minutes from then on."""

    async def scenario(cluster: Cluster) -> None:
        async with service() as (given, url):
            given.page = cluster.namesrv.encode()
            async with Producer(url):
                began_s, asked_s = asyncio.get_running_loop().time(), []
                for _ in range(52):
                    known = len(given.asked)
                    await turn(cluster, 5.0)
                    if len(given.asked) > known:
                        asked_s.append(asyncio.get_running_loop().time() - began_s)
        assert [round(at / 10) * 10 for at in asked_s] == [10, 130, 250]

    run(scenario)
