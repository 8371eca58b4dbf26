"""One Spark session for all tests that need one: it takes seconds to start, a query tenths of one."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from hotfire import Message, sync
from hotfire.spark.python import python_of_workers
from hotfire.testing.blocking import BlockingCluster
from tests.peers.sparkjava import session_settings

# Workers run the PATH's python otherwise, which has no hotfire.
os.environ["PYSPARK_PYTHON"] = python_of_workers(os.environ, is_local=True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whoever asks for a session is run by `make spark`."""
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.spark)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Two threads on this machine, as small as Spark gets."""
    place: Path = tmp_path_factory.mktemp("spark")
    builder = SparkSession.builder.master("local[2]").appName("hotfire tests")
    for key, value in session_settings(place / "warehouse").items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    yield session
    session.stop()


class Topics:
    """Topics with messages in them, at a cluster in the test's process."""

    def __init__(self, cluster: BlockingCluster) -> None:
        self.cluster = cluster
        self.namesrv = cluster.namesrv

    def make(self, topic: str, count: int, *, queues: int = 2, tag: str | None = None) -> list[bytes]:
        """A topic with `count` messages, keys k0…, in rotation over its queues."""
        self.cluster.create_topic(topic, queues=queues)
        return self.send(topic, count, tag=tag)

    def send(self, topic: str, count: int, *, first: int = 0, tag: str | None = None) -> list[bytes]:
        bodies = [f"{topic}-{number}".encode() for number in range(first, first + count)]
        with sync.Producer(self.namesrv) as producer:
            for number, body in enumerate(bodies, first):
                producer.send(Message(topic, body, tag=tag, keys=(f"k{number}",)))
        return bodies


@pytest.fixture
def topics(hotfire_cluster: BlockingCluster) -> Topics:
    return Topics(hotfire_cluster)
