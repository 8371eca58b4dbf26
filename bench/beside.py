"""What others do must not be felt by those who send: latency of sends alone, and beside what others do.

    queries         a hundred connections with a key query each, the next as soon as the last is answered
    queries-normal  the same, at the priority of everybody
    drain           a consumer that reads a log which is not in memory, as fast as it gets it
    siege           ten thousand idle peers, slow readers, half frames

Sends come at a steady rate, as from an application; how many are answered in time is what users notice.

Askers and reader would run on machines of their own. Here they share the processors with broker and sender,
so they get the time those do not want (SCHED_IDLE), but in `queries-normal`, which shows what they cost when
they take part of it. A drain is measured for as long as it lasts or is waited for, and the sends alone then
for as long, up to a minute.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from bench import others
from bench.compare import say
from bench.drivers import LoadTools, settle
from bench.meter import Meter, anonymous_bytes
from bench.others import DRAIN_BODY_BYTES, DRAIN_TOPIC, KEY, KEYED_TOPIC, SEND_V2, frame
from bench.place import RESULTS, SCRATCH, facts
from bench.report import Piece, Run, markdown
from tests.peers import remoting
from tests.peers.hostile import Hostile
from tests.peers.hotfire import HotfireProcess

PAIRS, SECONDS = 5, 6
DRAIN_GIB, DRAIN_SECONDS_MAX, WHOLE_DRAIN_SECONDS_MAX = 4.0, 60, 330
"""While messages are stored the broker reads from the disk at a pace (coldReadBytesPerSecond), so that 4 GiB
take minutes: the first pair waits for all of them, the others for a minute's part."""
WARM_SHARE = 0.25
JOINED_S = 0.3
"""What tailgen waits after it has connected."""
RATE, WINDOW, BODY_BYTES = 2000, 256, 128
SENDS = "Sends"
IDLE, SLOW, HALF = 10_000, 500, 500
KINDS = ("queries", "queries-normal", "drain", "siege")
GET_BROKER_RUNTIME_INFO = 28
MIB = 1 << 20


# --- what is told of a turn ---------------------------------------------------------------------------


class Held(NamedTuple):
    """How often something held the broker's loop for more than 5 ms since its start, and the longest."""

    times: int
    max_ms: int

    @classmethod
    def of(cls, broker: str) -> Held:
        table = json.loads(remoting.call(broker, GET_BROKER_RUNTIME_INFO).body)["table"]
        return cls(int(table["loopHeldTimes"]), int(table["loopHeldMaxTimeMills"]))

    def since(self, before: Held) -> str:
        """
        >>> Held(3, 9).since(Held(1, 7)), Held(3, 7).since(Held(2, 7)), Held(2, 7).since(Held(2, 7))
        ('2 (longest 9 ms)', '1 (each ≤ 7 ms)', '0')
        """
        times = self.times - before.times
        if not times:
            return "0"
        longest = f"longest {self.max_ms}" if self.max_ms > before.max_ms else f"each ≤ {self.max_ms}"
        return f"{times} ({longest} ms)"


@dataclass
class Told:
    """What the others did and how the loop was held, turn by turn, as facts of the page."""

    others: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    held: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))

    def facts(self) -> dict[str, str]:
        return {
            **{f"others, {kind}": "; ".join(words) for kind, words in self.others.items()},
            **{f"loop held > 5 ms, {kind}": ", ".join(words) for kind, words in self.held.items()},
        }


