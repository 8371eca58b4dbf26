"""The interop programs written in Java, one process each: started, listened to, told to stop or killed.

Owns the command line and the reading of events. What the events should be is for the tests to say.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from tests.peers.jars import client_class_path
from tests.peers.process import LineProcess

Serialization = Literal["JSON", "ROCKETMQ"]
Event = dict[str, Any]

END_TIMEOUT_S = 30.0
# Many short-lived clients on few cores: start-up time matters more than peak speed.
_JVM_FLAGS = (
    "-Xmx256m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Xshare:auto",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
)


class JavaClient:
    """One `interop.Interop` process; its JSON lines are events."""

    def __init__(
        self, *arguments: object, version: str, serialization: Serialization, directory: Path
    ) -> None:
        """`directory` takes the client's logs and offset files."""
        directory.mkdir(parents=True, exist_ok=True)
        command = [
            "java",
            *_JVM_FLAGS,
            "-Dfile.encoding=UTF-8",
            f"-Duser.home={directory}",
            f"-Drocketmq.serialize.type={serialization}",
            "-cp",
            client_class_path(version),
            "interop.Interop",
            *map(str, arguments),
        ]
        self._process = LineProcess(command, log=directory / "client.err")
        self._decoded: list[Event] = []

    @property
    def pid(self) -> int:
        return self._process.pid

    def events(self, kind: str | None = None) -> list[Event]:
        """Everything so far, or all events of one kind, oldest first."""
        lines = self._process.lines()
        # The client's own libraries may print too; our lines are JSON objects.
        self._decoded += [
            json.loads(line) if line.startswith("{") else {"event": "noise", "line": line}
            for line in lines[len(self._decoded) :]
        ]
        return [event for event in self._decoded if kind is None or event["event"] == kind]

    def wait(
        self,
        kind: str,
        accept: Callable[[Event], bool] = lambda event: True,
        *,
        timeout_s: float,
        after: int = 0,
    ) -> Event:
        """The first event of a kind, from line number `after` on, that is accepted; now or when it comes."""

        def matches(line: str) -> bool:
            if not line.startswith("{"):
                return False
            event: Event = json.loads(line)
            return event["event"] == kind and accept(event)

        line = self._process.wait_line(matches, what=f"{kind} event", timeout_s=timeout_s, after=after)
        found: Event = json.loads(line)
        return found

    def position(self) -> int:
        """Number of lines so far: pass it as `after` to wait for something new."""
        return len(self._process.lines())

    def finish(self) -> None:
        """Tell the program to shut its client down and wait for its end."""
        if self._process.alive:
            self._process.tell("stop")
        status = self._process.wait(END_TIMEOUT_S)
        assert status == 0, f"client ended with status {status}, see {self._process.log}"

    def kill(self) -> None:
        """SIGKILL: the broker learns of it from the closed connection alone."""
        self._process.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
