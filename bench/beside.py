"""What others do must not be felt by those who send: latency of sends alone, and beside what others do.

    queries   a hundred connections with a key query each, the next as soon as the last is answered
    drain     a consumer that reads a log which is not in memory, as fast as it gets it
    siege     ten thousand idle peers, slow readers, half frames

Sends come at a steady rate, as from an application; how many are answered in time is what users notice.
"""

from __future__ import annotations

import argparse
import json
import os
import selectors
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from bench.compare import say
from bench.drivers import LoadTools, settle
from bench.meter import Meter, anonymous_bytes
from bench.place import RESULTS, ROOT, SCRATCH, facts
from bench.report import Piece, Run, markdown
from tests.peers import remoting
from tests.peers.hostile import Hostile
from tests.peers.hotfire import HotfireProcess

PAIRS, SECONDS = 5, 6
RATE, WINDOW, BODY_BYTES = 2000, 256, 128
SENDS = "Sends"
QUERIES, KEY = 100, "wanted"
QUERY_MESSAGE, SEND_V2 = 12, 310
DRAIN_TOPIC, DRAIN_BODY_BYTES, DRAIN_QUEUES = "Drain", 4096, 4
BEFORE_S = 2
IDLE, SLOW, HALF = 10_000, 500, 500
KINDS = ("queries", "drain", "siege")


def frame(code: int, fields: dict[str, str], body: bytes = b"") -> bytes:
    header = json.dumps(
        {"code": code, "extFields": fields, "flag": 0, "language": "JAVA", "opaque": 1, "version": 513,
         "serializeTypeCurrentRPC": "JSON"}
    ).encode()  # fmt: skip
    return struct.pack(">ii", 4 + len(header) + len(body), len(header)) + header + body


def query() -> bytes:
    span = {"beginTimestamp": "0", "endTimestamp": str(1 << 60)}
    return frame(QUERY_MESSAGE, {"topic": "Keys", "key": KEY, "maxNum": "32", **span})


# --- the others ---------------------------------------------------------------------------------------


def ask_on(broker: str) -> None:
    """Keeps one question under way on each connection until this process is ended; counts the answers."""
    # Others run on machines of their own: here they get the time that those who are measured do not want.
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    host, _, port = broker.rpartition(":")
    chosen = selectors.DefaultSelector()
    for _ in range(QUERIES):
        dialed = socket.create_connection((host, int(port)))
        dialed.sendall(query())
        chosen.register(dialed, selectors.EVENT_READ, bytearray())
    answered, told_at = 0, time.monotonic()
    while True:
        for key, _ in chosen.select():
            connection = key.fileobj
            assert isinstance(connection, socket.socket)
            kept = key.data
            kept += connection.recv(1 << 20)
            while len(kept) >= 4 and len(kept) >= 4 + (size := int.from_bytes(kept[:4])):
                answered += 1
                connection.sendall(query())
                del kept[: 4 + size]
        if time.monotonic() - told_at > 0.2:
            told_at = time.monotonic()
            print(answered, flush=True)


@contextmanager
def draining(tools: LoadTools, broker: str, seconds: int) -> Iterator[list[int]]:
    """The C reader, which costs this machine little itself: all queues from their beginning."""
    counts: list[int] = []
    with ThreadPoolExecutor(1) as beside:
        reading = beside.submit(
            tools.pull,
            broker, DRAIN_TOPIC, queues=DRAIN_QUEUES, readers=1, batch=32, seconds=seconds + BEFORE_S,
            is_aside=True,
        )  # fmt: skip
        time.sleep(BEFORE_S / 2)
        yield counts
        counts.append(reading.result().acked)


@contextmanager
def asking(broker: str) -> Iterator[list[int]]:
    """A process that asks; the number of its answers is appended when it ends."""
    command = [sys.executable, "-m", "bench.beside", "--ask", broker]
    counts: list[int] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        try:
            yield counts
        finally:
            process.terminate()
            assert process.stdout is not None
            counts.extend([int(line) for line in process.stdout.read().split()][-1:])


@contextmanager
def besieging(broker: str) -> Iterator[list[int]]:
    counts = {"idle": IDLE, "slow": SLOW, "half": HALF, "trickling": 0}
    with Hostile(broker, DRAIN_TOPIC, **counts) as hostile:
        hostile.connect()
        yield [sum(counts.values())]


@contextmanager
def others(tools: LoadTools, kind: str, server: HotfireProcess, seconds: int) -> Iterator[list[int]]:
    with {
        "queries": lambda: asking(server.broker),
        "drain": lambda: draining(tools, server.broker, seconds),
        "siege": lambda: besieging(server.broker),
    }[kind]() as counts:
        yield counts


