"""What the surroundings do not give, descriptors or answers: one line, and no waiting for ever."""

import resource
import signal
import socket
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.broker.programs import Program, broker_config, running, up
from tests.peers.hotfire import executable
from tests.peers.process import LineProcess, poll_until


def test_the_soft_limit_of_open_files_is_raised(tmp_path: Path) -> None:
    """Started by a shell with a low soft limit, it helps itself to the hard one."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 4096:
        pytest.fail(f"this machine's hard limit of open files is {hard}: too low for these tests")
    script = tmp_path / "hotfire.sh"
    script.write_text(f'ulimit -Sn 256; exec {executable()} "$@"\n')
    process = LineProcess(["sh", str(script), *up(tmp_path)], log=tmp_path / "err")
    try:
        program = Program(process)
        limits = Path(f"/proc/{program.told['pid']}/limits").read_text().splitlines()
        (row,) = [line.split() for line in limits if line.startswith("Max open files")]
        assert row[3] == row[4] == str(hard)
    finally:
        process.kill()


def test_a_low_hard_limit_is_told_in_one_line(tmp_path: Path) -> None:
    """There is nothing to raise: one line names the limit and how to raise it, and the broker serves."""
    script = f'ulimit -n 512; exec {executable()} "$@"'
    words = ["sh", "-c", script, "sh", *up(tmp_path)]
    done = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path)
    assert done.stdout is not None
    assert done.stdout.readline().startswith("hotfire ready ")
    done.send_signal(signal.SIGTERM)
    _, errors = done.communicate(timeout=20)
    assert done.returncode == 0
    (line,) = [line for line in errors.splitlines() if "limit of open files" in line]
    for words_of_it in ("limit of open files is 512", "ulimit -Hn", "LimitNOFILE"):
        assert words_of_it in line


@pytest.mark.parametrize("command", ["up", "broker", "namesrv"])
def test_a_limit_nothing_can_work_with_is_refused(tmp_path: Path, command: str) -> None:
    """One line with the limit, what is needed and how to raise it; status 1, and nothing was begun."""
    words = {"up": up(tmp_path), "broker": ["broker", "-c", broker_config(tmp_path)]}.get(command, [command])
    script = f'ulimit -n 255; exec {executable()} "$@"'
    done = subprocess.run(
        ["sh", "-c", script, "sh", *words],
        capture_output=True, text=True, cwd=tmp_path, timeout=20, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"hotfire {command}: limit of open files is 255")
    for words_of_it in ("256 are needed", "ulimit -Hn 8192", "LimitNOFILE=8192"):
        assert words_of_it in line
    assert not list(tmp_path.glob("*/commitlog"))


def test_name_servers_that_hang_do_not_hold_up_the_end(tmp_path: Path) -> None:
    """Six name servers that accept and never answer: SIGTERM ends the broker within 5 s all the same."""
    with ExitStack() as stack:
        silent = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(6)]
        addresses = ";".join(f"127.0.0.1:{one.getsockname()[1]}" for one in silent)
        config = broker_config(tmp_path)
        with running(tmp_path, "broker", "-c", config, "-n", addresses) as broker:
            for one in silent:
                peer, _ = one.accept()
                stack.callback(peer.close)
                assert peer.recv(1), "it registers with each of them"
            started = time.monotonic()
            broker.process.signal(signal.SIGTERM)
            assert broker.process.wait(10.0) == 0
            assert time.monotonic() - started < 5.0
        assert not (tmp_path / "broker-a" / "abort").exists()
        poll_until(lambda: "broker closed" in broker.log, what="an orderly end", timeout_s=5.0)
