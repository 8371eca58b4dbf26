"""Transactions: nothing half is ever visible, nothing committed is lost, each outcome counts once."""

import dataclasses
import random
import re

import pytest

from hotfire.broker.unasked import GROUPS_MAX, TOLD_EVERY_MS, Unasked
from hotfire.protocol.codes import ResponseCode
from hotfire.protocol.record import decode_record, parse_properties
from hotfire.protocol.requests import ConsumerSendMsgBack, GetBrokerConfig, ResumeCheckHalfMessage, SendReply
from tests.unit.broker.conftest import Make
from tests.unit.broker.harness import START_MS, Harness, bodies, send_request, tagged
from tests.unit.broker.transacting import (
    ASIDE,
    COMMIT,
    GROUP,
    HALF,
    INTERVAL_MS,
    OP,
    ROLLBACK,
    TIMEOUT_MS,
    UNKNOWN,
    answer,
    half_request,
    key_of,
    outcome,
    pass_time,
    prepare,
    questions,
    say,
    stored,
    visible,
    work,
)

pytestmark = pytest.mark.core


@pytest.fixture
def heart(heart: Harness) -> Harness:
    """With one producer of the group, on the harness's own connection."""
    heart.beat_producer("producer", GROUP)
    return heart


# --- half, commit, rollback ---


@pytest.mark.promise(136)
def test_a_half_is_kept_in_its_own_topic_and_nobody_gets_it(heart: Harness) -> None:
    """An acknowledged half lies in the half topic with its real topic and queue, and no consumer sees it."""
    reply = prepare(heart, body=b"hidden", KEYS="order-1")
    (record,) = stored(heart, HALF)
    named = parse_properties(record.properties)
    assert (record.topic, record.queue_id, record.body, record.sys_flag) == (HALF, 0, b"hidden", 0)
    assert (named["REAL_TOPIC"], named["REAL_QID"]) == ("T", "0")
    assert named["__transactionId__"] == named["UNIQ_KEY"] == reply.transaction_id == key_of(1)
    assert reply.msg_id == record.message_id
    assert (reply.queue_id, reply.queue_offset) == (0, 0)
    pass_time(heart, 3_000)
    assert visible(heart) == []


@pytest.mark.promise(138)
def test_a_commit_makes_the_message_visible_once_as_it_was_sent(heart: Harness) -> None:
    """The copy in the real topic has the half's body, properties and place in the log."""
    half = prepare(heart, body=b"order", KEYS="k1 k2", colour="red")
    say(heart, outcome(half, COMMIT))
    assert visible(heart) == [b"order"]
    (prepared,), (copy,) = stored(heart, HALF), stored(heart, "T")
    assert copy.prepared_transaction_offset == prepared.physical_offset
    assert (copy.sys_flag, copy.born_timestamp, copy.born_host) == (
        8,
        prepared.born_timestamp,
        prepared.born_host,
    )
    assert (copy.store_host, copy.flag, copy.reconsume_times) == (prepared.store_host, 0, 0)
    named, before = parse_properties(copy.properties), parse_properties(prepared.properties)
    named.pop("__CRC32#", None), before.pop("__CRC32#", None)
    assert (before.pop("REAL_TOPIC"), before.pop("REAL_QID")) == ("T", "0")
    assert named == before
    assert {"KEYS": "k1 k2", "colour": "red", "TAGS": "A"}.items() <= named.items()


@pytest.mark.promise(139, 141)
def test_every_outcome_leaves_an_op_that_names_the_half(heart: Harness) -> None:
    """A rolled back message is never delivered; ops list the halves' offsets, of commits and of rollbacks."""
    first, second, third = (prepare(heart, number, body=b"%d" % number) for number in (1, 2, 3))
    say(heart, outcome(second, ROLLBACK))
    say(heart, outcome(first, COMMIT), outcome(third, COMMIT))
    ops = stored(heart, OP)
    assert [op.body for op in ops] == [b"1,", b"0,2,"]
    assert all(parse_properties(op.properties)["TAGS"] == "d" and op.queue_id == 0 for op in ops)
    pass_time(heart, 3 * INTERVAL_MS, 2000)
    assert visible(heart) == [b"1", b"3"]
    assert questions(heart.connection) == []


