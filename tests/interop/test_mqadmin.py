"""Apache's admin tool works with our servers unchanged."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.interop.clients import Server
from tests.peers import remoting
from tests.peers.apache import mqadmin

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

QUEUES = 8


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
