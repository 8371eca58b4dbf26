"""Topics of a cluster of two brokers: on both, on a chosen one, with more queues when they are busy."""

import asyncio
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from hotfire import Message, Producer
from hotfire.client import instance as instance_module
from hotfire.client import reader as reader_module
from hotfire.client.reader import TopicReader
from tests.broker.programs import Program, run, running, up
from tests.peers import remoting
from tests.peers.process import poll_until

BROKERS = ["broker-a", "broker-b"]
NO_TOPIC = 17


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Program]:
    with running(tmp_path, *up(tmp_path, "--brokers", "2")) as program:
        yield program


def create(cluster: Program, directory: Path, *words: str) -> tuple[int, str, str]:
    return run(["topic", "create", *words, "-n", cluster.namesrv], cwd=directory)


def queues(cluster: Program, topic: str) -> dict[str, tuple[int, int]]:
    """Queues to read and to write by broker, as the route has them."""
    route = remoting.route(cluster.namesrv, topic) or {"queueDatas": []}
    return {one["brokerName"]: (one["readQueueNums"], one["writeQueueNums"]) for one in route["queueDatas"]}


def await_queues(cluster: Program, topic: str, wanted: dict[str, tuple[int, int]]) -> None:
    poll_until(lambda: queues(cluster, topic) == wanted, what=f"{topic} at {wanted}", timeout_s=5.0)


@pytest.mark.promise(43)
def test_a_topic_lies_on_every_broker_and_may_get_more_queues(
    cluster: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Made on a cluster: 8 queues to read and 8 to write on each broker. Raised to 32: a running producer
    writes to all 64, a running reader reads from all of them, nothing is lost."""
    for topic in ("busy", "other"):
        assert create(cluster, tmp_path, topic)[0] == 0
        await_queues(cluster, topic, dict.fromkeys(BROKERS, (8, 8)))
    monkeypatch.setattr(instance_module, "ROUTE_INTERVAL_S", 0.1)
    monkeypatch.setattr(reader_module, "NEW_QUEUES_INTERVAL_S", 0.1)

    async def scenario() -> None:
        sent: Counter[bytes] = Counter()
        read: Counter[bytes] = Counter()
        written: set[tuple[str, int]] = set()
        read_from: set[tuple[str, int]] = set()
        async with (
            asyncio.timeout(40),
            Producer(cluster.namesrv) as producer,
            TopicReader(cluster.namesrv, "busy", start="earliest") as reader,
        ):

            async def send_until(count: int) -> None:
                while len(written) < count:
                    body = b"%d" % len(sent)
                    stored = await producer.send(Message("busy", body))
                    sent[body] += 1
                    written.add((stored.queue.broker_name, stored.queue.queue_id))

            async def read_all() -> None:
                async for message in reader:
                    read[message.body] += 1
                    read_from.add((message.queue.broker_name, message.queue.queue_id))
                    if len(read_from) == 64 and read == sent:
                        return

            reading = asyncio.create_task(read_all())
            await send_until(16)
            status, _, errors = await asyncio.to_thread(create, cluster, tmp_path, "busy", "--queues", "32")
            assert status == 0, errors
            await send_until(64)
            await reading
        assert read_from == written == {(name, number) for name in BROKERS for number in range(32)}

    asyncio.run(scenario())
    assert queues(cluster, "busy") == dict.fromkeys(BROKERS, (32, 32))
    assert queues(cluster, "other") == dict.fromkeys(BROKERS, (8, 8))


@pytest.mark.promise(191)
def test_a_topic_made_on_chosen_brokers_is_only_there(cluster: Program, tmp_path: Path) -> None:
    """`topic create --brokers broker-b`: routed there, stored there, unknown to the other. A broker nobody
    knows is named, and the topic is made nowhere."""
    status, output, errors = create(cluster, tmp_path, "chosen", "--brokers", "broker-b", "--json")
    assert status == 0, errors
    (made,) = json.loads(output)["brokers"]
    addresses = cluster.broker.split(",")
    assert made["broker"] == "broker-b"
    (other,) = set(addresses) - {made["address"]}
    await_queues(cluster, "chosen", {"broker-b": (8, 8)})
    assert remoting.ask(made["address"], 351, {"topic": "chosen"}).code == remoting.SUCCESS
    assert remoting.ask(other, 351, {"topic": "chosen"}).code == NO_TOPIC

    status, output, errors = create(cluster, tmp_path, "lost", "--brokers", "broker-a,broker-z")
    assert (status, output) == (1, "")
    wanted = "hotfire topic: the name server knows no broker broker-z; it has broker-a, broker-b\n"
    assert errors == wanted
    status, _, errors = create(cluster, tmp_path, "lost", "--cluster", "elsewhere")
    unknown = "the name server knows no cluster elsewhere; it has DefaultCluster"
    assert (status, errors) == (1, f"hotfire topic: {unknown}\n")
    assert {remoting.ask(address, 351, {"topic": "lost"}).code for address in addresses} == {NO_TOPIC}

    status, _, errors = create(cluster, tmp_path, "none", "--queues", "0", "--brokers", "broker-a")
    assert status == 2
    assert "argument --queues: '0' is not a number of at least 1" in errors
