"""What is promised in figures: the newest ones that were measured and kept keep it.

They are measured by `make bench` and `make long`, which take hours, and committed with each of their raw
runs; a clock in a test would only tell how busy this machine is now.
"""

from dataclasses import replace
from pathlib import Path

import pytest

from bench.goals import GOALS, Goal
from bench.place import RESULTS
from bench.report import Figures, Piece, read_piece, verdict

PROMISED = {
    201: ("backlog-*.json", [("backlog-send", "rate"), ("backlog-tail", "p99_ms")]),
    202: ("backlog-*.json", [("backlog-drain", "rate")]),
    209: ("2*.json", [("send-128-8x64-sync", "rate"), ("send-128-1x1-sync", "p50_ms")]),
}
"""Of each row of docs/promises.md: the files with its raw runs, and its figures among `bench.goals`."""


def goals_of(row: int) -> list[Goal]:
    _, wanted = PROMISED[row]
    return [goal for goal in GOALS if (goal.case, goal.figure) in wanted and goal.rival in BESIDE]


BESIDE = ("apache", "empty", "newest")


def figures(pattern: str, place: Path = RESULTS) -> Figures:
    pieces = [read_piece(path) for path in sorted(place.glob(pattern), key=lambda path: path.name)]
    return Figures(piece for piece in pieces if piece is not None)


def missed(row: int, of: Figures) -> list[str]:
    return [
        f"{goal.case} {goal.figure} beside {goal.rival}: {said}"
        for goal in goals_of(row)
        if (said := verdict(goal, of.ratios(goal))) != "met"
    ]


@pytest.mark.parametrize("row", [pytest.param(row, marks=pytest.mark.promise(row)) for row in PROMISED])
def test_the_newest_figures_keep_what_is_promised(row: int) -> None:
    """Each is met, by the median of the pairs of its newest run."""
    assert {(goal.case, goal.figure) for goal in goals_of(row)} == set(PROMISED[row][1])
    assert missed(row, figures(PROMISED[row][0])) == []


def test_a_newer_figure_that_misses_is_noticed(tmp_path: Path) -> None:
    """Whatever was measured before."""
    pattern, _ = PROMISED[201]
    kept = figures(pattern)
    piece = kept.sources["backlog-send"]
    slower = [replace(run, rate=run.rate / 2) if run.server == "hotfire" else run for run in piece.runs]
    assert missed(201, Figures([*kept.pieces, Piece(piece.facts, slower)]))
    assert missed(201, Figures([Piece(piece.facts)]))
