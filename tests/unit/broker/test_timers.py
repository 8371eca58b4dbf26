"""Messages with a time of their own: parked, delivered at their millisecond, taken back; whatever happens."""

import json
import random
import shutil

import pytest

from hotfire.protocol.recall import Handle
from hotfire.protocol.record import parse_properties
from hotfire.protocol.requests import GetTimerCheckPoint, GetTimerMetrics, UpdateBrokerConfig
from hotfire.store import timerwheel
from tests.unit.broker.conftest import Make
from tests.unit.broker.harness import START_MS, Harness, bodies, send_request
from tests.unit.broker.timered import (
    PARKED,
    crash,
    delivered,
    recall,
    send,
    settle_flush,
    stored,
    wait_until,
)

pytestmark = pytest.mark.core

DAY_S = 86_400


@pytest.fixture(autouse=True)
def small_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wheel of hours instead of weeks: each test makes one."""
    monkeypatch.setattr(timerwheel, "SLOTS", 16_384)


# --- on time ---


@pytest.mark.parametrize("delay_ms", [1, 37, 999, 1000, 1001, 2500, 61_234])
def test_to_the_millisecond_by_delay_and_by_time(heart: Harness, delay_ms: int) -> None:
    """Nothing one millisecond before its time, the message at that millisecond; by each property."""
    start = heart.now_ms
    send(heart, b"delay", TIMER_DELAY_MS=delay_ms)
    send(heart, b"time", TIMER_DELIVER_MS=start + delay_ms)
    if delay_ms % 1000 == 0:
        send(heart, b"seconds", TIMER_DELAY_SEC=delay_ms // 1000)
    wait_until(heart, start + delay_ms - 1)
    assert delivered(heart) == []
    wait_until(heart, start + delay_ms)
    assert delivered(heart) == [b"delay", b"time", b"seconds"][: 2 + (delay_ms % 1000 == 0)]
    assert {record.store_timestamp for record in stored(heart)} == {start + delay_ms}


def test_the_first_property_counts(heart: Harness) -> None:
    """Seconds go before milliseconds, and these before a time of day."""
    send(heart, b"a", TIMER_DELAY_SEC=3, TIMER_DELAY_MS=1, TIMER_DELIVER_MS=START_MS + 9)
    send(heart, b"b", TIMER_DELAY_MS=2000, TIMER_DELIVER_MS=START_MS + 9)
    wait_until(heart, START_MS + 1999)
    assert delivered(heart) == []
    wait_until(heart, START_MS + 2000)
    assert delivered(heart) == [b"b"]
    wait_until(heart, START_MS + 3000)
    assert delivered(heart) == [b"b", b"a"]


def test_parked_as_the_reference_does_and_delivered_with_its_properties(heart: Harness) -> None:
    """In the wheel's topic with slot, real topic and queue; then in its own, with the times of its way."""
    reply = send(heart, b"body", TIMER_DELIVER_MS=START_MS + 4500)
    (parked,) = stored(heart, PARKED)
    named = parse_properties(parked.properties)
    assert (parked.queue_id, named["TIMER_OUT_MS"]) == (0, str(START_MS + 4000))
    assert (named["REAL_TOPIC"], named["REAL_QID"]) == ("T", "0")
    assert (reply.queue_id, reply.queue_offset) == (0, 0)
    assert reply.recall_handle is not None
    handle = Handle.decode(reply.recall_handle)
    assert handle == Handle("T", "broker-a", START_MS + 4001, "KEY-body")
    wait_until(heart, START_MS + 4500)
    (copy,) = stored(heart)
    kept = parse_properties(copy.properties)
    assert kept["TIMER_OUT_MS"] == named["TIMER_OUT_MS"]
    assert kept["TIMER_ENQUEUE_MS"] == str(START_MS)
    assert kept["TIMER_DEQUEUE_MS"] == str(START_MS + 4500)
    assert (copy.born_timestamp, copy.store_host) == (parked.born_timestamp, parked.store_host)
    assert bodies(heart.pull(expression="A")) == [b"body"], "its tag is its own"


