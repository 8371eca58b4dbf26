"""Transactions whose end is told when nobody waits for it any more, and clocks that are set meanwhile."""

from __future__ import annotations

import select

import pytest

from hotfire.broker import late as late_module
from hotfire.protocol.requests import CheckTransactionState, ResumeCheckHalfMessage, SendReply
from tests.unit.broker.conftest import Make
from tests.unit.broker.harness import RING_TIMEOUT_S, Harness
from tests.unit.broker.transacting import (
    ASIDE,
    COMMIT,
    GROUP,
    HALF,
    INTERVAL_MS,
    ROLLBACK,
    TIMEOUT_MS,
    UNKNOWN,
    answer,
    key_of,
    killed,
    outcome,
    pass_time,
    prepare,
    questions,
    say,
    stored,
    visible,
    work,
)

HOUR_MS = 3_600_000


@pytest.fixture
def heart(make: Make) -> Harness:
    """A broker that asks once, and a producer."""
    made = make("store", transaction_check_max=1)
    made.beat_producer("producer", GROUP)
    return made


def lay_aside(
    heart: Harness, number: int = 1, body: bytes = b"late"
) -> tuple[SendReply, CheckTransactionState]:
    """A half whose producer did not know; its send's answer and the question that was asked."""
    half = prepare(heart, number, body)
    pass_time(heart, TIMEOUT_MS)
    (question,) = questions(heart.connection)
    say(heart, answer(question, UNKNOWN))
    pass_time(heart, INTERVAL_MS, 5000)
    assert [record.body for record in stored(heart, ASIDE)][-1] == body
    assert questions(heart.connection) == []
    return half, question


def resume(heart: Harness, times: int = 1) -> list[int]:
    """Ask for the newest that was laid aside, all at once; the codes of the answers."""
    message_id = stored(heart, ASIDE)[-1].message_id
    for _ in range(times):
        heart.receive(ResumeCheckHalfMessage(msg_id=message_id))
    work(heart)
    return [reply.code for reply in heart.connection.take()]


# --- after it was laid aside ---


@pytest.mark.parametrize("by", ["producer", "question"])
def test_a_commit_counts_after_its_half_was_laid_aside(heart: Harness, by: str) -> None:
    """As with the reference, whether it names the first half or the one asked about; and it counts once."""
    half, question = lay_aside(heart)
    told = outcome(half, COMMIT) if by == "producer" else answer(question, COMMIT)
    say(heart, told, told)  # one behind the other, before the first can be found in the log
    assert visible(heart) == [b"late"]
    say(heart, told)
    pass_time(heart, 3 * INTERVAL_MS, 5000)
    assert visible(heart) == [b"late"]
    assert questions(heart.connection) == []
    assert heart.broker.transactions.committed == 1


def test_a_commit_counts_that_crosses_its_half_being_laid_aside(heart: Harness) -> None:
    """Told before the record that was laid aside can be found by its key."""
    half = prepare(heart, body=b"crossing")
    pass_time(heart, TIMEOUT_MS)
    questions(heart.connection)
    while not heart.broker.transactions.laid_aside:
        heart.now_ms += 500
        heart.tick()
        if not heart.broker.transactions.laid_aside:
            work(heart)
    heart.receive(outcome(half, COMMIT).to_command(oneway=True))  # in the turn of the other
    work(heart)
    assert visible(heart) == [b"crossing"]


@pytest.mark.parametrize("kind", [COMMIT, ROLLBACK])
def test_an_end_counts_that_crosses_its_half_being_stored_anew(heart: Harness, kind: int) -> None:
    """Told before the new place can be found by its key; and who has said it is not asked any more."""
    half = prepare(heart, body=b"crossing")
    heart.now_ms += TIMEOUT_MS
    heart.broker.tick(heart.now_ms)
    heart.receive(outcome(half, kind))  # in the turn that stores it anew
    queries = heart.store.queries
    assert queries.waiting
    while queries.waiting:  # the log is asked, and answers, before that turn is on the disk
        assert select.select([queries], [], [], RING_TIMEOUT_S)[0]
        dict(heart.broker.watches())[queries.fileno()](heart.now_ms)
    work(heart)
    assert [reply.code for reply in heart.connection.take()] == [0]
    pass_time(heart, 3 * INTERVAL_MS, 5000)
    assert len(stored(heart, HALF)) == 2
    assert visible(heart) == ([b"crossing"] if kind == COMMIT else [])
    assert questions(heart.connection) == []
    assert stored(heart, ASIDE) == []
    assert heart.broker.transactions.outcomes.open_count == 0


