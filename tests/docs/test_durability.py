"""The table of durable steps names every step that the code names and tests strike at, and no other."""

import re

from hotfire.broker import halves, schedule, timers
from hotfire.broker.handlers import sendback
from tests.docs.pages import ROOT

PAGE = ROOT / "docs" / "durability.md"
NAMED = {
    "transaction": tuple(halves.STEPS),
    "timer": tuple(timers.DURABLE_STEPS),
    "delay": tuple(schedule.DURABLE_STEPS),
    "retry": tuple(sendback.DURABLE_STEPS),
}
"""What tests in tests/crash and tests/sim strike at, kind by kind and in their order."""


def rows() -> list[list[str]]:
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[1:]]


def test_every_named_step_has_a_row() -> None:
    """A step that is new, renamed or gone changes the page with it; each row says all there is to say."""
    steps = [(kind, step) for kind, names in NAMED.items() for step in names]
    assert [(row[0], row[1]) for row in rows()] == steps
    assert [row for row in rows() if len(row) != 6 or not all(row)] == []


def test_the_tests_of_each_row_strike_there() -> None:
    """A row names a test of kills and one of power cuts; both are there, and their steps are the code's."""
    sources = re.compile(r"\bSTEPS\b|\bDURABLE_STEPS\b")
    for row in rows():
        kills, cuts = row[5].split(", ")
        assert (kills.startswith("tests/crash/"), cuts.startswith("tests/sim/")) == (True, True), row
        for name in (kills, cuts):
            assert sources.search((ROOT / name).read_text()), f"{name} takes no steps from the code"


def test_readme_leads_to_the_page() -> None:
    assert "(docs/durability.md)" in (ROOT / "README.md").read_text()
