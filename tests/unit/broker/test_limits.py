"""What one peer can make a broker keep is bounded, and what is beyond the bound is answered."""

import dataclasses
from typing import Any

import pytest

from hotfire.broker.fastlane import GRANT_CODES_MAX, GRANT_EXPRESSION_CHARACTERS_MAX
from hotfire.broker.handlers.pull import HOLD_MS_MAX
from hotfire.broker.handlers.wanted import EXPRESSION_CHARACTERS_MAX, TAGS_MAX
from tests.unit.broker.conftest import LANE, Make
from tests.unit.broker.harness import (
    FOUND,
    NOT_FOUND,
    SUBSCRIPTION,
    SUSPEND,
    Harness,
    bodies,
    codes,
    next_offset,
    pull_request,
    send_request,
    tagged,
)

HOLD = SUBSCRIPTION | SUSPEND


# --- held pulls ---


def test_a_held_pull_keeps_what_its_answer_needs(heart: Harness) -> None:
    """Body, expression and fields nobody reads are let go; the answer has the opaque and the message."""
    big = "x" * 60_000
    request = pull_request(flag=HOLD, expression=f"A || {big}", broker_name=big, proxy_forward_client_id=big)
    command = dataclasses.replace(request.to_command(), body=bytes(1 << 20), remark=big)
    (opaque,) = heart.receive(command)
    (pull,) = heart.broker.parked.on_queue(heart.store.queue("T", 0))
    call: Any = pull.call
    assert call.command.body == b""
    assert not call.command.fields
    assert big not in repr(call)
    heart.receive(send_request(named={"TAGS": "A"}), to=heart.connect(50_100))
    heart.settle()
    reply = heart.connection.take_one()
    assert (reply.opaque, reply.code, bodies(reply)) == (opaque, FOUND, [b"body"])


def test_held_pulls_of_one_connection_are_bounded(make: Make) -> None:
    """Beyond parkedPullsPerConnectionMax a pull is answered at once; other connections are not concerned."""
    heart = make(parked_pulls_per_connection_max=3)
    heart.create_topic("T")
    greedy, modest = heart.connect(50_100), heart.connect(50_101)
    for _ in range(5):
        heart.receive(pull_request(flag=HOLD), to=greedy)
    heart.receive(pull_request(flag=HOLD), to=modest)
    assert codes(greedy.take()) == [NOT_FOUND, NOT_FOUND]
    assert modest.take() == []
    heart.send()
    assert codes(greedy.take()) == [FOUND] * 3
    heart.receive(pull_request(flag=HOLD, offset=1), to=greedy)
    assert greedy.take() == [], "there is room again"


@pytest.mark.parametrize("asked_ms", [HOLD_MS_MAX + 1, 2**63 - 1])
def test_nobody_waits_for_ever(heart: Harness, asked_ms: int) -> None:
    """A wait of centuries ends after ten minutes."""
    heart.receive(pull_request(flag=HOLD, suspend_timeout_millis=asked_ms))
    heart.pass_time(HOLD_MS_MAX - 1, step_ms=10_000)
    assert heart.connection.take() == []
    heart.pass_time(1)
    assert codes(heart.connection.take()) == [NOT_FOUND]


# --- filters ---


def tags(count: int) -> str:
    return "||".join(f"t{number}" for number in range(count))


@pytest.mark.parametrize("expression", [tags(TAGS_MAX + 1), "x" * (EXPRESSION_CHARACTERS_MAX + 1)])
def test_filters_without_measure_are_refused(heart: Harness, expression: str) -> None:
    """In a pull or a heartbeat, by characters or by tags: code 23, the sizes and the limits."""
    for reply in (heart.pull(expression=expression), heart.beat("c", "CG", tagged("T", expression))):
        assert reply.code == 23
        assert str(EXPRESSION_CHARACTERS_MAX) in (reply.remark or "")
        assert str(len(expression)) in (reply.remark or "")
    assert not heart.broker.clients.consumers


def test_large_filters_are_served_without_a_grant(heart: Harness, shape: str) -> None:
    """Up to the limits a filter works; only small ones are remembered for the lane."""
    heart.send(named={"TAGS": "t7"})
    heart.send(named={"TAGS": "other"})
    long = "t7 ||" + " " * GRANT_EXPRESSION_CHARACTERS_MAX + "t8"
    for expression in (tags(TAGS_MAX), tags(GRANT_CODES_MAX + 1), long):
        reply = heart.pull(expression=expression)
        assert (reply.code, next_offset(reply)) == (FOUND, 2)
        assert len(heart.broker.fast._grants) == 0
    heart.pull(expression=tags(GRANT_CODES_MAX))
    assert len(heart.broker.fast._grants) == (1 if shape == LANE else 0)
    heart.beat("c", "CG", tagged("T", tags(GRANT_CODES_MAX + 1)))
    heart.connection.take()
    for _ in range(2):
        assert heart.pull(flag=0, expression=None, sub_version=1).code == FOUND
    assert len(heart.broker.fast._grants) == 0
