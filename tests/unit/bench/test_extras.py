"""The bench of the extras: each case has a title and goals, and what comes back is read to the last byte."""

import pytest

from bench.extras import EXTRAS, _arguments, bodies, facts_of, plan_of, subscribed
from bench.goals import GOALS
from hotfire.protocol.record import Host, Record, encode_record
from tests.unit.bench.answering import Answering

HOST = Host(bytes((127, 0, 0, 1)), 10911)


def records(*contents: bytes) -> bytes:
    return b"".join(
        encode_record(Record("t", 0, body, 1, HOST, 2, HOST, b"a\x01b\x02"), append_crc=True)
        for body in contents
    )


def test_every_case_has_a_goal() -> None:
    """No case is measured for nothing, beside Apache each."""
    assert {case.name for case in EXTRAS} <= {goal.case for goal in GOALS if goal.rival == "apache"}


def test_how_late_timers_are_stands_among_the_goals() -> None:
    """What is promised of them, 100 ms, where the load leaves room for it; and told where it does not."""
    bounds = {goal.case: goal.at_most for goal in GOALS if goal.figure == "p99_ms" and goal.rival is None}
    assert bounds["timers-intake"] == 100.0
    assert bounds["timers-burst"] is None


def test_a_part_is_chosen_by_name() -> None:
    """Patterns choose cases, and options say how long they run."""
    plan = plan_of(_arguments(["--only", "timers-*", "--pairs", "2", "--case-warm", "1"]))
    assert [case.name for case in plan.cases] == ["timers-intake", "timers-burst"]
    assert plan.pairs == 2
    facts = facts_of(plan)
    assert facts["runs"] == "median of 2 alternating pairs of 4 s each"
    assert "80,000 due in one millisecond" in facts["timers"]
    with pytest.raises(SystemExit, match="no case is named"):
        plan_of(_arguments(["--only", "nothing"]))


def test_bodies_are_read_from_records() -> None:
    """What a broker hands out is taken apart at the places a record has them."""
    assert bodies(records(b"one", b"", b"three")) == [b"one", b"", b"three"]
    assert bodies(b"") == []


@pytest.mark.parametrize("cut", [1, 50, 100])
def test_damaged_records_are_no_answer(cut: int) -> None:
    """Half a record is an error and not the end."""
    with pytest.raises(RuntimeError, match="begins no record"):
        bodies(records(b"one", b"two")[:-cut])


def test_a_heartbeat_is_awaited_behind_notices() -> None:
    """A broker tells a new member of its group before it answers it; a refusal is an error."""
    with Answering(lambda code, fields, body: (0, {}, b""), notices=2) as broker, subscribed(broker, "t"):
        pass
    with (
        Answering(lambda code, fields, body: (1, {}, b"")) as broker,
        pytest.raises(RuntimeError, match="refused"),
        subscribed(broker, "t"),
    ):
        pass
