"""A disk that is full, that fails, that is slow: what was acknowledged stays, and the broker says why."""

import asyncio
import random
import re
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from hotfire.net.peer import Peer
from hotfire.protocol.codes import ResponseCode
from tests.crash.inject import InjectedHotfire, path_of
from tests.crash.lives import SMALL, arguments
from tests.crash.traffic import (
    QUEUES,
    SEND_TIMEOUT_S,
    TOPIC,
    Traffic,
    missing,
    read_back,
    request,
)
from tests.peers.process import ProcessFailed, poll_until
from tests.peers.remoting import create_topic

pytestmark = [pytest.mark.crash, pytest.mark.timeout(240)]

SEED = 77
POINTS = 50
PATIENCE_S = 30.0
FULL_ROUNDS = 5
ANSWER_S = 10.0
LATE_S = 2.0
MANY_INDEX_FILES = {"maxIndexNum": 60, "mappedFileSizeConsumeQueue": 20_000}
TMPFS_BYTES = 24 << 20
RESUME_S = 5.0
NAMES_SPACE = re.compile(r"\d[\d.,]* ?(bytes|B|[KMG]iB|%)")


def senders(seed: int) -> Traffic:
    return Traffic(seed, connections=2, in_flight=4, body_bytes_max=2000, is_keyed=True, is_patient=True)


async def all_there(
    server: InjectedHotfire, traffic: Traffic, count: int | None = None, *, late_s: float = 0.0
) -> None:
    """The first `count` of what was acknowledged, or all; at once, or within `late_s`: an entry that found no
    room for its queue's next file follows when there is some."""
    promised = traffic.acks[:count]  # those that come while we read may be missed
    found = await read_back(server.broker)
    with suppress(TimeoutError):
        async with asyncio.timeout(late_s):
            while missing(promised, found):
                found = await read_back(server.broker)
    lost = missing(promised, found)
    assert not lost, f"{len(lost)} of {len(promised)} lost: {lost[:5]}; {server.directory}"
    assert {record.body for record in found.values()} <= traffic.bodies, "messages nobody sent"


async def again_and_all_there(server: InjectedHotfire, traffic: Traffic) -> None:
    """After a start without strace."""
    server.injections = None
    await asyncio.to_thread(server.start)
    await all_there(server, traffic)


# --- a full disk ---


@pytest.mark.parametrize(
    ("calls", "when"),
    [("pwrite64,pwritev", "40+12"), ("fallocate,ftruncate", "30+3"), ("pwrite64", "60..75")],
)
def test_a_full_disk_loses_nothing_and_sends_go_on_when_there_is_room(
    tmp_path: Path, calls: str, when: str
) -> None:
    """ENOSPC at 50 writes of one life, at every third file made, and at 16 writes in a row: refused or late,
    never lost, and afterwards everything is accepted again without a restart."""
    server = InjectedHotfire(tmp_path, arguments=arguments(SMALL))
    server.injections = [f"{calls}:error=ENOSPC:when={when}"]
    traffic = senders(SEED)
    points = 16 if ".." in when else POINTS

    async def run() -> None:
        create_topic(server.broker, TOPIC, QUEUES)
        async with traffic.running():
            traffic.broker_is_up(server.broker)
            while len(server.injected_lines()) < points:
                async with asyncio.timeout(PATIENCE_S):
                    await traffic.acknowledged(len(traffic.acks) + 20)
            async with asyncio.timeout(PATIENCE_S):
                await traffic.acknowledged(len(traffic.acks) + 200)
        await all_there(server, traffic, late_s=LATE_S)
        assert not [told.remark for told in traffic.refusals if not NAMES_SPACE.search(told.remark)]
        await asyncio.to_thread(server.kill9)
        await again_and_all_there(server, traffic)
        assert await asyncio.to_thread(server.terminate) == 0

    try:
        server.start()
        asyncio.run(run())
    finally:
        server.end()


