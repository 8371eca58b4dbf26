"""Snapshots of a broker at work, taken by another process, restored and read."""

import asyncio
import dataclasses
import hashlib
import json
import re
from pathlib import Path

import pytest

from hotfire.broker.config import BrokerConfig
from hotfire.settings import from_properties
from hotfire.store.checkpoint import Checkpoint
from tests.broker.programs import run
from tests.crash.traffic import QUEUES, TOPIC, Ack, Traffic
from tests.peers.apache import FlushDiskType
from tests.peers.hotfire import HotfireProcess, executable
from tests.unit.store.driven import Driven

SEGMENT_BYTES = 512 << 10
SNAPSHOTS = 4
SIZES = {
    "mappedFileSizeCommitLog": SEGMENT_BYTES,
    "mappedFileSizeConsumeQueue": 60_000,
    "maxHashSlotNum": 1000,
    "maxIndexNum": 10_000,
}


@dataclasses.dataclass
class Taken:
    """A snapshot, what had been acknowledged when it was begun, and its bytes when it was done."""

    path: Path
    acks: list[Ack]
    digests: dict[str, str]
    linked: int


def digests(root: Path) -> dict[str, str]:
    return {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in root.rglob("*")
        if path.is_file()
    }


async def take(server: HotfireProcess, to: Path, traffic: Traffic) -> Taken:
    acks = list(traffic.acks)
    command = [str(executable()), "store", "snapshot", str(server.store), str(to)]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    output, _ = await process.communicate()
    assert process.returncode == 0
    told = re.fullmatch(r"snapshot .*: log 0 to \d+, (\d+) segments linked, \d+ copied\n", output.decode())
    assert told is not None, output
    return Taken(to, acks, await asyncio.to_thread(digests, to), int(told[1]))


async def take_all(server: HotfireProcess, directory: Path) -> tuple[list[Taken], Traffic]:
    traffic, taken = Traffic(5, connections=2, in_flight=8, body_bytes_max=1500), []
    traffic.broker_is_up(server.broker)
    async with traffic.running():
        for number in range(SNAPSHOTS):
            await traffic.acknowledged(len(traffic.acks) + 800)
            taken.append(await take(server, directory / f"taken{number}", traffic))
    return taken, traffic


@pytest.mark.timeout(120)
@pytest.mark.parametrize("flush", ["SYNC_FLUSH", "ASYNC_FLUSH"])
def test_snapshots_under_load_hold_what_was_acknowledged(tmp_path: Path, flush: FlushDiskType) -> None:
    """Each has every message acknowledged before it began, in order, equal, none torn, and stays as it is."""
    sets = [word for key, value in SIZES.items() for word in ("--set", f"{key}={value}")]
    with HotfireProcess(tmp_path, flush_disk_type=flush, arguments=sets) as server:
        taken, traffic = asyncio.run(take_all(server, tmp_path))
        live = server.store
    conf = tmp_path / "broker.conf"
    conf.write_text("".join(f"{key}={value}\n" for key, value in SIZES.items()))
    for number, one in enumerate(taken):
        assert digests(one.path) == one.digests, "a file of the snapshot changed after it was taken"
        end = check_links(live, one)
        to = tmp_path / f"again{number}"
        status, output, errors = run(
            ["store", "restore", str(one.path), str(to), "-c", str(conf)], cwd=tmp_path
        )
        assert status == 0, errors
        assert f"log 0 to {end}, " in output
        check_log(live, to, end)
        check_messages(to, one.acks, traffic.bodies)
        assert digests(one.path) == one.digests, "a file of the snapshot changed when it was restored"
    assert taken[-1].linked > 1


def check_links(live: Path, one: Taken) -> int:
    """Segments shared with the broker are full; the one that holds the end is not shared. The log's end."""
    end: int = json.loads((one.path / "snapshot.json").read_text())["end"]
    linked = 0
    for path in (one.path / "commitlog").iterdir():
        if path.samefile(live / "commitlog" / path.name):
            assert int(path.name) + SEGMENT_BYTES <= end
            linked += 1
    assert linked == one.linked
    assert Checkpoint.decode((one.path / "checkpoint").read_bytes()).durable == end
    return end


def check_log(live: Path, to: Path, end: int) -> None:
    """Up to the end the log is the broker's own, byte for byte; behind it there are zeros."""
    for path in (to / "commitlog").iterdir():
        data, within = path.read_bytes(), max(0, min(SEGMENT_BYTES, end - int(path.name)))
        assert data[:within] == (live / "commitlog" / path.name).read_bytes()[:within]
        assert not any(data[within:])


def check_messages(to: Path, acks: list[Ack], bodies: set[bytes]) -> None:
    """What was acknowledged is where the reply said; what else there is was sent."""
    config, _ = from_properties(BrokerConfig, {key: str(value) for key, value in SIZES.items()})
    restored = Driven(to, **dataclasses.asdict(config.store()))
    with restored:
        assert not restored.store.was_unclean
        found = {queue_id: restored.pull_all(TOPIC, queue_id) for queue_id in range(QUEUES)}
    for records in found.values():
        assert [record.queue_offset for record in records] == list(range(len(records)))
        assert {record.body for record in records} <= bodies
    for ack in acks:
        record = found[ack.queue_id][ack.queue_offset]
        assert (record.body, record.physical_offset) == (ack.body, ack.physical)
