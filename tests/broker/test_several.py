"""`hotfire up --brokers N`: broker processes behind one name server, kept alive and stopped together."""

import os
import re
import signal
from pathlib import Path

from tests.broker.programs import Program, run, running, up
from tests.peers import remoting
from tests.peers.process import poll_until

NAMES = ["broker-a", "broker-b", "broker-c"]


def brokers_of(program: Program) -> dict[str, str]:
    """Address by broker name, as routes of the topic every broker makes tell it."""
    route = remoting.route(program.namesrv, "BenchmarkTest") or {"brokerDatas": []}
    return {one["brokerName"]: one["brokerAddrs"]["0"] for one in route["brokerDatas"]}


def children(pid: int) -> list[int]:
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def serves(pid: int) -> str:
    """The name of the broker this process is."""
    words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    return next((word.decode().partition("=")[2] for word in words if word.startswith(b"brokerName=")), "")


def test_a_dead_broker_is_back_within_two_seconds_and_all_end_together(tmp_path: Path) -> None:
    """Three brokers, each with its own name, directory and port. One is killed: it is back at its old address
    within 2 s, one line says so with its status, the others never left. SIGTERM ends all, cleanly."""
    with running(tmp_path, *up(tmp_path, "--brokers", "3")) as program:
        before = brokers_of(program)
        assert sorted(before) == NAMES
        assert sorted(before.values()) == sorted(program.broker.split(","))
        for address in before.values():
            remoting.create_topic(address, "T", 1)
        pids = {serves(pid): pid for pid in children(program.process.pid)}
        assert sorted(pids) == NAMES
        old = pids["broker-b"]
        os.kill(old, signal.SIGKILL)
        poll_until(
            lambda: any(serves(pid) == "broker-b" for pid in children(program.process.pid) if pid != old),
            what="a new process",
            timeout_s=2.0,
        )
        poll_until(lambda: brokers_of(program) == before, what="broker-b again", timeout_s=10.0)
        told = [line for line in program.log.splitlines() if "starting it again" in line]
        assert len(told) == 1
        assert "broker-b was killed by SIGKILL; starting it again at once" in told[0]
        assert remoting.max_offsets(before["broker-b"], "T", 1) == [0]
        program.process.signal(signal.SIGTERM)
        assert program.process.wait(10.0) == 0
        assert "Traceback" not in program.log
    for name in NAMES:
        assert (tmp_path / "data" / name / "commitlog").is_dir()
        assert not (tmp_path / "data" / name / "abort").exists()


def test_children_do_not_outlive_a_killed_parent(tmp_path: Path) -> None:
    """kill -9 of `hotfire up`: its brokers end by themselves, in order, and free their directories."""
    with running(tmp_path, *up(tmp_path, "--brokers", "2")) as program:
        pids = children(program.process.pid)
        assert len(pids) == 2
        program.process.kill()
        poll_until(lambda: not any(is_running(pid) for pid in pids), what="their end", timeout_s=10.0)
    for name in NAMES[:2]:
        assert not (tmp_path / "data" / name / "abort").exists()


def is_running(pid: int) -> bool:
    try:
        return re.search(r"\) [^Z]", Path(f"/proc/{pid}/stat").read_text()) is not None
    except FileNotFoundError:
        return False


def test_a_broker_that_cannot_start_stops_the_others_with_its_reason(tmp_path: Path) -> None:
    """One directory in use by another: the last line names broker and reason, and nobody is left running."""
    with running(tmp_path, *up(tmp_path, "--brokers", "2"), log="first.err") as first:
        status, output, errors = run([*up(tmp_path), "--brokers", "3"], cwd=tmp_path)
        assert (status, output) == (1, "")
        line = errors.splitlines()[-1]
        pattern = r"hotfire up: broker-[ab] could not start: it ended with status 1; its last line: .*in use"
        assert re.match(pattern, line), line
        assert "Traceback" not in errors
        assert sorted(brokers_of(first)) == NAMES[:2]
