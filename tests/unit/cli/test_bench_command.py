"""bench: what it counts is what the cluster has, and what it shows is what it counted."""

import json
import signal
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from hotfire.cli import benchrun
from hotfire.core import plain_load
from hotfire.core.load import Load
from hotfire.testing.blocking import BlockingCluster
from tests.unit.cli.shell import Shell

TWINS = list(dict.fromkeys([plain_load.Load, Load]))


@pytest.fixture(params=TWINS, ids=lambda twin: twin.__module__.rpartition(".")[2])
def twin(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(benchrun, "Load", request.param)
    return request.param


def bench(terminal: Shell, *words: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(terminal.run("bench", *words, "--json", "-"))
    return found


@pytest.mark.parametrize("words", [(), ("--binary",), ("--batch", "10"), ("--rate", "100000")])
def test_every_message_counted_is_stored(terminal: Shell, twin: Any, words: tuple[str, ...]) -> None:
    """As many as were asked for are acknowledged, and lie in the queues of both brokers."""
    topic = f"sent-{twin.__module__[-4:]}-{'-'.join(words).strip('-')}"
    found = bench(
        terminal, "send", "--topic", topic, "--count", "400", "--connections", "4", "--window", "5", *words
    )
    assert (found["acknowledged"], found["codes"], found["unanswered"]) == (400, {"0": 400}, 0)
    stats = terminal.json("topic", "stats", topic)
    assert stats["messages"] == 400
    assert {row["queue"].partition(":")[0] for row in stats["queues"] if row["messages"]} == {
        "broker-0", "broker-1",
    }  # fmt: skip
    assert found["answerMs"]["count"] == 400 // found["batch"]
    assert found["messagesPerSecond"] > 0


def test_pulls_read_all_and_begin_again(terminal: Shell, twin: Any) -> None:
    """More messages than there are can be pulled: at the end it begins again. An empty topic is refused."""
    topic = f"pulled-{twin.__module__[-4:]}"
    bench(terminal, "send", "--topic", topic, "--count", "100")
    found = bench(
        terminal, "pull", "--topic", topic, "--count", "1000", "--connections", "3", "--window", "2"
    )
    assert found["delivered"] >= 1000
    assert found["lostConnections"] == 0
    terminal.run("topic", "create", f"empty-{topic}")
    assert f"bench send --topic empty-{topic}" in terminal.refused(
        "bench", "pull", "--topic", f"empty-{topic}"
    )


def test_every_group_gets_every_message(terminal: Shell, twin: Any) -> None:
    """End to end: what is acknowledged arrives once in each group, and its latency is known."""
    topic = f"both-{twin.__module__[-4:]}"
    found = bench(
        terminal,
        "e2e",
        "--topic",
        topic,
        "--count",
        "300",
        "--groups",
        "2",
        "--connections",
        "2",
        "--window",
        "4",
    )
    assert (found["acknowledged"], found["delivered"], found["missing"]) == (300, 600, 0)
    assert (found["missed"], found["repeated"], found["deliveryMs"]["count"]) == (0, 0, 600)


def test_figures_and_picture_are_written(terminal: Shell, tmp_path: Path) -> None:
    """A table for people, JSON for programs, and an SVG that is one, with both panels filled."""
    figures, drawn = tmp_path / "run.json", tmp_path / "run.svg"
    printed = terminal.run(
        "bench", "send", "--topic", "drawn", "--count", "500", "--json", str(figures), "--picture", str(drawn)
    )
    lines = printed.splitlines()
    assert lines[0].startswith("send: 500 messages in ")
    assert lines[1].split() == ["WHAT", "MESSAGES/S", "MEAN", "P50", "P90", "P99", "P99.9", "MAX"]
    assert json.loads(figures.read_text())["acknowledged"] == 500
    root = ElementTree.fromstring(drawn.read_text())  # noqa: S314  # our own
    names = [one.tag.rpartition("}")[2] for one in root.iter()]
    assert names.count("polyline") == 1
    assert names.count("rect") > 1
    assert any("p99.9" in (one.text or "") for one in root.iter())


def test_an_interrupt_ends_with_the_figures_so_far(terminal: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C midway: exit 130, the figures up to then, and nothing left under way."""

    class Interrupted:
        def __init__(self, *given: Any) -> None:
            self._load, self._runs = Load(*given), 0

        def __getattr__(self, name: str) -> Any:
            return getattr(self._load, name)

        def run(self, seconds: float) -> bool:
            self._runs += 1
            if self._runs == 3:
                signal.raise_signal(signal.SIGINT)
            return bool(self._load.run(seconds))

    # whoever runs the tests may have had it ignored, and then there is nothing to see
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    monkeypatch.setattr(benchrun, "Load", Interrupted)
    code, out, err = terminal.call(
        "bench", "send", "--topic", "broken-off", "--warm-up", "0", "--seconds", "600", "--json", "-"
    )
    signal.signal(signal.SIGINT, before)
    found = json.loads(out)
    assert (code, found["interrupted"], found["unanswered"]) == (130, True, 0)
    assert "Traceback" not in err
    assert terminal.json("topic", "stats", "broken-off")["messages"] == found["acknowledged"] > 0


def test_a_broker_that_says_no_is_quoted(cluster: BlockingCluster, terminal: Shell) -> None:
    """Refusals end a run that has no success; their number and the broker's own words are told; exit 1."""
    terminal.run("topic", "create", "short", "--queues", "1")
    code, _, err = terminal.call(
        "bench", "send", "--topic", "short", "--size", str(4 << 20), "--connections", "1", "--window", "1",
        "--batch", "2", "--count", "4",
    )  # fmt: skip
    assert code == 1
    assert "4 answers were no success, such as: code 13" in err
