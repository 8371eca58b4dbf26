"""A store goes from Hotfire to Apache and back, by orderly ends and by kill -9, and loses nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest

from tests.interop import stores
from tests.interop.clients import Server
from tests.interop.stores import Records, apache, hotfire
from tests.peers import jars, remoting
from tests.peers.apache import ApacheCluster

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

TOPIC, QUEUES, GROUP = "handed-over", 4, "readers"
FIRST, SECOND, THIRD = range(1000), range(1000, 1600), range(1600, 1800)
COMMITTED = [11, 22, 33, 44]
SAMPLE = 23
TABLES = {
    "topics.json", "consumerOffset.json", "subscriptionGroup.json", "delayOffset.json", "consumerFilter.json"
}  # fmt: skip
End = Literal["closed", "killed"]


@pytest.fixture(scope="module", autouse=True)
def java() -> None:
    if missing := jars.missing_tools():
        pytest.fail(f"install {' and '.join(missing)}: these tests run Apache's broker")


def end(server: Server, how: End) -> None:
    if how == "closed":
        server.stop()
    elif isinstance(server, ApacheCluster):
        server.kill9()
        server.stop()  # its name server
    else:
        server.kill9()


def fill(server: Server, numbers: range) -> None:
    remoting.create_topic(server.broker, TOPIC, QUEUES)
    stores.await_route(server, TOPIC, QUEUES)
    stores.send_contents(server, TOPIC, numbers)


def commit(server: Server, offsets: list[int]) -> None:
    for queue_id, offset in enumerate(offsets):
        fields = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": queue_id, "commitOffset": offset}
        remoting.call(server.broker, remoting.UPDATE_CONSUMER_OFFSET, fields)


def holds(server: Server, before: Records, numbers: range) -> Records:
    """All messages of these numbers, each as its sender made it, and those of before as they were."""
    records = stores.read_topic(server, TOPIC, QUEUES, group=GROUP)
    changed = [place for place, record in before.items() if records.get(place) != record]
    assert not changed, f"{len(changed)} records changed: {before[changed[0]]} {records.get(changed[0])}"
    assert not stores.contents_differ(records, numbers)[:3]
    return records


def finds(server: Server, records: Records) -> None:
    """Lookups by key and by time answer what the records say."""
    expected = dict(sorted(stores.keys_in(records).items())[::SAMPLE])
    answers = stores.ask_keys(server, expected)
    wrong = {key: (expected[key], got) for key, got in answers.items() if got != expected[key]}
    assert not wrong, f"{len(wrong)} of {len(expected)} keys: {list(wrong.items())[:3]}"
    times = [0, *sorted(record.store_timestamp for record in records.values())[::SAMPLE], 1 << 50]
    for queue_id in range(QUEUES):
        found = stores.ask_times(server, TOPIC, queue_id, times)
        assert found == stores.time_answers(records, TOPIC, queue_id, times)


@pytest.mark.parametrize(
    ("hotfire_end", "apache_end"), [("closed", "closed"), ("closed", "killed"), ("killed", "closed")]
)
def test_store_changes_hands(tmp_path: Path, hotfire_end: End, apache_end: End) -> None:
    """Hotfire fills it, Apache serves it and appends, Hotfire serves both and appends: same messages, same
    answers to key and time lookups, same tables."""
    store = tmp_path / "store"
    ours = hotfire(tmp_path / "hotfire", store)
    with ours:
        fill(ours, FIRST)
        first = holds(ours, {}, FIRST)
        commit(ours, COMMITTED)
        finds(ours, first)
        stores.await_saved(store, "consumerOffset.json", f"{TOPIC}@{GROUP}")
        end(ours, hotfire_end)
    assert len(list((store / "commitlog").iterdir())) > 5
    assert len(list((store / "index").iterdir())) >= 2

    theirs = apache(tmp_path / "apache", store)
    with theirs:
        assert remoting.committed_offsets(theirs.broker, TOPIC, GROUP, QUEUES) == COMMITTED
        holds(theirs, first, FIRST)
        finds(theirs, first)
        fill(theirs, SECOND)
        both = holds(theirs, first, range(1600))
        commit(theirs, [offset + 1 for offset in COMMITTED])
        stores.await_saved(store, "consumerOffset.json", f":{COMMITTED[-1] + 1}")
        end(theirs, apache_end)

    again = hotfire(tmp_path / "again", store)
    with again:
        assert remoting.committed_offsets(again.broker, TOPIC, GROUP, QUEUES) == [
            offset + 1 for offset in COMMITTED
        ]
        holds(again, both, range(1600))
        finds(again, both)
        fill(again, THIRD)
        everything = holds(again, both, range(1800))
        finds(again, everything)
        assert again.terminate() == 0


def tables(store: Path) -> set[str]:
    return {path.name for path in (store / "config").iterdir()} & TABLES


@pytest.mark.promise(33)
def test_all_five_tables_are_there_and_read_by_both(tmp_path: Path) -> None:
    """After use Hotfire's config directory has the five tables; Apache's broker goes on with what they say,
    and Hotfire with what Apache made of them."""
    store = tmp_path / "store"
    ours = hotfire(tmp_path / "hotfire", store)
    with ours:
        remoting.create_topic(ours.broker, TOPIC, 7)
        stores.await_route(ours, TOPIC, 7)
        stores.send_contents(ours, TOPIC, range(20))
        first = stores.read_topic(ours, TOPIC, 7, group=GROUP)
        commit(ours, COMMITTED)
        assert ours.terminate() == 0
    assert tables(store) == TABLES
    theirs = apache(tmp_path / "apache", store, {**stores.SIZES, "autoCreateSubscriptionGroup": "false"})
    with theirs:
        stores.await_route(theirs, TOPIC, 7)
        assert remoting.committed_offsets(theirs.broker, TOPIC, GROUP, QUEUES) == COMMITTED
        assert stores.read_topic(theirs, TOPIC, 7, group=GROUP) == first  # a group it did not know is refused
        remoting.create_topic(theirs.broker, "made-by-apache", 3)
        commit(theirs, [1, 2, 3, 4])
    assert tables(store) == TABLES
    again = hotfire(tmp_path / "again", store)
    with again:
        stores.await_route(again, "made-by-apache", 3)
        assert remoting.committed_offsets(again.broker, TOPIC, GROUP, QUEUES) == [1, 2, 3, 4]
        assert stores.read_topic(again, TOPIC, 7, group=GROUP) == first
        assert again.terminate() == 0
    assert tables(store) == TABLES
