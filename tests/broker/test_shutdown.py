"""Ends: asked for, they lose nothing and leave no trace; forced, they are noticed by everyone at once."""

import asyncio
import json
import re
import signal
import time
from contextlib import suppress
from pathlib import Path

import pytest

from hotfire.errors import Unreachable
from hotfire.net.peer import Peer
from hotfire.protocol.bodies import loads
from hotfire.protocol.command import Command
from hotfire.protocol.record import Record, iter_records
from hotfire.protocol.requests import SendReply, UpdateConsumerOffset
from tests.broker.programs import Program, broker_config, namesrv_config, running, up
from tests.peers import remoting
from tests.peers.process import poll_until
from tests.peers.remoting import create_topic
from tests.unit.broker.harness import SUBSCRIPTION, SUSPEND, pull_request, send_request

STOP_TIMEOUT_S = 10.0


def routed(namesrv: str, topic: str = "BenchmarkTest") -> list[str]:
    """Names of the brokers that hold the topic."""
    found = remoting.route(namesrv, topic)
    return sorted(broker["brokerName"] for broker in found["brokerDatas"]) if found else []


def wait_routed(program: Program, *names: str) -> None:
    poll_until(lambda: routed(program.namesrv) == list(names), what=f"route to {names}", timeout_s=10.0)


@pytest.mark.promise(9)
def test_killed_broker_leaves_the_route_within_a_second(tmp_path: Path) -> None:
    """kill -9 of one of two brokers: within 1 s no route names it, and the other is still there."""
    with (
        running(tmp_path, "namesrv", "-c", namesrv_config(tmp_path), log="namesrv.err") as names,
        running(tmp_path, "broker", "-c", broker_config(tmp_path), "-n", names.namesrv, log="a.err") as a,
        running(
            tmp_path,
            "broker",
            "-c",
            broker_config(tmp_path, name="broker-b"),
            "-n",
            names.namesrv,
            log="b.err",
        ),
    ):
        wait_routed(names, "broker-a", "broker-b")
        a.process.kill()
        killed = time.monotonic()
        while routed(names.namesrv) != ["broker-b"]:
            assert time.monotonic() - killed < 1.0
        assert routed(names.namesrv, "broker-a") == [], "its own topic went with it"


@pytest.mark.promise(17)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_told_to_stop_they_clean_up(tmp_path: Path, number: signal.Signals) -> None:
    """Broker: says goodbye to the name server and is out of the route, exit 0, `abort` gone, tables written.
    Name server: exit 0 as well."""
    store = tmp_path / "broker-a"
    with running(tmp_path, "namesrv", "-c", namesrv_config(tmp_path), log="namesrv.err") as names:
        with running(tmp_path, "broker", "-c", broker_config(tmp_path), "-n", names.namesrv) as broker:
            wait_routed(names, "broker-a")
            create_topic(broker.broker, "T", 4)
            asyncio.run(consume_one(broker.broker))
            assert (store / "abort").exists()
            broker.process.signal(number)
            assert broker.process.wait(STOP_TIMEOUT_S) == 0
            assert routed(names.namesrv) == [], "still routed although it has ended"
            assert "its connection closed" not in names.log, "gone without a goodbye"
            assert not (store / "abort").exists()
            table = loads((store / "config" / "consumerOffset.json").read_bytes())["offsetTable"]
            assert table == {"T@CG": {0: 1}} or table == {"T@CG": {"0": 1}}
            topics = json.loads((store / "config" / "topics.json").read_text())["topicConfigTable"]
            assert topics["T"]["readQueueNums"] == 4
        names.process.signal(number)
        assert names.process.wait(STOP_TIMEOUT_S) == 0
        assert "Traceback" not in broker.log + names.log


async def consume_one(address: str) -> None:
    async with await Peer.connect(address) as peer:
        await peer.ask(send_request(), 10.0)
        await peer.ask(pull_request(), 10.0)
        await peer.ask(
            UpdateConsumerOffset(consumer_group="CG", topic="T", queue_id=0, commit_offset=1), 10.0
        )


