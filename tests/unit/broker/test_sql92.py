"""Subscriptions by an SQL92 condition: filtered here, so that nothing unwanted travels."""

import itertools
import json
from typing import Any

import pytest

from hotfire.broker.fastlane import GRANT_PROGRAM_BYTES_MAX
from hotfire.model import Subscription
from hotfire.protocol import sql92
from hotfire.protocol.bloom import Bloom
from hotfire.protocol.codes import ResponseCode
from hotfire.protocol.command import Command, encode
from hotfire.protocol.requests import DeleteTopicInBroker, QueryConsumeQueue
from hotfire.protocol.sql92 import ConditionError
from hotfire.store.reading import Reading
from tests.unit.broker.conftest import LANE, Make
from tests.unit.broker.harness import (
    RETRY,
    START_MS,
    SUBSCRIPTION,
    SUSPEND,
    Harness,
    bodies,
    next_offset,
    pull_request,
    send_request,
    tagged,
)

pytestmark = pytest.mark.core


def by_sql(condition: str, topic: str = "T", version: int = 1) -> Subscription:
    return Subscription(topic, condition, "SQL92", version=version)


def send(heart: Harness, *named: dict[str, str], topic: str = "T") -> None:
    for number, properties in enumerate(named):
        heart.receive(send_request(body=b"%03d" % number, named=properties, topic=topic))
    heart.settle()
    heart.connection.take()


def pull(heart: Harness, condition: str, offset: int = 0, **fields: Any) -> Command:
    return heart.pull(
        offset=offset, expression=condition, expression_type="SQL92", flag=SUBSCRIPTION, **fields
    )


@pytest.mark.promise(151)
def test_a_condition_lets_through_what_it_is_true_of(make: Make) -> None:
    """a=0..5 and `a between 0 and 3`: four are delivered, by the heartbeat's condition or the pull's own."""
    heart = make()
    send(heart, *({"a": str(number)} for number in range(6)))
    heart.beat("c", "CG", by_sql("a between 0 and 3"))
    heart.connection.take()
    for _ in range(2):  # the lane, which knows tags alone, must not take the second
        for reply in (heart.pull(flag=0, expression=None), pull(heart, "a between 0 and 3")):
            assert bodies(reply) == [b"000", b"001", b"002", b"003"]
            assert next_offset(reply) == 6


@pytest.mark.promise(218)
def test_two_groups_with_different_conditions_on_one_topic(make: Make) -> None:
    """Each gets its own, by condition or by tag."""
    heart = make()
    send(heart, *({"a": str(number), "TAGS": "xy"[number % 2]} for number in range(6)))
    heart.beat("c1", "G1", by_sql("a < 2"))
    heart.beat("c2", "G2", by_sql("TAGS = 'y' and a is not null"))
    heart.beat("c3", "G3", tagged("T", "x"))
    heart.connection.take()
    assert bodies(heart.pull(group="G1", flag=0)) == [b"000", b"001"]
    assert bodies(heart.pull(group="G2", flag=0)) == [b"001", b"003", b"005"]
    assert bodies(heart.pull(group="G3", flag=0)) == [b"000", b"002", b"004"]


@pytest.mark.promise(154)
def test_what_does_not_pass_stays_off_the_wire(make: Make) -> None:
    """One message in a hundred passes: a hundredth of the bytes is sent, in a few answers."""
    heart = make()
    count, size = 2000, 500
    for number in range(count):
        heart.receive(send_request(body=b"%0*d" % (size, number), named={"a": str(number % 100)}))
    heart.settle()
    heart.connection.take()
    offset, got, answers = 0, list[bytes](), 0
    travelled = 0
    while offset < count:
        reply = pull(heart, "a = 42", offset)
        got += bodies(reply)
        travelled += len(reply.body)
        offset, answers = next_offset(reply), answers + 1
    assert got == [b"%0*d" % (size, number) for number in range(42, count, 100)]
    assert travelled < count * size * 2 / 100
    assert answers <= 4
    assert heart.broker.store.evaluated == count