# --- what is there before -----------------------------------------------------------------------------


def send_keyed(broker: str, count: int) -> None:
    host, _, port = broker.rpartition(":")
    fields = {"a": "p", "b": "Keys", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0",
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
    remoting.create_topic(server.broker, "Keys", 4)
    remoting.create_topic(server.broker, SENDS, 1)
    send_keyed(server.broker, 1000)
    filled = 0
    while filled < drain_bytes:
        found = tools.send(
            server.broker, DRAIN_TOPIC, connections=8, window=32, body=DRAIN_BODY_BYTES, seconds=2
        )
        filled += found.acked * DRAIN_BODY_BYTES


# --- measuring ----------------------------------------------------------------------------------------


def measure(
    tools: LoadTools,
    place: Path,
    piece: Piece,
    *,
    kinds: list[str],
    pairs: int,
    seconds: int,
    drain_bytes: int,
) -> None:
    did: dict[str, list[int]] = {kind: [] for kind in kinds}
    with HotfireProcess(place / "server") as server:
        prepare(tools, server, drain_bytes)
        for pair in range(pairs):
            for kind in kinds:
                if kind == "drain":
                    go_cold(server)
                piece.runs.append(turn(tools, server, kind, "alone", pair, seconds))
                with others(tools, kind, server, seconds) as counts:
                    run = turn(tools, server, kind, "hotfire", pair, seconds)
                if not sum(counts):
                    raise RuntimeError(f"{kind}: the others did nothing")
                say(f"{kind}: {sum(counts)} of theirs meanwhile")
                piece.runs.append(run)
                did[kind].append(sum(counts))
    piece.facts |= {f"others, {kind}": told(kind, counts) for kind, counts in did.items()}


def told(kind: str, counts: list[int]) -> str:
    """How much the others did in a run: a figure beside those who did little says little."""
    if kind == "drain":
        least, most = (count * DRAIN_BODY_BYTES >> 20 for count in (min(counts), max(counts)))
        return f"{least} to {most} MiB of bodies read in a run"
    return f"{min(counts)} to {max(counts)} {'answers' if kind == 'queries' else 'peers'} in a run"


def turn(tools: LoadTools, server: HotfireProcess, kind: str, who: str, pair: int, seconds: int) -> Run:
    settle()
    meter = Meter(server.pid)
    measured = tools.tails(
        server.broker, SENDS, groups=0, rate=RATE, window=WINDOW, body=BODY_BYTES, seconds=seconds, first=0
    )
    cpu_s, foreign_share = meter.stop()
    say(f"beside-{kind} | {who} {measured.rate:,.0f} msg/s p50={measured.p50_ms}ms p99={measured.p99_ms}ms")
    return Run(
        case=f"beside-{kind}",
        server=who,
        pair=pair,
        **asdict(measured),
        cpu_us=cpu_s / max(measured.acked, 1) * 1e6,
        anonymous_bytes=anonymous_bytes(server.pid),
        foreign_share=foreign_share,
    )


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="what others do must not be felt by those who send")
    parser.add_argument("--pairs", type=int, default=PAIRS)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS), help="all of them")
    parser.add_argument("--seconds", type=int, default=SECONDS)
    parser.add_argument(
        "--drain-gib", type=float, default=4.0, help="log to be drained from a cold cache (4)"
    )
    parser.add_argument("--ask", metavar="BROKER", help=argparse.SUPPRESS)
    chosen = parser.parse_args(arguments)
    if chosen.ask:
        ask_on(chosen.ask)
    SCRATCH.mkdir(parents=True, exist_ok=True)
    place = Path(tempfile.mkdtemp(dir=SCRATCH))
    piece = Piece(
        {**facts(), "runs": f"median of {chosen.pairs} alternating pairs of {chosen.seconds} s each"}
    )
    try:
        measure(
            LoadTools(place),
            place,
            piece,
            kinds=chosen.kinds,
            pairs=chosen.pairs,
            seconds=chosen.seconds,
            drain_bytes=int(chosen.drain_gib * (1 << 30)),
        )
    finally:
        shutil.rmtree(place)
    results = SCRATCH if arguments else RESULTS
    piece.write(results / f"beside-{datetime.now(UTC).strftime('%Y-%m-%dT%H%M%SZ')}.json")
    text = markdown("Bench beside others", [piece], RESULTS)
    (results / "beside-latest.md").write_text(text)
    print(text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
