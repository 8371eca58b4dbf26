"""hotfire bench: how fast a cluster stores and delivers, and how long each message takes.

The load is made by the compiled core, or more slowly by its plain twin; this says what to measure and shows
what came of it: a table, every figure as JSON, a picture.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from hotfire import core
from hotfire.cli import EXIT_FAILED, EXIT_INTERRUPTED
from hotfire.cli.benchpicture import picture
from hotfire.cli.benchplan import Outcome, Plan, describe
from hotfire.cli.benchrun import prepare
from hotfire.cli.benchrun import run as run_load
from hotfire.cli.latencies import Latencies
from hotfire.errors import ConfigError
from hotfire.protocol.codes import Serialization
from hotfire.tables import table

COLUMNS = ["what", "messages/s", "mean", "p50", "p90", "p99", "p99.9", "max"]


def run(args: argparse.Namespace) -> int:
    plan = _plan(args)
    for file in filter(None, (args.picture, args.json if args.json != "-" else None)):
        _check_writable(file)
    target = prepare(plan)
    if not core.COMPILED:
        print(f"hotfire bench: the load is made by plain Python: {core.WHY_PLAIN}", file=sys.stderr)
    line = _Line()
    try:
        outcome = run_load(plan, target, line.tell, compiled=core.COMPILED)
    finally:
        line.clear()
    if args.json == "-":
        print(json.dumps(figures(outcome)))
    else:
        print(report(outcome))
    if args.json and args.json != "-":
        Path(args.json).write_text(json.dumps(figures(outcome), indent=1) + "\n", "utf-8")
    if args.picture:
        Path(args.picture).write_text(picture(outcome), "utf-8")
    for trouble in outcome.troubles:
        print(f"hotfire bench: {_printable(trouble)}", file=sys.stderr)
    if outcome.is_interrupted:
        return EXIT_INTERRUPTED
    return EXIT_FAILED if outcome.troubles else 0


def _plan(args: argparse.Namespace) -> Plan:
    if not 0 <= args.warm_up <= 3600:
        raise ConfigError(f"--warm-up {args.warm_up:g}: must be 0 to 3600 seconds")
    return Plan(
        mode=args.mode,
        namesrv=args.namesrv,
        topic=args.topic,
        connections=args.connections,
        window=args.window,
        batch=args.batch,
        seconds=args.seconds,
        warm_up_s=0.0 if args.count else args.warm_up,
        count=args.count,
        size=getattr(args, "size", 0),
        queues=getattr(args, "queues", 0),
        rate=getattr(args, "rate", None),
        groups=getattr(args, "groups", 0),
        kind=Serialization.ROCKETMQ if args.binary else Serialization.JSON,
    )


def _check_writable(file: str) -> None:
    """Before ten seconds of work, not after."""
    try:
        with Path(file).open("a"):
            pass
    except OSError as error:
        raise ConfigError(f"file {file}: {error.strerror}") from None


# --- for people ----------------------------------------------------------------------------------------


def report(outcome: Outcome) -> str:
    plan = outcome.plan
    rows = [_row(_WHAT[plan.mode], outcome.per_second, outcome.answers)]
    if plan.mode == "e2e":
        arrived = outcome.arrived / outcome.seconds if outcome.seconds else 0.0
        rows.append(_row("end to end", arrived, outcome.deliveries))
    lines = [describe(outcome), table(COLUMNS, rows), "latencies in ms"]
    if plan.mode == "pull":
        lines[-1] += ", of a request"
    return "\n".join(lines)


_WHAT = {"send": "send", "pull": "pull", "e2e": "send"}


def _row(what: str, per_second: float, latencies: Latencies) -> dict[str, Any]:
    times = {name: value for name, value in latencies.figures().items() if name != "count"}
    texts = {name: None if value is None else float(f"{value:.3g}") for name, value in times.items()}
    return {"what": what, "messages/s": round(per_second), **{name: _ms(one) for name, one in texts.items()}}


def _ms(value: float | None) -> str:
    """
    >>> _ms(0.123), _ms(4.2), _ms(57.3), _ms(None)
    ('0.123', '4.20', '57.3', '-')
    """
    if value is None:
        return "-"
    return f"{value:.3f}" if value < 1 else f"{value:.2f}" if value < 10 else f"{value:.1f}"


class _Line:
    """How it goes, each second, on a terminal: one line, written over."""

    def __init__(self) -> None:
        self._is_terminal = sys.stderr.isatty()

    def tell(self, seconds: float, per_second: float) -> None:
        if self._is_terminal:
            print(
                f"\r\x1b[K{seconds:4.0f} s  {per_second:10.0f} messages/s",
                end="",
                file=sys.stderr,
                flush=True,
            )

    def clear(self) -> None:
        if self._is_terminal:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def _printable(text: str) -> str:
    return "".join(one if one.isprintable() else " " for one in text)


# --- for programs --------------------------------------------------------------------------------------


def figures(outcome: Outcome) -> dict[str, Any]:
    plan = outcome.plan
    return {
        "mode": plan.mode,
        "namesrv": plan.namesrv,
        "topic": plan.topic,
        "brokers": sorted(outcome.target.addresses),
        "queues": len(outcome.target.offsets),
        "connections": plan.connections,
        "window": plan.window,
        "batch": plan.batch,
        "bodyBytes": plan.size,
        "groups": plan.groups,
        "rateAskedFor": plan.rate,
        "header": "binary" if plan.kind is Serialization.ROCKETMQ else "json",
        "compiled": outcome.compiled,
        "seconds": round(outcome.seconds, 3),
        "messages": outcome.messages,
        "messagesPerSecond": round(outcome.per_second, 1),
        "acknowledged": outcome.acked,
        "delivered": outcome.delivered,
        "answerMs": outcome.answers.figures(),
        "deliveryMs": outcome.deliveries.figures(),
        "codes": {str(code): count for code, count in sorted(outcome.codes.items())},
        "unanswered": outcome.unanswered,
        "lostConnections": outcome.lost_connections,
        "missing": outcome.missing,
        "missed": outcome.missed,
        "repeated": outcome.repeated,
        "interrupted": outcome.is_interrupted,
        "samples": [[round(at, 2), round(rate)] for at, rate in outcome.samples],
        "answerHistogramNs": outcome.answers.counts,
        "deliveryHistogramNs": outcome.deliveries.counts,
    }