@pytest.mark.promise(227)
def test_stopped_under_load_it_ends_in_order(tmp_path: Path) -> None:
    """SIGTERM while sends, pulls and held pulls pour in: exit 0 within 5 s, no `abort`, every acknowledged
    message is in the log, and no record is left without its queue entry."""
    with running(tmp_path, *up(tmp_path)) as server:
        create_topic(server.broker, "T", 4)
        acknowledged, seconds, status = asyncio.run(stop_under_load(server))
    assert status == 0, server.log
    assert seconds < 5.0
    assert acknowledged, "no load"
    data = tmp_path / "data"
    assert not (data / "abort").exists()
    records = [r for file in sorted((data / "commitlog").iterdir()) for r in whole_records(file)]
    assert acknowledged <= {record.message_id for record in records}
    for queue_id in range(4):
        stored = [record for record in records if record.queue_id == queue_id]
        entries = queue_entries(data / "consumequeue" / "T" / str(queue_id))
        assert entries == [(record.physical_offset, record.size) for record in stored], "dispatch lags behind"
    assert "Traceback" not in server.log


async def stop_under_load(server: Program) -> tuple[set[str], float, int]:
    """Acknowledged ids, seconds until the end, exit status."""
    acknowledged: set[str] = set()
    loaded = asyncio.Event()

    async def send(number: int) -> None:
        async with await Peer.connect(server.broker) as peer:
            answers: list[Command | BaseException] = []
            while not any(isinstance(answer, BaseException) for answer in answers):
                requests = [send_request(queue_id=number, body=bytes(200)) for _ in range(20)]
                asked = (peer.ask(request, 10.0) for request in requests)
                answers = await asyncio.gather(*asked, return_exceptions=True)
                stored = [answer for answer in answers if isinstance(answer, Command)]
                acknowledged.update(SendReply.from_command(answer).msg_id for answer in stored)
                if len(acknowledged) >= 2000:
                    loaded.set()
            failures = [answer for answer in answers if isinstance(answer, BaseException)]
            assert all(isinstance(failure, Unreachable) for failure in failures), failures

    async def pull(number: int) -> None:
        async with await Peer.connect(server.broker) as peer:
            with suppress(Unreachable):
                while True:
                    await peer.invoke(pull_request(10**9 * number, flag=SUBSCRIPTION | SUSPEND), 30.0)

    async with asyncio.timeout(40.0):
        tasks = [asyncio.create_task(send(n)) for n in range(4)]
        tasks += [asyncio.create_task(pull(n)) for n in range(2)]
        await loaded.wait()
        server.process.signal(signal.SIGTERM)
        started = time.monotonic()
        status = await asyncio.to_thread(server.process.wait, STOP_TIMEOUT_S)
        seconds = time.monotonic() - started
        for task in tasks:
            await task
    return acknowledged, seconds, status


def whole_records(file: Path) -> list[Record]:
    data = file.read_bytes()
    end = len(data.rstrip(b"\0")) if data.strip(b"\0") else 0
    return list(iter_records(data[:end]))


def queue_entries(directory: Path) -> list[tuple[int, int]]:
    data = b"".join(file.read_bytes() for file in sorted(directory.iterdir()))
    entries = [
        (int.from_bytes(data[at : at + 8]), int.from_bytes(data[at + 8 : at + 12]))
        for at in range(0, len(data), 20)
    ]
    return [entry for entry in entries if entry[1]]


@pytest.mark.promise(34)
def test_abort_tells_a_crash_from_an_orderly_end(tmp_path: Path) -> None:
    """kill -9 leaves `abort`, and the next start says that it recovers; after SIGTERM there is neither."""
    abort = tmp_path / "data" / "abort"
    # the first checkpoint comes with the first tick, the next in an hour: none vouches for the second record
    seldom = ("--set", "flushIntervalConsumeQueue=3600000", "--set", "flushConsumerOffsetInterval=10")
    with running(tmp_path, *up(tmp_path, *seldom), log="1.err") as first:
        create_topic(first.broker, "T", 4)
        asyncio.run(consume_one(first.broker))
        poll_until(
            (tmp_path / "data" / "config" / "consumerOffset.json").exists, what="a tick", timeout_s=10.0
        )
        asyncio.run(consume_one(first.broker))
        assert abort.exists()
        first.process.kill()
    assert abort.exists()
    with running(tmp_path, *up(tmp_path), log="2.err") as second:
        assert "not closed cleanly" in second.log
        assert re.search("recovered records=[12] ", second.log)
        assert remoting.max_offsets(second.broker, "T", 1) == [2]
        assert second.process.terminate() == 0
    assert not abort.exists()
    with running(tmp_path, *up(tmp_path), log="3.err") as third:
        assert "not closed cleanly" not in third.log
        assert remoting.max_offsets(third.broker, "T", 1) == [2]