def test_a_whole_second_waits_in_the_slot_before_it(heart: Harness) -> None:
    """A slot holds what is due in the second behind it, its end included."""
    send(heart, TIMER_DELIVER_MS=START_MS + 4000)
    named = parse_properties(stored(heart, PARKED)[0].properties)
    assert named["TIMER_OUT_MS"] == str(START_MS + 3000)
    wait_until(heart, START_MS + 3999)
    assert delivered(heart) == []
    wait_until(heart, START_MS + 4000)
    assert delivered(heart) == [b"body"]


def test_what_is_due_already_is_an_ordinary_message(heart: Harness) -> None:
    """A time that has come does not park, and gives no handle."""
    assert send(heart, b"past", TIMER_DELIVER_MS=START_MS - 5).recall_handle is None
    send(heart, b"zero", TIMER_DELAY_MS=0)
    assert delivered(heart) == [b"past", b"zero"]


def test_many_of_a_second_come_in_the_order_of_their_times_and_arrival(heart: Harness) -> None:
    """Messages of one slot, sent mixed, come by millisecond and then as they were sent."""
    times = [START_MS + 5000 + 100 * (n * 7 % 9) for n in range(90)]
    heart.receive(
        *[
            send_request(body=b"%d" % n, named={"UNIQ_KEY": f"K{n}", "TIMER_DELIVER_MS": str(at)})
            for n, at in enumerate(times)
        ]
    )
    heart.settle()
    heart.connection.take()
    wait_until(heart, START_MS + 7000)
    wanted = [b"%d" % n for _, n in sorted((at, n) for n, at in enumerate(times))]
    assert delivered(heart) == wanted
    assert all(record.store_timestamp == times[int(record.body)] for record in stored(heart))


def test_a_delay_level_goes_before_a_time(heart: Harness) -> None:
    """With both, the level counts and the time is removed."""
    send(heart, DELAY=1, TIMER_DELAY_SEC=9)
    assert "TIMER_DELAY_SEC" not in parse_properties(heart.log_records()[0].properties)
    wait_until(heart, START_MS + 1000)
    assert delivered(heart) == [b"body"]


def test_with_the_servers_ticks_none_is_early_and_none_100_ms_late(heart: Harness) -> None:
    """Times chosen at random, ticks every 50 ms and no sooner: never early, at most 100 ms late."""
    rng = random.Random(7)
    wanted: dict[bytes, int] = {}
    for _ in range(120):
        for _ in range(rng.randrange(4)):
            due, body = heart.now_ms + rng.choice((1, 40, 333, 999, 1000, 2718)), b"%d" % len(wanted)
            wanted[body] = due
            send(heart, body, TIMER_DELIVER_MS=due)
        heart.now_ms += 50
        heart.tick()
    for _ in range(60):
        heart.now_ms += 50
        heart.tick()
    late = {r.body: r.store_timestamp - wanted[r.body] for r in stored(heart)}
    assert late.keys() == wanted.keys()
    assert min(late.values()) >= 0
    assert max(late.values()) <= 100


# --- refused ---


@pytest.mark.parametrize(
    ("named", "code", "text"),
    [
        ({"TIMER_DELAY_SEC": "soon"}, 13, "timer message illegal"),
        ({"TIMER_DELIVER_MS": "99999999999999999999999"}, 13, "timer message illegal"),
        ({"TIMER_DELAY_SEC": str(3 * DAY_S + 1)}, 13, "259200000ms"),
        ({"TIMER_DELIVER_MS": str(START_MS + 3 * DAY_S * 1000 + 1)}, 13, "259200000ms"),
        ({"TIMER_DELIVER_MS": str(START_MS - 1), "TIMER_DEL_UNIQKEY": "T+K"}, 13, "due already"),
    ],
)
def test_impossible_times_are_refused(heart: Harness, named: dict[str, str], code: int, text: str) -> None:
    """No number, too far away, or a deletion of what is due: code 13, and nothing is stored."""
    reply = heart.send(named=named)
    assert reply.code == code
    assert text in (reply.remark or "")
    assert heart.log_records() == []