def read_bytes(pid: int) -> int:
    """What a process had fetched from the disk, not from memory."""
    lines = Path(f"/proc/{pid}/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("read_bytes:"))


# --- what is there before -----------------------------------------------------------------------------


def send_keyed(broker: str, count: int) -> None:
    host, _, port = broker.rpartition(":")
    fields = {"a": "p", "b": KEYED_TOPIC, "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0",
              "j": "0", "k": "false", "m": "false"}  # fmt: skip
    with socket.create_connection((host, int(port))) as connection:
        for number in range(count):
            named = f"UNIQ_KEY\x01{number:032X}\x02KEYS\x01{KEY}\x02"
            connection.sendall(frame(SEND_V2, {**fields, "i": named}, bytes(256)))
            (size,) = struct.unpack(">i", connection.recv(4, socket.MSG_WAITALL))
            connection.recv(size, socket.MSG_WAITALL)


def go_cold(server: HotfireProcess) -> None:
    """Have the kernel let go of the log's pages: it keeps what a living process has mapped."""
    server.terminate()
    os.sync()
    for file in (server.store / "commitlog").iterdir():
        fd = os.open(file, os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)
    server.restart()


def prepare(tools: LoadTools, server: HotfireProcess, drain_bytes: int) -> None:
    remoting.create_topic(server.broker, KEYED_TOPIC, 4)
    remoting.create_topic(server.broker, SENDS, 1)
    send_keyed(server.broker, 1000)
    filled = 0
    while filled < drain_bytes:
        found = tools.send(
            server.broker, DRAIN_TOPIC, connections=8, window=32, body=DRAIN_BODY_BYTES, seconds=2
        )
        filled += found.acked * DRAIN_BODY_BYTES


# --- measuring ----------------------------------------------------------------------------------------


@dataclass
class Beside:
    """One broker, and turns of sends at it, alone and beside others."""

    tools: LoadTools
    server: HotfireProcess
    piece: Piece
    seconds: int
    drain_bytes: int
    drain_seconds_max: int
    whole_drain_seconds_max: int
    told: Told = field(default_factory=Told)

    def pair(self, kind: str, number: int) -> None:
        if kind == "drain":
            self._drained(number)
            return
        self._alone(kind, number, self.seconds)
        {
            "queries": lambda: self._asked(kind, number, "idle"),
            "queries-normal": lambda: self._asked(kind, number, "normal"),
            "siege": lambda: self._besieged(number),
        }[kind]()

    def _alone(self, kind: str, pair: int, seconds: float, warm_s: float | None = None) -> None:
        with self._noted(kind, "alone"):
            self._turn(kind, "alone", pair, seconds, warm_s=warm_s)

    def _asked(self, kind: str, pair: int, priority: others.Priority) -> None:
        with others.started("ask", self.server.broker, "--priority", priority) as asking:
            with self._noted(kind, "beside"):
                self._turn(kind, "hotfire", pair, self.seconds)
            ended_s = time.monotonic()
            answers = others.progress_of(asking).between(ended_s - self.seconds * (1 - WARM_SHARE), ended_s)
        _did(kind, answers)
        self.told.others[kind].append(f"{answers:,} answers at {priority} priority while it was measured")

    def _drained(self, pair: int) -> None:
        """The sends go on until the reader has all, or as long as is allowed; they are measured from the
        moment the reader begins, and then alone."""
        go_cold(self.server)
        settle()
        warm_s = self.seconds * WARM_SHARE
        begin_s = time.monotonic() + JOINED_S + warm_s
        allowed_s = self.drain_seconds_max if pair else self.whole_drain_seconds_max
        seconds_max = allowed_s + warm_s
        words = ("--priority", "idle", "--bytes", self.drain_bytes, "--at", begin_s)
        with others.started("drain", self.server.broker, *words) as draining:
            fetched = read_bytes(self.server.pid)
            with self._noted("drain", "beside"):
                self._turn("drain", "hotfire", pair, seconds_max, warm_s=warm_s, beside=draining)
            ended_s = time.monotonic()
            fetched = read_bytes(self.server.pid) - fetched
            progress = others.progress_of(draining)
        taken = progress.between(begin_s, ended_s)
        _did("drain", taken)
        took_s = min(progress.ended_s, ended_s) - begin_s
        self.told.others["drain"].append(
            f"{taken / MIB:,.0f} of {self.drain_bytes / MIB:,.0f} MiB of bodies at idle priority in the "
            f"{took_s:.0f} s it was measured, {fetched / MIB:,.0f} MiB fetched from the disk"
        )
        self._alone("drain", pair, min(took_s, self.drain_seconds_max) + warm_s, warm_s)

    def _besieged(self, pair: int) -> None:
        counts = {"idle": IDLE, "slow": SLOW, "half": HALF, "trickling": 0}
        with Hostile(self.server.broker, DRAIN_TOPIC, **counts) as hostile:
            hostile.connect()
            with self._noted("siege", "beside"):
                self._turn("siege", "hotfire", pair, self.seconds)
        self.told.others["siege"].append(f"{sum(counts.values()):,} peers")

    @contextmanager
    def _noted(self, kind: str, how: str) -> Iterator[None]:
        """How the loop was held during a turn. The broker's word is of all its time since its start."""
        before = Held.of(self.server.broker)
        yield
        self.told.held[kind].append(f"{how} {Held.of(self.server.broker).since(before)}")

    def _turn(
        self,
        kind: str,
        who: str,
        pair: int,
        seconds: float,
        *,
        warm_s: float | None = None,
        beside: subprocess.Popen[str] | None = None,
    ) -> None:
        if beside is None:
            settle()
        meter = Meter(self.server.pid)
        measured = self.tools.tails(
            self.server.broker, SENDS, groups=0, rate=RATE, window=WINDOW, body=BODY_BYTES, seconds=seconds,
            first=0, warm_s=warm_s, beside=beside,
        )  # fmt: skip
        cpu_s, foreign_share = meter.stop()
        said = f"{measured.rate:,.0f} msg/s p50={measured.p50_ms}ms p99={measured.p99_ms}ms"
        say(f"beside-{kind} | {who} {said}")
        run = Run(
            case=f"beside-{kind}",
            server=who,
            pair=pair,
            **asdict(measured),
            cpu_us=cpu_s / max(measured.acked, 1) * 1e6,
            anonymous_bytes=anonymous_bytes(self.server.pid),
            foreign_share=foreign_share,
        )
        self.piece.runs.append(run)


def _did(kind: str, count: int) -> None:
    """A figure beside others who did nothing is none."""
    say(f"{kind}: {count} of theirs meanwhile")
    if not count:
        raise RuntimeError(f"{kind}: the others did nothing")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="what others do must not be felt by those who send")
    parser.add_argument("--pairs", type=int, default=PAIRS)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS), help="all of them")
    parser.add_argument("--seconds", type=int, default=SECONDS)
    parser.add_argument("--drain-gib", type=float, default=DRAIN_GIB, help="log to be drained cold (4)")
    parser.add_argument(
        "--drain-seconds", type=int, default=DRAIN_SECONDS_MAX, help="the longest a drain is waited for (60)"
    )
    parser.add_argument(
        "--whole-drain-seconds", type=int, default=WHOLE_DRAIN_SECONDS_MAX, help="the same of the first (330)"
    )
    chosen = parser.parse_args(arguments)
    SCRATCH.mkdir(parents=True, exist_ok=True)
    place = Path(tempfile.mkdtemp(dir=SCRATCH))
    drain_bytes = int(chosen.drain_gib * (1 << 30))
    piece = Piece(
        {
            **facts(),
            "runs": f"median of {chosen.pairs} alternating pairs of {chosen.seconds} s each; a drain until "
            f"{chosen.drain_gib:g} GiB are read, the first {chosen.whole_drain_seconds} s at most, the "
            f"others {chosen.drain_seconds} s, and alone for as long, up to that",
            "priority": "the sender's and the broker's is everybody's; reader and askers get what is left "
            "(SCHED_IDLE), as if on a machine of their own, but in `queries-normal`",
        }
    )
    try:
        with HotfireProcess(place / "server") as server:
            tools = LoadTools(place)
            prepare(tools, server, drain_bytes if "drain" in chosen.kinds else 0)
            beside = Beside(
                tools,
                server,
                piece,
                chosen.seconds,
                drain_bytes,
                drain_seconds_max=chosen.drain_seconds,
                whole_drain_seconds_max=chosen.whole_drain_seconds,
            )
            for number in range(chosen.pairs):
                for kind in chosen.kinds:
                    beside.pair(kind, number)
    finally:
        shutil.rmtree(place)
    piece.facts |= beside.told.facts()
    results = SCRATCH if arguments else RESULTS
    piece.write(results / f"beside-{datetime.now(UTC).strftime('%Y-%m-%dT%H%M%SZ')}.json")
    text = markdown("Bench beside others", [piece], RESULTS)
    (results / "beside-latest.md").write_text(text)
    print(text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
