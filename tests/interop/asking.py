"""Hand-made requests put straight to a server, and what came of each.

A case is one request; a run puts a list of them, one after the other, to a broker and its name server and
keeps every answer laid out for `compare`. Owns sockets, waiting and the names a peer's own addresses go by.
"""

from __future__ import annotations

import dataclasses
import itertools
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from hotfire.protocol.codes import VERSION, Serialization
from hotfire.protocol.command import ONEWAY_FLAG, Command, encode
from hotfire.protocol.connection import FrameReader
from tests.interop.compare import Answer, Where, lay_out

REPLY_TIMEOUT_S = UNTIL_TIMEOUT_S = 30.0
PROBE_CODE = 29999
"""Known to no server: both answer that it is not supported, which shows that nothing came before."""

Seen = dict[str, Command]
"""Replies so far by case, for requests that speak of what an earlier one was told."""
Given = Any | Callable[[Seen], Any]


@dataclass(frozen=True)
class Case:
    """One request. Fields and body may be functions of the replies so far. `until` asks again until the reply
    has that code. `connection` names the connection, which is opened when first used. `meanwhile` is put on
    connections of its own before the reply is waited for."""

    name: str
    where: Where
    code: int
    fields: Mapping[str, Given] | None = None
    body: Given = b""
    oneway: bool = False
    binary: bool = False
    connection: str = "first"
    version: int = VERSION
    until: int | None = None
    pause_s: float = 0.0
    meanwhile: tuple[Case, ...] = ()

    def command(self, opaque: int, seen: Seen) -> Command:
        fields = None
        if self.fields is not None:
            given = {name: _given(value, seen) for name, value in self.fields.items()}
            fields = {name: _text(value) for name, value in given.items() if value is not None}
        return Command(
            self.code,
            opaque=opaque,
            flag=ONEWAY_FLAG if self.oneway else 0,
            fields=fields,
            body=_given(self.body, seen),
            version=self.version,
            serialization=Serialization.ROCKETMQ if self.binary else Serialization.JSON,
        )


def _given(value: Given, seen: Seen) -> Any:
    return value(seen) if callable(value) else value


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


class Line:
    """One connection: asks, and keeps what the server asks of us."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=REPLY_TIMEOUT_S)
        self._reader = FrameReader()
        self._opaque = itertools.count(1)
        self._waiting: list[Command] = []
        self.asked_of_us: list[Command] = []
        self.closed = False

    @property
    def port(self) -> int:
        port: int = self._socket.getsockname()[1]
        return port

    def next_opaque(self) -> int:
        return next(self._opaque)

    def send(self, command: Command) -> None:
        self._socket.sendall(encode(command))

    def reply(self, timeout_s: float) -> Command | None:
        """The next reply; None when the server closes or says nothing in time."""
        deadline = time.monotonic() + timeout_s
        while not self._waiting:
            left = deadline - time.monotonic()
            if left <= 0:
                return None
            self._socket.settimeout(left)
            try:
                data = self._socket.recv(1 << 16)
            except TimeoutError:
                return None
            except ConnectionError:
                data = b""
            if not data:
                self.closed = True
                return None
            for command in self._reader.receive_data(data):
                (self._waiting if command.is_response else self.asked_of_us).append(command)
        return self._waiting.pop(0)

    def close(self) -> None:
        self._socket.close()


class Asker:
    """Puts cases to one cluster. `names` maps its own texts (addresses) to the words both clusters share."""

    def __init__(self, namesrv: str, broker: str, names: Mapping[str, str] | None = None) -> None:
        self._addresses = {"namesrv": namesrv, "broker": broker}
        host, _, port = broker.rpartition(":")
        self.names = {
            broker: "<broker>",
            namesrv: "<namesrv>",
            f"{host}:{int(port) + 1}": "<ha>",
            **(names or {}),
        }
        self._lines: dict[tuple[str, str], Line] = {}
        self.seen: Seen = {}

    def run(self, cases: Iterable[Case]) -> dict[str, Answer]:
        answers: dict[str, Answer] = {}
        for case in cases:
            assert case.name not in answers, f"two cases are called {case.name}"
            answers[case.name] = self.ask(case)
        return answers

    def ask(self, case: Case) -> Answer:
        time.sleep(case.pause_s)
        deadline = time.monotonic() + UNTIL_TIMEOUT_S
        while True:
            outcome, reply = self._ask_once(case)
            if case.until is None or reply is None or reply.code == case.until or time.monotonic() > deadline:
                break
            time.sleep(0.05)
        if reply is None:
            return Answer(case.where, case.code, outcome, {})
        self.seen[case.name] = reply
        return Answer(case.where, case.code, outcome, lay_out(reply, self.names))

    def _ask_once(self, case: Case) -> tuple[str, Command | None]:
        line = self._line(case)
        command = case.command(line.next_opaque(), self.seen)
        line.send(command)
        for other in case.meanwhile:
            assert self._line(other) is not line, (
                f"{other.name}: its reply would be read for that of {case.name}"
            )
            self.ask(other)
        if case.oneway:
            line.send(Command(PROBE_CODE, opaque=line.next_opaque()))
        reply = line.reply(REPLY_TIMEOUT_S)
        if reply is None:
            self.close_line(case)
            return ("closed" if line.closed else "silence"), None
        if case.oneway:
            if reply.opaque != command.opaque:
                return "silence", None
            line.reply(REPLY_TIMEOUT_S)
        assert reply.opaque == command.opaque, f"{case.name}: opaque {reply.opaque} for {command.opaque}"
        return "reply", reply

    def _line(self, case: Case) -> Line:
        key = case.where, case.connection
        if key not in self._lines:
            line = self._lines[key] = Line(self._addresses[case.where])
            self.names[f"127.0.0.1:{line.port}"] = f"<{case.connection}>"
        return self._lines[key]

    def close_line(self, case: Case) -> None:
        self._lines.pop((case.where, case.connection)).close()

    def asked_of_us(self) -> list[Command]:
        return [command for line in self._lines.values() for command in line.asked_of_us]

    def close(self) -> None:
        for line in self._lines.values():
            line.close()


# --- the same request, spoilt ------------------------------------------------------------------------


def spoilt(case: Case) -> list[Case]:
    """The case without each of its fields, with none at all, with a word or a huge number for each number."""
    given = dict(case.fields or {})
    made = []
    if given:
        made.append(dataclasses.replace(case, name=f"{case.name}, no fields", fields=None))
        made.append(dataclasses.replace(case, name=f"{case.name}, empty fields", fields={}))
    for name, value in given.items():
        rest = {key: kept for key, kept in given.items() if key != name}
        made.append(dataclasses.replace(case, name=f"{case.name}, no {name}", fields=rest))
        if isinstance(value, int) and not isinstance(value, bool):
            for other in ("x", "", "99999999999999999999"):
                changed = {**given, name: other}
                made.append(dataclasses.replace(case, name=f"{case.name}, {name}={other}", fields=changed))
    return made


def twins(case: Case) -> list[Case]:
    """The case in the binary header, and oneway."""
    return [
        dataclasses.replace(case, name=f"{case.name}, binary", binary=True),
        dataclasses.replace(case, name=f"{case.name}, oneway", oneway=True),
    ]