def test_switched_off(make: Make) -> None:
    """timerWheelEnable=false: refused with code 1, as the reference does."""
    heart = make(timer_wheel_enable=False)
    heart.create_topic("T")
    reply = heart.send(named={"TIMER_DELAY_SEC": "3"})
    assert (reply.code, "timerWheelEnable is false" in (reply.remark or "")) == (1, True)


def test_a_full_second_is_refused(make: Make) -> None:
    """More than timerCongestNumEachSlot of one second are refused; of the next they are taken."""
    heart = make(timer_congest_num_each_slot=2)
    heart.create_topic("T")
    for body in (b"a", b"b"):
        send(heart, body, TIMER_DELIVER_MS=START_MS + 4500)
    reply = heart.send(named={"TIMER_DELIVER_MS": str(START_MS + 4100)})
    assert (reply.code, "flow control" in (reply.remark or "")) == (1, True)
    send(heart, b"c", TIMER_DELIVER_MS=START_MS + 5500)


def test_the_limit_of_a_second_is_changed_at_once(make: Make) -> None:
    heart = make()
    heart.create_topic("T")
    for body in (b"a", b"b", b"c"):
        send(heart, body, TIMER_DELIVER_MS=START_MS + 4500)
    assert heart.ask(UpdateBrokerConfig(body=b"timerCongestNumEachSlot=3\n")).code == 0
    reply = heart.send(named={"TIMER_DELIVER_MS": str(START_MS + 4100)})
    assert (reply.code, "max num limit is 3" in (reply.remark or "")) == (1, True)
    assert heart.ask(UpdateBrokerConfig(body=b"timerCongestNumEachSlot=4\n")).code == 0
    send(heart, b"d", TIMER_DELIVER_MS=START_MS + 4100)


# --- recall ---


@pytest.mark.parametrize("before_ms", [4000, 1000, 1])
def test_what_was_taken_back_never_comes(make: Make, before_ms: int) -> None:
    """Recalled until the millisecond its second begins: it is not delivered, the others are."""
    heart = make(recall_message_enable=True)
    heart.create_topic("T")
    handle = send(heart, b"no", TIMER_DELIVER_MS=START_MS + 5300).recall_handle
    send(heart, b"yes", TIMER_DELIVER_MS=START_MS + 5300)
    wait_until(heart, START_MS + 5001 - before_ms)
    reply = recall(heart, handle)
    assert (reply.code, (reply.fields or {})["msgId"]) == (0, "KEY-no")
    wait_until(heart, START_MS + 7000)
    assert delivered(heart) == [b"yes"]


def test_recalls_are_checked(make: Make) -> None:
    """Forbidden unless switched on; topic, broker, time and form of the handle must be right."""
    heart = make(recall_message_enable=True)
    heart.create_topic("T")
    heart.create_topic("U")

    def handle(topic: str = "T", broker: str = "broker-a", at: int = START_MS + 5000) -> str:
        return Handle(topic, broker, at, "KEY").encode()

    far = START_MS + 3 * DAY_S * 1000
    for given, topic, code in [
        (handle(), "nope", 17), (handle("U"), "T", 604), (handle(broker="b"), "T", 604),
        (handle(at=START_MS), "T", 604), (handle(at=far), "T", 604), ("%%%", "T", 604), ("djI=", "T", 604),
    ]:  # fmt: skip
        reply = recall(heart, given, topic)
        assert reply.code == code, (given, reply)
        assert reply.fields == {"MSG_REGION": "DefaultRegion"}
    late, early = recall(heart, handle(at=START_MS - 3602)), recall(heart, handle(at=far))
    assert "recall failed, timestamp invalid: the message was due 3602 ms ago" in (late.remark or "")
    assert f"timestamp invalid: the message would be due in {far - START_MS} ms" in (early.remark or "")
    forbidding = make("other")
    forbidding.create_topic("T")
    assert recall(forbidding, handle()).code == 16


