"""Who is tested: Hotfire, or with HOTFIRE_PEER=apache the reference implementation itself.

The second proves that a test asks for what the Java client really gets from its own broker.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.interop.clients import Clients, Server
from tests.peers import jars
from tests.peers.apache import ApacheCluster
from tests.peers.hotfire import HotfireProcess
from tests.peers.java_client import JavaClient

_names = itertools.count(1)
MATRIX = [(version, headers) for version in jars.CLIENT_VERSIONS for headers in ("JSON", "ROCKETMQ")]


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One running name server and broker for all tests, which use topics and groups of their own."""
    if missing := jars.missing_tools():
        pytest.fail(f"install {' and '.join(missing)}: these tests run the Java clients")
    directory = tmp_path_factory.mktemp("server")
    running: Server
    if os.environ.get("HOTFIRE_PEER", "hotfire") == "apache":
        # Cold and on few cores it refuses sends that waited 200 ms; its speed is not what is tested here.
        running = ApacheCluster(directory, settings={"waitTimeMillsInSendQueue": "5000"})
    else:
        running = HotfireProcess(directory)
    with running:
        yield running


@pytest.fixture
def unique() -> Callable[[str], str]:
    """Names that no other test uses."""
    return lambda prefix: f"{prefix}-{next(_names)}"


@pytest.fixture(params=MATRIX, ids=lambda chosen: "-".join(chosen))
def clients(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Clients]:
    """Java clients in each version and header serialisation; none outlives its test."""
    started: list[JavaClient] = []
    version, serialization = request.param
    yield Clients(version, serialization, tmp_path, started)
    for client in started:
        client.kill()
