"""A condition that means nothing is refused with its place and what would have done there."""

import re
import sys
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any

import pytest

from hotfire.protocol.sql92 import (
    CHARACTERS_MAX,
    NESTING_MAX,
    WORDS_MAX,
    ConditionError,
    compile_anew,
    compile_condition,
)

LINES_MAX = 100_000

TraceFunction = Callable[[FrameType, str, Any], Any]


@pytest.mark.parametrize(
    ("condition", "said"),
    [
        ("", "column 1, at the end: a property"),
        ("a > > 1", "column 5, at '> 1': a property, a number"),
        ("a > 1 AND", "column 10, at the end"),
        ("a > 1 AND\n  b = = 2", "line 2, column 7, at '= 2'"),
        ("a = 'x", 'column 5, at "\'x": the text has no closing quote'),
        ("a = 1 /* x", r"column 7, at '/\* x': the comment has no end"),
        ('a = "x"', "column 5.*texts stand in single quotes"),
        ("a != 1", "column 3, .*<> and ="),
        ("a = NULL", "column 3, .*IS NULL"),
        ("TRUE = 1", "column 6, .*TRUE and FALSE"),
        ("a between 5 and 3", "column 11, .*lower bound 5 is above the upper one, 3"),
        ("a between 5 or 3", "column 13, .*AND and the upper bound"),
        ("a in (1)", "column 7, .*text in single quotes is expected, not '1'"),
        ("a in ('x' 'y')", r"column 11, .*',' or '\)'"),
        ("1 in ('x')", "column 1, .*a property is expected before IN"),
        ("a not 5", "column 7, .*BETWEEN, IN, CONTAINS"),
        ("a in ('x',)", "column 11, .*text in single quotes is expected"),
        ("a in ('x', 'y' , )", "column 18, .*text in single quotes is expected"),
        ("a in (,'x')", "column 7, .*text in single quotes is expected"),
        ("a is 5", "column 6, .*NULL or NOT NULL"),
        ("(a = 1", r"column 7, at the end: AND, OR or '\)'"),
        ("a = 1 b = 2", "column 7, at 'b = 2': 'b' is left over"),
        ("a = 007", "column 6, .*left over"),
        ("a > 'x'", "column 5, .*numbers and properties"),
        ("5", "column 1, .*neither true nor false"),
        ("a = 9223372036854775808", "column 5, .*above 9223372036854775807"),
        ("a = 0.0", "column 5, .*0 is written without a point"),
        ("a = 1e999", "column 5, .*above 1.797"),
        ("a = %", "column 5, at '%'"),
        ("(" * 99 + "a", f"column {NESTING_MAX + 1}, .*more than {NESTING_MAX}"),
        ("NOT " * 99 + "a", f".*more than {NESTING_MAX}"),
        ("a = 1 " + " " * CHARACTERS_MAX, f"column {CHARACTERS_MAX + 1}, .*at most {CHARACTERS_MAX}"),
        (" or ".join(f"a{i} is null" for i in range(129)), ".*more than 128 properties"),
        ("a=" * WORDS_MAX + "a", f"column {WORDS_MAX + 1}, at 'a=.*more than {WORDS_MAX} words"),
    ],
)
def test_an_error_points_at_its_place(condition: str, said: str) -> None:
    """Line and column, the words there, and what is expected instead."""
    with pytest.raises(ConditionError, match="^" + said):
        compile_condition(condition)


def test_as_much_as_may_be_is_taken() -> None:
    """The limits are what they say, not one less."""
    compile_condition("(" * NESTING_MAX + "a" + ")" * NESTING_MAX)
    compile_condition(" " * (CHARACTERS_MAX - 5) + "a = 1")
    compile_condition(" or ".join(f"a{i} is null" for i in range(128)))
    compile_condition("=".join("a" * (WORDS_MAX // 2)))
    compile_condition("a in (" + ",".join(["'x'"] * 2000) + ")")


def fill(unit: str, tail: str = "a", head: str = "") -> str:
    """As long as it may be."""
    return head + unit * ((CHARACTERS_MAX - len(head) - len(tail)) // len(unit)) + tail


@pytest.mark.parametrize(
    "condition",
    [
        fill("a="), fill("a or "), fill("(a)or "), fill("1=1 or "), fill("not a or "), fill("a--\n="),
        fill("a between 1 and 2 or "), fill("a=--1 or "), fill("'',", "'')", "a in ("), fill("-- ", "", "a="),
        fill("*", "", "a /*"), fill("'", "", "a="), fill("a/**/or "), fill("--\n"), fill("/**/"),
        fill("b=", "b" + ")" * 64, "a=(" * 64), fill("b=", "b" + ")" * 64, "a or(" * 64),
        fill("a in('''','')or "), fill("'' ", "", "a in ("), fill("9", "", "a="), fill("a contains'b'or "),
    ],
)  # fmt: skip
@pytest.mark.parametrize("is_whole", [True, False], ids=["whole", "cut"])
def test_no_condition_takes_long_to_compile(condition: str, *, is_whole: bool) -> None:
    """Right or wrong, as long as may be or cut where its last word would be: so many lines of the compiler
    run and no more, which take some five milliseconds."""
    if not is_whole:  # then nothing is refused for its length
        places = [found.end() for found in re.finditer(r"\w+|--|[^\w\s]", condition)]
        condition = condition[: places[min(len(places), WORDS_MAX) - 1]]
    lines = 0

    def count(frame: FrameType, event: str, arg: Any) -> TraceFunction:
        nonlocal lines
        lines += 1
        return count

    traced_before = sys.gettrace()
    sys.settrace(count)
    try:
        with suppress(ConditionError):
            compile_anew(condition)
    finally:
        sys.settrace(traced_before)
    assert lines <= LINES_MAX
