"""The command line on Apache's name server and broker: what it changes and counts, their own answers show."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.peers import remoting
from tests.peers.apache import ApacheCluster
from tests.unit.cli.shell import Shell

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def apache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheCluster]:
    # by default it refuses what has waited for 200 ms, which on a busy machine happens to any load
    patient = {"waitTimeMillsInSendQueue": "5000"}
    with ApacheCluster(tmp_path_factory.mktemp("apache"), settings=patient) as running:
        yield running


@pytest.fixture
def terminal(apache: ApacheCluster, capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(apache.namesrv, capsys)


def test_topics_groups_and_offsets(apache: ApacheCluster, terminal: Shell, tmp_path: Path) -> None:
    """Made, filled, read, reset and deleted, as on a broker of our own."""
    terminal.run("topic", "create", "orders", "--queues", "1")
    file = tmp_path / "lines"
    file.write_text("a\nb\nc\nd\n")
    terminal.run("send", "orders", "--file", str(file), "--batch", "4")
    remoting.await_stored(apache.namesrv, apache.broker, "orders", 4)
    assert terminal.json("topic", "stats", "orders")["messages"] == 4
    shown = terminal.run("tail", "orders", "--from", "1h", "--no-follow").splitlines()
    assert [line.split()[-1] for line in shown] == ["a", "b", "c", "d"]
    terminal.run("group", "create", "billing", "--retries", "3")
    assert "billing" in terminal.run("group", "list").split()
    for place, offset in (("earliest", 0), ("latest", 4), ("-3", 1), ("1h", 0)):
        moved = terminal.json("offset", "reset", "billing", "orders", "--to", place)["queues"]
        assert [row["to"] for row in moved] == [offset]
        assert committed(terminal) == offset
    terminal.run("offset", "set", "billing", "orders", "--queue", "broker-a:0", "--offset", "3")
    assert terminal.json("group", "lag", "billing")["lag"] == 1
    terminal.run("group", "delete", "billing", "--yes")
    terminal.run("topic", "delete", "orders", "--yes")
    assert "orders" not in terminal.run("topic", "list").split()


def committed(terminal: Shell) -> Any:
    return terminal.json("offset", "show", "billing", "orders")["queues"][0]["committed"]


@pytest.mark.parametrize("words", [(), ("--binary",), ("--batch", "5")])
def test_a_load_is_stored_and_delivered(terminal: Shell, words: tuple[str, ...]) -> None:
    """Sends are acknowledged, arrive once in every group, and can be pulled from the beginning."""
    topic = f"load-{'-'.join(words).strip('-')}"
    small = ("--topic", topic, "--connections", "2", "--window", "2")
    found = json.loads(
        terminal.run("bench", "e2e", *small, "--groups", "2", "--count", "500", *words, "--json", "-")
    )
    assert (found["acknowledged"], found["delivered"], found["missing"]) == (500, 1000, 0)
    assert (found["missed"], found["repeated"]) == (0, 0)
    pulled = json.loads(terminal.run("bench", "pull", *small, "--count", "1000", "--json", "-"))
    assert pulled["delivered"] >= 1000
