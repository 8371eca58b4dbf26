"""What a broker does beside sending and pulling, Hotfire's and Apache's in turns:

    transactions-*   half message and commit, many under way on several connections
    sql92-pull       a backlog read through a condition on properties that is true of one message in ten
    key-queries      messages looked for by topic and key
    timers-intake    messages with a time of delivery, taken as fast as they come, and each delivered
    timers-burst     the same, all due at one moment

The generators check what comes back, message by message; a run with a single wrong one has no figure. Each
case runs unmeasured first, so that Apache's code for it is compiled. Takes about twelve minutes.
"""

from __future__ import annotations

import argparse
import itertools
import json
import socket
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from bench.cases import BODY_BYTES, QUEUES, STORED_TIMEOUT_S, TITLES, Case, Server, check_stored
from bench.compare import Bench, Plan, say
from bench.drivers import LoadTools, Measured
from bench.others import frame
from bench.place import RESULTS, SCRATCH
from bench.report import Piece, markdown
from bench.sampling import profile
from tests.peers import remoting
from tests.peers.process import poll_until

PAIRS, SECONDS, WARM_S, CASE_WARM_S = 5, 4, 60, 10
SERVERS = ("hotfire", "apache")
APACHE_SETTINGS = {"enablePropertyFilter": "true"}
"""Off by default there; timers and transactions are on."""
PULL_MESSAGE, HEART_BEAT = 11, 34
CONDITION = "a BETWEEN 0 AND 3 AND s = 'x'"
GROUP, VERSION = "askgen", 1
SAMPLE = 32
_numbers = itertools.count(1)


@dataclass(frozen=True)
class Extra(Case):
    """`warm_s`: how long it runs unmeasured first."""

    warm_s: int = CASE_WARM_S

    def prepare(self, tools: LoadTools, server: Server) -> None:
        self.fill(tools, server)
        self.drive(tools, server, self.warm_s)

    def fill(self, tools: LoadTools, server: Server) -> None:
        """What is there before; nothing as a rule."""


@dataclass(frozen=True)
class Transactions(Extra):
    connections: int = 8
    window: int = 32

    def drive(self, tools: LoadTools, server: Server, seconds: int) -> Measured:
        topic = f"transactions-{next(_numbers)}"
        remoting.create_topic(server.broker, topic, QUEUES)
        measured = tools.transactions(
            server.broker,
            topic,
            connections=self.connections,
            window=self.window,
            body=BODY_BYTES,
            seconds=seconds,
            queues=QUEUES,
        )
        # nothing is under way any more: all that was committed is there, and nothing twice
        check_stored(server, topic, measured.acked, in_flight_max=0)
        for queue in range(QUEUES):
            check_committed(server, topic, queue)
        return measured


@dataclass(frozen=True)
class ByCondition(Extra):
    stored: int = 40_000
    body: int = 1024
    readers: int = 2
    batch: int = 32

    def fill(self, tools: LoadTools, server: Server) -> None:
        remoting.create_topic(server.broker, self.name, QUEUES)
        tools.fill_asked(
            server.broker, self.name, count=self.stored, body=self.body, queues=QUEUES, keys=self.stored
        )
        check_stored(server, self.name, self.stored, in_flight_max=0)

    def drive(self, tools: LoadTools, server: Server, seconds: int) -> Measured:
        with subscribed(server.broker, self.name):
            return tools.pull_by_condition(
                server.broker,
                self.name,
                count=self.stored,
                body=self.body,
                queues=QUEUES,
                readers=self.readers,
                batch=self.batch,
                seconds=seconds,
                group=GROUP,
                version=VERSION,
            )


@dataclass(frozen=True)
class KeyQueries(Extra):
    """Forty messages of each key, all over the log."""

    stored: int = 100_000
    keys: int = 2_500
    body: int = 256
    connections: int = 8
    window: int = 4

    def fill(self, tools: LoadTools, server: Server) -> None:
        remoting.create_topic(server.broker, self.name, QUEUES)
        tools.fill_asked(
            server.broker, self.name, count=self.stored, body=self.body, queues=QUEUES, keys=self.keys
        )
        check_stored(server, self.name, self.stored, in_flight_max=0)
        poll_until(  # Apache's index follows its log
            lambda: self._found(server.broker, f"key-{self.keys - 1}") == self.stored // self.keys,
            what=f"index of {self.name}",
            timeout_s=STORED_TIMEOUT_S,
        )

    def _found(self, broker: str, key: str) -> int:
        asked = {"topic": self.name, "key": key, "maxNum": 64, "beginTimestamp": 0, "endTimestamp": 1 << 60}
        return len(bodies(remoting.ask(broker, remoting.QUERY_MESSAGE, asked).body))

    def drive(self, tools: LoadTools, server: Server, seconds: int) -> Measured:
        return tools.query_keys(
            server.broker,
            self.name,
            count=self.stored,
            body=self.body,
            keys=self.keys,
            connections=self.connections,
            window=self.window,
            seconds=seconds,
        )


