"""`make bench`, or `python bench/run.py --help`: figures of this machine, beside those of Apache RocketMQ."""

from __future__ import annotations

import argparse
import sys
import tempfile
from datetime import UTC, datetime
from fnmatch import fnmatch
from pathlib import Path

# Run as a script, this file knows its own directory only; the peers live beside it, in tests.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.cases import CASES
from bench.compare import Bench, Plan, say
from bench.drivers import LoadTools
from bench.place import RESULTS, SCRATCH
from bench.report import Piece, markdown, read_piece
from bench.sampling import profile

SERVERS = ("hotfire", "apache", "floor", "redis")
PAGE = "latest.md"
TITLE = "Bench"


def _arguments(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Hotfire beside Apache RocketMQ, Redis and the floor under the same load, in turns. "
        "All of it takes about half an hour; it may be run in parts, whose results make one page together "
        "(--keep, --report).",
        epilog="cases: " + ", ".join(case.name for case in CASES),
    )
    parser.add_argument("--quick", action="store_true", help="one pair of 2 s runs after 5 s of warming")
    parser.add_argument(
        "--only", action="append", metavar="CASE", help="a case, or a pattern such as 'send-*-sync'"
    )
    parser.add_argument("--server", action="append", choices=SERVERS, help="these servers alone")
    parser.add_argument("--pairs", type=int, help="pairs per case (5)")
    parser.add_argument("--seconds", type=int, help="length of a run (4)")
    parser.add_argument("--warm", type=int, help="seconds of load before Apache is measured (60)")
    parser.add_argument(
        "--keep", action="store_true", help="a partial run belongs to the committed results too"
    )
    parser.add_argument(
        "--report",
        nargs="*",
        metavar="JSON",
        help="measure nothing; the page of these raw files, or of all kept",
    )
    parser.add_argument(
        "--profile", metavar="CASE", help="where Hotfire's time goes in this case, sampled by perf"
    )
    return parser.parse_args(words)


def _plan(chosen: argparse.Namespace) -> Plan:
    patterns = chosen.only or ["*"]
    cases = tuple(case for case in CASES if any(fnmatch(case.name, pattern) for pattern in patterns))
    if not cases:
        raise SystemExit(f"bench: no case is named {' or '.join(patterns)}; --help names them")
    return Plan(
        pairs=chosen.pairs or (1 if chosen.quick else 5),
        seconds=chosen.seconds or (2 if chosen.quick else 4),
        warm_seconds=chosen.warm or (5 if chosen.quick else 60),
        cases=cases,
        servers=tuple(chosen.server or SERVERS),
        ready=not chosen.only and "hotfire" in (chosen.server or SERVERS),
    )


def _report(files: list[Path], page: Path) -> None:
    """Names of raw files are the times of their runs, so their order is the order of time."""
    pieces = [piece for path in sorted(files, key=lambda path: path.name) if (piece := read_piece(path))]
    if not pieces:
        raise SystemExit("bench: no raw results to report; run the bench with --keep first")
    text = markdown(TITLE, pieces, RESULTS)
    page.write_text(text)
    print(text)


def _kept() -> list[Path]:
    return list(RESULTS.glob("2*Z.json"))


def main(words: list[str]) -> int:
    chosen = _arguments(words)
    SCRATCH.mkdir(parents=True, exist_ok=True)
    if chosen.report is not None:
        _report([Path(word) for word in chosen.report] or _kept(), RESULTS / PAGE)
        return 0
    if chosen.profile:
        print(profile(chosen.profile, seconds=chosen.seconds or 8))
        return 0
    plan = _plan(chosen)
    piece = Piece(plan.facts())
    raw = f"{datetime.now(UTC).strftime('%Y-%m-%dT%H%M%SZ')}.json"
    kept = chosen.keep or not words
    with tempfile.TemporaryDirectory(dir=SCRATCH) as temporary:
        try:
            Bench(plan, LoadTools(Path(temporary)), Path(temporary), piece).run()
        finally:
            # an interrupted half hour is not lost
            piece.write((RESULTS if kept and piece.runs else SCRATCH) / raw)
    _report(_kept() if kept else [SCRATCH / raw], (RESULTS if kept else SCRATCH) / PAGE)
    for words_failed, why in piece.failures.items():
        say(f"not measured: {words_failed}: {why}")
    return 1 if piece.failures else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
