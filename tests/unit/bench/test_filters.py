"""The bench of filters: what it measures has a goal, and pulls that brought something else have no figure."""

import pytest

from bench.cases import TITLES
from bench.filters import BATCH, BODY, KINDS, ONE_IN, Waits, check, told
from bench.goals import GOALS
from hotfire.protocol.codes import ResponseCode
from hotfire.protocol.command import Command


def test_every_kind_has_a_goal() -> None:
    cases = {f"filters-{kind}" for kind in KINDS}
    assert {goal.case for goal in GOALS if goal.case.startswith("filters")} == cases
    assert all(f"{BATCH} × {len(BODY)} B" in TITLES[case] for case in cases)


@pytest.mark.parametrize("code", [ResponseCode.SUCCESS, ResponseCode.SYSTEM_ERROR])
def test_a_pull_without_its_messages_has_no_figure(code: int) -> None:
    """One that fails, and one that brings fewer than the filter is to choose."""
    asked = Command(code=11, opaque=1)
    with pytest.raises(RuntimeError, match=f"failed: why|0 messages, not {BATCH // ONE_IN}"):
        check(asked.reply(code, remark="why"))


def test_how_much_the_others_did_is_told() -> None:
    often, rested = Waits(1.0, failed=40), Waits(1.0, failed=30, rested=25)
    assert told([often]) == "40 to 40 pulls failed in a run"
    assert told([often, rested]) == "5 to 40 pulls failed in a run, 0 to 25 more at once while it rested"
