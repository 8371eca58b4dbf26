"""What is looked for below an end that is known to be there: an answer with nothing in it ends no queue."""

from collections.abc import Callable
from typing import Any

import pytest

from hotfire import Message, MessageQueue, QueueReader
from hotfire.broker.broker import Broker
from hotfire.client import searching
from hotfire.client.prepared import PreparedProducer
from hotfire.client.pulling import Pulled, Puller, PullStatus
from hotfire.client.uniques import Uniques
from hotfire.errors import Timeout
from hotfire.testing import Cluster
from tests.unit.client.consuming import run

PER_FILE = 1000
"""Entries in a file of a queue, as the cluster sets it."""


def broker_of(cluster: Cluster) -> Broker:
    program = cluster.brokers[0].program
    assert program is not None
    return program.broker


async def ids_sent(cluster: Cluster, producer: PreparedProducer, count: int) -> list[str]:
    await cluster.create_topic("T", queues=1)
    messages = [Message("T", b"%d" % number) for number in range(count)]
    return [result.message_id for result in await producer.send_batch(messages)]


def ask_again(cluster: Cluster, monkeypatch: pytest.MonkeyPatch, times: int) -> Callable[[], int]:
    """So many pulls find the line before the disk full; how many of them did."""
    cold, told = broker_of(cluster).cold, 0

    def must_wait(*_: object) -> bool:
        return told < times

    def is_full(*_: object) -> bool:
        nonlocal told
        told += 1
        return False

    monkeypatch.setattr(cold, "must_wait", must_wait)
    monkeypatch.setattr(cold, "stand_in_line", is_full)
    return lambda: told


def lose_entries(cluster: Cluster, base: int) -> None:
    """The file of the queue that begins there is gone."""
    queue = broker_of(cluster).store._queues["T", 0]
    if base in queue._maps:
        queue._shut(base)
    (cluster.brokers[0].directory / queue._file(base)).unlink()


async def read_all(uniques: Uniques) -> set[str]:
    spans = await uniques.spans_since(0, await uniques.all_shown())
    return await uniques.read(spans, lambda one: True)


def test_ids_are_read_to_the_end_though_the_broker_says_ask_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its line is full for some answers: every id is found; full for ever: an error that says where."""

    async def scenario(cluster: Cluster) -> None:
        async with PreparedProducer(cluster.namesrv, group="p") as producer:
            sent = await ids_sent(cluster, producer, 20)
            count = ask_again(cluster, monkeypatch, 3)
            assert await read_all(producer.uniques("T", 10)) == set(sent)
            assert count() == 3
            ask_again(cluster, monkeypatch, 1 << 30)
            with pytest.raises(Timeout, match=r"broker broker-0 queue 0: messages from 0 to 19 .* 0.2 s"):
                await read_all(producer.uniques("T", 0.2))

    run(scenario)


def test_ids_behind_a_gap_are_read() -> None:
    """A file of the queue is lost: the broker says where the next one begins, and what is there is found."""

    async def scenario(cluster: Cluster) -> None:
        async with PreparedProducer(cluster.namesrv, group="p") as producer:
            sent = await ids_sent(cluster, producer, 3 * PER_FILE)
            lose_entries(cluster, PER_FILE)
            found = await read_all(producer.uniques("T", 10))
            assert found == {*sent[:PER_FILE], *sent[2 * PER_FILE :]}

    run(scenario)


def test_a_search_by_time_is_whole_or_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that says ask again is asked again; if it says nothing else the search is an error."""
    pull, left = Puller.pull, 3

    async def busy(puller: Puller, queue: MessageQueue, offset: int, *rest: Any, **named: Any) -> Pulled:
        nonlocal left
        left -= 1
        if left >= 0:
            return Pulled(PullStatus.NOTHING_MATCHED, [], offset, 0, 20, 0, is_reset=False)
        return await pull(puller, queue, offset, *rest, **named)

    async def scenario(cluster: Cluster) -> None:
        nonlocal left
        async with PreparedProducer(cluster.namesrv, group="p") as producer:
            sent = await ids_sent(cluster, producer, 20)
        monkeypatch.setattr(Puller, "pull", busy)
        monkeypatch.setattr(searching, "PATIENCE_S", 0.3)
        async with QueueReader(cluster.namesrv) as reader:
            found = await reader.find_by_time("T", 0, 1 << 60)
            assert [one.message_id for one in found.messages] == sent
            left = 1 << 30
            with pytest.raises(Timeout, match="messages from 0 to 19 were to be read"):
                await reader.find_by_time("T", 0, 1 << 60)

    run(scenario)
