"""send, tail and topic as a person uses them, against a running Hotfire."""

import json
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.peers.hotfire import HotfireProcess, executable


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HotfireProcess]:
    with HotfireProcess(tmp_path_factory.mktemp("hotfire")) as running:
        yield running


class Shell:
    """Runs commands against one server."""

    def __init__(self, server: HotfireProcess) -> None:
        self.namesrv = server.namesrv

    def start(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [str(executable()), *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={"NAMESRV_ADDR": self.namesrv, "PATH": "/usr/bin:/bin"},
            # a shell that runs tests in the background makes its children ignore Ctrl-C
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )

    def run(self, *words: str, given: str = "") -> str:
        child = self.start(*words)
        out, err = child.communicate(given, timeout=30)
        assert child.returncode == 0, err
        return out

    def bodies(self, topic: str, *words: str) -> list[str]:
        out = self.run("tail", topic, "--from", "earliest", "--no-follow", "--json", *words)
        return sorted(json.loads(line)["body"] for line in out.splitlines())


@pytest.fixture
def shell(server: HotfireProcess) -> Shell:
    return Shell(server)


def test_sent_message_is_shown_with_all_it_had(shell: Shell) -> None:
    """What send took, tail shows: body, tag, keys and properties, for people and as JSON."""
    sent = shell.run(
        "send", "one", "grüße", "--tag", "t", "--key", "k1", "--key", "k2", "--property", "a=b=c", "--json"
    )
    result = json.loads(sent)
    assert (result["status"], result["topic"], result["queueOffset"]) == ("SEND_OK", "one", 0)
    shown = json.loads(shell.run("tail", "one", "--from", "earliest", "--no-follow", "--json"))
    assert (shown["body"], shown["tag"], shown["keys"]) == ("grüße", "t", ["k1", "k2"])
    assert shown["properties"]["a"] == "b=c"
    assert shown["messageId"] == result["messageId"]
    assert shown["offsetMessageId"] == result["offsetMessageId"]
    line = shell.run("tail", "one", "--from", "0", "--no-follow")
    assert f"broker-a/{result['queueId']}@0" in line
    assert line.rstrip().endswith("tag=t  keys=k1,k2  grüße")


def test_lines_become_messages(shell: Shell, tmp_path: Path) -> None:
    """From a pipe or a file every line that is not empty is a message; --count repeats one."""
    shell.run("send", "lines", given="a\nb\n\nc")
    file = tmp_path / "lines"
    file.write_text("".join(f"{number}\n" for number in range(200)))
    shell.run("send", "lines", "--file", str(file), "--quiet")
    shell.run("send", "lines", "again", "--count", "3")
    assert shell.bodies("lines") == sorted(["a", "b", "c", *map(str, range(200)), *["again"] * 3])


def test_tail_follows_and_stops_after_enough(shell: Shell) -> None:
    """A tail that is already running prints what is sent, and ends with the --max-th message."""
    shell.run("send", "followed", "old")
    following = shell.start("tail", "followed", "--from", "earliest", "--max", "3")
    assert following.stdout is not None
    assert following.stdout.readline().rstrip().endswith("old")
    for body in ("new 1", "new 2"):
        shell.run("send", "followed", body)
        assert following.stdout.readline().rstrip().endswith(body)
    following.communicate(timeout=10)
    assert following.returncode == 0


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("tail", "interrupted", "--from", "earliest"), ""),
        (("send", "interrupted"), "interrupted: 1 message was sent before\n"),
    ],
)
def test_interrupt_ends_at_once_without_a_trace(shell: Shell, words: tuple[str, ...], told: str) -> None:
    """Ctrl-C on a command that waits: exit 130 at once; on stderr at most how many messages went."""
    shell.run("send", "interrupted", "x")
    with shell.start(*words) as waiting:
        assert waiting.stdin is not None
        assert waiting.stdout is not None
        waiting.stdin.write("line\n")
        waiting.stdin.flush()
        waiting.stdout.readline()  # one message was printed, or sent; now it waits for more
        interrupted = time.monotonic()
        waiting.send_signal(signal.SIGINT)
        assert waiting.wait(timeout=10) == 130
        assert time.monotonic() - interrupted < 3.0
        assert waiting.stderr is not None
        assert waiting.stderr.read() == told


def test_binary_bodies_are_not_printed_raw(shell: Shell, tmp_path: Path) -> None:
    """Bytes that are no text come as base64 in JSON and as a size for people; control characters escaped."""
    file = tmp_path / "bytes"
    file.write_bytes(b"\xff\xfe\x00binary\nescape \x1b[31m\n")
    shell.run("send", "binary", "--file", str(file))
    lines = shell.run("tail", "binary", "--from", "earliest", "--no-follow").splitlines()
    assert sum(line.endswith("<9 bytes, binary>") for line in lines) == 1
    assert sum(line.endswith(r"escape \x1b[31m") for line in lines) == 1
    shown = [
        json.loads(line)
        for line in shell.run("tail", "binary", "--from", "earliest", "--no-follow", "--json").splitlines()
    ]
    assert sorted(name for one in shown for name in one if name.startswith("body")) == ["body", "bodyBase64"]


def test_no_topics_are_no_lines(tmp_path: Path) -> None:
    """A name server that knows no topic: nothing is printed, so that counting lines counts topics."""
    with HotfireProcess(tmp_path) as fresh:
        assert Shell(fresh).run("topic", "list") == ""


def test_topics_are_listed_and_located(shell: Shell, server: HotfireProcess) -> None:
    """list shows applications' topics (all with --all); route shows broker, queues and address."""
    shell.run("send", "located", "x")
    topics = shell.run("topic", "list").split()
    assert "located" in topics
    assert "TBW102" not in topics
    assert "DefaultCluster" not in topics
    assert "TBW102" in json.loads(shell.run("topic", "list", "--all", "--json"))
    head, row_text = shell.run("topic", "route", "located").splitlines()
    assert head.split("  ")[0] == "BROKER"
    assert row_text.split() == ["broker-a", "4", "4", "rw", f"0={server.broker}"]
    row = json.loads(shell.run("topic", "route", "located", "--json"))["brokers"][0]
    assert row["addresses"] == {"0": server.broker}


def test_closed_pipe_ends_quietly(shell: Shell) -> None:
    """`hotfire tail ... | head -1` ends without a complaint."""
    shell.run("send", "piped", "x" * 500, "--count", "300", "--quiet")
    with shell.start("tail", "piped", "--from", "earliest", "--no-follow") as tail:
        assert tail.stdout is not None
        tail.stdout.readline()
        tail.stdout.close()
        assert tail.stderr is not None
        assert tail.stderr.read() == ""
        tail.wait(timeout=10)
