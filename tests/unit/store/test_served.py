"""The store behind a running broker: where its files go, when a message is visible, what is to flush."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from hotfire.broker.config import BrokerConfig
from hotfire.broker.program import BrokerProgram
from hotfire.net.peer import Peer
from hotfire.protocol import bodies
from hotfire.protocol.codes import ResponseCode
from hotfire.protocol.command import Command
from hotfire.protocol.record import iter_records
from hotfire.protocol.requests import GetBrokerRuntimeInfo, PullMessage, SendMessageV2
from hotfire.settings import from_properties
from tests.peers.hotfire import executable
from tests.peers.process import LineProcess

TIMEOUT_S = 10.0
SUBSCRIPTION = 4


@asynccontextmanager
async def broker(root: Path, **settings: str) -> AsyncIterator[tuple[BrokerProgram, Peer]]:
    """A broker of this process without a name server, and a connection to it."""
    properties = {
        "storePathRootDir": str(root),
        "listenPort": "0",
        "bindAddress": "127.0.0.1",
        "mappedFileSizeCommitLog": "1048576",
        **settings,
    }
    config, unknown = from_properties(BrokerConfig, properties)
    assert not unknown
    program = BrokerProgram(config)
    await program.start()
    try:
        async with await Peer.connect(program.advertised) as peer:
            yield program, peer
    finally:
        await program.close()


async def send(peer: Peer, body: bytes, queue_id: int = 0) -> int:
    """The queue offset the reply names."""
    reply = await peer.ask(
        SendMessageV2(
            producer_group="p",
            topic="T",
            default_topic="TBW102",
            default_topic_queue_nums=4,
            queue_id=queue_id,
            sys_flag=0,
            born_timestamp=1,
            flag=0,
            properties="UNIQ_KEY\x01u\x02",
            body=body,
        ),
        TIMEOUT_S,
    )
    assert reply.fields is not None
    return int(reply.fields["queueOffset"])


async def pull(peer: Peer, offset: int, queue_id: int = 0) -> Command:
    return await peer.invoke(
        PullMessage(
            consumer_group="g",
            topic="T",
            queue_id=queue_id,
            queue_offset=offset,
            max_msg_nums=32,
            sys_flag=SUBSCRIPTION,
            commit_offset=0,
            suspend_timeout_millis=0,
            subscription="*",
            sub_version=0,
        ),
        TIMEOUT_S,
    )


async def runtime_info(peer: Peer) -> dict[str, str]:
    reply = await peer.ask(GetBrokerRuntimeInfo(), TIMEOUT_S)
    table: dict[str, str] = bodies.loads(reply.body)["table"]
    return table


@pytest.mark.promise(23)
def test_an_apache_style_file_moves_the_store_and_sizes_its_segments(tmp_path: Path) -> None:
    """storePathRootDir and mapedFileSizeCommitLog, as Apache's broker.conf spells them, are followed."""
    root = tmp_path / "elsewhere" / "store"
    file = tmp_path / "broker.conf"
    file.write_text(
        "# a comment\nbrokerClusterName = DefaultCluster\nbrokerName = broker-a\nbrokerId = 0\n"
        "deleteWhen = 04\nfileReservedTime = 48\nbrokerRole = ASYNC_MASTER\nflushDiskType = ASYNC_FLUSH\n"
        f"listenPort = 0\nbrokerIP1 = 127.0.0.1\nstorePathRootDir={root}\nmapedFileSizeCommitLog=65536\n"
    )
    process = LineProcess([str(executable()), "broker", "-c", str(file)], log=tmp_path / "broker.err")
    try:
        ready = process.wait_line(
            lambda line: line.startswith("hotfire ready "), what="ready line", timeout_s=30.0
        )
        told = dict(word.split("=", 1) for word in ready.removeprefix("hotfire ready ").split())
        asyncio.run(send_many(told["broker"], [bytes([i]) * 10_000 for i in range(12)]))
    finally:
        process.terminate()
    assert told["data"] == str(root)
    names = sorted(path.name for path in (root / "commitlog").iterdir())
    assert names[:2] == ["00000000000000000000", "00000000000000065536"]
    assert {path.stat().st_size for path in (root / "commitlog").iterdir()} == {65536}
    assert (root / "consumequeue" / "T" / "0").is_dir()
    assert (root / "checkpoint").stat().st_size == 4096


async def send_many(address: str, messages: list[bytes]) -> None:
    async with await Peer.connect(address) as peer:
        for body in messages:
            await send(peer, body)


@pytest.mark.promise(32)
def test_what_was_acknowledged_is_there_to_pull(tmp_path: Path) -> None:
    """The first pull after a reply finds the message; nothing stays behind in dispatching."""

    async def scenario() -> None:
        async with broker(tmp_path / "store") as (_, peer):
            for i in range(200):
                offset = await send(peer, b"%d" % i)
                reply = await pull(peer, offset)
                assert reply.code == ResponseCode.SUCCESS, f"message {i}: {reply.remark}"
                assert [record.body for record in iter_records(reply.body)] == [b"%d" % i]
            info = await runtime_info(peer)
            assert info["dispatchBehindBytes"] == "0"
            assert int(info["commitLogMaxOffset"]) > 200 * 91

    asyncio.run(scenario())


@pytest.mark.promise(226)
def test_bytes_still_to_flush_are_shown(tmp_path: Path) -> None:
    """ASYNC_FLUSH: what is written and not synced is in brokerStatus, and gone from it once synced."""

    async def scenario() -> None:
        slow = {"flushDiskType": "ASYNC_FLUSH", "flushIntervalCommitLog": "100000000"}
        slow["flushIntervalConsumeQueue"] = "100000000"
        async with broker(tmp_path / "store", **slow) as (program, peer):
            await to_flush(peer, "0 B")  # the first tick syncs at once
            for i in range(50):
                await send(peer, b"%d" % i)
            store = program.broker.store
            assert store.end >= store.readable_end > store.flushed_end
            info = await runtime_info(peer)
            number, unit = info["remainHowManyDataToFlush"].split()
            assert unit == "KiB"
            assert round((store.end - store.flushed_end) / 1024, 1) == float(number)
            assert int(info["commitLogMaxOffset"]) == store.end
        quick = {"flushDiskType": "ASYNC_FLUSH", "flushIntervalCommitLog": "1"}
        async with broker(tmp_path / "store", **quick) as (program, peer):
            for i in range(50):
                await send(peer, b"%d" % i)
            await to_flush(peer, "0 B")
            store = program.broker.store
            assert store.end == store.readable_end == store.flushed_end

    asyncio.run(scenario())


async def to_flush(peer: Peer, wanted: str) -> None:
    """Ask until brokerStatus says so; the test's own time limit ends a wait in vain."""
    while (await runtime_info(peer))["remainHowManyDataToFlush"] != wanted:
        pass  # each question is a turn of the broker's loop
