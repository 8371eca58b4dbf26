"""A cluster that the tests of a module share, and a shell on it."""

from collections.abc import Iterator

import pytest

from hotfire.testing.blocking import BlockingCluster
from hotfire.testing.cluster import Cluster
from tests.unit.cli.shell import Shell


@pytest.fixture(scope="module")
def cluster() -> Iterator[BlockingCluster]:
    with Cluster(brokers=2) as running:
        yield running


@pytest.fixture
def terminal(cluster: BlockingCluster, capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(cluster.namesrv, capsys)