def test_an_answer_is_as_large_as_any_other(make: Make) -> None:
    """Counts and bytes are bounded as without a condition, and the next pull goes on behind the last."""
    heart = make()
    send(heart, *({"a": "1"} for _ in range(100)))
    reply = pull(heart, "a = 1", max_msg_nums=10)
    assert (len(bodies(reply)), next_offset(reply)) == (10, 10)
    reply = pull(heart, "a = 1", 10, max_msg_nums=1000)
    assert (len(bodies(reply)), next_offset(reply)) == (32, 42)
    for _ in range(8):
        heart.receive(send_request(body=bytes(60_000), named={"a": "2"}, queue_id=1))
    heart.settle()
    heart.connection.take()
    reply = pull(heart, "a = 2", queue_id=1)
    assert (len(bodies(reply)), next_offset(reply)) == (4, 4)


@pytest.mark.parametrize("condition", ["a < 3", "a = 'none'", "a = '77'"])
def test_the_second_pull_by_a_condition_takes_the_fast_lane(make: Make, shape: str, condition: str) -> None:
    """The first is checked in full; the next are the lane's, with equal bytes, be it that nothing passes."""
    heart = make()
    send(heart, *({"a": str(number)} for number in range(100)))
    heart.beat("c", "CG", by_sql(condition))
    heart.connection.take()
    for offset in (0, 50, 99):
        replies = [
            heart.pull(offset=offset, flag=0, expression_type=kind) for kind in ("SQL92", "TAG", "SQL92")
        ]
        assert len({(reply.code, str(reply.fields), reply.remark, reply.body) for reply in replies}) == 1
    lane = heart.broker.fast.lane
    assert (None if lane is None else lane.pulls) == (8 if shape == LANE else None)


def test_a_condition_of_the_pulls_own_is_no_licence_for_others(make: Make) -> None:
    """Nor is a heartbeat's for a pull that brings its own, nor tags that read like it."""
    heart = make()
    send(heart, {"a": "1"}, {"a": "2"}, {"TAGS": "a = 2"})
    heart.beat("c", "CG", by_sql("a = 1"))
    heart.connection.take()
    for _ in range(3):
        assert bodies(pull(heart, "a = 2")) == [b"001"]
        assert bodies(answered(heart)) == [b"000"]
        assert bodies(heart.pull(expression="a = 2")) == [b"002"]


def test_a_harmed_record_is_passed_over_in_every_pull(make: Make) -> None:
    """By the condition of a heartbeat too, which the lane serves by."""
    heart = make()
    send(heart, *({"a": "1"} for _ in range(5)))
    heart.beat("c", "CG", by_sql("a = 1"))
    assert len(bodies(answered(heart))) == 5
    victim = heart.log_records()[2]
    with (heart.root / "commitlog" / f"{0:020d}").open("r+b") as log:
        log.seek(victim.physical_offset + 88)  # its body, which no condition looks at
        log.write(b"harm")
    for _ in range(2):
        replies = [heart.pull(flag=0, offset=offset) for offset in (0, 2, 3)]
        assert [bodies(reply) for reply in replies] == [[b"000", b"001"], [], [b"003", b"004"]]
        assert [next_offset(reply) for reply in replies] == [2, 3, 5]


def test_a_long_condition_is_served_without_a_grant(make: Make) -> None:
    """A table of such would pin memory."""
    heart = make()
    send(heart, {"a": "1"}, {"a": "2"})
    heart.beat("c", "CG", by_sql(f"a = 1 OR a = '{'x' * GRANT_PROGRAM_BYTES_MAX}'"))
    for _ in range(2):
        assert bodies(answered(heart)) == [b"000"]
    assert len(heart.broker.fast._grants) == 0


