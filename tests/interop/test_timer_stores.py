"""A store with messages that wait for their time goes to Apache and back: all come, none early."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from hotfire.client.producer import Producer
from hotfire.model import Message
from hotfire.net.clock import now_ms
from tests.interop import stores
from tests.interop.clients import Server
from tests.interop.stores import apache, hotfire
from tests.interop.test_store_interop import End, end
from tests.peers import jars, remoting
from tests.peers.process import poll_until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

TOPIC, QUEUES, GROUP = "timed-over", 2, "readers"
COUNT, WAIT_S = 40, 150.0


@pytest.fixture(scope="module", autouse=True)
def java() -> None:
    if missing := jars.missing_tools():
        pytest.fail(f"install {' and '.join(missing)}: these tests run Apache's broker")


def send(server: Server, name: str, delay_ms: int) -> None:
    """Messages over two seconds, each with its time in its body."""

    async def all_of_them() -> None:
        async with Producer(server.namesrv, timeout_s=stores.TIMEOUT_S) as producer:
            for number in range(COUNT):
                due = now_ms() + delay_ms + number * 50
                await producer.send(Message(TOPIC, f"{name} {number} {due}".encode(), deliver_at=due))

    asyncio.run(all_of_them())


def delivered(server: Server) -> Counter[str]:
    """How many of each name have come, each counted once and on time."""
    records = stores.read_topic(server, TOPIC, QUEUES, group=GROUP).values()
    for record in records:
        assert record.store_timestamp >= int(record.body.split()[2]), f"{record.body!r} came early"
    return Counter(body.split()[0].decode() for body in {record.body for record in records})


def copies(server: Server) -> int:
    return len(stores.read_topic(server, TOPIC, QUEUES, group=GROUP))


def await_all(server: Server, name: str) -> None:
    poll_until(lambda: delivered(server)[name] == COUNT, what=f"all of {name}", timeout_s=WAIT_S)


@pytest.mark.parametrize(("hotfire_end", "apache_end"), [("closed", "closed"), ("killed", "killed")])
def test_pending_timers_change_hands(tmp_path: Path, hotfire_end: End, apache_end: End) -> None:
    """Ours delivers some and parks, Apache goes on and parks more, ours delivers the rest. Each once after
    orderly ends."""
    store = tmp_path / "store"
    with hotfire(tmp_path / "hotfire", store) as ours:
        remoting.create_topic(ours.broker, TOPIC, QUEUES)
        stores.await_route(ours, TOPIC, QUEUES)
        send(ours, "ours-soon", 500)
        send(ours, "ours-later", 20_000)
        send(ours, "ours-last", 60_000)
        await_all(ours, "ours-soon")
        end(ours, hotfire_end)
    with apache(tmp_path / "apache", store) as theirs:
        stores.await_route(theirs, TOPIC, QUEUES)
        send(theirs, "theirs-last", 40_000)
        await_all(theirs, "ours-later")
        end(theirs, apache_end)
    with hotfire(tmp_path / "again", store) as again:
        await_all(again, "theirs-last")
        await_all(again, "ours-last")
        assert delivered(again)["ours-soon"] == COUNT
        if (hotfire_end, apache_end) == ("closed", "closed"):
            assert copies(again) == 4 * COUNT
        assert again.terminate() == 0
