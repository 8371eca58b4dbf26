"""The serving commands as processes of their own: started by their command lines, ready when they say so."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.peers.hotfire import executable
from tests.peers.process import LineProcess

READY = "hotfire ready "
READY_TIMEOUT_S = 30.0
SEGMENT_BYTES = 4 << 20
SMALL = ("--set", f"mappedFileSizeCommitLog={SEGMENT_BYTES}")


class Program:
    """One running `hotfire` command; `told` is what its ready line says."""

    def __init__(self, process: LineProcess) -> None:
        self.process = process
        line = process.wait_line(
            lambda text: text.startswith(READY), what="ready line", timeout_s=READY_TIMEOUT_S
        )
        self.told = dict(word.split("=", 1) for word in line.removeprefix(READY).split())

    @property
    def broker(self) -> str:
        return self.told["broker"]

    @property
    def namesrv(self) -> str:
        return self.told["namesrv"]

    @property
    def log(self) -> str:
        """What it has written to standard error."""
        return self.process.log.read_text(errors="replace")


@contextmanager
def running(
    directory: Path, *arguments: str, env: Mapping[str, str] | None = None, log: str = "hotfire.err"
) -> Iterator[Program]:
    """A command that serves, killed at the end if it is still there."""
    process = LineProcess([str(executable()), *arguments], log=directory / log, env=env)
    try:
        yield Program(process)
    finally:
        if process.alive:
            process.kill()


def up(directory: Path, *arguments: str) -> list[str]:
    """The command line of a name server and a broker in one process, on free ports."""
    ports = ["--namesrv-port", "0", "--broker-port", "0"]
    return ["up", "--data", str(directory / "data"), *ports, *SMALL, *arguments]


def config_file(path: Path, **settings: object) -> str:
    path.write_text("# made by a test\n" + "".join(f"{name} = {value}\n" for name, value in settings.items()))
    return str(path)


def broker_config(directory: Path, *, name: str = "broker-a", **settings: object) -> str:
    """A broker.conf for a broker on loopback with its store in `directory`."""
    chosen = {
        "brokerName": name,
        "bindAddress": "127.0.0.1",
        "listenPort": 0,
        "storePathRootDir": directory / name,
        "mappedFileSizeCommitLog": SEGMENT_BYTES,
        **settings,
    }
    return config_file(directory / f"{name}.conf", **chosen)


def namesrv_config(directory: Path, **settings: object) -> str:
    return config_file(
        directory / "namesrv.conf",
        **{"bindAddress": "127.0.0.1", "listenPort": 0, "kvConfigPath": directory / "kv.json", **settings},
    )


def run(arguments: Sequence[str], *, cwd: Path, env: Mapping[str, str] | None = None) -> tuple[int, str, str]:
    """A command that is to end by itself: status, standard output, standard error."""
    done = subprocess.run(
        [str(executable()), *arguments],
        capture_output=True,
        text=True,
        timeout=READY_TIMEOUT_S,
        check=False,
        cwd=cwd,
        env=env,
    )
    return done.returncode, done.stdout, done.stderr
