"""Copying the log across the two implementations: Apache's slave behind our master, ours behind Apache's."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from hotfire import Message, Producer
from tests.peers import noon
from tests.peers.apache import ApacheCluster
from tests.peers.hotfire import executable
from tests.peers.ports import free_port
from tests.peers.process import LineProcess, poll_until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(240)]

NAME, TOPIC, MESSAGES = "pair", "orders", 300
SEGMENT_BYTES = str(1 << 20)
OK = 0


@contextmanager
def hotfire(directory: Path, command: str, settings: dict[str, str]) -> Iterator[LineProcess]:
    pairs = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    process = LineProcess(
        [str(executable()), command, *pairs], log=directory / f"{command}.err", env=noon.ENVIRONMENT
    )
    try:
        process.wait_line(lambda text: text.startswith("hotfire ready "), what="ready line", timeout_s=30.0)
        yield process
    finally:
        process.terminate()


async def send(namesrv: str, count: int) -> list[int]:
    async with Producer(namesrv, timeout_s=10.0) as producer:
        bodies = [random.Random(number).randbytes(8000) for number in range(count)]  # nothing to compress
        return [(await producer.send(Message(TOPIC, body, keys=["k"]))).code for body in bodies]


def is_copied(namesrv: str) -> bool | None:
    return asyncio.run(send(namesrv, 1)) == [OK] or None


def log_of(store: Path) -> bytes:
    """The log up to its last record, without the room that is ready behind it."""
    return b"".join(file.read_bytes() for file in sorted((store / "commitlog").iterdir())).rstrip(b"\0")


def check_same(ours: Path, theirs: Path) -> None:
    poll_until(lambda: log_of(ours) == log_of(theirs) or None, what="the same log on both", timeout_s=20.0)
    assert len(log_of(ours)) > 2 * int(SEGMENT_BYTES)


def test_apaches_slave_follows_our_master(tmp_path: Path) -> None:
    """SEND_OK comes with Apache's acknowledgement; its log is ours, byte for byte, in all its segments."""
    namesrv, port = f"127.0.0.1:{free_port()}", free_port(-2, 1)
    naming = {"listenPort": namesrv.rpartition(":")[2], "bindAddress": "127.0.0.1"}
    master = {
        "brokerRole": "SYNC_MASTER", "brokerName": NAME, "bindAddress": "127.0.0.1", "listenPort": str(port),
        "namesrvAddr": namesrv, "storePathRootDir": str(tmp_path / "ours"),
        "mappedFileSizeCommitLog": SEGMENT_BYTES,
    }  # fmt: skip
    with ExitStack() as stack:
        stack.enter_context(hotfire(tmp_path, "namesrv", naming))
        stack.enter_context(hotfire(tmp_path, "broker", master))
        settings = {
            "brokerRole": "SLAVE", "brokerId": "1", "namesrvAddr": namesrv,
            "mappedFileSizeCommitLog": SEGMENT_BYTES,
        }  # fmt: skip
        slave = ApacheCluster(tmp_path / "apache", broker_name=NAME, settings=settings)
        slave.directory.mkdir()
        stack.callback(slave.stop)
        slave._broker_process = slave._start_broker()
        poll_until(lambda: is_copied(namesrv), what="acknowledgement of Apache's slave", timeout_s=90.0)
        assert asyncio.run(send(namesrv, MESSAGES)) == [OK] * MESSAGES
        check_same(tmp_path / "ours", slave.store)


def test_our_slave_follows_apaches_master(tmp_path: Path) -> None:
    """Apache's master waits for our acknowledgement, and gets it; our log is its log, byte for byte."""
    settings = {
        "brokerRole": "SYNC_MASTER", "inSyncReplicas": "2", "mappedFileSizeCommitLog": SEGMENT_BYTES,
    }  # fmt: skip
    slave = {
        "brokerRole": "SLAVE", "brokerId": "1", "brokerName": NAME, "bindAddress": "127.0.0.1",
        "listenPort": str(free_port(-2, 1)), "storePathRootDir": str(tmp_path / "ours"),
        "mappedFileSizeCommitLog": SEGMENT_BYTES,
    }  # fmt: skip
    with ApacheCluster(tmp_path / "apache", broker_name=NAME, settings=settings) as master:
        slave["namesrvAddr"] = master.namesrv
        with hotfire(tmp_path, "broker", slave):
            poll_until(lambda: is_copied(master.namesrv), what="acknowledgement of our slave", timeout_s=60.0)
            assert asyncio.run(send(master.namesrv, MESSAGES)) == [OK] * MESSAGES
            check_same(tmp_path / "ours", master.store)
