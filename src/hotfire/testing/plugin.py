"""Fixtures for pytest: a cluster per test, or one for all. There as soon as Hotfire is installed.

    def test_orders_are_stored(hotfire_cluster):                    synchronous code, other processes
        hotfire_cluster.create_topic("orders", queues=2)
        my_program(hotfire_cluster.namesrv)

    @pytest.mark.hotfire(brokers=2, sync_flush=True)                 arguments of `Cluster`
    def test_a_broker_dies(hotfire_cluster):
        hotfire_cluster.brokers[0].kill()

    async def test_an_hour_later(hotfire_async_cluster):             with any plugin that runs coroutines
        async with hotfire_async_cluster as cluster:                 in the test's own loop: its clock turns
            await cluster.clock.turn(3600)

    def test_quick(hotfire_session_cluster): ...                     one cluster for the whole session

Importing this costs nothing; brokers and all are imported when a test asks for a cluster. `-p no:hotfire`
leaves the fixtures out.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from hotfire.testing.blocking import BlockingCluster
    from hotfire.testing.cluster import Cluster

MARK = "hotfire"


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", f"{MARK}(**arguments): arguments of the Cluster this test is given")


def _cluster(request: pytest.FixtureRequest) -> Cluster:
    from hotfire.errors import ConfigError
    from hotfire.testing.cluster import Cluster

    mark = request.node.get_closest_marker(MARK)
    if mark is not None and mark.args:
        raise pytest.UsageError(f"{request.node.nodeid}: @pytest.mark.{MARK} takes named arguments only")
    try:
        return Cluster(**({} if mark is None else mark.kwargs))
    except ConfigError as error:
        raise pytest.UsageError(f"{request.node.nodeid}: @pytest.mark.{MARK}: {error}") from None


@pytest.fixture
def hotfire_cluster(request: pytest.FixtureRequest) -> Iterator[BlockingCluster]:
    """Name servers and brokers on a thread of their own, for this test; calls wait."""
    with _cluster(request) as cluster:
        yield cluster


@pytest.fixture
def hotfire_async_cluster(request: pytest.FixtureRequest) -> Cluster:
    """The same for a coroutine's own loop: `async with hotfire_async_cluster as cluster`."""
    return _cluster(request)


@pytest.fixture(scope="session")
def hotfire_session_cluster() -> Iterator[BlockingCluster]:
    """One cluster for all tests that ask for it. Topics are shared too: give each test its own names."""
    from hotfire.testing.cluster import Cluster

    with Cluster() as cluster:
        yield cluster