def test_a_commit_counts_after_a_restart_too(heart: Harness, make: Make) -> None:
    """Laid aside in a former life, and in this one known by its key alone."""
    half, _ = lay_aside(heart)
    again = killed(heart, make, "again", transaction_check_max=1)
    say(again, outcome(half, COMMIT), outcome(half, COMMIT))
    assert visible(again) == [b"late"]
    third = killed(again, make, "third", transaction_check_max=1)
    say(third, outcome(half, COMMIT))
    assert visible(third) == [b"late"]


def test_a_rollback_of_what_was_laid_aside_delivers_nothing(heart: Harness) -> None:
    half, _ = lay_aside(heart)
    say(heart, outcome(half, ROLLBACK))
    pass_time(heart, 2 * INTERVAL_MS, 5000)
    assert visible(heart) == []


def test_what_was_laid_aside_before_a_crash_cut_off_its_op_is_not_again(heart: Harness, make: Make) -> None:
    """The half is open and was laid aside: it is ended and kept once."""
    outcomes = heart.broker.transactions.outcomes
    prepare(heart, body=b"cut")
    pass_time(heart, TIMEOUT_MS)
    questions(heart.connection)
    outcomes.write = lambda now_ms: None  # type: ignore[method-assign]  # the op is never placed
    pass_time(heart, INTERVAL_MS, 5000)
    assert len(stored(heart, ASIDE)) == 1
    again = killed(heart, make, "again", transaction_check_max=1)
    pass_time(again, 2 * INTERVAL_MS, 5000)
    assert len(stored(again, ASIDE)) == 1
    assert again.broker.transactions.outcomes.open_count == 0


def test_an_outcome_does_not_end_another_transaction_in_its_place(heart: Harness) -> None:
    """After a loss of power another half may lie where the one it means was; ids tell them apart."""
    half = prepare(heart, 1, b"another")
    stale = outcome(half, COMMIT, msg_id=key_of(9), transaction_id=key_of(9))
    reply = heart.ask(stale)
    assert (reply.code, "transaction id" in (reply.remark or "")) == (1, True)
    assert visible(heart) == []
    say(heart, outcome(half, COMMIT, msg_id="offset id", transaction_id=half.transaction_id))
    assert visible(heart) == [b"another"]
    for number, ids in enumerate(({"transaction_id": None}, {"transaction_id": ""}), start=2):
        say(heart, outcome(prepare(heart, number, b"%d" % number), COMMIT, **ids))
    assert visible(heart) == [b"another", b"2", b"3"]


# --- resumed ---


@pytest.mark.parametrize("times", [1, 3])
def test_however_often_it_is_resumed_it_is_delivered_once(heart: Harness, times: int) -> None:
    """At once or one after the other: one half, one question, one delivery."""
    lay_aside(heart)
    assert resume(heart, times) == [0] * times
    assert resume(heart) == [0]
    assert len(stored(heart, HALF)) == 3  # sent, asked about, resumed
    pass_time(heart, TIMEOUT_MS)
    (question,) = questions(heart.connection)
    say(heart, answer(question, COMMIT))
    assert resume(heart) == [1]
    pass_time(heart, 3 * INTERVAL_MS, 5000)
    assert visible(heart) == [b"late"]


def test_what_is_laid_aside_again_may_be_resumed_again(heart: Harness) -> None:
    lay_aside(heart)
    assert resume(heart) == [0]
    pass_time(heart, TIMEOUT_MS + INTERVAL_MS + 5000, 5000)
    assert len(questions(heart.connection)) == 1
    assert len(stored(heart, ASIDE)) == 2
    assert resume(heart) == [0]
    pass_time(heart, TIMEOUT_MS)
    (question,) = questions(heart.connection)
    say(heart, answer(question, COMMIT))
    assert visible(heart) == [b"late"]


