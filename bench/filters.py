"""What a bad filter costs a good one: pulls through one filter, alone and beside another of the same server.

    raises   fails at its first message, at every pull
    hangs    never comes to the end of its first message, and is ended after a second
    spins    the same, and takes a processor meanwhile
    eats     takes memory until its process has no more, and is ended

One consumer pulls through the good one, each pull a moment after the last is answered; four pull through the
bad one, and are in more of a hurry than consumers of Java or ours, who wait seconds after a pull that failed.
Each pair has a filter server of its own: what ended again and again rests longer and longer. Takes eight
minutes.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from bench.compare import WRONG, say
from bench.drivers import settle
from bench.meter import anonymous_bytes, machine_seconds, tree_seconds
from bench.place import RESULTS, ROOT, SCRATCH, facts
from bench.report import Piece, Run, markdown
from hotfire import Message, Producer
from hotfire.net.peer import Peer
from hotfire.protocol.command import Command
from hotfire.protocol.record import iter_records
from hotfire.protocol.requests import PullMessage
from tests.peers import remoting
from tests.peers.hotfire import HotfireProcess, executable
from tests.peers.process import LineProcess

PAIRS, SECONDS, WARM_S = 5, 10.0, 1.0
KINDS = ("raises", "hangs", "spins", "eats")
PLACE = "tests.unit.filtersrv.installed"
GOOD, TOPIC, BODY = "red", "Filtered", b"x" * 200
MESSAGES, BATCH, ONE_IN = 2048, 32, 4
PAUSE_S = 0.005
BESIDE_AT_A_TIME, BESIDE_PAUSE_S = 4, 0.1
SETTINGS = {"filterTimeoutMillis": "1000", "filterMemoryMax": str(512 << 20)}
"""As they are by default."""
PULL_TIMEOUT_S, READY_TIMEOUT_S, END_TIMEOUT_S = 60.0, 60.0, 20.0
SUBSCRIPTION, CLASS_FILTER = 4, 8


@dataclass
class Waits:
    """What the good filter's consumer saw, and how the bad one's pulls failed."""

    seconds: float
    waits_ms: list[float] = field(default_factory=list)
    delivered: int = 0
    failed: int = 0
    rested: int = 0
    """Of those that failed: how many were told at once that the filter rests."""


def pull(name: str, offset: int) -> PullMessage:
    return PullMessage(
        consumer_group="measuring", topic=TOPIC, queue_id=0, queue_offset=offset, max_msg_nums=BATCH,
        sys_flag=SUBSCRIPTION | CLASS_FILTER, commit_offset=0, suspend_timeout_millis=0, subscription=name,
        sub_version=0, expression_type="TAG",
    )  # fmt: skip


def check(reply: Command) -> int:
    """How many messages it brings: all that the good filter chooses, and nothing else."""
    if reply.code:
        raise RuntimeError(f"the good filter's pull failed: {reply.remark}")
    bodies = [record.body for record in iter_records(reply.body)]
    if bodies != [BODY] * (BATCH // ONE_IN):
        raise RuntimeError(f"a pull brought {len(bodies)} messages, not {BATCH // ONE_IN} as they were sent")
    return len(bodies)


# --- what is measured ---------------------------------------------------------------------------------


async def drive(address: str, seconds: float, beside: str | None) -> Waits:
    peer, other = await Peer.connect(address), await Peer.connect(address)
    seen = Waits(seconds)
    done = asyncio.Event()

    async def disturb(name: str) -> None:
        while not done.is_set():
            reply = await other.invoke(pull(name, 0), PULL_TIMEOUT_S)
            if not reply.code:
                raise RuntimeError(f"filter {name} is to fail, and let messages through")
            seen.failed += 1
            seen.rested += "times in a row and is started again in" in (reply.remark or "")
            await asyncio.sleep(BESIDE_PAUSE_S)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(BESIDE_AT_A_TIME if beside else 0):
            tasks.create_task(disturb(str(beside)))
        await take(peer, seconds, seen)
        done.set()
    await peer.close()
    await other.close()
    return seen


async def take(peer: Peer, seconds: float, seen: Waits) -> None:
    until, offset = time.monotonic() + seconds, 0
    while time.monotonic() < until:
        began = time.monotonic()
        reply = await peer.invoke(pull(GOOD, offset), PULL_TIMEOUT_S)
        seen.waits_ms.append((time.monotonic() - began) * 1e3)
        seen.delivered += check(reply)
        offset = (offset + BATCH) % MESSAGES
        await asyncio.sleep(PAUSE_S)


async def fill(namesrv: str) -> None:
    async with Producer(namesrv) as producer:
        for number in range(MESSAGES):
            colour = GOOD if number % ONE_IN == 0 else "blue"
            await producer.send(Message(TOPIC, BODY, properties={"colour": colour}))


@contextmanager
def filter_server(place: Path, broker: str, kind: str) -> Iterator[tuple[LineProcess, str]]:
    """One that has the good filter and this bad one; and where it listens."""
    settings = {
        "bindAddress": "127.0.0.1", "filterServerIP": "127.0.0.1", "connectWhichBroker": broker,
        "filters": f"{GOOD}={PLACE}:{GOOD},{kind}={PLACE}:{kind}", **SETTINGS,
    }  # fmt: skip
    words = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    command = [str(executable()), "filtersrv", *words]
    program = LineProcess(command, log=place / "filtersrv.err", env={"PYTHONPATH": str(ROOT)})
    try:
        line = program.wait_line(lambda text: "ready" in text, what="ready line", timeout_s=READY_TIMEOUT_S)
        yield program, line.split("filtersrv=")[1].split()[0]
    finally:
        program.terminate(END_TIMEOUT_S)


# --- measuring ----------------------------------------------------------------------------------------


def turn(
    program: LineProcess, address: str, kind: str, who: str, pair: int, seconds: float
) -> tuple[Run, Waits]:
    """`who`: `alone`, or `hotfire` beside the bad filter."""
    asyncio.run(drive(address, WARM_S, None))
    settle()
    began, ours_s, server_s = time.monotonic(), tree_seconds(os.getpid()), tree_seconds(program.pid)
    machine_s = machine_seconds()
    seen = asyncio.run(drive(address, seconds, None if who == "alone" else kind))
    machine_s = machine_seconds() - machine_s
    ours_s, server_s = tree_seconds(os.getpid()) - ours_s, tree_seconds(program.pid) - server_s
    capacity_s = (time.monotonic() - began) * (os.cpu_count() or 1)
    waits = sorted(seen.waits_ms)
    run = Run(
        case=f"filters-{kind}",
        server=who,
        pair=pair,
        rate=seen.delivered / seen.seconds,
        acked=seen.delivered,
        refused=0,
        p50_ms=waits[len(waits) // 2],
        p99_ms=waits[len(waits) * 99 // 100],
        cpu_us=server_s / seen.delivered * 1e6,
        anonymous_bytes=anonymous_bytes(program.pid),
        foreign_share=max(0.0, machine_s - ours_s) / capacity_s,
    )
    others = f"others={run.foreign_share:.0%}"
    say(f"{run.case} | {who} {len(waits)} pulls p50={run.p50_ms:.2f}ms p99={run.p99_ms:.2f}ms {others}")
    return run, seen


def in_turn(pair: int) -> tuple[str, str]:
    return ("alone", "hotfire") if pair % 2 == 0 else ("hotfire", "alone")


def measure(place: Path, piece: Piece, kinds: Sequence[str], pairs: int, seconds: float) -> None:
    did: dict[str, list[Waits]] = {kind: [] for kind in kinds}
    with HotfireProcess(place / "server") as server:
        remoting.create_topic(server.broker, TOPIC, 1)
        asyncio.run(fill(server.namesrv))
        for pair in range(pairs):
            for kind in kinds:
                try:
                    with filter_server(place, server.broker, kind) as (program, address):
                        turns = [turn(program, address, kind, who, pair, seconds) for who in in_turn(pair)]
                except (*WRONG, ExceptionGroup) as error:
                    say(f"filters-{kind} {pair}: {error!r:.600}")
                    piece.failures[f"filters-{kind} {pair}"] = repr(error)[:300]
                else:
                    piece.runs.extend(run for run, _ in turns)
                    did[kind].extend(seen for run, seen in turns if run.server != "alone")
    piece.facts |= {f"others, {kind}": told(seen) for kind, seen in did.items() if seen}


def told(runs: Sequence[Waits]) -> str:
    """How much the others did: a figure beside those who did little says little."""
    failed = sorted(seen.failed - seen.rested for seen in runs)
    rested = sorted(seen.rested for seen in runs)
    text = f"{failed[0]} to {failed[-1]} pulls failed in a run"
    return f"{text}, {rested[0]} to {rested[-1]} more at once while it rested" if rested[-1] else text


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=PAIRS)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS), help="all of them")
    parser.add_argument("--seconds", type=float, default=SECONDS)
    chosen = parser.parse_args(arguments)
    SCRATCH.mkdir(parents=True, exist_ok=True)
    piece = Piece(
        {
            **facts(),
            "runs": f"median of {chosen.pairs} alternating pairs of {chosen.seconds:g} s each",
            "CPU": "the filter server's and its filters' user and system time, per message delivered",
            "filter server": ", ".join(f"{name}={value}" for name, value in SETTINGS.items())
            + "; broker and consumers share the cores",
        }
    )
    with tempfile.TemporaryDirectory(dir=SCRATCH) as name:
        measure(Path(name), piece, chosen.kinds, chosen.pairs, chosen.seconds)
    results = SCRATCH if arguments else RESULTS
    piece.write(results / f"filters-{datetime.now(UTC).strftime('%Y-%m-%dT%H%M%SZ')}.json")
    text = markdown("Bench of filters", [piece], RESULTS)
    (results / "filters-latest.md").write_text(text)
    print(text)
    return 1 if piece.failures else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
