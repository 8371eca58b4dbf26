"""Java's consumers, old and new, and ours get what an installed Python function lets through."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest

from hotfire import ConsumeFrom, Message, ReceivedMessage, sync
from tests.interop.clients import Server
from tests.peers import remoting
from tests.peers.hotfire import HotfireProcess, executable
from tests.peers.jars import ROOT
from tests.peers.java_client import java_command
from tests.peers.process import LineProcess, poll_until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

COUNT, QUEUES = 300, 4
CHOSEN = list(range(0, COUNT, 3))
OURS = "hotfire-filter-server"
FILTERS = "red=tests.unit.filtersrv.installed:red,hangs=tests.unit.filtersrv.installed:hangs"


@pytest.mark.promise(153)
def test_consumers_of_all_kinds_are_served_by_a_filter_server(
    new_server: Callable[..., Server], tmp_path: Path
) -> None:
    """4.9.8 uploads its class, 5.5.0 names it in heartbeats, ours in each pull: each gets its own, once."""
    with new_server(tmp_path / "server", "hotfire") as server:
        assert isinstance(server, HotfireProcess)
        topics = ["java498-filter-server", "java550-filter-server", OURS]
        for topic in topics:
            remoting.create_topic(server.broker, topic, QUEUES)
        program = _filter_server(server, tmp_path)
        try:
            for label, version in (("java498", "4.9.8"), ("java550", "5.5.0")):
                _one(label, version, server, tmp_path / label)
            _send(server.namesrv)
            _consume(server, topics)
        finally:
            program.terminate(20)
        poll_until(
            lambda: '"filterServerTable":{}' in _route(server), what="end of the filter server", timeout_s=20
        )


def _filter_server(server: Server, place: Path) -> LineProcess:
    settings = {
        "bindAddress": "127.0.0.1",
        "filterServerIP": "127.0.0.1",
        "connectWhichBroker": server.broker,
        "filters": FILTERS,
    }
    words = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    process = LineProcess(
        [str(executable()), "filtersrv", *words], log=place / "filtersrv.err", env={"PYTHONPATH": str(ROOT)}
    )
    process.wait_line(lambda text: "ready" in text, what="ready line", timeout_s=60)
    poll_until(lambda: '"filterServerTable":{}' not in _route(server), what="filter server", timeout_s=20)
    return process


def _route(server: Server) -> str:
    return json.dumps(remoting.route(server.namesrv, "java498-filter-server"), separators=(",", ":"))


def _one(label: str, version: str, server: Server, place: Path) -> None:
    serialization = "JSON" if version.startswith("5.") else "ROCKETMQ"
    place.mkdir()
    command = java_command(version, serialization, place)  # type: ignore[arg-type]
    arguments = ["rows", label, server.namesrv, "1", f"filter-server={COUNT}/java"]
    process = LineProcess([*command, *arguments], log=place / "java.err")
    try:
        process.wait_line(lambda text: '"event":"over"' in text, what="end of Java's part", timeout_s=180)
    finally:
        process.kill()
    lines = [line for line in process.lines() if line.startswith('{"event":"message"')]
    received = [json.loads(line)["index"] for line in lines]
    assert sorted(received) == CHOSEN


def _send(namesrv: str) -> None:
    with sync.Producer(namesrv) as producer:
        for index in range(COUNT):
            colour = "red" if index % 3 == 0 else "green"
            producer.send(Message(OURS, b"x", properties={"index": str(index), "colour": colour}))


def _consume(server: Server, topics: list[str]) -> None:
    """Our consumer, of what Java's producers sent and of what ours did."""
    seen: defaultdict[str, list[int]] = defaultdict(list)

    def listener(message: ReceivedMessage) -> None:
        seen[message.topic].append(int(message.properties["index"]))

    def has_read(topic: str) -> bool:
        ends = remoting.max_offsets(server.broker, topic, QUEUES)
        return remoting.committed_offsets(server.broker, topic, "ours", QUEUES, default=-1) == ends

    with sync.Consumer(server.namesrv, group="ours", consume_from=ConsumeFrom.FIRST) as consumer:
        for topic in topics:
            consumer.subscribe(topic, listener, filter="red")
        for topic in topics:
            poll_until(lambda topic=topic: has_read(topic), what=f"end of {topic}", timeout_s=60)
    assert {topic: sorted(indexes) for topic, indexes in seen.items()} == dict.fromkeys(topics, CHOSEN)
