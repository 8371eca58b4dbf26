"""Raw runs in, a table out. Medians over the pairs; nothing is left out and nothing is rounded before it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True)
class Run:
    """One server under one load, once."""

    case: str
    server: str
    pair: int
    rate: float
    acked: int
    refused: int
    p50_ms: float | None
    p99_ms: float | None
    cpu_us: float
    anonymous_bytes: int
    foreign_share: float


def markdown(runs: Sequence[Run], ready_seconds: dict[str, list[float]], facts: dict[str, str]) -> str:
    servers = [name for name in ("hotfire", "apache", "floor") if any(run.server == name for run in runs)]
    lines = ["# Bench", "", *(f"- {name}: {value}" for name, value in facts.items()), ""]
    lines += [_row(["case", *(f"{name}: msg/s, CPU, p50 / p99" for name in servers), "Hotfire / Apache"])]
    lines += [_row(["---"] * (len(servers) + 2))]
    for case in dict.fromkeys(run.case for run in runs):
        chosen = [[run for run in runs if (run.case, run.server) == (case, name)] for name in servers]
        lines.append(_row([case, *map(_cell, chosen), _ratio(runs, case)]))
    lines += ["", _row(["", *servers]), _row(["---"] * (len(servers) + 1))]
    memory = [max((run.anonymous_bytes for run in runs if run.server == name), default=0) for name in servers]
    lines.append(_row(["anonymous memory, highest", *(f"{size / 2**20:.0f} MiB" for size in memory)]))
    ready = [ready_seconds.get(name) for name in servers]
    lines.append(
        _row(["ready after start", *(f"{median(times):.2f} s" if times else "–" for times in ready)])
    )
    foreign = [run.foreign_share for run in runs]
    lines += [
        "",
        f"Other programs used {median(foreign):.0%} of the machine (median), {max(foreign):.0%} at most.",
    ]
    if refused := [run for run in runs if run.refused]:
        lines += [
            "",
            "Refused sends: " + ", ".join(f"{r.server} {r.case} {r.refused}" for r in refused) + ".",
        ]
    return "\n".join(lines) + "\n"


def _cell(runs: Sequence[Run]) -> str:
    if not runs:
        return "–"
    rate, cpu = _median(runs, lambda run: run.rate), _median(runs, lambda run: run.cpu_us)
    text = f"{rate / 1000:,.1f}k/s, {cpu:.1f} µs"
    if runs[0].p50_ms is None:
        return text
    p50, p99 = _median(runs, lambda run: run.p50_ms), _median(runs, lambda run: run.p99_ms)
    return f"{text}, {p50:.2f} / {p99:.2f} ms"


def _ratio(runs: Sequence[Run], case: str) -> str:
    """Pair by pair, then the median: neighbours in time saw the same machine."""
    by_server = {
        name: {run.pair: run for run in runs if (run.case, run.server) == (case, name)}
        for name in ("hotfire", "apache")
    }
    pairs = sorted(by_server["hotfire"].keys() & by_server["apache"].keys())
    if not pairs:
        return "–"
    both = [(by_server["hotfire"][pair], by_server["apache"][pair]) for pair in pairs]
    rate = median(ours.rate / theirs.rate for ours, theirs in both)
    cpu = median(ours.cpu_us / theirs.cpu_us for ours, theirs in both)
    return f"rate ×{rate:.2f}, CPU ×{cpu:.2f}"


def _median(runs: Sequence[Run], value: Callable[[Run], float | None]) -> float:
    return median(found for run in runs if (found := value(run)) is not None)


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
