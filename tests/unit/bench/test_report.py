"""The page of the bench: the newest piece of each case, each goal beside its figure, failures named."""

from dataclasses import replace
from pathlib import Path

import pytest

from bench.cases import CASES, TITLES
from bench.extras import EXTRAS
from bench.goals import GOALS, Goal
from bench.report import Figures, Piece, Run, markdown, read_piece
from bench.spark import COMPARED

SYNC, ASYNC = "send-128-8x64-sync", "send-128-8x64-async"
RUN = Run(
    case=SYNC, server="hotfire", pair=0, rate=300_000.0, acked=1, refused=0, p50_ms=1.0, p99_ms=4.0,
    cpu_us=2.0, anonymous_bytes=1 << 20, foreign_share=0.1,
)  # fmt: skip


def piece(*runs: Run, date: str = "2026-01-01 00:00 UTC") -> Piece:
    return Piece({"date": date, "Hotfire": f"of {date}", "runs": "some"}, list(runs))


def lines_of(page: str, figure: str, beside: str) -> list[str]:
    start = f"| {TITLES[SYNC]} | {figure} | {beside} |"
    return [line for line in page.splitlines() if line.startswith(start)]


def test_every_goal_has_a_case() -> None:
    """No goal is of a case that does not exist, or beside a server which that case does not measure."""
    rivals = {case.name: {*case.rivals, "hotfire"} for case in CASES} | {
        name: {"empty" if name.startswith("backlog") else "alone"}
        for name in TITLES
        if name.startswith(("backlog", "beside", "filters"))
    }
    rivals |= {
        "backlog-drain": {"newest"},
        "client-produce": {"grpc", "kafka"},
        "client-consume": {"grpc"},
        "client-iterate": {"kafka"},
        "client-idle": {"java", "java-here"},
        "client-pipeline": {"loadgen"},
        **{case: set(compared) for case, compared in COMPARED.items()},
        **{case.name: set(case.rivals) for case in EXTRAS},
    }
    lost = [
        goal
        for goal in GOALS
        if goal.rival is not None and goal.rival not in rivals[goal.rival_case or goal.case]
    ]
    assert not lost
    assert {goal.case for goal in GOALS} <= set(TITLES)
    assert len({case.name for case in CASES}) == len(CASES)


@pytest.mark.parametrize(("rate", "verdict"), [(60_000.0, "met"), (61_000.0, "**missed**")])
def test_goal_stands_beside_its_figure(rate: float, verdict: str, tmp_path: Path) -> None:
    """A ratio is the median of the pairs' own ratios, and is met at the bound itself."""
    slow = replace(RUN, pair=1, rate=30_000.0)
    runs = [
        RUN,
        slow,
        replace(RUN, server="apache", rate=rate),
        replace(slow, server="apache", rate=rate / 10),
    ]
    (line,) = lines_of(markdown("Bench", [piece(*runs)], tmp_path), "rate", "apache")
    assert line.endswith(f"| {verdict} |")
    assert "≥ ×5.00" in line


def test_newest_piece_of_a_case_counts_whole(tmp_path: Path) -> None:
    """Pairs of an older run of the same case are not mixed with those of the newer; other cases stay."""
    old = piece(RUN, replace(RUN, pair=1), replace(RUN, case=ASYNC))
    new = piece(replace(RUN, rate=1.0), date="2026-01-02 00:00 UTC")
    figures = Figures([old, new])
    assert [run.rate for run in figures.runs(SYNC, "hotfire").values()] == [1.0]
    assert figures.runs(ASYNC, "hotfire")
    page = markdown("Bench", [old, new], tmp_path)
    assert f"of 2026-01-01 00:00 UTC, some: {ASYNC}" in page
    assert f"of 2026-01-02 00:00 UTC, some: {SYNC}" in page


def test_a_figure_of_two_runs_says_so() -> None:
    """Our synced rate beside Apache's unsynced one is of one run, or the page says that it is not."""
    goal = Goal(SYNC, "rate", "apache", ASYNC, at_least=3.0)
    theirs = replace(RUN, case=ASYNC, server="apache")
    assert Figures([piece(RUN, theirs)]).in_one_run(goal)
    assert not Figures([piece(theirs), piece(RUN)]).in_one_run(goal)


def test_what_was_not_measured_is_told(tmp_path: Path) -> None:
    """A case that failed is on the page with its reason, and its goals do not count as met."""
    failed = piece(RUN)
    failed.failures = {f"{SYNC} apache": "it hung up"}
    page = markdown("Bench", [failed], tmp_path)
    assert f"Not measured: {SYNC} apache: it hung up" in page
    assert all(line.endswith("| **not measured** |") for line in lines_of(page, "rate", "apache"))


def test_an_older_figure_does_not_hide_a_newer_failure(tmp_path: Path) -> None:
    """Of a case that failed when it was last measured no figure is shown."""
    failed = piece(date="2026-01-02 00:00 UTC")
    failed.failures = {f"{SYNC} hotfire": "it hung up"}
    page = markdown("Bench", [piece(RUN), failed], tmp_path)
    assert f"Not measured: {SYNC} hotfire: it hung up" in page
    assert "300.0k/s" not in page


def test_raw_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    """What a run wrote is what a page is made of; a file of another format is passed over."""
    written = piece(RUN)
    written.write(tmp_path / "a.json")
    assert read_piece(tmp_path / "a.json") == written
    (tmp_path / "b.json").write_text('{"facts": {}, "runs": []}')
    assert read_piece(tmp_path / "b.json") is None