def test_hard_conditions_end_a_pass_of_the_lane(make: Make, shape: str) -> None:
    """Pulls that took a millisecond or more together: the others have their turn before the next."""
    heart = make()
    send(heart, *({"a": "x" * 30_000} for _ in range(40)))
    heart.beat("c", "CG", by_sql("a CONTAINS 'y'"))
    assert answered(heart).code == RETRY
    frames = b"".join(encode(pull_request(flag=0).to_command(opaque=number)) for number in range(5))
    consumed = heart.broker.receive(heart.connection, memoryview(frames), heart.now_ms)
    assert consumed == (len(frames) // 5 if shape == LANE else len(frames))
    assert [reply.code for reply in heart.connection.take()] == [RETRY] * (consumed * 5 // len(frames))


def test_a_condition_goes_with_its_topic(make: Make) -> None:
    """Made anew, the topic has none until the next heartbeat, also where pulls were served before."""
    heart = make()
    for _ in range(2):
        send(heart, {"a": "1"}, {"a": "2"})
        heart.beat("c", "CG", by_sql("a = 1"))
        for _ in range(2):
            assert bodies(answered(heart)) == [b"000"]
        assert heart.ask(DeleteTopicInBroker(topic="T")).code == 0
        heart.create_topic("T")
        assert answered(heart).code == ResponseCode.FILTER_DATA_NOT_EXIST


def test_a_remembered_condition_is_served_by_for_its_time_alone(make: Make) -> None:
    """After a restart, of a group that is not heard of: two minutes, however often it pulls."""
    heart = make()
    send(heart, {"a": "1"}, {"a": "2"})
    heart.beat("c", "CG", by_sql("a = 1"))
    heart.reopen()
    for _ in range(3):
        assert bodies(answered(heart)) == [b"000"]
    heart.now_ms += 120_000
    assert answered(heart).code == ResponseCode.SUBSCRIPTION_NOT_EXIST


def test_a_held_pull_wakes_for_what_passes_alone(make: Make) -> None:
    """It remembers how far it looked: each message is looked at once until one passes."""
    heart = make()
    send(heart, {"a": "1"})
    waiting = heart.connect(50_100)
    hold = pull_request(1, expression="a > 5", expression_type="SQL92", flag=SUBSCRIPTION | SUSPEND)
    heart.receive(hold, to=waiting)
    before = heart.store.evaluated
    for _ in range(5):
        send(heart, {"a": "1"})
        assert waiting.take() == []
    assert heart.store.evaluated - before == 5
    send(heart, {"a": "9"})
    reply = waiting.take_one()
    assert (bodies(reply), next_offset(reply)) == ([b"000"], 7)
    heart.receive(
        pull_request(7, expression="a > 5", expression_type="SQL92", flag=hold.sys_flag), to=waiting
    )
    send(heart, {"a": "1"})
    heart.pass_time(20_000)
    reply = waiting.take_one()
    assert (reply.code, next_offset(reply)) == (RETRY, 8), "it need not look at that one again"


def test_what_is_on_the_disk_is_read_beside_the_loop_and_filtered(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing in memory: the same messages, in the end."""
    heart = make()
    send(heart, *({"a": str(number % 10)} for number in range(300)))
    monkeypatch.setattr(Reading, "_at_hand", lambda self, pieces: None)
    monkeypatch.setattr(Reading, "_sift_at_once", lambda self, *asked: False)
    offset, got = 0, list[bytes]()
    while offset < 300:
        reply = pull(heart, "a = 3", offset, max_msg_nums=7)
        got += bodies(reply)
        offset = next_offset(reply)
    assert got == [b"%03d" % number for number in range(3, 300, 10)]
    assert pull(heart, "a = 'no'", 0).code == RETRY


def test_a_harmed_record_is_passed_over(make: Make) -> None:
    """Those around it are delivered, and the pull gets on."""
    heart = make()
    send(heart, *({"a": "1"} for _ in range(5)))
    victim = heart.log_records()[2]
    with (heart.root / "commitlog" / f"{0:020d}").open("r+b") as log:
        log.seek(victim.physical_offset + 4)
        log.write(b"harm")
    first, second, third = pull(heart, "a = 1"), pull(heart, "a = 1", 2), pull(heart, "a = 1", 3)
    assert (bodies(first), next_offset(first)) == ([b"000", b"001"], 2)
    assert (second.code, next_offset(second)) == (RETRY, 3)
    assert bodies(third) == [b"003", b"004"]


def test_what_cannot_be_served_is_refused_with_the_reason(make: Make) -> None:
    """The place of a mistake; a condition of the heartbeat that is wrong, or older than the pull's."""
    heart = make()
    send(heart, {"a": "1"})
    reply = pull(heart, "a > > 1")
    assert reply.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    assert "column 5, at '> 1'" in (reply.remark or "")
    assert pull(heart, "").code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    heart.beat("c", "CG", by_sql("a >", version=3))
    heart.connection.take()
    reply = heart.pull(flag=0, sub_version=3)
    assert reply.code == ResponseCode.FILTER_DATA_NOT_EXIST
    assert "column 4" in (reply.remark or "")
    heart.beat("c", "CG", by_sql("a = 1", version=4))
    heart.connection.take()
    assert bodies(heart.pull(flag=0, sub_version=4)) == [b"000"]
    assert heart.pull(flag=0, sub_version=5).code == ResponseCode.SUBSCRIPTION_NOT_LATEST
    heart.broker.fast.revoke("CG")
    heart.broker.conditions.get("T", "CG").version = 3  # type: ignore[union-attr]
    assert heart.pull(flag=0, sub_version=4).code == ResponseCode.FILTER_DATA_NOT_LATEST


def test_a_heartbeat_brings_no_more_conditions_than_are_soon_compiled(make: Make) -> None:
    """More are refused as a whole, with the number; as many as may be are taken."""
    heart = make()
    long = [by_sql("a = 1" + " " * 8180, f"T{number}") for number in range(5)]
    assert heart.beat("c", "CG", *long).code == ResponseCode.INVALID_PARAMETER
    assert len(heart.broker.conditions) == 0
    assert heart.beat("c", "CG", *long[:4]).code == 0
    for count in range(1, 5):  # one at once, the others with the next ticks
        assert len(heart.broker.conditions) == count
        heart.tick()


def test_a_condition_that_waits_to_be_compiled_is_there_when_it_is_asked_for(make: Make) -> None:
    """A pull by it does not wait; of two the later counts, and what is left behind is not compiled."""
    heart = make()
    send(heart, {"a": "1"}, {"a": "2"})
    long = [by_sql("a = 2" + " " * 5000, topic, version=5) for topic in ("A", "B", "T")]
    conditions = heart.broker.conditions
    heart.beat("c", "CG", *long)
    assert [topic for topic in "ABT" if conditions.has(topic)] == ["A"]
    conditions.register("CG", [*long[:2], by_sql("a = 1", version=4)], heart.now_ms)  # older than what waits
    heart.connection.take()
    assert bodies(heart.pull(flag=0, sub_version=5)) == [b"001"]
    assert [topic for topic in "ABT" if conditions.has(topic)] == ["A", "T"]
    heart.beat("c", "CG", long[0], long[2])  # B is no longer wanted
    for _ in range(3):
        heart.tick()
    assert len(conditions) == 2


@pytest.mark.parametrize("end", ["group", "topic"])
def test_what_waits_to_be_compiled_goes_with_its_group_and_its_topic(make: Make, end: str) -> None:
    heart = make()
    heart.beat("c", "CG", *(by_sql("a = 2" + " " * 5000, topic) for topic in ("A", "T")))
    if end == "group":
        heart.broker.conditions.leave("CG", heart.now_ms)
    else:
        heart.broker.conditions.forget_topic("T")
    heart.tick()
    assert not heart.broker.conditions.has("T")


_unread = itertools.count(7_000_000)
"""Numbers for conditions that nothing else in this process compiles."""


def test_a_wrong_condition_is_compiled_once(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """However often it is pulled by; the answer names its place each time."""
    heart = make()
    send(heart, {"a": "1"})
    read: list[str] = []

    def compile_anew(condition: str) -> bytes:
        read.append(condition)
        raise ConditionError(condition, 4, "wrong")

    monkeypatch.setattr(sql92, "compile_anew", compile_anew)
    wrong = f"a > > {next(_unread)}"
    for _ in range(5):
        assert "column 5, at '> " in (pull(heart, wrong).remark or "")
    assert read == [wrong]


def test_a_broker_may_be_told_to_refuse_conditions(make: Make) -> None:
    """enablePropertyFilter=false, which is Apache's default."""
    heart = make(enable_property_filter=False)
    send(heart, {"a": "1"})
    heart.beat("c", "CG", by_sql("a = 1"))
    heart.connection.take()
    for reply in (pull(heart, "a = 1"), heart.pull(flag=0)):
        assert reply.code == ResponseCode.SYSTEM_ERROR
        assert "filter message by SQL92" in (reply.remark or "")


def test_a_changed_condition_counts_from_its_heartbeat_on(make: Make) -> None:
    """By its edition: an older heartbeat of another member changes nothing."""
    heart = make()
    send(heart, {"a": "1"}, {"a": "2"})
    heart.beat("c", "CG", by_sql("a = 1", version=5))
    assert bodies(answered(heart)) == [b"000"]
    heart.beat("c2", "CG", by_sql("a = 2", version=4))
    assert bodies(answered(heart)) == [b"000"]
    heart.beat("c", "CG", by_sql("a = 2", version=6))
    assert bodies(answered(heart)) == [b"001"]
    shown = heart.ask(QueryConsumeQueue(topic="T", queue_id=0, index=0, count=1, consumer_group="CG"))
    assert json.loads(json.loads(bytes(shown.body))["filterData"])["expression"] == "a = 2"
    heart.beat("c", "CG", tagged("T", "*", version=7))
    assert bodies(answered(heart)) == [b"000", b"001"]


def answered(heart: Harness) -> Command:
    heart.connection.take()
    return heart.pull(flag=0)


@pytest.mark.promise(155)
def test_after_a_restart_a_condition_is_known_before_the_next_heartbeat(make: Make) -> None:
    """From consumerFilter.json, in the reference's form. Not of a group that had left."""
    heart = make()
    send(heart, *({"a": str(number)} for number in range(6)))
    gone = heart.connect(50_100)
    heart.beat("c", "CG", by_sql("a between 0 and 3", version=9))
    heart.beat("d", "LEFT", by_sql("a = 1"), connection=gone)
    heart.disconnect(gone)
    heart.reopen()
    stored = json.loads((heart.root / "config" / "consumerFilter.json").read_text())
    kept = stored["filterDataByTopic"]["T"]["groupFilterData"]
    assert kept["CG"] == {
        "bloomFilterData": {"bitNum": 112, "bitPos": list(Bloom(3, 112).positions("CG#T"))},
        "bornTime": START_MS, "clientVersion": 9, "consumerGroup": "CG", "dead": False, "deadTime": 0,
        "expression": "a between 0 and 3", "expressionType": "SQL92", "topic": "T",
    }  # fmt: skip
    assert kept["LEFT"]["dead"] is True
    assert bodies(heart.pull(flag=0, sub_version=9)) == [b"000", b"001", b"002", b"003"]
    assert heart.pull(flag=0, sub_version=10).code == ResponseCode.SUBSCRIPTION_NOT_EXIST
    assert heart.pull(group="LEFT", flag=0).code == ResponseCode.SUBSCRIPTION_NOT_EXIST
    heart.beat("c", "CG", by_sql("a = 5", version=10))
    assert bodies(answered(heart)) == [b"005"]


def test_conditions_are_written_while_the_broker_runs_and_forgotten_in_time(make: Make) -> None:
    """A crash loses ten seconds of them at most; topics that are deleted take theirs along."""
    heart = make(filter_data_clean_time_span=60_000)
    heart.create_topic("T")
    path = heart.root / "config" / "consumerFilter.json"
    member = heart.connect(50_100)
    heart.beat("c", "CG", by_sql("a = 1"), connection=member)
    heart.pass_time(11_000, step_ms=1000)
    assert heart.broker.conditions._table.settle()
    assert "CG" in path.read_text()
    heart.disconnect(member)
    heart.pass_time(50_000, step_ms=5000)
    assert len(heart.broker.conditions) == 1
    heart.pass_time(25_000, step_ms=5000)
    assert len(heart.broker.conditions) == 0
    heart.beat("c", "CG", by_sql("a = 1"))
    heart.connection.take()
    assert heart.ask(DeleteTopicInBroker(topic="T")).code == 0
    assert len(heart.broker.conditions) == 0


@pytest.mark.promise(152)
def test_bitmaps_spare_most_evaluations(make: Make) -> None:
    """The same messages as without them, and few of the others are looked at to answer pulls."""
    count = 1000
    named = [{"a": str(number % 100), "b": "x"} for number in range(count)]
    condition = by_sql("a = 42 and b = 'x'")
    looked, got = [], []
    for name, bitmaps in (("with", True), ("without", False)):
        heart = make(name, enable_consume_queue_ext=True, enable_calc_filter_bit_map=bitmaps)
        heart.beat("c", "CG", condition)
        heart.beat("d", "OTHER", by_sql("a < 5"))
        heart.now_ms += 1
        send(heart, *named)
        got.append(all_pulled(heart, count))
        looked.append(heart.store.evaluated)
    assert got[0] == got[1] == [b"%03d" % number for number in range(42, count, 100)]
    assert looked[1] == count
    assert looked[0] <= count // 20, looked


def test_bitmaps_are_believed_only_as_far_as_they_go(make: Make) -> None:
    """Messages stored before the condition was known, or by a former process, are looked at."""
    heart = make(enable_consume_queue_ext=True, enable_calc_filter_bit_map=True)
    heart.beat("o", "OTHER", by_sql("b = 1"))
    send(heart, {"a": "1"}, {"a": "2"}, {"a": "1"})
    heart.beat("c", "CG", by_sql("a = 1", version=1))
    assert bodies(answered(heart)) == [b"000", b"002"]
    heart.now_ms += 5
    heart.beat("c", "CG", by_sql("a = 2", version=2))
    assert bodies(answered(heart)) == [b"001"]
    heart.now_ms += 5
    send(heart, {"a": "2"}, {"a": "1"})
    assert bodies(answered(heart)) == [b"001", b"000"]
    heart.reopen()
    heart.beat("c", "CG", by_sql("a = 1", version=3))
    assert bodies(answered(heart)) == [b"000", b"002", b"001"]
    heart.now_ms += 5
    send(heart, {"a": "1"}, {"a": "2"})
    assert bodies(answered(heart)) == [b"000", b"002", b"001", b"000"]
    heart.now_ms -= 1000  # the clock goes back: what was stored is not newer than what is asked for now
    heart.beat("c", "CG", by_sql("a = 2", version=4))
    assert bodies(answered(heart)) == [b"001", b"000", b"001"]


def all_pulled(heart: Harness, count: int) -> list[bytes]:
    offset, got = 0, list[bytes]()
    heart.connection.take()
    while offset < count:
        reply = heart.pull(offset=offset, flag=0)
        got += bodies(reply)
        offset = next_offset(reply)
    return got


def test_what_came_back_may_be_filtered_by_its_first_condition(make: Make) -> None:
    """filterSupportRetry: a condition on the retry topic is that on the topic the message was sent to."""
    heart = make(filter_support_retry=True)
    retry = "%RETRY%CG"
    wanted = (by_sql("a = 1"), by_sql("a = 2 -- two", "U"), by_sql("TRUE", retry))
    heart.beat("c", "CG", *wanted)
    heart.connection.take()
    for number, (topic, a) in enumerate([("T", "1"), ("T", "2"), ("U", "2"), ("U", "1"), ("V", "1")]):
        named = {"RETRY_TOPIC": topic, "a": a}
        record = send_request(body=b"%d" % number, named=named, topic=retry, queue_id=0)
        heart.receive(record)
    heart.settle()
    heart.connection.take()
    assert bodies(heart.pull(topic=retry, flag=0)) == [b"0", b"2", b"4"]
