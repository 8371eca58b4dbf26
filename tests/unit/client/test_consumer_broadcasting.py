"""Broadcasting: every member gets everything, keeps its own offsets in a file, and retries nothing."""

import asyncio
import logging
import threading
from pathlib import Path

import pytest

from hotfire import MessageQueue
from hotfire.client import offsets
from hotfire.client.consumer import Consumer
from hotfire.client.consumersettings import ConsumeFrom
from hotfire.client.offsets import LocalOffsets, offsets_json, parse_offsets
from hotfire.errors import BrokerRefused, ConfigError, RemoteProtocolError
from hotfire.protocol.bodies import decode_body, encode_body
from hotfire.protocol.members import ConsumerConnection, ResetOffsets
from hotfire.protocol.requests import (
    GetConsumerConnectionList,
    PullMessage,
    ResetConsumerOffset,
    ResetOffset,
    UpdateConsumerOffset,
)
from hotfire.testing import Cluster
from tests.unit.client.consuming import Seen, Wire, ask, committed, numbered, run, send, settles, turn

JAVA = (
    '{\n\t"offsetTable":{\n\t\t{\n\t\t\t"brokerName":"broker-a",\n\t\t\t"queueId":1,\n\t\t\t"topic":"T"\n\t\t}:3,'
    '\n\t\t{\n\t\t\t"brokerName":"broker-a",\n\t\t\t"queueId":0,\n\t\t\t"topic":"T"\n\t\t}:12\n\t}\n}'
)
"""What the Java client 5.5.0 writes."""


def member(
    cluster: Cluster, listener: object, directory: Path, name: str = "one", **more: object
) -> Consumer:
    consumer = Consumer(
        cluster.namesrv, group="g", broadcasting=True, consume_from=ConsumeFrom.FIRST, instance_name=name,
        offsets_directory=directory, **more,  # type: ignore[arg-type]
    )  # fmt: skip
    consumer.subscribe("T", listener)  # type: ignore[arg-type]
    return consumer


@pytest.mark.promise(175)
def test_every_member_gets_every_message(tmp_path: Path) -> None:
    """Three members, 200 messages over four queues: each has all 200."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.create_topic("T", queues=4)
        listeners = [Seen() for _ in range(3)]
        members = [member(cluster, one, tmp_path, f"m{number}") for number, one in enumerate(listeners)]
        for one in members:
            await one.start()
        await send(cluster, "T", numbered(200))
        for seen in listeners:
            await seen.count(200)
            assert sorted(map(int, seen.bodies)) == list(range(200))
        for one in members:
            await one.close()

    run(scenario)


def test_progress_is_written_in_order_however_slow_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit while an older one is still being written, which nobody waits for any more: the file has the
    newest of each queue in the end."""
    first, second = (MessageQueue("T", "broker-a", number) for number in range(2))
    replace, entered, may_go_on, left = offsets._replace, *(threading.Event() for _ in range(3))

    def slowly(path: Path, data: bytes) -> None:
        is_first = not entered.is_set()
        if is_first:
            entered.set()
            assert may_go_on.wait(20)
        replace(path, data)
        if is_first:
            left.set()

    async def scenario() -> None:
        store = LocalOffsets("one", "g", tmp_path)
        await store.load()
        monkeypatch.setattr(offsets, "_replace", slowly)
        store.set(first, 5)
        older = asyncio.create_task(store.persist([first]))
        assert await asyncio.to_thread(entered.wait, 20)
        store.set(first, 6)
        newer = asyncio.create_task(store.persist([first]))
        store.set(second, 9)
        other = asyncio.create_task(store.persist([second]))
        await asyncio.wait(
            {newer, other}, timeout=0.3
        )  # it may not overtake; without a bound it would not end
        older.cancel()
        may_go_on.set()
        await asyncio.gather(newer, other)
        assert await asyncio.to_thread(left.wait, 20)
        assert parse_offsets(store.path.read_bytes()) == {first: 6, second: 9}
        store.set(first, 7)
        await store.persist([first])
        assert parse_offsets(store.path.read_bytes()) == {first: 7, second: 9}

    asyncio.run(scenario())


@pytest.mark.promise(176)
def test_progress_is_kept_in_a_file_and_gone_on_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within five seconds the file holds queue and offset; brokers are told nothing; a restart continues."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.create_topic("T", queues=1)
        wire, seen = Wire(monkeypatch), Seen()
        async with member(cluster, seen, tmp_path) as consumer:
            path = tmp_path / consumer._running.instance.client_id / "g" / "offsets.json"
            await send(cluster, "T", numbered(3))
            await seen.count(3)
            await settles(cluster, path.exists, within_s=16)
            assert path.read_bytes() == offsets_json({MessageQueue("T", "broker-0", 0): 3})
            await send(cluster, "T", numbered(2, first=3))
            await seen.count(5)
        assert parse_offsets(path.read_bytes()) == {MessageQueue("T", "broker-0", 0): 5}
        assert parse_offsets(path.with_name("offsets.json.bak").read_bytes()) == {
            MessageQueue("T", "broker-0", 0): 3
        }
        assert not wire.of(UpdateConsumerOffset)
        assert all(not pull.sys_flag & 1 for pull in wire.of(PullMessage))
        assert committed(cluster, "T", "g") is None
        again = Seen()
        async with member(cluster, again, tmp_path):
            await send(cluster, "T", [b"new"])
            await again.count(1)
            assert again.bodies == [b"new"]

    run(scenario)