def test_a_late_commit_and_a_resumption_that_cross_deliver_once(heart: Harness) -> None:
    """Both were looked up before either was placed."""
    half, _ = lay_aside(heart)
    message_id = stored(heart, ASIDE)[-1].message_id
    heart.receive(ResumeCheckHalfMessage(msg_id=message_id))
    heart.receive(outcome(half, COMMIT).to_command(oneway=True))
    heart.receive(ResumeCheckHalfMessage(msg_id=message_id))
    work(heart)
    heart.connection.take()
    pass_time(heart, 2 * INTERVAL_MS, 5000)
    for question in questions(heart.connection):
        say(heart, answer(question, COMMIT))
    assert visible(heart) == [b"late"]


def test_an_answer_older_than_what_is_remembered_is_asked_for_again(
    heart: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was placed meanwhile is remembered of a few only: the log is asked again, nothing comes twice."""
    monkeypatch.setattr(late_module, "KEPT_MAX", 0)
    half, _ = lay_aside(heart)
    say(heart, *[outcome(half, COMMIT)] * 3)
    assert visible(heart) == [b"late"]
    lay_aside(heart, 2, b"second")
    assert resume(heart, 3) == [0, 0, 0]
    pass_time(heart, TIMEOUT_MS)
    assert len(questions(heart.connection)) == 1


# --- clocks ---


@pytest.mark.parametrize("by_ms", [-HOUR_MS, -3_000, 3_000, HOUR_MS])
def test_every_half_is_asked_about_in_time_when_the_clock_is_set(make: Make, by_ms: int) -> None:
    """Back or forth: none before transactionTimeOut has passed since it came, none a second later."""
    heart = make("store")
    heart.beat_producer("producer", GROUP)
    came: dict[str, int] = {}
    passed = 0

    def wait(ms: int) -> None:
        nonlocal passed
        for _ in range(0, ms, 100):
            pass_time(heart, 100, 100)
            passed += 100
            for question in questions(heart.connection):
                waited = passed - came[question.msg_id or ""]
                due = TIMEOUT_MS if (question.msg_id or "") not in asked else INTERVAL_MS
                is_early = by_ms > 0  # a clock that was set forward makes everything older
                assert waited <= due + 1000, (question.msg_id, waited)
                assert is_early or waited >= due, (question.msg_id, waited)
                asked[question.msg_id or ""] = asked.get(question.msg_id or "", 0) + 1
                came[question.msg_id or ""] = passed
                heart.beat_producer("producer", GROUP)

    asked: dict[str, int] = {}
    for number in range(6):
        half = prepare(heart, number)
        came[str(half.transaction_id)] = passed
        wait(700)
    heart.now_ms += by_ms
    heart.broker.clock_moved(by_ms)
    for number in range(6, 8):
        half = prepare(heart, number)
        came[str(half.transaction_id)] = passed
        wait(700)
    wait(TIMEOUT_MS + INTERVAL_MS + 1000)
    assert sorted(asked.values()) == [2] * 8


def test_a_clock_behind_the_store_at_a_start_is_not_waited_for(make: Make) -> None:
    """Stored when the clock was an hour ahead; they count from the start."""
    heart = make("store")
    heart.beat_producer("producer", GROUP)
    for number in range(5):
        prepare(heart, number)
    heart.now_ms -= HOUR_MS
    again = killed(heart, make, "again")
    pass_time(again, TIMEOUT_MS - 1000)
    assert questions(again.connection) == []
    pass_time(again, 2000)
    assert len(questions(again.connection)) == 5


def test_immunity_does_not_wait_for_a_clock_either(make: Make) -> None:
    """Immune for 10 seconds, the clock an hour back: asked about at the next interval, not in an hour."""
    heart = make("store")
    heart.beat_producer("producer", GROUP)
    prepare(heart, CHECK_IMMUNITY_TIME_IN_SECONDS="10")
    heart.now_ms -= HOUR_MS
    heart.broker.clock_moved(-HOUR_MS)
    heart.beat_producer("producer", GROUP)
    pass_time(heart, TIMEOUT_MS + INTERVAL_MS, 5000)
    assert questions(heart.connection)
