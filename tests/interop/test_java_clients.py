"""Programs written for Apache RocketMQ work unchanged: its Java clients, old and new, and its admin tool."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.interop.clients import Clients, Server, await_commit, shared_queues
from tests.interop.content import differences
from tests.peers import remoting
from tests.peers.apache import mqadmin
from tests.peers.process import poll_until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(180)]

COUNT = 10_000
QUEUES = 8


@pytest.mark.promise(64)
@pytest.mark.parametrize("mode", ["sync", "async", "oneway"])
def test_each_message_arrives_once_and_unchanged(
    server: Server, clients: Clients, unique: Callable[[str], str], mode: str
) -> None:
    """What a Java producer sends, in any mode, a Java push consumer gets once, in every field."""
    topic, group = unique("topic"), unique("group")
    ledger = _send(server, clients, topic, mode)

    consumer = clients.push(server, topic, group, expect=COUNT)
    assert consumer.wait("started", timeout_s=20)["serialization"] == clients.serialization
    consumer.wait("complete", timeout_s=90)
    ends = remoting.max_offsets(server.broker, topic, remoting.queue_count(server.namesrv, topic))
    assert sum(ends) == COUNT
    await_commit(server, topic, group, ends)  # while it runs: one that ends forgets what it still listens to
    consumer.finish()

    received = consumer.events("message")
    assert sorted(message["index"] for message in received) == list(range(COUNT))
    assert [line for message in received for line in differences(message)][:5] == []
    places = sorted((message["queueId"], message["queueOffset"]) for message in received)
    assert places == [(queue, offset) for queue, end in enumerate(ends) for offset in range(end)]
    if mode != "oneway":
        assert {message["index"]: _place(message) for message in received} == ledger


def _send(server: Server, clients: Clients, topic: str, mode: str) -> dict[int, tuple[Any, ...]]:
    """Send everything and wait until it is stored; the places that were acknowledged, by message."""
    sender = clients.send(server, topic, COUNT, mode)
    assert sender.wait("started", timeout_s=20)["serialization"] == clients.serialization
    done = sender.wait("complete", timeout_s=90)
    assert done["failed"] == 0, sender.events("failed")[:3]
    if mode == "oneway":
        poll_until(
            lambda: remoting.stored_count(server.namesrv, server.broker, topic) >= COUNT,
            what=f"{COUNT} stored messages",
            timeout_s=60,
        )
    sender.finish()
    sent = sender.events("sent")
    assert len(sent) == done["acknowledged"] == (0 if mode == "oneway" else COUNT)
    assert {event["status"] for event in sent} <= {"SEND_OK"}
    return {event["index"]: _place(event) for event in sent}


def _place(event: dict[str, Any]) -> tuple[Any, ...]:
    return event["msgId"], event["queueId"], event["queueOffset"]


@pytest.mark.promise(111)
def test_survivor_takes_over_the_queues_of_a_killed_consumer(
    server: Server, clients: Clients, unique: Callable[[str], str]
) -> None:
    """Two consumers share all queues; when one is killed the other gets its queues and all that follows."""
    topic, group = unique("topic"), unique("group")
    remoting.create_topic(server.broker, topic, QUEUES)
    consumers = [clients.push(server, topic, group) for _ in range(2)]
    for consumer in consumers:
        consumer.wait("started", timeout_s=30)
    shares = shared_queues(consumers, members=2, queues=QUEUES)
    assert sorted(queue for share in shares.values() for queue in share) == list(range(QUEUES))

    clients.send_all(server, topic, 1000)
    victim, survivor = consumers
    poll_until(
        lambda: sum(len(consumer.events("message")) for consumer in consumers) >= 1000,
        what="1000 messages over both consumers",
        timeout_s=30,
    )
    both = [message["index"] for consumer in consumers for message in consumer.events("message")]
    assert sorted(both) == list(range(1000))
    assert all(consumer.events("message") for consumer in consumers)

    victim.kill()
    survivor.wait("queues", lambda event: event["queues"] == list(range(QUEUES)), timeout_s=30)
    clients.send_all(server, topic, 1000, "first=1000")
    later = set(range(1000, 2000))
    poll_until(
        lambda: later <= {message["index"] for message in survivor.events("message")},
        what="all later messages at the survivor",
        timeout_s=30,
    )
    taken = survivor.events("message")
    assert [line for message in taken for line in differences(message)][:5] == []
    assert sorted(message["index"] for message in taken if message["index"] >= 1000) == sorted(later)


def test_mqadmin_shows_route_and_cluster(
    server: Server, unique: Callable[[str], str], tmp_path: Path
) -> None:
    """Apache's mqadmin lists our broker and the queues of a topic as it would its own."""
    topic = unique("topic")
    remoting.create_topic(server.broker, topic, QUEUES)
    route = json.loads(
        re.sub(
            r"(\s)(\d+):",
            r'\1"\2":',
            mqadmin(["topicRoute", "-t", topic], server.namesrv, directory=tmp_path),
        )
    )
    (queues,) = route["queueDatas"]
    (broker,) = route["brokerDatas"]
    assert broker["brokerAddrs"] == {"0": server.broker}
    assert broker["cluster"] == "DefaultCluster"
    assert queues["brokerName"] == broker["brokerName"]
    assert (queues["readQueueNums"], queues["writeQueueNums"], queues["perm"]) == (QUEUES, QUEUES, 6)

    header, row = mqadmin(["clusterList"], server.namesrv, directory=tmp_path).strip().splitlines()
    assert header.startswith("#Cluster Name")
    assert row.split()[:5] == ["DefaultCluster", broker["brokerName"], "0", server.broker, "V5_5_0"]
