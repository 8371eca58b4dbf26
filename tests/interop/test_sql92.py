"""Our evaluator of conditions against Apache's own, from its jar."""

from pathlib import Path

import pytest

from hotfire import core
from hotfire.protocol.sql92 import ConditionError, compile_condition
from tests.interop.sql92 import Case, asked_of_java, cases

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]
VALID, DRAWN, GARBAGE = 10_000, 10_300, 3_000
"""One in a hundred of those drawn by the grammar breaks the rules for types."""
OURS_ALONE = ("is left over", "characters, at most", "no more are read", "within each other")
"""Words behind the end, which the reference passes over, and limits of length, words and depth."""


def ours(case: Case) -> str:
    condition, messages = case
    try:
        program = compile_condition(condition)
    except ConditionError as error:
        is_ours = any(reason in error.reason for reason in OURS_ALONE)
        return "ours alone" if is_ours else "refused"
    return "".join("FTEN"[core.sql_verdict(program, message)] for message in messages)


def test_verdicts_are_those_of_the_reference(tmp_path: Path) -> None:
    """Ten thousand conditions that it accepts, eight messages each: TRUE, FALSE, NULL and errors alike."""
    given = cases(92, DRAWN)
    said = [ours(case) for case in given]
    assert set("".join(said)) >= set("TFNE")
    theirs = asked_of_java(tmp_path, given)
    differing = [one for one in zip(given, said, theirs, strict=True) if one[1] != one[2]]
    assert differing == []
    assert len(theirs) - theirs.count("refused") >= VALID


def test_what_is_refused_is_what_the_reference_refuses(tmp_path: Path) -> None:
    """Spoilt conditions and mere words too, but for what stands behind a whole condition, and our limits."""
    given = cases(93, GARBAGE, garbage=True)
    theirs = asked_of_java(tmp_path, given)
    differing = [
        (case, mine, said)
        for case, mine, said in zip(given, map(ours, given), theirs, strict=True)
        if mine not in (said, "ours alone")
    ]
    assert differing == []
    assert theirs.count("refused") > GARBAGE // 4
