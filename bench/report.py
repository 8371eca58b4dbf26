"""Raw runs in, a page out. Medians over the pairs; nothing is left out and nothing is rounded before it.

A page may be made of several pieces, each a run of some of the cases: of a case the newest piece counts.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from bench.cases import TITLES
from bench.goals import FIGURE_NAMES, GOALS, Figure, Goal

FORMAT = 2
"""Of the raw files; those of another are passed over."""
SERVERS = (
    "hotfire",
    "apache",
    "floor",
    "redis",
    "fresh",
    "empty",
    "newest",
    "alone",
    "grpc",
    "kafka",
    "java",
    "java-here",
    "loadgen",
    "ceiling",
    "parquet",
    "rate",
)
FORMS: dict[Figure, Callable[[float], str]] = {
    "rate": lambda value: f"{value / 1000:,.1f}k/s",
    "cpu_us": lambda value: f"{value:.2f} µs",
    "per_cpu_s": lambda value: f"{value / 1e6:.2f}M",
    "p50_ms": lambda value: f"{value:.2f} ms",
    "p99_ms": lambda value: f"{value:.2f} ms",
}


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


@dataclass
class Piece:
    """What one start of the bench saw, and what it has to say of itself."""

    facts: dict[str, str]
    runs: list[Run] = field(default_factory=list)
    ready_seconds: dict[str, list[float]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    """Why a case has no figure of a server: `case server` to the reason."""

    def write(self, path: Path) -> None:
        path.write_text(json.dumps({"format": FORMAT, **asdict(self)}, indent=1) + "\n")

    def of(self, case: str) -> list[Run]:
        return [run for run in self.runs if run.case == case]


def read_piece(path: Path) -> Piece | None:
    raw: dict[str, Any] = json.loads(path.read_text())
    if raw.pop("format", None) != FORMAT:
        return None
    return Piece(**{**raw, "runs": [Run(**run) for run in raw["runs"]]})


class Figures:
    """The cases of some pieces, oldest piece first."""

    def __init__(self, pieces: Iterable[Piece]) -> None:
        self.pieces = list(pieces)
        self.sources: dict[str, Piece] = {}
        for piece in self.pieces:
            for run in piece.runs:
                self.sources[run.case] = piece
            for words in piece.failures:
                self.sources[words.split()[0]] = piece

    def cases(self) -> list[str]:
        return [name for name in TITLES if name in self.sources]

    def runs(self, case: str, server: str) -> dict[int, Run]:
        found = self.sources[case].of(case) if case in self.sources else []
        return {run.pair: run for run in found if run.server == server}

    def median(self, case: str, server: str, figure: Figure) -> float | None:
        values = [
            value for run in self.runs(case, server).values() if (value := _value(run, figure)) is not None
        ]
        return median(values) if values else None

    def ratios(self, goal: Goal) -> list[float]:
        """Pair by pair: neighbours in time saw the same machine."""
        ours = self.runs(goal.case, "hotfire")
        if goal.rival is None:
            return [value for run in ours.values() if (value := _value(run, goal.figure)) is not None]
        theirs = self.runs(goal.rival_case or goal.case, goal.rival)
        both = [
            (_value(ours[pair], goal.figure), _value(theirs[pair], goal.figure))
            for pair in ours.keys() & theirs
        ]
        return [mine / other for mine, other in both if mine is not None and other]

    def in_one_run(self, goal: Goal) -> bool:
        return goal.rival_case is None or self.sources[goal.case] is self.sources.get(goal.rival_case)


def _value(run: Run, figure: Figure) -> float | None:
    if figure == "per_cpu_s":
        return 1e6 / run.cpu_us if run.cpu_us else None
    value: float | None = getattr(run, figure)
    # loadgen prints -1 where a percentile is beyond its range
    return None if value is None or value < 0 else value


def markdown(title: str, pieces: Sequence[Piece], results: Path) -> str:
    """`results` is where profiles of missed goals are looked for."""
    figures = Figures(pieces)
    used = [piece for piece in pieces if piece in figures.sources.values()]
    lines = [f"# {title}", ""]
    lines += [f"- {name}: {value}" for name, value in (used[-1] if used else pieces[-1]).facts.items()]
    if len(used) > 1:
        lines += ["", "Put together from several runs; what is above is the last one's:", ""]
        lines += [
            f"- {piece.facts['date']}, {piece.facts['Hotfire']}, {piece.facts['runs']}: "
            + ", ".join(name for name in figures.cases() if figures.sources[name] is piece)
            for piece in used
        ]
    lines += [
        "",
        "## Goals",
        "",
        *_goal_table(figures, results),
        "",
        "## Figures",
        "",
        *_figure_table(figures),
    ]
    lines += ["", *_memory_and_start(figures, used)]
    foreign = [run.foreign_share for name in figures.cases() for run in figures.sources[name].of(name)]
    if foreign:
        lines += [
            "",
            f"Other programs used {median(foreign):.0%} of the machine (median), {max(foreign):.0%} at most.",
        ]
    refused = [run for name in figures.cases() for run in figures.sources[name].of(name) if run.refused]
    if refused:
        told = (f"{run.server} {run.case} {run.refused} of {run.refused + run.acked}" for run in refused)
        lines += ["", "Refused: " + ", ".join(told) + "."]
    lines += [
        f"\nNot measured: {words}: {why}"
        for piece in used
        for words, why in piece.failures.items()
        if figures.sources[words.split()[0]] is piece
    ]
    return "\n".join(lines) + "\n"


def _goal_table(figures: Figures, results: Path) -> list[str]:
    lines = [
        _row(["case", "figure", "beside", "goal", "measured", "least … most", "met"]), _row(["---"] * 7)
    ]  # fmt: skip
    for goal in GOALS:
        if goal.case not in figures.sources:
            continue
        values = figures.ratios(goal)
        form = FORMS[goal.figure] if goal.rival is None else _times
        bound = _bound(goal, form)
        beside = goal.rival or "–"
        if goal.rival_case is not None:
            other = TITLES[goal.rival_case]
            beside += f", {other}" + ("" if figures.in_one_run(goal) else " (of another run)")
        measured, spread = (
            ("–", "–") if not values else (form(median(values)), f"{form(min(values))} … {form(max(values))}")
        )
        met = verdict(goal, values)
        profile = results / f"profile-{goal.case}.md"
        if met.startswith("**") and profile.exists():
            met += f", [profile]({profile.name})"
        lines.append(
            _row([TITLES[goal.case], FIGURE_NAMES[goal.figure], beside, bound, measured, spread, met])
        )
    return lines


def _bound(goal: Goal, form: Callable[[float], str]) -> str:
    if goal.at_least is None and goal.at_most is None:
        return "reported"
    text = f"≥ {form(goal.at_least)}" if goal.at_least is not None else f"≤ {form(goal.at_most or 0.0)}"
    return f"{text}, required" if goal.required else text


def verdict(goal: Goal, values: Sequence[float]) -> str:
    if goal.at_least is None and goal.at_most is None:
        return "–"
    if not values:
        return "**not measured**"
    value = median(values)
    met = value >= goal.at_least if goal.at_least is not None else value <= (goal.at_most or 0.0)
    return "met" if met else "**missed**"


def _figure_table(figures: Figures) -> list[str]:
    seen = {run.server for name in figures.cases() for run in figures.sources[name].of(name)}
    servers = [name for name in SERVERS if name in seen]
    lines = [_row(["case", *(f"{name}: msg/s, CPU, p50 / p99" for name in servers), "Hotfire / Apache"])]
    lines += [_row(["---"] * (len(servers) + 2))]
    for case in figures.cases():
        ratio = [figures.ratios(Goal(case, figure)) for figure in ("rate", "cpu_us")]
        told = f"rate {_times(median(ratio[0]))}, CPU {_times(median(ratio[1]))}" if all(ratio) else "–"
        lines.append(_row([TITLES[case], *(_cell(figures, case, name) for name in servers), told]))
    return lines


def _cell(figures: Figures, case: str, server: str) -> str:
    rate, cpu, p50, p99 = (
        figures.median(case, server, name) for name in ("rate", "cpu_us", "p50_ms", "p99_ms")
    )
    told = []  # what a driver does not measure is 0
    if rate:
        told.append(FORMS["rate"](rate))
    if cpu:
        told.append(f"{cpu:.{2 if cpu < 10 else 1}f} µs")
    if p50 is not None:
        told.append(f"{p50:.2f} / {'–' if p99 is None else f'{p99:.2f}'} ms")
    return ", ".join(told) or "–"


def _memory_and_start(figures: Figures, pieces: Sequence[Piece]) -> list[str]:
    runs = [run for name in figures.cases() for run in figures.sources[name].of(name)]
    servers = [name for name in SERVERS if any(run.server == name for run in runs)]
    memory = [max(run.anonymous_bytes for run in runs if run.server == name) for name in servers]
    ready = [[time for piece in pieces for time in piece.ready_seconds.get(name, ())] for name in servers]
    return [
        _row(["", *servers]),
        _row(["---"] * (len(servers) + 1)),
        _row(["anonymous memory, highest", *(f"{size / 2**20:.0f} MiB" for size in memory)]),
        _row(["ready after start", *(f"{median(times):.2f} s" if times else "–" for times in ready)]),
    ]


def _times(value: float) -> str:
    return f"×{value:.2f}" if value >= 0.1 else f"×{value:.3f}"


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