@dataclass(frozen=True)
class Timers(Extra):
    """So many messages for each second of the plan; a run ends when all are delivered."""

    per_second: int = 20_000
    ahead_ms: int = 3_000
    spread_ms: int = 5_000
    burst: bool = False
    warm_s: int = SECONDS

    def count(self, seconds: int) -> int:
        return self.per_second * seconds

    def drive(self, tools: LoadTools, server: Server, seconds: int) -> Measured:
        topic = f"timers-{next(_numbers)}"
        remoting.create_topic(server.broker, topic, QUEUES)
        measured = tools.timers(
            server.broker,
            topic,
            connections=8,
            window=64,
            body=BODY_BYTES,
            count=self.count(seconds),
            ahead_ms=self.ahead_ms,
            spread_ms=self.spread_ms,
            queues=QUEUES,
            burst=self.burst,
        )
        check_stored(server, topic, measured.acked, in_flight_max=0)
        return measured


EXTRAS: tuple[Extra, ...] = (
    Transactions("transactions-sync", TITLES["transactions-sync"], "sync"),
    ByCondition("sql92-pull", TITLES["sql92-pull"], "async"),
    KeyQueries("key-queries", TITLES["key-queries"], "async"),
    Timers("timers-intake", TITLES["timers-intake"], "async"),
    Timers("timers-burst", TITLES["timers-burst"], "async", ahead_ms=6_000, spread_ms=0, burst=True),
    # the last: Apache's broker is busy with what has ended for minutes
    Transactions("transactions-async", TITLES["transactions-async"], "async"),
)


# --- what came back -----------------------------------------------------------------------------------


def bodies(data: bytes) -> list[bytes]:
    """Of records one behind the other, as brokers hand them out; an error when they are damaged."""
    found, at = [], 0
    while at < len(data):
        size, body_size = int.from_bytes(data[at : at + 4]), int.from_bytes(data[at + 84 : at + 88])
        if size < 88 + body_size or at + size > len(data):
            raise RuntimeError(f"byte {at} of {len(data)} begins no record: size {size}, body {body_size}")
        found.append(data[at + 88 : at + 88 + body_size])
        at += size
    return found


def check_committed(server: Server, topic: str, queue: int) -> None:
    """The last messages of a queue are what txgen sent; the others are counted."""
    end = remoting.max_offsets(server.broker, topic, queue + 1)[queue]
    first = max(0, end - SAMPLE)
    fields = {
        "consumerGroup": "sample", "topic": topic, "queueId": queue, "queueOffset": first,
        "maxMsgNums": SAMPLE, "sysFlag": 4, "commitOffset": 0, "suspendTimeoutMillis": 0,
        "subscription": "*", "subVersion": 0, "expressionType": "TAG",
    }  # fmt: skip
    found = bodies(remoting.call(server.broker, PULL_MESSAGE, fields).body)
    sent = bytes(ord("a") + k * 7 % 26 for k in range(BODY_BYTES))
    if not found or len(found) > end - first or set(found) != {sent}:
        raise RuntimeError(f"{topic} queue {queue} from {first}: {len(found)} bodies, not all as sent")


@contextmanager
def subscribed(broker: str, topic: str) -> Iterator[None]:
    """A member of the group says what it wants, as Java's consumers do: with its heartbeat."""
    wanted = {
        "classFilterMode": False, "codeSet": [], "expressionType": "SQL92", "subString": CONDITION,
        "subVersion": VERSION, "tagsSet": [], "topic": topic,
    }  # fmt: skip
    consumer = {
        "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET", "consumeType": "CONSUME_PASSIVELY",
        "groupName": GROUP, "messageModel": "CLUSTERING", "subscriptionDataSet": [wanted], "unitMode": False,
    }  # fmt: skip
    beat = {"clientID": "127.0.0.1@askgen", "consumerDataSet": [consumer], "producerDataSet": []}
    host, _, port = broker.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=STORED_TIMEOUT_S) as connection:
        connection.sendall(frame(HEART_BEAT, {}, json.dumps(beat).encode()))
        header = next_header(connection)
        while not header["flag"] & 1:  # no answer: the broker tells the group that it has a new member
            header = next_header(connection)
        if header["code"] != remoting.SUCCESS:
            raise RuntimeError(f"heartbeat of {GROUP} at {broker} refused: {header}")
        yield


