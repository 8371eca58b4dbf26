"""What a store that was closed held is let go of: a process that opens many does not grow by each."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest

from hotfire import Message, Producer, core
from hotfire.broker.broker import Broker
from hotfire.store.store import Store
from hotfire.testing import Cluster
from tests.unit.broker.harness import Harness, codes, pull_request, send_request
from tests.unit.store.driven import Driven

pytestmark = pytest.mark.core
KINDS = (core.Journal, core.Queue, core.Lane, Store, Broker)


def held() -> dict[int, str]:
    """Every object of a store or a broker that somebody still holds, by its id."""
    gc.collect()
    return {id(one): type(one).__name__ for one in gc.get_objects() if isinstance(one, KINDS)}


@pytest.fixture
def let_go() -> Callable[[], list[str]]:
    """Kinds of objects that are there and were not at the test's beginning."""
    before = held()
    return lambda: sorted(kind for one, kind in held().items() if one not in before)


def test_a_store(let_go: Callable[[], list[str]], tmp_path: Path) -> None:
    """Appended to, read, indexed, closed; also one that was closed with entries still to be made."""

    def live() -> weakref.ref[Store]:
        with Driven(tmp_path / "store") as driven:
            for number in range(50):
                driven.send("T", number % 3, b"%d" % number, UNIQ_KEY=f"K{number}")
            driven.turn()
            assert driven.pull("T", 0, 0)[0]
            assert "Journal" in let_go()
            return weakref.ref(driven.store)

    def fail() -> None:
        driven = Driven(tmp_path / "failed")
        driven.__enter__()
        driven.send("T", 0, b"x")
        driven.store.fail("killed")
        driven.store.close()

    gone = live()
    fail()
    assert let_go() == []
    assert gone() is None


def test_a_broker_with_its_lane(let_go: Callable[[], list[str]], tmp_path: Path) -> None:
    """Sends and pulls by the compiled lane, a peer that is parked; then closed."""

    def live() -> None:
        heart = Harness(tmp_path / "store")
        heart.create_topic("T")
        heart.receive(*[send_request() for _ in range(5)])
        heart.settle()
        assert set(codes(heart.connection.take())) == {0}
        heart.pull()
        heart.pull()
        heart.receive(pull_request(offset=5, suspend_timeout_millis=15_000))
        assert {"Broker", "Journal"} <= {*let_go()}
        heart.close()

    live()
    assert let_go() == []


def test_a_cluster(let_go: Callable[[], list[str]]) -> None:
    """In a test's own process: programs, sockets and clients, ended in order, and one killed."""

    async def live() -> None:
        async with Cluster(brokers=2) as cluster:
            await cluster.create_topic("T")
            async with Producer(cluster.namesrv) as producer:
                for _ in range(8):
                    await producer.send(Message("T", b"x"))
            await cluster.brokers[1].kill()

    asyncio.run(live())
    assert let_go() == []
