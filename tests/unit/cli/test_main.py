"""The front door: what it costs to open, and what it says when something is wrong."""

import importlib
import resource
import subprocess
import sys

import pytest

from hotfire.cli import COMMANDS, main
from hotfire.errors import BrokerRefused
from hotfire.protocol.codes import ResponseCode

HELP_CPU_S_MAX = 0.15
HEAVY = ("asyncio", "hotfire.client", "hotfire.broker", "hotfire.store", "hotfire.protocol", "hotfire.core")


def cpu_of_children() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def imported_by(*words: str) -> tuple[set[str], str]:
    """The modules that a command line imports, and what it prints."""
    command = [sys.executable, "-X", "importtime", "-m", "hotfire.cli", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}, done.stdout


def test_help_is_cheap_and_lists_every_command() -> None:
    """`hotfire --help` takes at most 150 ms of processor time and imports no command and no event loop."""
    costs = []
    for _ in range(3):
        before = cpu_of_children()
        imported, printed = imported_by("--help")
        costs.append(cpu_of_children() - before)
    assert not [name for name in imported if name.startswith(HEAVY)]
    assert min(costs) <= HELP_CPU_S_MAX
    for name, (_, help_line) in COMMANDS.items():
        assert name in printed
        assert help_line in printed


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_help_of_a_command_is_cheap(name: str) -> None:
    """`hotfire COMMAND --help` loads what the command takes, and nothing of what it does."""
    imported, printed = imported_by(name, "--help")
    assert f"usage: hotfire {name}" in printed
    assert not [module for module in imported if module.startswith(HEAVY)]
    assert COMMANDS[name][0] not in imported


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_can_be_configured(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each module in the table exists, and its own help tells what it takes."""
    assert callable(importlib.import_module(COMMANDS[name][0]).run)
    with pytest.raises(SystemExit) as exited:
        main([name, "--help"])
    assert exited.value.code == 0
    assert f"usage: hotfire {name}" in capsys.readouterr().out


def test_no_command_prints_help(capsys: pytest.CaptureFixture[str]) -> None:
    """`hotfire` alone shows what there is, and is not a success."""
    assert main([]) == 2
    assert "commands:" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["demo", "--messages", "0"], "--messages 0: must be at least 1"),
        (["up", "--namesrv-port", "80000", "--data", "/nowhere"], "port 80000: must be 0 to 65535"),
        (["up", "--set", "nonsense=1"], "no such setting: nonsense"),
        (["up", "--set", "brokerRole=SLAVE"], "replication is not served"),
    ],
)
def test_what_cannot_be_is_said_before_anything_is_started(words: list[str], says: str) -> None:
    """A value that cannot be used is named in one line, with exit code 1."""
    done = subprocess.run(
        [sys.executable, "-m", "hotfire.cli", *words], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 1
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_the_body_may_come_after_the_options(capsys: pytest.CaptureFixture[str]) -> None:
    """`send TOPIC --tag T BODY` is understood; a word too many is a usage error of `send`, not of hotfire."""
    assert main(["send", "t", "-n", "127.0.0.1:1", "--tag", "T", "hello"]) == 1
    assert "127.0.0.1:1" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["send", "t", "hello", "--tag", "T", "again"])
    error = capsys.readouterr().err
    assert "unrecognized arguments: again" in error
    assert "usage: hotfire send" in error


def test_unknown_command_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    """A word that is no command: exit 2 and the choices."""
    with pytest.raises(SystemExit) as exited:
        main(["sned"])
    assert exited.value.code == 2
    assert "invalid choice: 'sned'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "error"),
    [
        (
            ["send", "T", "x", "-n", "127.0.0.1:1"],
            "hotfire send: topic T: no name server answered: 127.0.0.1:1: Connection refused; start",
        ),
        (["send", "T", "x", "-n", "nowhere"], "hotfire send: address 'nowhere' is not host:port"),
        (["send", "T", "x", "--file", "y"], "hotfire send: give either BODY or --file"),
        (["send", "T", "--file", "/no/such"], "hotfire send: file /no/such: No such file"),
        (["send", "T", "x", "--count", "0"], "hotfire send: --count 0: must be at least 1"),
        (["send", "T", "x", "--property", "a"], "hotfire send: --property a: expected NAME=VALUE"),
        (["send", "two words", "x"], "hotfire send: topic 'two words' holds characters"),
        (["tail", "T", "-n", "127.0.0.1:1"], "hotfire tail: topic T: no name server answered"),
        (["topic", "list", "-n", "127.0.0.1:1"], "hotfire topic: no name server answered"),
        (["group", "list", "-n", "127.0.0.1:1"], "hotfire group: no name server answered"),
        (
            ["offset", "show", "G", "T", "-n", "127.0.0.1:1"],
            "hotfire offset: topic T: no name server answered",
        ),
        (["bench", "send", "-n", "127.0.0.1:1"], "hotfire bench: no name server answered"),
        (
            ["bench", "e2e", "--size", "4"],
            "hotfire bench: --size 4: to tell how late it is a message takes 16",
        ),
        (["bench", "send", "--picture", "/no/x.svg"], "hotfire bench: file /no/x.svg: No such file"),
        (
            ["send", "T", "x", "--batch", "2", "--delay-level", "1"],
            "hotfire send: --batch 2 with --delay-level",
        ),
        (["tail", "T", "--group", "G", "--no-follow"], "hotfire tail: --no-follow with --group G"),
    ],
)
def test_error_is_one_line_and_exit_1(
    argv: list[str], error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """What cannot be done is said in one line on stderr, without a traceback."""
    assert main(argv) == 1
    written = capsys.readouterr()
    assert written.out == ""
    assert written.err.startswith(error)
    assert written.err.count("\n") == 1


def test_a_brokers_remark_is_told_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Remarks of brokers hold line breaks, and may hold anything: they cannot move the cursor."""

    def refuse(_: object) -> int:
        raise BrokerRefused(ResponseCode.TOPIC_NOT_EXIST, "apply first please!\nSee \x1b[2J there")

    monkeypatch.setattr("hotfire.cli.send.run", refuse)
    assert main(["send", "T", "x"]) == 1
    told = capsys.readouterr().err
    assert told.endswith("apply first please! See  [2J there\n")
    assert told.count("\n") == 1


@pytest.mark.parametrize("module", ["hotfire.cli.options.tail", "hotfire.cli.tail"])
def test_ctrl_c_while_a_command_is_imported_is_no_traceback(
    module: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Imports take longest where machines are slow: exit 130, and nothing is said."""
    find = importlib.import_module

    def interrupted(name: str) -> object:
        if name == module:
            raise KeyboardInterrupt
        return find(name)

    monkeypatch.setattr(importlib, "import_module", interrupted)
    assert main(["tail", "T"]) == 130
    assert capsys.readouterr().err == ""