def next_header(connection: socket.socket) -> dict[str, Any]:
    size = int.from_bytes(connection.recv(4, socket.MSG_WAITALL))
    frame_bytes = connection.recv(size, socket.MSG_WAITALL)
    header: dict[str, Any] = json.loads(frame_bytes[4 : 4 + int.from_bytes(frame_bytes[1:4])])
    return header


# --- measuring ----------------------------------------------------------------------------------------


def _arguments(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="transactions, conditions, key queries and timers, beside Apache RocketMQ's",
        epilog="cases: " + ", ".join(case.name for case in EXTRAS),
    )
    parser.add_argument(
        "--only", action="append", metavar="CASE", help="a case, or a pattern such as 'timers-*'"
    )
    parser.add_argument("--server", action="append", choices=SERVERS, help="these servers alone")
    parser.add_argument("--pairs", type=int, default=PAIRS, help=f"pairs per case ({PAIRS})")
    parser.add_argument("--seconds", type=int, default=SECONDS, help=f"length of a run ({SECONDS})")
    parser.add_argument(
        "--warm", type=int, default=WARM_S, help=f"seconds of sends before Apache is measured ({WARM_S})"
    )
    parser.add_argument("--case-warm", type=int, help=f"seconds a case runs unmeasured ({CASE_WARM_S})")
    parser.add_argument("--keep", action="store_true", help="write the page and the raw figures to results")
    parser.add_argument(
        "--profile", metavar="CASE", help="where Hotfire's time goes in this case, sampled by perf"
    )
    return parser.parse_args(words)


def plan_of(chosen: argparse.Namespace) -> Plan:
    patterns = chosen.only or ["*"]
    cases = [case for case in EXTRAS if any(fnmatch(case.name, pattern) for pattern in patterns)]
    if not cases:
        raise SystemExit(f"bench: no case is named {' or '.join(patterns)}; --help names them")
    if chosen.case_warm is not None:
        cases = [replace(case, warm_s=chosen.case_warm) for case in cases]
    return Plan(
        pairs=chosen.pairs,
        seconds=chosen.seconds,
        warm_seconds=chosen.warm,
        cases=tuple(cases),
        servers=tuple(chosen.server or SERVERS),
        ready=False,
        apache_settings=APACHE_SETTINGS,
    )


def facts_of(plan: Plan) -> dict[str, str]:
    told = plan.facts()
    for name in ("Redis", "floor"):
        del told[name]
    return {
        **told,
        "Apache's settings": ", ".join(f"{name}={value}" for name, value in APACHE_SETTINGS.items()),
        "condition": f"`{CONDITION}`",
        "timers": "percentiles are over the messages of a run, each from the millisecond it is due until "
        f"a reader has it; {_burst_count(plan):,} due in one millisecond leave one after the other, so that "
        "p99 is how long 99 of 100 of them take together, and not what one waits that is due alone; "
        "Apache rounds times down to the second, so that it delivers up to a second early",
    }


def _burst_count(plan: Plan) -> int:
    (burst,) = (case for case in EXTRAS if isinstance(case, Timers) and case.burst)
    return burst.count(plan.seconds)


def main(words: list[str]) -> int:
    chosen = _arguments(words)
    SCRATCH.mkdir(parents=True, exist_ok=True)
    if chosen.profile:
        print(profile(chosen.profile, seconds=chosen.seconds, cases=EXTRAS))
        return 0
    plan = plan_of(chosen)
    piece = Piece(facts_of(plan))
    results = RESULTS if chosen.keep or not words else SCRATCH
    with tempfile.TemporaryDirectory(dir=SCRATCH) as temporary:
        try:
            Bench(plan, LoadTools(Path(temporary)), Path(temporary), piece).run()
        finally:
            if piece.runs:
                piece.write(results / f"extras-{datetime.now(UTC).strftime('%Y-%m-%dT%H%M%SZ')}.json")
    text = markdown("Bench of the extras", [piece], RESULTS)
    (results / "extras-latest.md").write_text(text)
    print(text)
    for words_failed, why in piece.failures.items():
        say(f"not measured: {words_failed}: {why}")
    return 1 if piece.failures else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