def test_without_a_name_the_client_id_outlives_a_restart(tmp_path: Path) -> None:
    """Broadcasting uses one id per machine unless told otherwise: its file is found again."""

    async def scenario(cluster: Cluster) -> None:
        ids = []
        for _ in range(2):
            async with Consumer(
                cluster.namesrv, group="g", broadcasting=True, offsets_directory=tmp_path
            ) as one:
                ids.append(one._running.instance.client_id)
        assert ids[0] == ids[1]
        assert ids[0].endswith("@DEFAULT")

    run(scenario)


@pytest.mark.promise(177)
def test_a_failure_is_logged_and_nothing_more(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """One call per message, a line in the log, no retry topic; the offset moves on."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.create_topic("T", queues=1)
        seen = Seen(fails=lambda message: True)
        async with member(cluster, seen, tmp_path) as consumer:
            await send(cluster, "T", numbered(3))
            await seen.count(3)
            body = await ask(cluster, GetConsumerConnectionList(consumer_group="g"))
            assert list(decode_body(ConsumerConnection, body).subscriptions) == ["T"]
            await turn(cluster, 30)
            assert len(seen.messages) == 3
            assert list(consumer._running.offsets.of_topic("T").values()) == [3]

    with caplog.at_level(logging.WARNING, "hotfire.client"):
        run(scenario)
    lines = [
        record.getMessage()
        for record in caplog.records
        if "broadcasting has no retries" in record.getMessage()
    ]
    assert len(lines) == 3
    assert "offset=1" in lines[1]


@pytest.mark.promise(178)
def test_in_order_is_refused_at_the_start() -> None:
    """A reason instead of silence."""
    with pytest.raises(ConfigError, match="orderly=True with broadcasting=True"):
        Consumer("127.0.0.1:1", group="g", broadcasting=True, orderly=True)


@pytest.mark.promise(179)
def test_a_reset_from_the_server_is_refused_with_a_reason(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The administrator is told why; a broker that passes a reset on anyway is not followed, and logged."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.create_topic("T", queues=1)
        seen = Seen()
        async with member(cluster, seen, tmp_path) as consumer:
            await send(cluster, "T", numbered(3))
            await seen.count(3)
            with pytest.raises(BrokerRefused, match="broadcasting: its members keep their own offsets"):
                await ask(cluster, ResetOffset(topic="T", group="g", timestamp=0))
            body = encode_body(ResetOffsets({MessageQueue("T", "broker-0", 0): 1}))
            answer = consumer.asked(ResetConsumerOffset(topic="T", group="g", timestamp=0, body=body))
            await asyncio.ensure_future(answer)  # type: ignore[arg-type]
            program = cluster.brokers[0].program
            assert program is not None
            program.broker.offsets.reset("T", "g", {0: 1})  # as a broker that does not refuse
            await send(cluster, "T", [b"more"])
            await turn(cluster, 5)
            await seen.count(4)
            assert seen.bodies == [*numbered(3), b"more"]

    with caplog.at_level(logging.WARNING, "hotfire.client"):
        run(scenario)
    assert "is not reset: with broadcasting" in caplog.text


def test_the_file_is_javas() -> None:
    """Byte for byte what the Java client writes, and read as it reads it."""
    offsets = {MessageQueue("T", "broker-a", 1): 3, MessageQueue("T", "broker-a", 0): 12}
    assert offsets_json(offsets).decode() == JAVA
    assert parse_offsets(JAVA.encode()) == offsets
    assert offsets_json({}) == b'{\n\t"offsetTable":{}\n}'
    for wrong in (b"[]", b"{}", b'{"offsetTable":{"x":1}}', b'{"offsetTable":{{"queueId":1}:1}}'):
        with pytest.raises(RemoteProtocolError):
            parse_offsets(wrong)


def test_a_damaged_file_is_passed_over_for_the_one_before_or_told(tmp_path: Path) -> None:
    """The backup stands in; when neither reads, the start fails and names them rather than begin anew."""
    queue = MessageQueue("T", "b", 0)

    async def scenario() -> None:
        store = LocalOffsets("id", "g", tmp_path)
        await store.load()
        for offset in (1, 2):
            store.set(queue, offset)
            await store.persist([queue])
        store.path.write_bytes(b'{"offsetTable":')
        store = LocalOffsets("id", "g", tmp_path)
        await store.load()
        assert await store.read(queue) == 1
        store.path.with_name("offsets.json.bak").write_bytes(b"nonsense")
        with pytest.raises(ConfigError, match="mend or remove"):
            await LocalOffsets("id", "g", tmp_path).load()

    asyncio.run(scenario())


def test_a_full_disk_is_told_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What cannot be written is logged; the old file stays whole, and the next try writes all."""
    queue = MessageQueue("T", "b", 0)

    async def scenario() -> None:
        store = LocalOffsets("id", "g", tmp_path)
        store.set(queue, 1)
        await store.persist([queue])
        store.set(queue, 2)
        with monkeypatch.context() as patched:
            patched.setattr(
                "os.fsync", lambda fd: (_ for _ in ()).throw(OSError(28, "No space left on device"))
            )
            await store.persist([queue])
        assert parse_offsets(store.path.read_bytes()) == {queue: 1}
        await store.persist([queue])
        assert parse_offsets(store.path.read_bytes()) == {queue: 2}

    asyncio.run(scenario())
    assert "No space left" in caplog.text
