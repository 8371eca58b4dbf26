"""Runs rows of `rows.toml` with one client against any name server, and hands back what happened.

    python -m tests.interop.rowrun --client java550 --namesrv 127.0.0.1:9876 --rows send-sync,pull --out DIR

All rows of a client run in one process, which writes events; `DIR/<row>.jsonl` gets those of each row.
Nothing is judged here: `tests/interop/checks` does that. Topics, groups and instance names begin with
`<client>-<row>`, so that each connection tells by its client id which row it belongs to.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tomllib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from tests.certificates import AUTHORITY
from tests.peers import goclient
from tests.peers.jars import ROOT
from tests.peers.java_client import java_command
from tests.peers.process import LineProcess, ProcessFailed, poll_until

Event = dict[str, Any]

ROWS_FILE = Path(__file__).with_name("rows.toml")
ROWS_TIMEOUT_S = 480.0
WRITTEN_TIMEOUT_S = 60.0
AT_A_TIME = 12
TLS_CHECKED = (
    "-Dtls.enable=true",
    "-Dtls.test.mode.enable=false",
    "-Dtls.client.authServer=true",
    f"-Dtls.client.trustCertPath={AUTHORITY}",
)


class Broker(Protocol):
    """A broker at hand: it can be killed and started again, and its files can be read. Beside it another one
    may be started, stopped, and taken out of the name server's tables until it registers again."""

    @property
    def store(self) -> Path: ...

    def kill9(self) -> None: ...

    def start_broker(self) -> None: ...

    def start_other(self) -> None: ...

    def stop_other(self) -> None: ...

    def cut_other(self) -> None: ...


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the table: what is shown, with which clients, over how many messages."""

    id: str
    title: str
    clients: tuple[str, ...]
    count: int = 1000
    why_fewer: str = ""
    promises: tuple[int, ...] = ()
    alone: bool = False
    at_hand: bool = False
    seconds: int = 0
    """How long it waits by its nature; the longest start first."""


@dataclass(frozen=True)
class Facts:
    """What a row's clients wrote, oldest first."""

    row: Row
    client: str
    events: list[Event] = field(default_factory=list)

    def of(self, kind: str, **equal: object) -> list[Event]:
        """Events of one kind whose fields are as given."""
        return [
            event
            for event in self.events
            if event["event"] == kind and all(event.get(name) == value for name, value in equal.items())
        ]

    def one(self, kind: str, **equal: object) -> Event:
        (event,) = self.of(kind, **equal)
        return event

    @property
    def failure(self) -> str | None:
        """Why the row's own story broke off, if it did."""
        broken = [str(event["error"]) for event in self.of("row-failed")]
        if not broken and not self.of("row-told"):
            return f"{self.row.id} of {self.client} did not come to its end"
        return broken[0] if broken else None


@cache
def table() -> tuple[dict[str, Row], int]:
    """The rows by their names, and how many pairs of row and client there are at least."""
    loaded = tomllib.loads(ROWS_FILE.read_text())
    rows: list[Row] = []
    for entry in loaded["row"]:
        told: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in entry.items()
        }
        rows.append(Row(**told))
    for row in rows:
        assert row.count >= 1000 or row.why_fewer, f"row {row.id} has {row.count} messages and no reason"
    named = {row.id: row for row in rows}
    assert len(named) == len(rows), "two rows have one name"
    return named, loaded["minimum"]


def rows_of(client: str) -> list[str]:
    return [row.id for row in table()[0].values() if client in row.clients]


# From any directory: the process runs where its logs lie.
PYTHON = ["env", f"PYTHONPATH={ROOT}", sys.executable, "-m", "tests.interop.python"]
APACHE_ONLY = ("python",)
"""Clients whose rows run with Apache's servers whoever else is tested: they are about the client."""

CLIENTS: dict[str, Callable[[Path], list[str]]] = {
    # Each Java client with one header serialisation; the row `headers` runs them the other way round.
    "java498": lambda directory: java_command("4.9.8", "ROCKETMQ", directory),
    "java550": lambda directory: java_command("5.5.0", "JSON", directory),
    # Our own client with Apache's servers, and with ours. They take long, so they begin early.
    "python": lambda directory: PYTHON,
    "pythonhotfire": lambda directory: PYTHON,
    "java498json": lambda directory: java_command("4.9.8", "JSON", directory),
    "java550binary": lambda directory: java_command("5.5.0", "ROCKETMQ", directory),
    # They look at their queues every 2 s instead of every 20 s, for rows that wait for that again and again.
    "java498brisk": lambda directory: java_command("4.9.8", "ROCKETMQ", directory, rebalance_ms=2000),
    "java550brisk": lambda directory: java_command("5.5.0", "JSON", directory, rebalance_ms=2000),
    # They speak TLS: one takes any certificate, as it comes; the others check the server's.
    "java550any": lambda directory: java_command("5.5.0", "JSON", directory, flags=["-Dtls.enable=true"]),
    "java498tls": lambda directory: java_command("4.9.8", "ROCKETMQ", directory, flags=TLS_CHECKED),
    "java550tls": lambda directory: java_command("5.5.0", "JSON", directory, flags=TLS_CHECKED),
    # The offsets it broadcasts by are its own, and not those of a run before.
    "go": lambda directory: [
        "env",
        f"rocketmq.client.localOffsetStoreDir={directory / 'offsets'}",
        str(goclient.program()),
    ],
}


