"""Part of a row in a process of its own, so that it can be killed; its events are passed on as they come."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.interop.python import events
from tests.interop.python.row import Row
from tests.peers.java_client import java_command

PYTHON = (sys.executable, "-m", "tests.interop.python")


def java(version: str = "5.5.0") -> list[str]:
    """The Java program, which has parts of rows too."""
    return java_command(version, "JSON", Path.cwd())


class Child:
    """`command` is our own program or the Java one; both take the same arguments."""

    def __init__(self, row: Row, part: str, command: Sequence[str] = PYTHON) -> None:
        self._row, self._part, self._command = row, part, command
        self.lines: list[str] = []
        self._process: asyncio.subprocess.Process
        self._relay: asyncio.Task[None]

    async def start(self) -> Child:
        row = self._row
        self._process = await asyncio.create_subprocess_exec(
            *self._command, "rows", row.label, row.namesrv, "1", f"{row.name}={row.count}/{self._part}",
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        self._relay = asyncio.create_task(self._pass_on())
        row.opened.push_async_callback(self.kill)
        return self

    async def _pass_on(self) -> None:
        assert self._process.stdout is not None
        async for raw in self._process.stdout:
            line = raw.decode().rstrip("\n")
            if line.startswith('{"event"') and '"row"' in line and '"row-' not in line:
                events.pass_on(line)
                self.lines.append(line)

    def wrote(self, part: str) -> bool:
        """Whether a line with such a part came."""
        return any(part in line for line in self.lines)

    async def kill(self) -> None:
        """SIGKILL: the broker learns of it from the closed connections alone."""
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()
        await self._relay
