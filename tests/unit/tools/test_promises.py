"""The list of promises is filled from what ran, never from what was hoped."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tools.promises import counts, fill, main, merge, numbers

ROOT = Path(__file__).resolve().parents[3]
PAGE = """# Promises

| # | what must work | how it is shown | status |
|---|---|---|---|
| 1 | one | look | unclaimed |
| 2 | two | look | kept (test_two) |
"""


def report(number: int, test: str, outcome: str) -> dict[str, list[dict[str, str]]]:
    return {str(number): [{"test": f"tests/x.py::{test}", "outcome": outcome}]}


@pytest.mark.parametrize(
    ("reports", "expected"),
    [
        ([report(1, "test_a", "passed")], {1: "kept (test_a)", 2: "unclaimed"}),
        (
            [report(1, "test_a", "passed"), report(1, "test_b", "failed")],
            {1: "broken (test_b)", 2: "unclaimed"},
        ),
        (
            [report(1, "test_a[x]", "passed"), report(1, "test_a[y]", "passed")],
            {1: "kept (test_a)", 2: "unclaimed"},
        ),
        ([report(1, "test_a", "skipped")], {1: "unclaimed", 2: "unclaimed"}),
        ([report(2, "test_two", "not run")], {1: "unclaimed", 2: "kept (test_two)"}),
        ([report(2, "test_other", "not run")], {1: "unclaimed", 2: "unclaimed"}),
        (
            [report(1, "test_a", "passed"), report(1, "test_a", "not run")],
            {1: "kept (test_a)", 2: "unclaimed"},
        ),
        (
            [report(1, "test_a", "failed"), report(1, "test_a", "passed")],
            {1: "broken (test_a)", 2: "unclaimed"},
        ),
    ],
)
def test_status_follows_the_runs(
    reports: list[dict[str, list[dict[str, str]]]], expected: dict[int, str]
) -> None:
    """Kept needs a pass and no failure; a test left out of the run changes nothing; a skip proves nothing."""
    assert numbers(fill(PAGE, merge(reports))) == expected


def test_unknown_number_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A claim of a row that does not exist stops the tool and leaves the page alone."""
    page, runs = tmp_path / "promises.md", tmp_path / "runs.json"
    page.write_text(PAGE)
    runs.write_text(json.dumps(report(77, "test_a", "passed")))
    assert main([str(page), str(runs)]) == 2
    assert "77" in capsys.readouterr().err
    assert page.read_text() == PAGE


def test_check_refuses_a_page_that_says_too_much(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--check writes nothing and fails when the page calls a row kept that no run has shown."""
    page, runs = tmp_path / "promises.md", tmp_path / "runs.json"
    page.write_text(PAGE)
    runs.write_text(json.dumps(report(1, "test_a", "passed")))
    assert main(["--check", str(page), str(runs)]) == 1
    assert "row 2" in capsys.readouterr().err
    assert page.read_text() == PAGE


def test_the_real_list_is_well_formed() -> None:
    """Every row has a status, and the numbers run from 1 without a gap."""
    page = (ROOT / "docs" / "promises.md").read_text("utf-8")
    assert sorted(numbers(page)) == list(range(1, len(numbers(page)) + 1))
    assert sum(counts(page).values()) == len(numbers(page))


def run_pytest(directory: Path, code: str, *options: str) -> subprocess.CompletedProcess[str]:
    test = directory / "test_sample.py"
    test.write_text(f"import pytest\n\n{code}")
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-p",
            "tests.promises",
            "-c",
            ROOT / "pyproject.toml",
            *options,
            test,
        ],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=50,
    )


def test_report_says_what_became_of_each_claim(tmp_path: Path) -> None:
    """The report has the passed, the failed and the deselected claim, and nothing about other tests."""
    code = (
        "@pytest.mark.promise(1, 2)\ndef test_good(): pass\n\n"
        "@pytest.mark.promise(2)\ndef test_bad(): assert False\n\n"
        "@pytest.mark.slow\n@pytest.mark.promise(3)\ndef test_later(): pass\n\n"
        "def test_other(): pass\n"
    )
    out = tmp_path / "out" / "report.json"
    result = run_pytest(tmp_path, code, "-m", "not slow", "--promises-only", "--promises-report", str(out))
    assert result.returncode == pytest.ExitCode.TESTS_FAILED, result.stdout
    assert "1 failed, 1 passed, 2 deselected" in result.stdout
    shown = {
        int(number): {claim["test"].split("::")[-1]: claim["outcome"] for claim in claims}
        for number, claims in json.loads(out.read_text()).items()
    }
    assert shown == {
        1: {"test_good": "passed"},
        2: {"test_good": "passed", "test_bad": "failed"},
        3: {"test_later": "not run"},
    }


@pytest.mark.parametrize(
    "code",
    [
        "def test_skips(): pytest.skip('no reason on file')\n",
        "@pytest.mark.xfail\ndef test_skips(): assert False\n",
        "pytest.skip('a whole module', allow_module_level=True)\n",
    ],
)
def test_unexplained_skip_fails_the_run(tmp_path: Path, code: str) -> None:
    """A skip, or an expected failure, without a line in tests/known.toml fails the run."""
    result = run_pytest(tmp_path, code)
    assert result.returncode == pytest.ExitCode.TESTS_FAILED, result.stdout
    assert "SKIPPED WITHOUT A REASON" in result.stdout


def test_claim_of_an_unknown_row_stops_the_run(tmp_path: Path) -> None:
    """A mark with a number that docs/promises.md does not have is a usage error."""
    result = run_pytest(tmp_path, "@pytest.mark.promise(99999)\ndef test_x(): pass\n")
    assert result.returncode == pytest.ExitCode.USAGE_ERROR, result.stdout
    assert "99999" in result.stderr + result.stdout