def run_rows(
    client: str,
    namesrv: str,
    rows: Iterable[str],
    out: Path,
    *,
    broker: Broker | None = None,
    at_a_time: int = AT_A_TIME,
) -> dict[str, Facts]:
    """Run rows to their end. Those that kill the broker or look at its files need it as `broker`.

    A row whose client failed has facts all the same; `Facts.failure` says how it failed.
    """
    chosen = [table()[0][name] for name in rows]
    if broker is None and (unable := [row.id for row in chosen if row.at_hand]):
        raise ValueError(f"rows {unable} kill the broker or look at its files: pass it, or leave them out")
    out.mkdir(parents=True, exist_ok=True)
    chosen.sort(key=lambda row: -row.seconds)
    arguments = [f"{row.id}={row.count}{'/alone' if row.alone else ''}" for row in chosen]
    process = LineProcess(
        [*CLIENTS[client](out), "rows", client, namesrv, str(at_a_time), *arguments],
        log=out / f"{client}.err",
    )
    facts = {row.id: Facts(row, client) for row in chosen}
    try:
        _follow(process, broker)
    finally:
        process.kill()
        _sort(process.lines(), facts)
        for name, told in facts.items():
            lines = (json.dumps(event, ensure_ascii=False) for event in told.events)
            (out / f"{name}.jsonl").write_text("".join(f"{line}\n" for line in lines))
    return facts


def _follow(process: LineProcess, broker: Broker | None) -> None:
    """Do what the rows ask for, until all have ended. What cannot be done is told; the row will miss it."""
    wanted = ('{"event":"broker-wanted"', '{"event":"finished"')
    position = 0
    while True:
        try:
            line = process.wait_line(
                lambda text: text.startswith(wanted),
                what="end of the rows",
                timeout_s=ROWS_TIMEOUT_S,
                after=position,
            )
        except ProcessFailed as failed:
            sys.stderr.write(f"{failed}\n")
            return
        event = json.loads(line)
        if event["event"] == "finished":
            return
        assert broker is not None
        position = process.lines().index(line, position) + 1
        try:
            _serve(broker, event)
        except ProcessFailed as failed:
            sys.stderr.write(f"{event}: {failed}\n")
        else:
            process.tell(event["row"])


def _serve(broker: Broker, wish: Event) -> None:
    """Do to the broker what a row asks for; the row waits meanwhile."""
    match wish["state"]:
        case "down":
            broker.kill9()
        case "up":
            broker.start_broker()
        case "other-up":
            broker.start_other()
        case "other-down":
            broker.stop_other()
        case "other-cut":
            broker.cut_other()
        case "written":
            table_file = broker.store / "config" / "consumerOffset.json"
            name = f"{wish['topic']}@{wish['group']}"
            poll_until(
                lambda: sum(_offset_table(table_file).get(name, {}).values()) == wish["sum"],
                what=f"{name} in {table_file}",
                timeout_s=WRITTEN_TIMEOUT_S,
            )


def _offset_table(path: Path) -> dict[str, dict[str, int]]:
    """The offsets a broker keeps on its disk. Java leaves integer keys bare."""
    text = re.sub(r"([{,])\s*(\d+)\s*:", r'\1"\2":', path.read_text())
    offsets: dict[str, dict[str, int]] = json.loads(text)["offsetTable"]
    return offsets


def _sort(lines: Sequence[str], facts: dict[str, Facts]) -> None:
    begin: Event | None = None
    for line in lines:
        # The client's own libraries may print too; our lines are JSON objects.
        if not line.startswith('{"event"'):
            continue
        event = json.loads(line)
        if event["event"] == "begin":
            begin = event
        elif event.get("row") in facts:
            facts[event["row"]].events.append(event)
    for told in facts.values():
        if begin is not None:
            told.events.insert(0, begin)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.interop.rowrun", description=__doc__)
    parser.add_argument("--client", choices=sorted(CLIENTS), required=True)
    parser.add_argument("--namesrv", required=True, help="HOST:PORT")
    parser.add_argument(
        "--rows", help="names with commas between; all that need no broker at hand by default"
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--at-a-time", type=int, default=AT_A_TIME)
    chosen = parser.parse_args()
    quiet = [name for name in rows_of(chosen.client) if not table()[0][name].at_hand]
    names = chosen.rows.split(",") if chosen.rows else quiet
    facts = run_rows(chosen.client, chosen.namesrv, names, chosen.out, at_a_time=chosen.at_a_time)
    failures = {name: told.failure for name, told in facts.items() if told.failure}
    for name, failure in failures.items():
        sys.stderr.write(f"{name}: {failure}\n")
    for name, told in facts.items():
        begin, end = told.of("row-begin"), told.of("row-end")
        spent = (end[0]["at"] - begin[0]["at"]) / 1000 if begin and end else float("nan")
        sys.stdout.write(f"{name} events={len(told.events)} seconds={spent:.1f}\n")
    return 1 if failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
