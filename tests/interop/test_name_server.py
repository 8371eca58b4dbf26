"""Apache's name server and ours, asked the same in the same order: the same answers, field by field."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest

from hotfire.model import DataVersion, QueueData, RouteData, TopicConfig
from hotfire.namesrv.config import NameServerConfig
from hotfire.namesrv.program import NameServerProgram
from hotfire.net.peer import Peer
from hotfire.protocol import requests as ask
from hotfire.protocol.bodies import encode_body, loads
from hotfire.protocol.command import Command
from hotfire.protocol.request import Request
from tests.peers.apache import ApacheCluster
from tests.unit.namesrv.fakes import FakeBroker

pytestmark = pytest.mark.interop

T, U, V = TopicConfig("T", 4, 4), TopicConfig("U", 8, 8, sys_flag=1), TopicConfig("V", 8, 8, sys_flag=2)
A, SLAVE = FakeBroker(), FakeBroker(id=1, port=10921)
B = FakeBroker("broker-b", port=20911, cluster="Other")
CLUSTER = "DefaultCluster"


def names(broker: FakeBroker) -> dict[str, Any]:
    return {
        "broker_name": broker.name,
        "broker_addr": broker.address,
        "cluster_name": broker.cluster,
        "broker_id": broker.id,
    }


def queues(broker: str) -> bytes:
    return encode_body(RouteData((QueueData(broker, 2, 2, 6),)))


def version(counter: int) -> bytes:
    return encode_body(DataVersion(0, 1, counter))


def route(topic: str, **fields: Any) -> Request:
    return ask.GetRouteInfoByTopic(topic=topic, **fields)


CONVERSATION: list[Request | Command] = [
    A.registration([T, U], filter_servers=("10.0.0.9:1", "10.0.0.9:2")),
    SLAVE.registration([T, U]),
    B.registration([T, V], zone_name="East", enable_acting_master=True),
    A.registration([T, U], body_crc32=5),
    route("T"), route("T", accept_standard_json_only=True), route("N"),
    route("T", zone_mode=True, zone_name="east"), route("T", zone_name="east"),
    ask.GetBrokerClusterInfo(),
    ask.GetBrokerMemberGroup(cluster_name=CLUSTER, broker_name="broker-a"),
    ask.GetBrokerMemberGroup(cluster_name="q", broker_name="q"),
    ask.QueryDataVersion(**names(A), body=version(1)),
    ask.QueryDataVersion(**names(A), body=version(2)),
    ask.QueryDataVersion(**names(FakeBroker("q", port=1)), body=version(1)),
    ask.BrokerHeartbeat(cluster_name=CLUSTER, broker_addr=A.address, broker_name="broker-a"),
    ask.GetAllTopicListFromNameserver(),
    ask.GetTopicsByCluster(cluster="Other"), ask.GetTopicsByCluster(cluster="no"),
    ask.GetUnitTopicList(), ask.GetHasUnitSubTopicList(), ask.GetHasUnitSubUnunitTopicList(),
    ask.RegisterTopicInNamesrv(topic="W", body=queues("broker-a")),
    ask.RegisterTopicInNamesrv(topic="X", body=queues("nobody")),
    ask.RegisterTopicInNamesrv(topic="X"),
    route("W"), route("X"),
    ask.WipeWritePermOfBroker(broker_name="broker-a"), ask.WipeWritePermOfBroker(broker_name="q"),
    route("T"),
    ask.AddWritePermOfBroker(broker_name="broker-a"), route("U"),
    ask.DeleteTopicInNamesrv(topic="T", cluster_name="Other"), route("T"),
    ask.DeleteTopicInNamesrv(topic="T"), route("T"),
    ask.DeleteTopicInNamesrv(topic="none", cluster_name="q"),
    ask.GetKvConfig(namespace="N", key="k"), ask.GetKvListByNamespace(namespace="N"),
    ask.PutKvConfig(namespace="N", key="k", value="v"),
    ask.GetKvConfig(namespace="N", key="k"), ask.GetKvListByNamespace(namespace="N"),
    ask.DeleteKvConfig(namespace="N", key="k"), ask.DeleteKvConfig(namespace="N", key="k"),
    ask.GetKvListByNamespace(namespace="N"), ask.DeleteKvConfig(namespace="M", key="k"),
    ask.PutKvConfig(namespace="ORDER_TOPIC_CONFIG", key="T", value="broker-a:4"),
    A.registration([T, U]), SLAVE.registration([T, U]), route("T"),
    ask.UpdateNamesrvConfig(),
    ask.UpdateNamesrvConfig(body=b"orderMessageEnable=true\n"), route("T"), route("U"),
    ask.UpdateNamesrvConfig(body=b"enableTopicList=false\nenableAllTopicList=false\n"),
    ask.GetAllTopicListFromNameserver(), ask.GetUnitTopicList(), ask.GetTopicsByCluster(cluster="Other"),
    ask.UnregisterBroker(**names(B)), ask.UnregisterBroker(**names(FakeBroker("q", port=1))),
    ask.GetBrokerClusterInfo(), route("V"),
    Command(9999),
]  # fmt: skip
"""Left out: the remarks for a registration that cannot be read and for settings that may not be changed (ours
say what is wrong), and the system topics' broker address, which is any broker's."""


@pytest.fixture(scope="module")
def apache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with ApacheCluster.name_server(tmp_path_factory.mktemp("names")) as address:
        yield address


async def gone(peer: Peer, broker_name: str) -> None:
    """Apache's name server carries a goodbye out a moment after it has answered it."""
    while True:
        known = await peer.invoke(ask.GetBrokerClusterInfo(), 10.0)
        if broker_name not in tree(known.body)["brokerAddrTable"]:
            return
        await asyncio.sleep(0.02)


async def answers(address: str) -> list[tuple[int, str | None, dict[str, str], Any]]:
    async with asyncio.timeout(120), await Peer.connect(address) as peer:
        collected = []
        for request in CONVERSATION:
            reply = await peer.invoke(request, 10.0)
            if isinstance(request, ask.UnregisterBroker):
                await gone(peer, request.broker_name)
            collected.append((reply.code, reply.remark, dict(reply.fields or {}), tree(reply.body)))
        return collected


def tree(body: bytes) -> Any:
    """What a body says, but for the order of lists, which with Java is that of a hash table."""

    def ordered(value: Any) -> Any:
        if isinstance(value, dict):
            return {str(key): ordered(item) for key, item in value.items()}
        if isinstance(value, list):
            return sorted(map(ordered, value), key=lambda item: json.dumps(item, sort_keys=True))
        return value

    return ordered(loads(body)) if body else None


def test_the_same_questions_have_the_same_answers(apache: str) -> None:
    """Registrations, routes, lists, permissions, key-values, settings, goodbyes: all fields."""

    async def ours() -> list[tuple[int, str | None, dict[str, str], Any]]:
        program = NameServerProgram(NameServerConfig(bind_address="127.0.0.1", listen_port=0))
        await program.start()
        try:
            return await answers(f"127.0.0.1:{program.port}")
        finally:
            await program.close()

    theirs = asyncio.run(answers(apache))
    for request, expected, got in zip(CONVERSATION, theirs, asyncio.run(ours()), strict=True):
        assert got == expected, request