def test_the_op_lies_behind_the_copy_in_the_same_turn(heart: Harness) -> None:
    """A log cut anywhere never says that a commit is done whose copy is not there."""
    halves = [prepare(heart, number, body=b"%d" % number) for number in range(1, 9)]
    heart.receive(*(outcome(half, COMMIT).to_command(oneway=True) for half in halves))
    heart.settle()
    (op,) = stored(heart, OP)
    copies = stored(heart, "T")
    assert len(copies) == len(halves)
    assert op.physical_offset > max(copy.physical_offset for copy in copies)


@pytest.mark.parametrize("kind", [COMMIT, ROLLBACK])
def test_who_waits_for_an_outcome_is_told_when_the_log_has_it(heart: Harness, kind: int) -> None:
    """Not while the copy, or the op, may still be lost; and so is who says it again before that."""
    half = prepare(heart, body=b"order")
    heart.receive(outcome(half, kind), outcome(half, kind))
    assert heart.connection.take() == []
    safe_end = heart.store.readable_end
    work(heart)
    assert [reply.code for reply in heart.connection.take()] == [0, 0]
    assert [op.body for op in stored(heart, OP)] == [b"0,"]
    assert all(one.physical_offset >= safe_end for one in (*stored(heart, OP), *stored(heart, "T")))
    assert visible(heart) == ([b"order"] if kind == COMMIT else [])


