"""`make long`, or `python -m bench.long --help`: a broker that holds a great backlog, beside an empty one.

A hundred million messages of 128 B nobody consumes, or as many as half of the free disk takes, which the page
then says. Both brokers stay up and are loaded in turns; the empty one starts anew for each pair.

Before it is so great, while all of it is in memory, its first messages are read from the start in turns with
its newest; in the end its first ones once more, from the disk.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from bench.beside import go_cold
from bench.cases import BODY_BYTES, FLUSHES, QUEUES, Case, Send, Tails
from bench.compare import say
from bench.drivers import LoadTools, settle
from bench.meter import Meter, anonymous_bytes
from bench.place import RESULTS, SCRATCH, facts
from bench.report import Piece, Run, markdown
from tests.peers import remoting
from tests.peers.hotfire import HotfireProcess

MESSAGES = 100_000_000
BYTES_PER_MESSAGE = 420
"""In the log 358 B, its queue entry 20 B, its index entry 20 B, and what the index's slots take."""
DISK_SHARE_MAX = 0.5
DISK_USED_MAX, TURNS_BYTES = 0.8, 16 << 30
"""A disk fuller than 85 % makes a broker delete its oldest files; what the turns send comes on top."""
MEMORY_SHARE = 0.125
FILL_STEP = 5_000_000
FIRST, NEWEST = "first", "newest"
"""Topics of the backlog's beginning, and of its end while all of it is in memory."""
BATCH = 32
COLD_SECONDS = 4
"""A drain from the disk is to end before it comes to what it has read already."""
CASES: tuple[Case, ...] = (
    Send("backlog-send", "", "sync"),
    Tails("backlog-tail", "", "sync", groups=1, rate=500, window=16),
)


def affordable(wanted: int, place: Path) -> int:
    """As many messages as half of what is free takes, and no broker deletes; at most those wanted."""
    disk = shutil.disk_usage(place)
    kept = (disk.used + disk.free) * DISK_USED_MAX - disk.used - TURNS_BYTES
    return min(wanted, int(min(disk.free * DISK_SHARE_MAX, max(kept, 1 << 30)) / BYTES_PER_MESSAGE))


def in_memory(messages: int) -> int:
    """As many messages as, twice, the memory holds, and brokers take for being there: 40 % of it."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(messages // 4, int(memory * MEMORY_SHARE / BYTES_PER_MESSAGE))


def measure(place: Path, piece: Piece, *, messages: int, pairs: int, seconds: int) -> None:
    tools = LoadTools(place)
    with HotfireProcess(place / "full", flush_disk_type=FLUSHES["sync"]) as full:
        part = in_memory(messages)
        told = [_fill(tools, full, topic, part) for topic in (FIRST, NEWEST)]
        piece.facts["drained"] = f"{part:,} messages in {QUEUES} queues, {BATCH} asked for at a time"
        for pair in range(pairs):
            for topic in (FIRST, NEWEST)[:: 1 if pair % 2 == 0 else -1]:
                _warm(tools, full, topic, part)
                piece.runs.append(_drain(tools, "backlog-drain", full, topic, pair, seconds))
        told.append(_fill(tools, full, "backlog", messages - 2 * part))
        piece.facts["stored"] = _stored(full, told)
        for pair in range(pairs):
            with HotfireProcess(place / f"empty-{pair}", flush_disk_type=FLUSHES["sync"]) as empty:
                tools.fill(empty.broker, "warm", count=100_000, body=BODY_BYTES, queues=QUEUES)
                servers = {"hotfire": full, "empty": empty}
                for case in CASES:
                    for name in list(servers)[:: 1 if pair % 2 == 0 else -1]:
                        piece.runs.append(_turn(tools, case, name, servers[name], pair, seconds))
            shutil.rmtree(place / f"empty-{pair}")
        for pair in range(pairs):
            go_cold(full)
            piece.runs.append(_drain(tools, "backlog-drain-cold", full, FIRST, pair, COLD_SECONDS))


def _warm(tools: LoadTools, server: HotfireProcess, topic: str, messages: int) -> None:
    """Until all of it was read once: it is in memory then."""
    seconds = 2
    while (
        tools.pull(server.broker, topic, queues=QUEUES, readers=1, batch=BATCH, seconds=seconds).acked
        < messages
    ):
        seconds *= 2


def _fill(tools: LoadTools, server: HotfireProcess, topic: str, messages: int) -> tuple[int, float]:
    """How many are there then, and how long it took."""
    remoting.create_topic(server.broker, topic, QUEUES)
    began, stored = time.monotonic(), 0
    while stored < messages:
        step = min(FILL_STEP, messages - stored)
        stored += tools.fill(server.broker, topic, count=step, body=BODY_BYTES, queues=QUEUES).acked
        say(f"{topic}: stored {stored:,} of {messages:,}")
    there = sum(remoting.max_offsets(server.broker, topic, QUEUES))
    assert there >= messages, f"{topic}: {messages} acknowledged, {there} stored"
    return there, time.monotonic() - began


def _stored(server: HotfireProcess, told: list[tuple[int, float]]) -> str:
    used = sum(path.stat().st_blocks * 512 for path in server.store.rglob("*") if path.is_file())
    there, seconds = (sum(column) for column in zip(*told, strict=True))
    return (
        f"{there:,} messages of {BODY_BYTES} B, {used / (1 << 30):.1f} GiB on disk, none consumed, "
        f"in {seconds:.0f} s"
    )


def _drain(tools: LoadTools, case: str, server: HotfireProcess, topic: str, pair: int, seconds: int) -> Run:
    """Read from the topic's start, by readers who cost this machine little themselves."""
    settle()
    meter = Meter(server.pid)
    measured = tools.pull(server.broker, topic, queues=QUEUES, readers=1, batch=BATCH, seconds=seconds)
    cpu_s, foreign_share = meter.stop()
    if not measured.acked:
        raise RuntimeError(
            f"{case}: nothing came of topic {topic}; did the broker delete it for want of room?"
        )
    say(f"{case} | {topic} {measured.rate:,.0f} msg/s others={foreign_share:.0%}")
    return Run(
        case=case,
        server="hotfire" if topic == FIRST else NEWEST,
        pair=pair,
        **asdict(measured),
        cpu_us=cpu_s / max(measured.acked, 1) * 1e6,
        anonymous_bytes=anonymous_bytes(server.pid),
        foreign_share=foreign_share,
    )


