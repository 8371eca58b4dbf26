"""Members that let their brokers share the queues: whichever broker they ask, they hear the same."""

import asyncio
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path

import pytest

from hotfire.model import ConsumerData, Heartbeat, Subscription
from hotfire.net.peer import Peer
from hotfire.protocol.assignment import AssignmentQuery, Assignments
from hotfire.protocol.bodies import decode_body, encode_body
from hotfire.protocol.requests import HeartBeat, QueryAssignment
from tests.broker.programs import broker_config, namesrv_config, running
from tests.peers import remoting
from tests.peers.process import poll_until

BROKERS = ("broker-a", "broker-b")
MEMBERS = ("m1", "m2", "m3")
ROUTE_HOLDS_MS = 100
TIMEOUT_S = 20.0
Places = list[tuple[str, int]]


async def join(stack: AsyncExitStack, address: str, member: str) -> Peer:
    """A member of G, as long as its connection lasts."""
    # what the broker tells a member of its group is of no interest here
    peer = await stack.enter_async_context(await Peer.connect(address, on_request=lambda command: None))
    consumer = ConsumerData("G", subscriptions=(Subscription("T"),))
    await peer.ask(HeartBeat(body=encode_body(Heartbeat(member, consumers=(consumer,)))), TIMEOUT_S)
    return peer


async def share(peer: Peer, member: str, topic: str = "T") -> Places | None:
    query = AssignmentQuery(topic, "G", "CLUSTERING", member, "AVG")
    reply = await peer.ask(QueryAssignment(body=encode_body(query)), TIMEOUT_S)
    found = decode_body(Assignments, reply.body).assignments
    return None if found is None else [(one.queue.broker_name, one.queue.queue_id) for one in found]


@pytest.mark.promise(114)
def test_every_broker_shares_the_queues_of_all(tmp_path: Path) -> None:
    """Two brokers: both give each member the same queues of either, new ones once name servers know of them.
    When these are gone, the last word holds, and nobody is told less than there is."""
    with ExitStack() as programs:
        names = programs.enter_context(running(tmp_path, "namesrv", "-c", namesrv_config(tmp_path)))
        brokers = [
            programs.enter_context(
                running(
                    tmp_path, "broker", "-n", names.namesrv, "-c",
                    broker_config(tmp_path, name=name, loadBalancePollNameServerInterval=ROUTE_HOLDS_MS),
                    log=f"{name}.err",
                )
            ).broker
            for name in BROKERS
        ]  # fmt: skip
        for broker in brokers:
            remoting.create_topic(broker, "T", 3)
        poll_until(
            lambda: remoting.queue_count(names.namesrv, "T") == 6, what="the route", timeout_s=TIMEOUT_S
        )

        async def scenario() -> None:
            async with AsyncExitStack() as stack:
                peers = [await join(stack, broker, member) for broker in brokers for member in MEMBERS]

                async def shares() -> list[Places | None]:
                    return [
                        await share(peer, member) for peer, member in zip(peers, MEMBERS * 2, strict=True)
                    ]

                a, b = BROKERS
                three = [[(a, 0), (a, 1)], [(a, 2), (b, 0)], [(b, 1), (b, 2)]]
                assert await shares() == three * 2
                remoting.create_topic(brokers[1], "T", 6)
                grown = [[(a, 0), (a, 1), (a, 2)], [(b, 0), (b, 1), (b, 2)], [(b, 3), (b, 4), (b, 5)]]
                async with asyncio.timeout(TIMEOUT_S):
                    while await shares() != grown * 2:
                        pass  # six questions at a time
                names.process.kill()
                await asyncio.sleep(2 * ROUTE_HOLDS_MS / 1000)  # the route is old now
                assert await shares() == grown * 2
                assert await share(peers[0], MEMBERS[0], "BenchmarkTest") is None

        asyncio.run(scenario())