def test_an_outcome_that_the_log_has_no_room_for_is_not_confirmed(
    heart: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who waits is told to say it again, or by the lane nothing yet, whatever others store meanwhile.

    And then, when its op is there, that it is safe.
    """
    half = prepare(heart)
    with monkeypatch.context() as patched:
        patched.setattr(heart.broker.transactions.outcomes, "write", lambda now_ms: None)
        (told,) = heart.receive(outcome(half, ROLLBACK))
        (sent,) = heart.receive(send_request(named={"UNIQ_KEY": key_of(99)}))
        work(heart)
        busy = {} if heart.broker.has_lane else {told: ResponseCode.SYSTEM_BUSY}
        assert {reply.opaque: reply.code for reply in heart.connection.take()} == {**busy, sent: 0}
    (again,) = heart.receive(outcome(half, ROLLBACK))
    work(heart)
    answers = {reply.opaque: reply.code for reply in heart.connection.take()}
    assert answers == dict.fromkeys([told, again] if heart.broker.has_lane else [again], 0)
    assert [op.body for op in stored(heart, OP)] == [b"0,"]


def test_one_who_waits_too_long_for_an_op_is_told_so(heart: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it asked for is done, and not safe. Those who send are not refused because of it."""
    half = prepare(heart)
    with monkeypatch.context() as patched:
        patched.setattr(heart.broker.transactions.outcomes, "write", lambda now_ms: None)
        (told,) = heart.receive(outcome(half, ROLLBACK))
        pass_time(heart, heart.config.wait_time_mills_in_send_queue + 1000)
        (sent,) = heart.receive(send_request(named={"UNIQ_KEY": key_of(99)}))
        pass_time(heart, heart.config.sync_flush_timeout)
    late = ResponseCode.FLUSH_DISK_TIMEOUT if heart.broker.has_lane else ResponseCode.SYSTEM_BUSY
    assert {reply.opaque: reply.code for reply in heart.connection.take()} == {told: late, sent: 0}


def test_a_half_of_the_lane_is_due_in_its_own_time(heart: Harness) -> None:
    """Also when one behind it in the same read was a handler's, and it came long after the last."""
    prepare(heart, 1)
    say(heart, outcome(prepare(heart, 2), COMMIT))
    pass_time(heart, 500, 100)
    heart.connection.take()
    heart.receive(half_request(3), half_request(4, DELAY="1"))
    work(heart)
    pass_time(heart, TIMEOUT_MS - 300, 100)
    assert {frame.code for frame in heart.connection.take()} == {0, 39}
    places = stored(heart, HALF)
    assert [parse_properties(one.properties)["UNIQ_KEY"] for one in places] == [
        key_of(number) for number in (1, 2, 3, 4, 1)
    ]


def test_outcomes_fill_turns_and_none_is_lost(make: Make) -> None:
    """Commits of more than a turn holds go on with its end, ops and all."""
    heart = make(turn_bytes_max=64 << 10)
    heart.create_topic("T")
    count = 40
    halves = [prepare(heart, number, body=b"%02d" % number + bytes(20_000)) for number in range(count)]
    heart.receive(*(outcome(half, COMMIT).to_command(oneway=True) for half in halves))
    work(heart)
    while heart.connection.kept:
        heart.receive_bytes(b"")
        work(heart)
    assert sorted(body[:2] for body in visible(heart)) == [b"%02d" % number for number in range(count)]
    ended = b"".join(op.body for op in stored(heart, OP)).decode().split(",")[:-1]
    assert sorted(map(int, ended)) == list(range(count))


def test_a_commit_that_comes_twice_counts_once(heart: Harness) -> None:
    """In one read, one after the other, after a rollback: what has had its end has no other."""
    first, second = prepare(heart, 1, b"once"), prepare(heart, 2, b"never")
    say(heart, outcome(first, COMMIT), outcome(first, COMMIT))
    say(heart, outcome(first, COMMIT))
    say(heart, outcome(second, ROLLBACK))
    say(heart, outcome(second, COMMIT), outcome(first, ROLLBACK))
    assert visible(heart) == [b"once"]
    assert len(stored(heart, OP)) == 2


def test_an_outcome_has_to_name_its_half_rightly(heart: Harness) -> None:
    """Another group, another place in the queue or the log, another message there: refused, nothing done."""
    half = prepare(heart)
    plain = SendReply.from_command(heart.send(body=b"plain"))
    wrong = [
        outcome(half, COMMIT, producer_group="OTHER"),
        outcome(half, COMMIT, tran_state_table_offset=1),
        outcome(half, COMMIT, commit_log_offset=1),
        outcome(half, COMMIT, commit_log_offset=-1),
        outcome(plain, COMMIT, msg_id="x"),
        outcome(half, 4),
    ]
    for told in wrong:
        assert heart.ask(told).code == ResponseCode.SYSTEM_ERROR, told
    assert visible(heart) == [b"plain"]
    assert heart.ask(outcome(half, COMMIT)).code == 0
    assert visible(heart) == [b"plain", b"body"]


def test_a_delay_level_counts_from_the_commit(heart: Harness) -> None:
    """A half with a delay level waits for its outcome, then for its time."""
    half = prepare(heart, body=b"late", DELAY="3")
    pass_time(heart, 2_000)
    say(heart, outcome(half, COMMIT))
    assert visible(heart) == []
    assert len(stored(heart, "SCHEDULE_TOPIC_XXXX")) == 1
    pass_time(heart, 9_500)
    assert visible(heart) == []
    pass_time(heart, 500)
    assert visible(heart) == [b"late"]


def test_transactional_messages_may_be_refused(make: Make) -> None:
    """rejectTransactionMessage: a half is answered NO_PERMISSION and not stored."""
    heart = make(reject_transaction_message=True)
    heart.create_topic("T")
    assert heart.ask(half_request()).code == ResponseCode.NO_PERMISSION
    assert stored(heart, HALF) == []


def test_a_mark_on_what_is_sent_back_is_none(heart: Harness) -> None:
    """Old clients leave TRAN_MSG on retries; a flag without the mark is refused, not stored out of sight."""
    request = send_request(named={"TRAN_MSG": "true", "DELAY": "3"}, reconsume_times=1)
    assert heart.ask(request).code == 0
    assert stored(heart, HALF) == []
    assert heart.ask(send_request(sys_flag=4)).code == ResponseCode.MESSAGE_ILLEGAL


@pytest.mark.promise(145)
def test_consumers_treat_committed_messages_like_others(heart: Harness) -> None:
    """Tags filter them, order is that of the commits, and one sent back comes again by the retry topic."""
    halves = [prepare(heart, n, b"%d" % n, TAGS="A" if n % 2 else "B") for n in range(1, 5)]
    say(heart, *(outcome(half, COMMIT) for half in reversed(halves)))
    assert visible(heart) == [b"4", b"3", b"2", b"1"]
    assert bodies(heart.pull(expression="A")) == [b"3", b"1"]
    heart.beat("consumer", "CG", tagged("T", "*"))
    heart.connection.take()
    (failed, *_) = stored(heart, "T")
    back = ConsumerSendMsgBack(offset=failed.physical_offset, group="CG", delay_level=1)
    heart.receive(back)
    work(heart)
    assert heart.connection.take_one().code == 0
    pass_time(heart, 1_000)
    assert visible(heart, "%RETRY%CG") == [b"4"]


# --- questions ---


@pytest.mark.promise(144)
def test_a_lost_outcome_is_asked_for(heart: Harness) -> None:
    """The first question comes after transactionTimeOut, shows the message as sent, and its answer counts."""
    half = prepare(heart, body=b"asked", KEYS="k")
    pass_time(heart, TIMEOUT_MS - 500)
    assert questions(heart.connection) == []
    pass_time(heart, 500)
    (asked,) = questions(heart.connection)
    prepared, anew = stored(heart, HALF)
    assert asked.topic == HALF
    assert (asked.tran_state_table_offset, asked.commit_log_offset) == (1, anew.physical_offset)
    assert asked.msg_id == asked.transaction_id == half.transaction_id
    assert (asked.offset_msg_id, asked.broker_name) == (anew.message_id, "broker-a")
    shown = decode_record(asked.body)
    assert (shown.topic, shown.queue_id, shown.body) == ("T", 0, b"asked")
    assert parse_properties(shown.properties)["TRANSACTION_CHECK_TIMES"] == "1"
    assert shown.born_timestamp == prepared.born_timestamp
    say(heart, answer(asked, COMMIT))
    assert visible(heart) == [b"asked"]
    pass_time(heart, 3 * INTERVAL_MS, 5000)
    assert questions(heart.connection) == []
    assert visible(heart) == [b"asked"]


@pytest.mark.promise(140)
def test_an_unknown_outcome_is_asked_for_again(heart: Harness) -> None:
    """Unknown twice, then committed: delivered after that question, not before."""
    half = prepare(heart, body=b"third")
    say(heart, outcome(half, UNKNOWN))
    pass_time(heart, TIMEOUT_MS)
    for _ in range(2):
        (asked,) = questions(heart.connection)
        say(heart, answer(asked, UNKNOWN))
        assert visible(heart) == []
        pass_time(heart, INTERVAL_MS - 500)
        assert questions(heart.connection) == []
        pass_time(heart, 500)
    (asked,) = questions(heart.connection)
    say(heart, answer(asked, COMMIT))
    assert visible(heart) == [b"third"]


@pytest.mark.promise(143)
def test_after_so_many_questions_it_is_laid_aside(heart: Harness) -> None:
    """Always unknown: 15 questions, then never delivered, kept aside; and taken up again when asked to."""
    prepare(heart, body=b"stuck")
    asked = 0
    for _ in range(20):
        heart.beat_producer("producer", GROUP)
        pass_time(heart, INTERVAL_MS, 5000)
        for question in questions(heart.connection):
            asked += 1
            say(heart, answer(question, UNKNOWN))
    assert asked == heart.config.transaction_check_max == 15
    assert visible(heart) == []
    (kept,) = stored(heart, ASIDE)
    assert kept.body == b"stuck"
    assert visible(heart, ASIDE) == [b"stuck"]
    assert heart.ask(ResumeCheckHalfMessage(msg_id="00")).code == ResponseCode.SYSTEM_ERROR
    assert heart.ask(ResumeCheckHalfMessage(msg_id=stored(heart, HALF)[0].message_id)).code == 1
    heart.receive(ResumeCheckHalfMessage(msg_id=kept.message_id))
    work(heart)
    assert heart.connection.take_one().code == 0
    pass_time(heart, TIMEOUT_MS)
    (question,) = questions(heart.connection)
    say(heart, answer(question, COMMIT))
    assert visible(heart) == [b"stuck"]


@pytest.mark.promise(142)
def test_any_living_producer_of_the_group_is_asked(heart: Harness) -> None:
    """Who sent the half is gone: another of its group is asked, chosen anew each time; others never."""
    others = [heart.connect(50_010 + i) for i in range(3)]
    for i, connection in enumerate(others):
        heart.beat_producer(f"other-{i}", GROUP, connection)
    stranger = heart.connect(50_020)
    heart.beat_producer("stranger", "OTHER", stranger)
    random.seed(7)
    halves = [prepare(heart, number, b"%d" % number) for number in range(30)]
    heart.disconnect(heart.connection)
    heart.connection = heart.connect(50_030)
    pass_time(heart, TIMEOUT_MS)
    asked = {connection: questions(connection) for connection in others}
    assert sum(map(len, asked.values())) == len(halves)
    assert all(asked.values()), "one of three was never chosen"
    assert questions(stranger) == []
    for question in (question for found in asked.values() for question in found):
        say(heart, answer(question, COMMIT))
    assert sorted(visible(heart)) == sorted(b"%d" % number for number in range(30))
    heart.tick()
    assert heart.broker.offsets.get(HALF, "CID_RMQ_SYS_TRANS", 0) == 60
    assert heart.broker.offsets.get(OP, "CID_RMQ_SYS_TRANS", 0) == len(stored(heart, OP))


def test_nobody_there_is_said_in_the_log(heart: Harness, caplog: pytest.LogCaptureFixture) -> None:
    """One line a minute, with the group and how often; what is laid aside says whether anybody is there."""
    for number in range(20):
        prepare(heart, number, PGROUP="gone")
    prepare(heart, 20, PGROUP="gone too")
    prepare(heart, 21)
    pass_time(heart, TIMEOUT_MS + 1_000)
    (first,) = caplog.messages
    assert "no producer of group=gone is connected questions=" in first
    pass_time(heart, 58_000)
    assert len(caplog.messages) == 1
    pass_time(heart, INTERVAL_MS)
    _, second = caplog.messages
    told = re.search(r"group=gone is connected questions=(\d+) other_groups=1 their_questions=(\d+)", second)
    assert told is not None, second
    assert int(told[1]) >= 20, "those since the first line"
    assert 1 <= int(told[2]) <= 3
    caplog.clear()
    for _ in range(heart.config.transaction_check_max):
        heart.beat_producer("producer", GROUP)
        pass_time(heart, INTERVAL_MS, 5000)
    aside = [line for line in caplog.messages if "laid aside" in line and "rounds=15" in line]
    assert len(aside) == 22
    assert [line for line in aside if "producers=1" in line] == [
        line for line in aside if "group=PG " in line
    ]
    assert sum("producers=0" in line for line in aside) == 21


def test_the_groups_that_are_counted_by_name_are_bounded(caplog: pytest.LogCaptureFixture) -> None:
    """Clients choose names; what does not fit is counted all the same. A clock set back silences nothing."""
    unasked = Unasked()
    for number in range(GROUPS_MAX + 5):
        unasked.note(f"group-{number}")
    unasked.note("group-0")
    unasked.tell(START_MS)
    (line,) = caplog.messages
    assert f"group=group-0 is connected questions=2 other_groups=999 their_questions={GROUPS_MAX + 4}" in line
    unasked.note("again")
    unasked.clock_moved(-3_600_000)
    unasked.tell(START_MS - 3_600_000 + TOLD_EVERY_MS - 1)
    assert len(caplog.messages) == 1
    unasked.tell(START_MS - 3_600_000 + TOLD_EVERY_MS)
    assert "group=again is connected questions=1 other_groups=0 their_questions=0" in caplog.messages[1]
    unasked.tell(START_MS)
    assert len(caplog.messages) == 2


def test_nobody_there_is_a_question_too(heart: Harness) -> None:
    """Without a living producer the question waits for the next interval; who reads nothing is not asked."""
    prepare(heart)
    heart.connection.is_clogged = True
    pass_time(heart, TIMEOUT_MS)
    heart.connection.is_clogged = False
    assert questions(heart.connection) == []
    assert heart.broker.transactions.unasked == 1
    pass_time(heart, INTERVAL_MS)
    assert len(questions(heart.connection)) == 1


def test_a_late_outcome_ends_the_half_that_was_stored_anew(heart: Harness) -> None:
    """The producer takes longer than transactionTimeOut and does not know when asked: its word counts."""
    half = prepare(heart, body=b"slow")
    pass_time(heart, TIMEOUT_MS + INTERVAL_MS)
    for asked in questions(heart.connection):
        say(heart, answer(asked, UNKNOWN))
    say(heart, outcome(half, COMMIT), outcome(half, COMMIT))
    assert visible(heart) == [b"slow"]
    pass_time(heart, 3 * INTERVAL_MS, 5000)
    assert questions(heart.connection) == []
    assert visible(heart) == [b"slow"]


def test_the_same_message_in_two_transactions_has_two_ends(heart: Harness) -> None:
    """A message sent again has its unique key; when it was born tells its transactions apart."""
    first = prepare(heart, 1, b"same")
    again = dataclasses.replace(half_request(1, b"same"), born_timestamp=START_MS)
    second = SendReply.from_command(heart.ask(again))
    pass_time(heart, TIMEOUT_MS)
    assert len(questions(heart.connection)) == 2
    say(heart, outcome(first, ROLLBACK))
    assert visible(heart) == []
    say(heart, outcome(second, COMMIT))
    assert visible(heart) == [b"same"]


def test_immunity_holds_questions_back(heart: Harness) -> None:
    """CHECK_IMMUNITY_TIME_IN_SECONDS: no question before; after it the producer's own word comes too late."""
    half = prepare(heart, body=b"immune", CHECK_IMMUNITY_TIME_IN_SECONDS="100")
    other = prepare(heart, 2, b"other")
    pass_time(heart, TIMEOUT_MS)
    assert [asked.msg_id for asked in questions(heart.connection)] == [key_of(2)]
    pass_time(heart, 99_000 - TIMEOUT_MS, 1000)
    assert {asked.msg_id for asked in questions(heart.connection)} == {key_of(2)}
    pass_time(heart, INTERVAL_MS, 1000)
    (asked,) = [asked for asked in questions(heart.connection) if asked.msg_id == key_of(1)]
    pass_time(heart, 1_000)
    assert heart.ask(outcome(half, COMMIT)).code == ResponseCode.ILLEGAL_OPERATION
    assert visible(heart) == []
    say(heart, answer(asked, COMMIT), outcome(other, ROLLBACK))
    assert visible(heart) == [b"immune"]


@pytest.mark.parametrize("immune_ms", [2_000, 10_000, 50_000])
def test_immunity_ends_within_an_interval(heart: Harness, immune_ms: int) -> None:
    """Behind others that were asked about the first question waits for them, for an interval at most.

    Less than transactionTimeOut changes nothing.
    """
    sent_ms = heart.now_ms
    prepare(heart, body=b"before")
    prepare(heart, 2, b"immune", CHECK_IMMUNITY_TIME_IN_SECONDS=str(immune_ms // 1000))
    while key_of(2) not in [asked.msg_id for asked in questions(heart.connection)]:
        heart.beat_producer("producer", GROUP)
        pass_time(heart, 500)
    asked_ms = heart.now_ms - sent_ms
    assert max(immune_ms, TIMEOUT_MS) <= asked_ms <= max(immune_ms + INTERVAL_MS, TIMEOUT_MS) + 500, asked_ms


def test_what_is_immune_may_be_ended_meanwhile(heart: Harness) -> None:
    """The producer's own word ends an immune half wherever it is stored by then."""
    half = prepare(heart, body=b"immune", CHECK_IMMUNITY_TIME_IN_SECONDS="100")
    pass_time(heart, 50_000, 1000)
    say(heart, outcome(half, COMMIT))
    pass_time(heart, 100_000, 1000)
    assert questions(heart.connection) == []
    assert visible(heart) == [b"immune"]


def test_many_open_transactions_are_asked_about_a_few_at_a_time(heart: Harness) -> None:
    """A step asks about a bounded number; all are asked about, each once."""
    for number in range(100):
        heart.receive(half_request(number))
    work(heart)
    heart.connection.take()
    heart.now_ms += TIMEOUT_MS
    heart.broker.tick(heart.now_ms)
    assert len(stored(heart, HALF)) > 100
    heart.tick()
    pass_time(heart, 200, 5)
    assert sorted(asked.msg_id or "" for asked in questions(heart.connection)) == sorted(
        map(key_of, range(100))
    )


def test_ticks_are_wanted_when_something_is_due(heart: Harness) -> None:
    """Nothing open: no tick of its own; a half: at its time, also after the clock was set."""
    transactions = heart.broker.transactions
    assert transactions.due_ms() is None
    half = prepare(heart)
    sent_ms = heart.now_ms
    heart.tick()
    assert sent_ms < (transactions.due_ms() or 0) <= sent_ms + TIMEOUT_MS
    for by_ms in (-3_600_000, 7_200_000):
        heart.broker.clock_moved(by_ms)
        heart.now_ms += by_ms
    pass_time(heart, TIMEOUT_MS)
    assert len(questions(heart.connection)) == 1
    say(heart, outcome(half, ROLLBACK))
    assert transactions.due_ms() is None


def test_the_settings_have_the_reference_s_names_and_may_change(heart: Harness) -> None:
    """transactionTimeOut, transactionCheckInterval and transactionCheckMax, as an operator knows them."""
    body = heart.ask(GetBrokerConfig()).body.decode()
    for line in ("transactionTimeOut=6000", "transactionCheckInterval=30000", "transactionCheckMax=15"):
        assert line in body.splitlines()
