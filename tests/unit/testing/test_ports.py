"""Ports handed out are nobody else's, though nothing listens on them yet."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hotfire.testing import ports
from hotfire.testing.ports import free_port

FEW = range(20_100, 20_116)

HAND_OUT = f"""
import sys
from pathlib import Path
from hotfire.testing import ports
ports.PORT_MIN, ports.PORT_MAX = {FEW.start}, {FEW.stop}
ports._claims = ports._Claims(Path(sys.argv[1]))
print(*(ports.free_port(1) for _ in range(3)), flush=True)
input()
"""


@pytest.fixture
def claims(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A few ports, and a file of claims that no other test knows."""
    monkeypatch.setattr(ports, "PORT_MIN", FEW.start)
    monkeypatch.setattr(ports, "PORT_MAX", FEW.stop)
    monkeypatch.setattr(ports, "_claims", ports._Claims(tmp_path / "ports"))
    return tmp_path / "ports"


@contextmanager
def taken_elsewhere(claims: Path) -> Iterator[set[int]]:
    """The ports that a process was handed which then does nothing with them, and is killed."""
    command = [sys.executable, "-c", HAND_OUT, str(claims)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        handed = [int(port) for port in other.stdout.readline().split()]
        yield {*handed, *(port + 1 for port in handed)}
        other.kill()


def all_there_are() -> set[int]:
    ours: set[int] = set()
    while True:
        try:
            ours.add(free_port())
        except OSError:
            return ours


def test_no_port_is_handed_to_two_processes(claims: Path) -> None:
    """What another was told of is not offered here, nor is anything twice."""
    with taken_elsewhere(claims) as taken:
        assert len(taken) == 6
        assert all_there_are() == set(FEW) - taken


def test_the_claims_of_a_process_end_with_it(claims: Path) -> None:
    """However it ends: what was handed to it can be handed out again."""
    with taken_elsewhere(claims) as taken:
        pass
    assert all_there_are() >= taken & set(FEW)


def test_a_process_keeps_its_latest_claims_only(claims: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run of many tests does not use the ports up."""
    monkeypatch.setattr(ports, "CLAIMS_MAX", 4)
    handed = [free_port() for _ in range(100)]
    assert all(len({*handed[at : at + 4]}) == 4 for at in range(96))