def test_while_nothing_can_be_written_sends_are_refused_and_reads_work(tmp_path: Path) -> None:
    """Sixty attempts in a row find no room: a new send is refused at once with the room there is, pulls
    are answered; those that waited are acknowledged when it is over."""
    server = InjectedHotfire(tmp_path, arguments=arguments(SMALL))
    server.injections = ["pwrite64:error=ENOSPC:when=60..120"]
    traffic = senders(SEED + 3)

    async def run() -> None:
        create_topic(server.broker, TOPIC, QUEUES)
        await all_there(server, traffic)  # by a group that exists from here on
        async with traffic.running():
            traffic.broker_is_up(server.broker)
            await asyncio.to_thread(
                poll_until,
                lambda: len(server.injected_lines()) >= 3,
                what="writes that find no room",
                timeout_s=PATIENCE_S,
            )
            async with await Peer.connect(server.broker) as peer:
                reply = await peer.invoke(request(0, b"too late"), SEND_TIMEOUT_S)
            assert reply.code == ResponseCode.SERVICE_NOT_AVAILABLE, reply
            assert NAMES_SPACE.search(reply.remark or ""), reply.remark
            await all_there(server, traffic)
            assert len(server.injected_lines()) < 61, "all this was to happen while there was no room"
            async with asyncio.timeout(PATIENCE_S):
                await traffic.acknowledged(len(traffic.acks) + 200)
        await all_there(server, traffic)
        await asyncio.to_thread(server.kill9)
        await again_and_all_there(server, traffic)

    try:
        server.start()
        asyncio.run(run())
    finally:
        server.end()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of a few mebibytes; mounting it takes root."""
    place = tmp_path / "small"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={TMPFS_BYTES}", "tmpfs", place], check=True)
    yield place
    subprocess.run(["umount", place], check=True)


def fill_up(ballast: Path) -> None:
    with ballast.open("ab", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))


async def fill_for_good(server: InjectedHotfire, ballast: Path, traffic: Traffic) -> None:
    """What was being made when the room ran out is taken back and leaves some: fill until nothing goes."""
    refused_in_a_row = 0
    while refused_in_a_row < 3:
        await asyncio.to_thread(fill_up, ballast)
        assert server.process.alive, f"died of a full disk: status {server.process.returncode}"
        async with asyncio.timeout(ANSWER_S):  # taken or refused, but answered
            refused_in_a_row = 0 if await traffic.one_more(server.broker) else refused_in_a_row + 1


def test_a_file_system_runs_full_and_is_freed_again(tmp_path: Path, small_disk: Path) -> None:
    """While it is full sends are refused with the room there is, reads work; with room again sends go on by
    themselves. Five times over, with an index file begun every few messages, so in the worst moment too."""
    place = f"--set=storePathRootDir={small_disk / 'data'}"
    server = InjectedHotfire(tmp_path, arguments=[*arguments(SMALL | MANY_INDEX_FILES), place])
    traffic, ballast = senders(SEED + 1), small_disk / "ballast"
    waits = []

    async def run() -> None:
        loop = asyncio.get_running_loop()
        create_topic(server.broker, TOPIC, QUEUES)
        async with traffic.running():
            traffic.broker_is_up(server.broker)
            await all_there(server, traffic)  # by a group that exists from here on
            for _ in range(FULL_ROUNDS):
                async with asyncio.timeout(PATIENCE_S):
                    await traffic.acknowledged(len(traffic.acks) + 300)
                    before = len(traffic.acks)
                    await fill_for_good(server, ballast, traffic)
                assert traffic.refusals[-1].code == ResponseCode.SERVICE_NOT_AVAILABLE
                assert NAMES_SPACE.search(traffic.refusals[-1].remark), traffic.refusals[-1]
                await all_there(server, traffic, before)  # later ones may lack the room for a queue entry
                freed = loop.time()
                ballast.unlink()
                async with asyncio.timeout(PATIENCE_S):
                    await traffic.acknowledged(len(traffic.acks) + 50)
                waits.append(loop.time() - freed)
                await all_there(server, traffic, late_s=LATE_S)
        await asyncio.to_thread(server.kill9)
        await again_and_all_there(server, traffic)
        assert await asyncio.to_thread(server.terminate) == 0

    try:
        server.start()
        asyncio.run(run())
    finally:
        server.end()
    assert sorted(waits)[len(waits) // 2] <= RESUME_S, waits


# --- a disk that fails ---


async def fail_once(server: InjectedHotfire, traffic: Traffic, when: int) -> bool:
    """A life whose `when`th sync fails; whether it did."""
    server.injections = [f"fdatasync:error=EIO:when={when}"]
    before, log_before = len(traffic.refusals), server.log.stat().st_size if server.log.exists() else 0
    try:
        await asyncio.to_thread(server.start)
    except ProcessFailed:  # a sync of the start itself failed: then there is no start, and it says why
        assert b"Input/output error; the disk failed" in server.log.read_bytes()[log_before:]
        return bool(server.injected_lines())
    if not traffic.acks:
        create_topic(server.broker, TOPIC, QUEUES)
    traffic.broker_is_up(server.broker)
    async with asyncio.timeout(PATIENCE_S):
        await traffic.refused(before + 16)
    acknowledged = len(traffic.acks)
    assert "read-only" in traffic.refusals[-1].remark
    assert traffic.refusals[-1].code == ResponseCode.SERVICE_NOT_AVAILABLE
    said = server.log.read_bytes()[log_before:]
    assert b"CRITICAL" in said, "the log says nothing of it"
    assert b"read-only" in said
    await all_there(server, traffic)
    assert len(traffic.acks) == acknowledged, "acknowledged although the disk had failed"
    traffic.broker_goes_down()
    failed_from = first_unsafe(server)
    await asyncio.to_thread(server.kill9)
    late = [ack for ack in traffic.acks if failed_from is not None and ack.physical >= failed_from]
    assert not late, f"acknowledged although their sync failed at {failed_from}: {late[:3]}"
    return bool(server.injected_lines())


def first_unsafe(server: InjectedHotfire) -> int | None:
    """Where the turn begins whose sync was made to fail; None if it was the sync of another file."""
    written: dict[int, int] = {}
    for call in server.traced_calls():
        name = path_of(call).rpartition("/")[2]
        if "/commitlog/" not in path_of(call) or not name.isdecimal():
            continue
        if call.name == "pwrite64":
            written[call.pid] = int(name) + call.last_argument
        elif call.name == "fdatasync" and call.result < 0 and call.pid in written:
            return written[call.pid]
    return None


@pytest.mark.timeout(300)
def test_after_a_failed_sync_nothing_is_acknowledged_until_a_restart(tmp_path: Path) -> None:
    """EIO on 50 syncs, each in a life of its own on one store: read-only from then on, which refusals and the
    log say; reads go on; the next start has everything that was acknowledged."""
    server = InjectedHotfire(tmp_path, arguments=arguments(SMALL))
    traffic, rng = senders(SEED + 2), random.Random(SEED)

    async def run() -> int:
        failed = 0
        async with traffic.running():
            for point in range(POINTS):
                failed += await fail_once(server, traffic, rng.randrange(20, 200))
                if point % 5 == 4:
                    await again_and_all_there(server, traffic)
                    await asyncio.to_thread(server.kill9)
        return failed

    try:
        assert asyncio.run(run()) == POINTS
    finally:
        server.end()


# --- a slow disk ---

SLOW_FROM = 20


@pytest.mark.promise(48, 53)
def test_a_sync_longer_than_its_timeout_is_told_and_nobody_else_waits(tmp_path: Path) -> None:
    """A sync of 6 s: the send that waits for it is answered FLUSH_DISK_TIMEOUT after 5 s and kept; a send
    with WAIT=false and pulls are answered meanwhile."""
    server = InjectedHotfire(tmp_path, arguments=arguments(SMALL | {"flushIntervalConsumeQueue": 1_000_000}))
    server.injections = [f"fdatasync:delay_exit=6s:when={SLOW_FROM}+1"]

    async def run() -> None:
        loop = asyncio.get_running_loop()
        create_topic(server.broker, TOPIC, QUEUES)
        async with await Peer.connect(server.broker) as peer, await Peer.connect(server.broker) as other:
            for number in range(SLOW_FROM + 5):
                began = loop.time()
                waiting = asyncio.create_task(peer.invoke(request(0, b"waits-%d" % number), SEND_TIMEOUT_S))
                await asyncio.wait({waiting}, timeout=1.0)
                if not waiting.done():
                    break
                assert waiting.result().code == ResponseCode.SUCCESS
            else:
                pytest.fail("no sync was slow")
            asked = loop.time()
            reply = await other.invoke(request(1, b"does not wait", wait=False), SEND_TIMEOUT_S)
            assert reply.code == ResponseCode.SUCCESS
            await read_back(server.broker)
            assert not waiting.done(), "all this was to happen during the sync"
            assert loop.time() - asked < 2.0
            late = await waiting
            assert late.code == ResponseCode.FLUSH_DISK_TIMEOUT, late
            assert loop.time() - began >= 4.5, "told too early"
            assert late.fields is not None
            assert int(late.fields["queueOffset"]) == number
        await asyncio.to_thread(server.kill9)
        server.injections = None
        await asyncio.to_thread(server.start)
        bodies = {record.body for record in (await read_back(server.broker)).values()}
        assert b"waits-%d" % number in bodies, "told that the flush was late, not that it was lost"

    try:
        server.start()
        asyncio.run(run())
    finally:
        server.end()