def _turn(tools: LoadTools, case: Case, name: str, server: HotfireProcess, pair: int, seconds: int) -> Run:
    settle()
    meter = Meter(server.pid)
    measured = case.drive(tools, server, seconds)
    cpu_s, foreign_share = meter.stop()
    said = f"{measured.rate:,.0f} msg/s p99={measured.p99_ms}ms others={foreign_share:.0%}"
    say(f"{case.name} | {'full' if name == 'hotfire' else name} {said}")
    return Run(
        case=case.name,
        server=name,
        pair=pair,
        **asdict(measured),
        cpu_us=cpu_s / max(measured.acked, 1) * 1e6,
        anonymous_bytes=anonymous_bytes(server.pid),
        foreign_share=foreign_share,
    )


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Sending and reading at the tail beside a great backlog")
    parser.add_argument("--quick", action="store_true", help="one pair of 2 s runs beside 200 000 messages")
    parser.add_argument("--messages", type=int, help="how many are stored (100 million, as the disk allows)")
    parser.add_argument("--pairs", type=int, help="pairs (5)")
    parser.add_argument("--seconds", type=int, help="length of a run (8)")
    chosen = parser.parse_args(words)
    SCRATCH.mkdir(parents=True, exist_ok=True)
    wanted = chosen.messages or (200_000 if chosen.quick else MESSAGES)
    messages = affordable(wanted, SCRATCH)
    pairs, seconds = chosen.pairs or (1 if chosen.quick else 5), chosen.seconds or (2 if chosen.quick else 8)
    piece = Piece({**facts(), "runs": f"median of {pairs} alternating pairs of {seconds} s each, synced"})
    if messages < wanted:
        piece.facts["fewer"] = f"{messages:,} of the {wanted:,} wanted: the disk has no room for more"
    with tempfile.TemporaryDirectory(dir=SCRATCH) as temporary:
        measure(Path(temporary), piece, messages=messages, pairs=pairs, seconds=seconds)
    results = SCRATCH if words else RESULTS
    text = markdown("Bench of a backlog", [piece], RESULTS)
    stamp = datetime.now(UTC).strftime("%Y-%m-%dT%H%M%SZ")
    piece.write(results / f"backlog-{stamp}.json")
    (results / "backlog-latest.md").write_text(text)
    print(text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
