"""Sent, stored, consumed, dead: held against each other, in a cluster and in files."""

import asyncio
import json
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, TextIO

import pytest
from pyspark.sql import SparkSession

from hotfire import Consumer, Message, ReceivedMessage, sync
from hotfire.client.admin import Admin
from hotfire.client.bridge import Bridge
from hotfire.client.consumersettings import ConsumeFrom
from hotfire.spark.pipelines import reconcile
from hotfire.store.disk import Disk
from hotfire.store.dump import Selection, records
from hotfire.store.layout import look
from tests.unit.spark.conftest import Topics
from tests.unit.spark.running import run_pipeline

pytestmark = pytest.mark.timeout(600)


def _told(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return told


def _send(topics: Topics, topic: str, count: int, **more: Any) -> list[str]:
    """The unique ids of so many messages."""
    with sync.Producer(topics.namesrv) as producer:
        return [producer.send(Message(topic, b"%d" % number, **more)).message_id for number in range(count)]


def _commit(topics: Topics, group: str, topic: str, offset: int) -> None:
    async def commit() -> None:
        async with Admin(topics.namesrv) as admin:
            await admin.create_group(group)
            for queue in (await admin.route(topic)).read_queues:
                await admin.set_offset(group, queue, offset)

    Bridge.shared().run(commit())


def _ledger(path: Path, ids: list[str], **more: str) -> str:
    path.write_text("".join(json.dumps({"msgId": one, **more}) + "\n" for one in ids))
    return str(path)


def _consume(topics: Topics, groups: Sequence[str], topic: str, count: int, ledger: Path) -> str:
    """A consumer of each group, which writes down what it has done with, until all have all."""

    async def story() -> None:
        with ledger.open("w") as lines:
            async with AsyncExitStack() as running:
                enough = [_listen(topics, group, topic, count, lines) for group in groups]
                for consumer, _ in enough:
                    await running.enter_async_context(consumer)
                await asyncio.gather(*(done.wait() for _, done in enough))

    asyncio.run(story())
    return str(ledger)


def _listen(
    topics: Topics, group: str, topic: str, count: int, lines: TextIO
) -> tuple[Consumer, asyncio.Event]:
    seen, done = set[str](), asyncio.Event()

    async def handle(message: ReceivedMessage) -> None:
        lines.write(json.dumps({"msgId": message.message_id, "group": group}) + "\n")
        seen.add(message.message_id)
        if len(seen) == count:
            done.set()

    consumer = Consumer(topics.namesrv, group=group, consume_from=ConsumeFrom.FIRST, instance_name=group)
    consumer.subscribe(topic, handle)
    return consumer, done


@pytest.mark.promise(195)
def test_sent_is_stored_is_consumed(
    spark: SparkSession, topics: Topics, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With ledgers that a producer and two groups' consumers wrote, every id is accounted for; one that is
    taken out of either side is told.
    """
    topics.cluster.create_topic("orders", queues=2)
    ids = _send(topics, "orders", 40)
    sent = _ledger(tmp_path / "sent.jsonl", ids)
    consumed = _consume(topics, ["audit", "billing"], "orders", 40, tmp_path / "consumed.jsonl")
    said: dict[str, Any] = {"namesrv": topics.namesrv, "topic": ("orders",), "json": True, "once": True}
    assert run_pipeline(spark, reconcile, ledger=sent, consumed=consumed, **said) == 0
    told = _told(capsys)
    assert told["faults"] == []
    assert told["topics"] == [
        {
            "topic": "orders",
            "sent": 40,
            "stored": 40,
            "held": 0,
            "missing": 0,
            "unknown": 0,
            "holes": 0,
            "repeats": 0,
        }
    ]
    for group, name in zip(told["groups"], ("audit", "billing"), strict=True):
        assert (group["group"], group["done"], group["waiting"], group["unconsumed"]) == (name, 40, 0, 0)

    more = _ledger(tmp_path / "sent.jsonl", [*ids, "NEVER-STORED"])
    lines = Path(consumed).read_text().splitlines(keepends=True)
    Path(consumed).write_text("".join(lines[1:]))
    assert run_pipeline(spark, reconcile, ledger=more, consumed=consumed, **said) == 1
    assert len(_told(capsys)["faults"]) == 2


def test_what_waits_or_failed_or_is_held_is_not_lost(
    spark: SparkSession, topics: Topics, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Messages behind a group's offset, given back by it, or sent with a delay are accounted for."""
    topics.cluster.create_topic("orders", queues=1)
    ids = _send(topics, "orders", 10)
    held = _send(topics, "orders", 3, delay_level=18)
    _commit(topics, "billing", "orders", 6)
    sent = _ledger(tmp_path / "sent.jsonl", [*ids, *held])
    assert (
        run_pipeline(spark, reconcile, namesrv=topics.namesrv, topic=("orders",), ledger=sent, json=True) == 0
    )
    told = _told(capsys)
    assert (told["topics"][0]["held"], told["topics"][0]["missing"]) == (3, 0)
    assert (told["groups"][0]["done"], told["groups"][0]["waiting"]) == (6, 4)


def test_count_instead_of_ids(
    spark: SparkSession, topics: Topics, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where nobody kept ids a number will do: fewer are a loss."""
    topics.cluster.create_topic("orders", queues=2)
    _send(topics, "orders", 5)
    said: dict[str, Any] = {"namesrv": topics.namesrv, "topic": ("orders",), "json": True}
    assert run_pipeline(spark, reconcile, sent=("orders=5",), **said) == 0
    assert run_pipeline(spark, reconcile, sent=("orders=6",), **said) == 1
    assert _told(capsys)["faults"] == ["topic orders: 1 of 6 messages sent are not stored"]


@pytest.mark.promise(222)
def test_a_record_deleted_from_a_store_is_told(
    spark: SparkSession, topics: Topics, capsys: pytest.CaptureFixture[str]
) -> None:
    """Bytes of one record overwritten in the log: one hole, where it was, and exit code 1."""
    topics.cluster.create_topic("orders", queues=2)
    _send(topics, "orders", 20)
    _commit(topics, "billing", "orders", 10)
    topics.cluster.brokers[0].stop()
    directory = topics.cluster.cluster.brokers[0].directory
    said: dict[str, Any] = {"store": (f"broker-0={directory}",), "topic": ("orders",), "json": True}
    assert run_pipeline(spark, reconcile, **said) == 0
    told = _told(capsys)
    assert (told["topics"][0]["stored"], told["groups"][0]["done"], told["holes"]) == (20, 20, [])

    layout = look(Disk(str(directory)))
    rows = [row for row in records(layout, Selection(topic="orders")) if isinstance(row, dict)]
    victim = rows[7]
    file, at = layout.place(victim["physicalOffset"])
    with (directory / file).open("r+b") as log:
        log.seek(at)
        log.write(bytes(victim["storeSize"]))
    assert run_pipeline(spark, reconcile, **said) == 1
    told = _told(capsys)
    assert told["faults"] == ["topic orders: 1 of its places hold no readable message"]
    place = victim["queueOffset"]
    assert told["holes"] == [
        {"topic": "orders", "queue": f"broker-0:{victim['queueId']}", "from": place, "to": place}
    ]
