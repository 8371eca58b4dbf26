"""The page of the long run says what ran, and no more."""

from pathlib import Path

from tools import longreport


def record(path: Path, begun: str, *cases: str) -> Path:
    path.write_text(
        f'<testsuites><testsuite timestamp="{begun}:00">{"".join(cases)}</testsuite></testsuites>', "utf-8"
    )
    return path


def case(name: str, outcome: str = "") -> str:
    return f'<testcase classname="tests.crash.test_x" name="{name}" time="2.4">{outcome}</testcase>'


def test_of_a_test_run_again_the_last_counts(tmp_path: Path) -> None:
    """A failure is told until the test has passed; who was interrupted has no row."""
    page = tmp_path / "page.md"
    first = record(tmp_path / "1.xml", "2026-01-01T10:00", case("test_a", "<failure/>"), case("test_b"))
    assert longreport.main([first], page) == 1
    cut = '<testcase time="1.0"/>'
    again = record(tmp_path / "2.xml", "2026-01-02T11:00", case("test_a"), cut)
    assert longreport.main([again], page, onto=True) == 0
    rows = [line for line in page.read_text("utf-8").splitlines() if line.startswith("| `")]
    assert rows == [
        "| `crash.test_x::test_a` | 2026-01-02 11:00 | 2 | passed |  |",
        "| `crash.test_x::test_b` | 2026-01-01 10:00 | 2 | passed |  |",
    ]


def test_a_failure_that_was_not_run_again_stays_one(tmp_path: Path) -> None:
    """What is kept of a page is kept with how it ended."""
    page = tmp_path / "page.md"
    longreport.main([record(tmp_path / "1.xml", "2026-01-01T10:00", case("test_a", "<failure/>"))], page)
    other = record(tmp_path / "2.xml", "2026-01-02T11:00", case("test_b"))
    assert longreport.main([other], page, onto=True) == 1
    assert "test_a` | 2026-01-01 10:00 | 2 | failure |" in page.read_text("utf-8")
