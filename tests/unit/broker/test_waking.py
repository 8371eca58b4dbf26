"""One message that a thousand groups wait for: all get it, and no pass of the loop is spent on them alone."""

from typing import Any

import pytest

from hotfire.broker import waking
from hotfire.broker.waking import ANSWERS_PER_PASS_MAX
from hotfire.protocol.command import Command
from tests.unit.broker.conftest import Make
from tests.unit.broker.harness import (
    FOUND,
    NOT_FOUND,
    SUBSCRIPTION,
    SUSPEND,
    FakeConnection,
    Harness,
    bodies,
    codes,
    next_offset,
    pull_request,
    send_request,
)

HOLD = SUBSCRIPTION | SUSPEND
GROUPS = 1000


@pytest.fixture
def waiting(heart: Harness) -> FakeConnection:
    """A connection with a pull of each of a thousand groups on one queue."""
    connection = heart.connect(50_100)
    groups = [f"G{number}" for number in range(GROUPS)]
    heart.broker.groups.find_all(groups, heart.now_ms)  # in one write
    for group in groups:
        heart.receive(pull_request(flag=HOLD, group=group), to=connection)
    assert len(heart.broker.parked) == GROUPS
    assert connection.take() == []
    return connection


def passes(heart: Harness, connection: FakeConnection) -> list[list[Command]]:
    """What each pass of the loop answered, as the server makes them while the heart wants more."""
    answered = [connection.take()]
    while heart.broker.wants_turn:
        heart.broker.turn(heart.now_ms)
        answered.append(connection.take())
        assert len(answered) <= 2 * GROUPS, "passes that do nothing"
    return answered


def test_a_thousand_groups_are_answered_over_many_passes(heart: Harness, waiting: FakeConnection) -> None:
    """Each group gets the message, once; no pass answers more than a few of them."""
    heart.receive(send_request(body=b"for all"))
    heart.broker.turn(heart.now_ms)
    while heart.store.journal.busy:
        heart.ring()
    answered = passes(heart, waiting)
    assert max(map(len, answered)) <= ANSWERS_PER_PASS_MAX
    replies = [reply for replies in answered for reply in replies]
    assert len({reply.opaque for reply in replies}) == len(replies) == GROUPS
    assert {(reply.code, next_offset(reply)) for reply in replies} == {(FOUND, 1)}
    assert bodies(replies[-1]) == [b"for all"]
    assert len(heart.broker.parked) == 0


def test_others_are_served_between_the_passes(heart: Harness, waiting: FakeConnection) -> None:
    """A send that arrives while the groups are being answered is stored and answered before they all are."""
    heart.receive(send_request(body=b"one"))
    heart.broker.turn(heart.now_ms)
    while heart.store.journal.busy:
        heart.ring()
    assert heart.connection.take_one().code == 0
    heart.receive(send_request(queue_id=1))
    heart.broker.turn(heart.now_ms)
    while heart.store.journal.busy:
        heart.ring()
    assert heart.connection.take_one().code == 0
    assert len(heart.broker.parked) > GROUPS * 0.9
    passes(heart, waiting)
    assert len(heart.broker.parked) == 0


def test_a_thousand_deadlines_at_once(heart: Harness, waiting: FakeConnection) -> None:
    """They end in as many passes, the first with the tick they fall due in; nobody waits for another tick."""
    heart.now_ms += 15_000
    heart.broker.tick(heart.now_ms)
    answered = passes(heart, waiting)
    assert max(map(len, answered)) <= ANSWERS_PER_PASS_MAX
    assert codes([reply for replies in answered for reply in replies]) == [NOT_FOUND] * GROUPS


def test_who_left_meanwhile_is_passed_over(heart: Harness, waiting: FakeConnection) -> None:
    """A peer that goes while its pulls are in line: they are forgotten, those of others go on."""
    other = heart.connect(50_101)
    heart.receive(pull_request(flag=HOLD, group="other"), to=other)
    heart.receive(send_request())
    heart.broker.turn(heart.now_ms)
    while heart.store.journal.busy:
        heart.ring()
    heart.disconnect(waiting)
    heart.settle()
    assert codes(other.take()) == [FOUND]
    assert (len(heart.broker.parked), len(waiting.take())) == (0, ANSWERS_PER_PASS_MAX)


def test_large_answers_are_fewer_in_a_pass(
    heart: Harness, waiting: FakeConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is answered in one pass is bounded in bytes, too."""
    monkeypatch.setattr(waking, "BYTES_PER_PASS_MAX", 64 << 10)
    heart.receive(send_request(body=b"x" * (40 << 10)))
    heart.broker.turn(heart.now_ms)
    while heart.store.journal.busy:
        heart.ring()
    assert max(map(len, passes(heart, waiting))) == 2


def test_a_filter_looks_at_a_long_queue_in_parts(heart: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of messages nobody wanted came at once: those who wait look at them bit by bit, and stay."""
    connection = heart.connect(50_100)
    heart.receive(pull_request(flag=HOLD, expression="wanted"), to=connection)
    for _ in range(3):
        heart.receive(*(send_request(named={"TAGS": "other"}) for _ in range(1000)))
    heart.settle()
    assert connection.take() == []
    (pull,) = heart.broker.parked.on_queue(heart.store.queue("T", 0))
    assert pull.scanned == 3000
    heart.connection.take()
    heart.send(named={"TAGS": "wanted"}, body=b"this")
    reply = connection.take_one()
    assert (reply.code, bodies(reply), next_offset(reply)) == (FOUND, [b"this"], 3001)


HARD = " or ".join(f"a{number} = 'x'" for number in range(100))


@pytest.mark.parametrize(
    ("settings", "wanted"),
    [
        ({}, {"expression": HARD, "expression_type": "SQL92"}),
        ({"enable_consume_queue_ext": True}, {"expression": "wanted"}),
    ],
    ids=["condition", "extension"],
)
def test_long_looks_are_few_in_a_pass(make: Make, settings: dict[str, Any], wanted: dict[str, str]) -> None:
    """Filters that let nothing through send nothing, and take their time all the same: one in each pass."""
    heart = make(**settings)
    heart.create_topic("T", queues=1)
    connection = heart.connect(50_100)
    for number in range(6):
        heart.receive(pull_request(flag=HOLD, group=f"G{number}", **wanted), to=connection)
    pulls = list(heart.broker.parked.on_queue(heart.store.queue("T", 0)))
    assert len(pulls) == 6
    for _ in range(8):
        heart.receive(*(send_request(named={"TAGS": "other"}) for _ in range(100)))
    heart.broker.turn(heart.now_ms)
    looked: list[int] = []
    while heart.store.journal.busy or heart.broker.wants_turn:
        before = [pull.scanned for pull in pulls]
        heart.broker.turn(heart.now_ms) if heart.broker.wants_turn else heart.ring()
        looked.append(sum(pull.scanned > old for pull, old in zip(pulls, before, strict=True)))
    assert max(looked) == 1
    assert {pull.scanned for pull in pulls} == {800}
    assert connection.take() == []


def test_what_a_look_passed_over_is_not_looked_at_again(make: Make) -> None:
    """The one message that passes comes behind many that do not: each is held against the condition once."""
    heart = make()
    heart.create_topic("T", queues=1)
    connection = heart.connect(50_100)
    heart.receive(pull_request(flag=HOLD, expression="a = 1", expression_type="SQL92"), to=connection)
    heart.receive(*(send_request(named={"a": str(int(number == 99))}) for number in range(100)))
    heart.settle()
    assert next_offset(connection.take_one()) == 100
    assert heart.store.evaluated <= 101