def test_a_delete_message_by_hand(heart: Harness) -> None:
    """TIMER_DEL_UNIQKEY with the same second deletes, whatever recallMessageEnable says."""
    send(heart, b"no", key="K1", TIMER_DELIVER_MS=START_MS + 5300)
    send(heart, b"x", key="K2", TIMER_DELIVER_MS=START_MS + 5900, TIMER_DEL_UNIQKEY="T+K1")
    wait_until(heart, START_MS + 7000)
    assert delivered(heart) == []


# --- long ones ---


def test_a_long_delay_is_rolled_and_exact(make: Make) -> None:
    """Beyond timerRollWindowSlot it goes through the wheel several times, and comes at its millisecond."""
    heart = make(timer_roll_window_slot=10)
    heart.create_topic("T")
    send(heart, TIMER_DELAY_MS=35_432)
    wait_until(heart, START_MS + 35_431)
    assert delivered(heart) == []
    wait_until(heart, START_MS + 35_432)
    assert delivered(heart) == [b"body"]
    times = [parse_properties(record.properties).get("TIMER_ROLL_TIMES") for record in stored(heart, PARKED)]
    assert times[:2] == [None, "1"]
    assert len(times) > 2


def test_a_long_delay_is_taken_back(make: Make) -> None:
    """Recall of a message that is still to be rolled."""
    heart = make(timer_roll_window_slot=10, recall_message_enable=True)
    heart.create_topic("T")
    handle = send(heart, TIMER_DELAY_MS=35_432).recall_handle
    wait_until(heart, START_MS + 3000)
    assert recall(heart, handle).code == 0
    wait_until(heart, START_MS + 40_000)
    assert delivered(heart) == []


# --- starts ---


def test_a_restart_goes_on(make: Make, heart: Harness) -> None:
    """Closed and opened: what waits is delivered when due, what was delivered is not again."""
    for n in range(20):
        send(heart, b"%d" % n, TIMER_DELIVER_MS=START_MS + 1000 + 100 * n)
    wait_until(heart, START_MS + 1950)
    assert len(delivered(heart)) == 10
    heart.reopen()
    wait_until(heart, START_MS + 4000)
    assert delivered(heart) == [b"%d" % n for n in range(20)]


@pytest.mark.parametrize("at_ms", [5, 950, 1450, 2950])
def test_a_kill_loses_none_and_repeats_none(make: Make, heart: Harness, at_ms: int) -> None:
    """Killed anywhere: each comes once, none early, found again by its key if it was copied."""
    for n in range(20):
        send(heart, b"%d" % n, TIMER_DELIVER_MS=START_MS + 1000 + 100 * n)
    wait_until(heart, START_MS + at_ms)
    again = crash(heart, make, f"killed{at_ms}")
    wait_until(again, START_MS + 5000)
    assert delivered(again) == [b"%d" % n for n in range(20)]
    assert all(r.store_timestamp >= START_MS + 1000 + 100 * int(r.body) for r in stored(again))


@pytest.mark.parametrize(
    "gone", [("timerwheel",), ("timerlog",), ("timerwheel", "timerlog"), ("config/timercheck",)]
)
def test_derived_files_may_go(make: Make, heart: Harness, gone: tuple[str, ...]) -> None:
    """Without wheel, timer log or checkpoint the rest is made anew from the queue: none lost, none twice."""
    for n in range(20):
        send(heart, b"%d" % n, TIMER_DELIVER_MS=START_MS + 1000 + 100 * n)
    wait_until(heart, START_MS + 1950)
    heart.close()
    for name in gone:
        path = heart.root / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    heart.open()
    wait_until(heart, START_MS + 5000)
    assert delivered(heart) == [b"%d" % n for n in range(20)]


