"""Apache's mqadmin as one process that runs many commands, and the shape of what it writes.

Owns the process and the reading of its answers. What an output must say is for the tests.
"""

from __future__ import annotations

import base64
import re
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.peers.apache import admin_command
from tests.peers.process import LineProcess

COMMAND_TIMEOUT_S = 60.0
SOURCE = Path(__file__).parent / "admin" / "Admin.java"
FAILURES = ("Exception", "not exist.", "command failed", "usage:")
_SHAPES = (
    (re.compile(r"\d{4}-\d{2}-\d{2}[ #T]\d{2}:\d{2}:\d{2}(?:[,.:]\d+)?"), "<time>"),
    (re.compile(r"\b(?:[0-9A-F]{56}|[0-9A-F]{32})\b"), "<id>"),
    (re.compile(r"\d+\.\d+\.\d+\.\d+@\S+"), "<client>"),
    (re.compile(r"127\.0\.0\.1:\d+"), "<address>"),
    (re.compile(r"-?\d+(?:\.\d+)?(?:E-?\d+)?"), "#"),
    (re.compile(r"[ \t]+"), " "),
)


class Mqadmin:
    """
    >>> with Mqadmin("127.0.0.1:9876", directory=tmp_path) as admin:              # doctest: +SKIP
    ...     admin.run("clusterList")
    """

    def __init__(self, namesrv: str, *, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._namesrv = namesrv
        self._process = LineProcess(admin_command(directory, SOURCE), log=directory / "mqadmin.err")
        self._lines = 0

    def run(self, *words: str) -> str:
        """What the command wrote to either output."""
        self._process.tell("\t".join([*words, "-n", self._namesrv]))
        line = self._process.wait_line(
            lambda text: text.startswith("done "),
            what=f"end of mqadmin {' '.join(words)}",
            timeout_s=COMMAND_TIMEOUT_S,
            after=self._lines,
        )
        self._lines = len(self._process.lines())
        return base64.b64decode(line.removeprefix("done ")).decode()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()


NOT_SERVED_YET = (
    "ROCKSDB_TRANS_HALF_TOPIC",
    "ROCKSDB_TRANS_OP_HALF_TOPIC",
    "rmq_sys_REVIVE_LOG",
    "rmq_sys_SYNC_BROKER_MEMBER",
)
"""Topics of transactions in RocksDB, of pop and of a broker group: a list of topics has a line for each."""


def shape(output: str) -> list[str]:
    """The lines with every number, time, id and address replaced by what it is; order does not count."""
    lines = []
    for line in output.splitlines():
        if any(name in line for name in NOT_SERVED_YET):
            continue
        for pattern, word in _SHAPES:
            line = pattern.sub(word, line)
        if line.strip():
            lines.append(line.strip())
    return sorted(lines)


def failed(output: str) -> bool:
    """mqadmin always exits with 0; that a command failed is only told by what it wrote."""
    return any(word in output for word in FAILURES)
