"""A pytest plugin: which promises a run has shown, and that nothing was skipped in silence.

`@pytest.mark.promise(24, 25)` claims rows of docs/promises.md. `--promises-report FILE` writes what became
of every claim, `{"24": [{"test": id, "outcome": ...}]}`, for tools/promises.py to merge. A claimed number
that the list does not have stops the run; a skip that tests/known.toml gives no reason for fails it.
"""

import fnmatch
import json
import tomllib
from collections.abc import Generator
from pathlib import Path

import pytest

from tools.promises import NOT_RUN, numbers

ROOT = Path(__file__).resolve().parent.parent
LIST = ROOT / "docs" / "promises.md"
KNOWN = ROOT / "tests" / "known.toml"
# the worst of a test's phases is the test's outcome
GRAVITY = {NOT_RUN: 0, "passed": 1, "skipped": 2, "failed": 3}


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("promises")
    group.addoption(
        "--promises-report", metavar="FILE", type=Path, help="write what became of every claim, as JSON"
    )
    group.addoption("--promises-only", action="store_true", help="run only tests that claim a promise")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Ledger(config), "promises-ledger")


def claims(item: pytest.Item) -> list[int]:
    found: list[int] = []
    for mark in item.iter_markers("promise"):
        if mark.kwargs or not mark.args or not all(isinstance(number, int) for number in mark.args):
            raise pytest.UsageError(f"{item.nodeid}: promise takes one or more row numbers, got {mark}")
        found.extend(mark.args)
    return sorted(set(found))


class Ledger:
    """What was claimed, what became of it, and what was skipped without a reason on file."""

    def __init__(self, config: pytest.Config) -> None:
        self.report_path: Path | None = config.getoption("--promises-report")
        self.only_claims: bool = config.getoption("--promises-only")
        self.claimed: dict[str, list[int]] = {}
        self.outcomes: dict[str, str] = {}
        self.unexplained: list[str] = []
        known = tomllib.loads(KNOWN.read_text("utf-8")).get("skip", [])
        for entry in known:
            if not entry.get("test") or not entry.get("reason"):
                raise pytest.UsageError(f"{KNOWN.name}: every entry needs a test and a reason, got {entry}")
        self.known_skips: list[str] = [entry["test"] for entry in known]

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> Generator[None, None, None]:
        # Before -m and -k have taken tests away: a claim that does not run this time is still a claim.
        valid = numbers(LIST.read_text("utf-8"))
        for item in items:
            claimed = claims(item)
            if unknown := [number for number in claimed if number not in valid]:
                raise pytest.UsageError(f"{item.nodeid} claims {unknown}: no such row in docs/promises.md")
            if claimed:
                self.claimed[item.nodeid] = claimed
                self.outcomes[item.nodeid] = NOT_RUN
        yield
        if self.only_claims:
            idle = [item for item in items if item.nodeid not in self.claimed]
            config.hook.pytest_deselected(items=idle)
            items[:] = [item for item in items if item.nodeid in self.claimed]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._note_skip(report)
        before = self.outcomes.get(report.nodeid, NOT_RUN)
        if GRAVITY[report.outcome] > GRAVITY[before]:
            self.outcomes[report.nodeid] = report.outcome

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._note_skip(report)

    def _note_skip(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        # an expected failure is reported as skipped too, and needs its reason just the same
        if report.outcome == "skipped" and not any(
            fnmatch.fnmatchcase(report.nodeid, pattern) for pattern in self.known_skips
        ):
            self.unexplained.append(report.nodeid)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.unexplained and session.exitstatus in (
            pytest.ExitCode.OK,
            pytest.ExitCode.NO_TESTS_COLLECTED,
        ):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        if self.report_path is not None:
            rows: dict[int, list[dict[str, str]]] = {}
            for test, claimed in self.claimed.items():
                for number in claimed:
                    rows.setdefault(number, []).append({"test": test, "outcome": self.outcomes[test]})
            self.report_path.parent.mkdir(parents=True, exist_ok=True)
            self.report_path.write_text(json.dumps(dict(sorted(rows.items())), indent=1) + "\n", "utf-8")

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for test in self.unexplained:
            terminalreporter.write_line(f"SKIPPED WITHOUT A REASON in tests/known.toml: {test}", red=True)