def test_overdue_after_a_long_rest(make: Make, heart: Harness) -> None:
    """What fell due while the broker was away comes at once, in order."""
    for n in range(5):
        send(heart, b"%d" % n, TIMER_DELAY_SEC=10 + 30 * n)
    heart.close()
    heart.now_ms = START_MS + 100_000
    heart.open()
    wait_until(heart, START_MS + 101_000)
    assert delivered(heart) == [b"0", b"1", b"2", b"3"]
    wait_until(heart, START_MS + 131_000)
    assert delivered(heart) == [b"%d" % n for n in range(5)]


# --- the clock ---


def test_a_clock_set_forward_moves_delays_along(heart: Harness) -> None:
    """A delay is as long as it was; a time of day is a time of day."""
    send(heart, b"delay", TIMER_DELAY_SEC=5)
    send(heart, b"time", TIMER_DELIVER_MS=START_MS + 8000)
    wait_until(heart, START_MS + 1000)
    heart.now_ms += 3600_000
    heart.broker.clock_moved(3600_000)
    wait_until(heart, heart.now_ms + 3999)
    assert delivered(heart) == [b"time"]
    wait_until(heart, heart.now_ms + 1)
    assert delivered(heart) == [b"time", b"delay"]


def test_a_clock_set_back_does_not_hold_up_new_messages(heart: Harness) -> None:
    """After an hour back, a message of five seconds takes five seconds."""
    send(heart, b"old", TIMER_DELAY_SEC=1)
    wait_until(heart, START_MS + 3000)
    assert delivered(heart) == [b"old"]
    heart.now_ms -= 3600_000
    heart.broker.clock_moved(-3600_000)
    began = heart.now_ms
    send(heart, b"new", TIMER_DELIVER_MS=began + 5000)
    wait_until(heart, began + 4999)
    assert delivered(heart) == [b"old"]
    wait_until(heart, began + 5000)
    assert delivered(heart) == [b"old", b"new"]


# --- asked for ---


def test_checkpoint_and_metrics(heart: Harness) -> None:
    """Both answer as slaves of the reference ask."""
    send(heart, b"a", TIMER_DELAY_SEC=3)
    send(heart, b"b", TIMER_DELAY_SEC=60)
    wait_until(heart, START_MS + 1500)
    counts = json.loads(heart.ask(GetTimerMetrics()).body)["timingCount"]
    assert counts["T"]["count"] == 2
    wait_until(heart, START_MS + 6000)
    assert json.loads(heart.ask(GetTimerMetrics()).body)["timingCount"]["T"]["count"] == 1
    settle_flush(heart)
    wait_until(heart, START_MS + 8000)
    settle_flush(heart)
    body = heart.ask(GetTimerCheckPoint()).body
    fields = [int.from_bytes(body[at : at + 8]) for at in range(0, 56, 8)]
    assert len(body) == 56
    assert fields[1:4] == [104, 2, 2]
    assert START_MS + 3000 <= fields[0] <= START_MS + 8000
    heart.close()
    assert (heart.root / "config" / "timercheck").read_bytes()[8:32] == body[8:32]


def test_files_without_a_timer_message(make: Make) -> None:
    """A broker that never saw one makes none of the timers' files."""
    heart = make()
    heart.create_topic("T")
    heart.send()
    wait_until(heart, START_MS + 3000)
    heart.close()
    assert not {"timerwheel", "timerlog"} & {path.name for path in heart.root.iterdir()}


def test_what_is_taken_up_counts_once_the_log_has_it(heart: Harness) -> None:
    """However it was read: the checkpoint vouches for a unit only when the record it leads to is safe."""
    for body in (b"a", b"b"):
        send(heart, body, TIMER_DELAY_MS=60_000)
    wait_until(heart, START_MS + 100)
    heart.settle()
    assert heart.broker.timers.position == 2
    last = stored(heart, PARKED)[-1]
    assert heart.broker.timers._record_end == last.physical_offset + last.size
