"""Delayed messages: parked by level, delivered in order when due, never before, whatever happens."""

import json
from typing import Any

import pytest

from hotfire import core
from hotfire.broker import schedule
from hotfire.broker.config import FlushDiskType
from hotfire.errors import StoreFull
from hotfire.model import CHECK_MAX_TIME_TOPIC, HALF_OP_TOPIC
from hotfire.protocol.record import Host, Record, encode_properties, parse_properties
from hotfire.protocol.requests import SendReply
from hotfire.store.config import DELAY_LEVELS, delays_ms
from hotfire.store.reading import Read
from tests.unit.broker.conftest import Make
from tests.unit.broker.harness import START_MS, Harness, bodies, properties, pull_request, send_request

pytestmark = pytest.mark.core

PARKED = "SCHEDULE_TOPIC_XXXX"
HOUR_MS = 3_600_000


def send(heart: Harness, level: int, body: bytes = b"body", **fields: object) -> SendReply:
    return SendReply.from_command(heart.send(body=body, named={"DELAY": str(level), "TAGS": "A"}, **fields))


def wait_until(heart: Harness, ms: int) -> None:
    """One tick at that moment, as the server gives one when something is due."""
    heart.now_ms = ms
    heart.tick()


def delivered(heart: Harness, topic: str = "T", queue_id: int = 0) -> list[bytes]:
    """Everything in the queue, in its order."""
    heart.settle()
    found: list[bytes] = []
    while more := bodies(heart.pull(topic=topic, queue_id=queue_id, offset=len(found))):
        found.extend(more)
    return found


def stored(heart: Harness, topic: str) -> list[Record]:
    return [record for record in heart.log_records() if record.topic == topic]


def delay_offsets(heart: Harness) -> dict[int, int]:
    text = (heart.root / "config" / "delayOffset.json").read_text()
    for level in range(1, 19):  # bare keys, as the reference writes them
        text = text.replace(f"{{{level}:", f'{{"{level}":').replace(f",{level}:", f',"{level}":')
    return {int(level): offset for level, offset in json.loads(text)["offsetTable"].items()}


def crash(heart: Harness, make: Make, name: str, **settings: Any) -> Harness:
    """A broker over a copy of the files as they are now: what a kill leaves."""
    heart.broker.schedule._table.settle()
    heart.store._flushing.settle(heart.now_ms, wait=True)
    heart.image(name)
    return make(name, now_ms=heart.now_ms, **settings)


# --- levels ---


@pytest.mark.promise(129)
def test_each_level_is_on_time_and_not_early(heart: Harness) -> None:
    """18 levels from 1 s to 2 h: nothing one millisecond before, the message at that millisecond."""
    assert delays_ms(DELAY_LEVELS)[2] == 10_000
    assert len(delays_ms(DELAY_LEVELS)) == 18
    for level, delay in enumerate(delays_ms(DELAY_LEVELS), 1):
        body = b"level %d" % level
        send(heart, level, body)
        sent_ms, before = heart.now_ms, delivered(heart)
        wait_until(heart, sent_ms + delay - 1)
        assert delivered(heart) == before, f"level {level} was early"
        wait_until(heart, sent_ms + delay)
        assert delivered(heart) == [*before, body], f"level {level} was not on time"


@pytest.mark.promise(129)
def test_the_next_tick_is_asked_for_when_a_message_is_due(heart: Harness) -> None:
    """A server whose ticks are coarse is told to the millisecond when the next is wanted."""
    assert heart.broker.due_ms() is None
    send(heart, 2)
    send(heart, 1)
    assert heart.broker.due_ms() == START_MS + 1000
    wait_until(heart, START_MS + 1000)
    assert heart.broker.due_ms() == START_MS + 5000
    wait_until(heart, START_MS + 5000)
    assert heart.broker.due_ms() is None
    assert len(delivered(heart)) == 2


@pytest.mark.promise(130)
def test_parked_with_its_real_topic_and_delivered_with_it(heart: Harness) -> None:
    """While it waits: the schedule topic, the level's queue. Then: its own topic and queue, all else kept."""
    reply = send(heart, 3, queue_id=2, flag=7)
    assert (reply.queue_id, reply.queue_offset) == (2, 0)
    (parked,) = heart.log_records()
    assert (parked.topic, parked.queue_id) == (PARKED, 2)
    named = parse_properties(parked.properties)
    assert (named["REAL_TOPIC"], named["REAL_QID"], named["DELAY"]) == ("T", "2", "3")
    assert heart.store.tags_at(PARKED, 2, 0) == START_MS + 10_000, "the entry holds the time of delivery"
    heart.now_ms += 10_000
    heart.tick()
    (copy,) = stored(heart, "T")
    assert (copy.topic, copy.queue_id, copy.queue_offset) == ("T", 2, 0)
    assert (copy.body, copy.flag, copy.sys_flag) == (parked.body, 7, parked.sys_flag)
    assert (copy.born_timestamp, copy.born_host) == (parked.born_timestamp, parked.born_host)
    assert (copy.store_host, copy.store_timestamp) == (parked.store_host, START_MS + 10_000)
    kept = parse_properties(copy.properties)
    for names in (named, kept):
        names.pop("__CRC32#")
    assert kept == named, "the reference leaves the properties as they were parked"
    found = heart.ask(pull_request(topic="T", queue_id=2, expression="A"))
    assert bodies(found) == [b"body"], "its tag is its own again"


@pytest.mark.promise(131)
def test_a_level_too_high_is_brought_down(heart: Harness) -> None:
    """Level 99 waits as long as level 18: two hours."""
    send(heart, 99)
    (parked,) = heart.log_records()
    assert parked.queue_id == 17
    assert parse_properties(parked.properties)["DELAY"] == "18"
    wait_until(heart, START_MS + 2 * HOUR_MS - 1)
    assert delivered(heart) == []
    wait_until(heart, START_MS + 2 * HOUR_MS)
    assert delivered(heart) == [b"body"]


@pytest.mark.promise(132)
def test_the_ladder_is_a_setting(make: Make) -> None:
    """Ladder `2s 4s`: level 1 after 2 s, level 2 after 4 s, level 3 brought down to 4 s."""
    heart = make(message_delay_level="2s 4s")
    heart.create_topic("T")
    for level in (1, 2, 3):
        send(heart, level, b"%d" % level)
    seen = []
    for ms in (1999, 2000, 3999, 4000):
        wait_until(heart, START_MS + ms)
        seen.append(delivered(heart))
    assert seen == [[], [b"1"], [b"1"], [b"1", b"2", b"3"]]


@pytest.mark.promise(132)
def test_a_level_that_left_the_ladder_is_delivered_all_the_same(make: Make) -> None:
    """What was parked on a step that no longer exists comes when it was to come, not early and not never."""
    heart = make(message_delay_level="1s 1h")
    heart.create_topic("T")
    send(heart, 2, b"long")
    heart.close()
    heart = make(message_delay_level="2s", now_ms=START_MS + 5000)
    wait_until(heart, START_MS + HOUR_MS - 1)
    assert delivered(heart) == []
    wait_until(heart, START_MS + HOUR_MS)
    assert delivered(heart) == [b"long"]


@pytest.mark.parametrize("level", [0, -1])
def test_no_level_is_no_delay(heart: Harness, level: int) -> None:
    """Level 0 and levels below are ordinary messages."""
    send(heart, level)
    assert delivered(heart) == [b"body"]


def test_a_client_cannot_name_the_real_topic(heart: Harness) -> None:
    """Where a parked message goes is the broker's to write: what the client wrote there is gone."""
    text = properties(DELAY="1", REAL_TOPIC="../../etc", REAL_QID="9999", TIMER_DELAY_SEC="9")
    assert heart.send(properties=text).code == 0
    named = parse_properties(heart.log_records()[0].properties)
    assert (named["REAL_TOPIC"], named["REAL_QID"]) == ("T", "0")
    assert "TIMER_DELAY_SEC" not in named
    wait_until(heart, START_MS + 1000)
    assert delivered(heart) == [b"body"]


# --- many, cold, refused ---


def test_a_backlog_is_delivered_in_order_over_many_steps(heart: Harness) -> None:
    """500 messages due at once: each step moves a bounded number, the order of the level is kept."""
    sent = [b"%03d" % n for n in range(500)]
    heart.receive(*[send_request(body=body, named={"DELAY": "1"}) for body in sent])
    heart.settle()
    heart.connection.take()
    heart.now_ms += 1000
    before = heart.broker.schedule.moved
    heart.broker.tick(heart.now_ms)
    assert 0 < heart.broker.schedule.moved - before <= schedule.STEP_COUNT_MAX
    for _ in range(500):
        heart.settle()
        if heart.broker.schedule.moved - before == 500:
            break
    assert delivered(heart) == sent


def test_what_is_cold_is_read_beside_the_loop(heart: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    """A parked message that left the page cache holds nobody up, and comes all the same."""
    send(heart, 1, b"cold")
    read = heart.store._reading._fill
    cold: list[int] = []

    def fill(found: Read, queue: core.Queue) -> Read:
        filled = read(found, queue)
        if queue.key == (PARKED, 0):
            cold.append(found.next_offset)
            filled.data = None
        return filled

    monkeypatch.setattr(heart.store._reading, "_fill", fill)
    heart.now_ms += 1000
    heart.broker.tick(heart.now_ms)
    assert cold == [1]
    assert heart.broker.schedule.moved == 0
    heart.settle()
    assert delivered(heart) == [b"cold"]
    assert cold == [1], "and is read once"


def full(record: Record, now_ms: int) -> None:
    raise StoreFull("the disk is full")


def test_a_full_disk_holds_them_back_and_loses_none(heart: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    """While nothing can be stored they stay parked; when there is room again they come."""
    send(heart, 1)
    append = heart.store.append
    monkeypatch.setattr(heart.store, "append", full)
    for _ in range(5):
        heart.now_ms += 1000
        heart.tick()
    assert delivered(heart) == []
    monkeypatch.setattr(heart.store, "append", append)
    heart.pass_time(200)
    assert delivered(heart) == [b"body"]


@pytest.mark.parametrize(
    "real",
    [
        {"REAL_TOPIC": "../x"}, {"REAL_QID": "-1"}, {"REAL_TOPIC": PARKED}, {"REAL_TOPIC": HALF_OP_TOPIC},
        {"REAL_TOPIC": CHECK_MAX_TIME_TOPIC}, {},
    ],
)  # fmt: skip
def test_one_that_does_not_say_where_it_belongs_is_no_obstacle(heart: Harness, real: dict[str, str]) -> None:
    """A damaged parked record is passed over and said; those behind it come."""
    host = Host.parse("127.0.0.1", 1)
    named = encode_properties({"REAL_TOPIC": "T", "REAL_QID": "0"} | real if real else {"A": "b"})
    heart.store.append(Record(PARKED, 0, b"lost", START_MS, host, 0, host, named), START_MS)
    send(heart, 1, b"behind")
    wait_until(heart, START_MS + 1000)
    assert delivered(heart) == [b"behind"]
    assert len(heart.log_records()) == 3


# --- restarts ---


@pytest.mark.promise(133)
def test_progress_survives_a_restart(heart: Harness) -> None:
    """Delivered before the restart: not again. Due after it: on time. Due while away: at once."""
    for level, body in ((1, b"before"), (2, b"away"), (3, b"after")):
        send(heart, level, body)
    wait_until(heart, START_MS + 1000)
    heart.close()
    assert delay_offsets(heart) == {1: 1, 2: 0, 3: 0}
    heart.now_ms = START_MS + 7000
    heart.open()
    heart.tick()
    assert delivered(heart) == [b"before", b"away"]
    wait_until(heart, START_MS + 9999)
    assert delivered(heart) == [b"before", b"away"]
    wait_until(heart, START_MS + 10_000)
    assert delivered(heart) == [b"before", b"away", b"after"]


@pytest.mark.promise(133)
def test_a_crash_in_mid_delay_loses_none(heart: Harness, make: Make) -> None:
    """A kill while messages wait: each is delivered once it is due, none early, none twice."""
    send(heart, 1, b"one")
    send(heart, 2, b"five")
    after = crash(heart, make, "killed")
    wait_until(after, START_MS + 999)
    assert delivered(after) == []
    wait_until(after, START_MS + 1000)
    assert delivered(after) == [b"one"]
    wait_until(after, START_MS + 5000)
    assert delivered(after) == [b"one", b"five"]


@pytest.mark.promise(133)
def test_a_crash_between_copy_and_progress_neither_repeats_nor_loses(heart: Harness, make: Make) -> None:
    """Progress is written after the copy is safe: after a kill between the two the copy is found, by its key.

    Of two like messages with keys of their own, the one that was not delivered yet is.
    """
    send(heart, 1)
    wait_until(heart, START_MS + 1000)
    heart.send(body=b"body", named={"DELAY": "1", "UNIQ_KEY": "another"})  # due after the kill
    again = crash(heart, make, "between")
    again.tick()
    assert delivered(again) == [b"body"]
    wait_until(again, START_MS + 2000)
    assert delivered(again) == [b"body", b"body"]
    wait_until(heart, START_MS + 2000)
    heart.broker.schedule._table.settle()  # one write at a time
    heart.pass_time(heart.config.flush_delay_offset_interval + 100)
    heart.broker.schedule._table.settle()
    assert delay_offsets(heart) == {1: 2}
    after = crash(heart, make, "after")
    after.pass_time(2000)
    assert delivered(after) == [b"body", b"body"]


def test_without_an_index_of_keys_a_crash_repeats_and_never_loses(make: Make) -> None:
    """Nothing then tells that the copy was made: rather twice than not at all."""
    heart = make(message_index_enable=False)
    heart.create_topic("T")
    send(heart, 1)
    wait_until(heart, START_MS + 1000)
    again = crash(heart, make, "between", message_index_enable=False)
    again.tick()
    assert delivered(again) == [b"body", b"body"]


def test_progress_never_runs_ahead_of_the_disk(make: Make) -> None:
    """ASYNC_FLUSH: a copy that is written and not yet synced is not called delivered."""
    heart = make(flush_disk_type=FlushDiskType.ASYNC_FLUSH, flush_interval_commit_log=600_000)
    heart.create_topic("T")
    send(heart, 1)
    wait_until(heart, START_MS + 1000)
    assert delivered(heart) == [b"body"]
    wait_until(heart, START_MS + 1050)
    assert heart.store.flushed_end < heart.store.readable_end
    assert heart.broker.schedule.progress()[1] == (0, 1)


def test_progress_of_another_broker_is_taken_over(make: Make) -> None:
    """A table as Apache writes it, with or without a version; positions outside the queue are corrected."""
    heart = make()
    heart.create_topic("T")
    send(heart, 1, b"old")
    send(heart, 1, b"new")
    heart.close()
    file = heart.root / "config" / "delayOffset.json"
    file.write_text('{"offsetTable":{1:1,2:77}}')
    heart.now_ms += 1000
    heart.open()
    heart.tick()
    assert delivered(heart) == [b"new"]
    heart.close()
    assert delay_offsets(heart)[1] == 2


# --- the clock ---


def set_clock(heart: Harness, by_ms: int) -> None:
    heart.now_ms += by_ms
    heart.broker.clock_moved(by_ms)
    heart.tick()


@pytest.mark.parametrize("by_ms", [HOUR_MS, -HOUR_MS])
def test_a_clock_that_is_set_changes_no_delay(heart: Harness, by_ms: int) -> None:
    """Forward or back by an hour while messages wait: they come after their 10 s, not earlier, not later."""
    send(heart, 3, b"before")
    heart.pass_time(1000)
    set_clock(heart, by_ms)
    send(heart, 3, b"since")
    heart.pass_time(8950)
    assert delivered(heart) == []
    heart.pass_time(50)
    assert delivered(heart) == [b"before"]
    heart.pass_time(950)
    assert delivered(heart) == [b"before"]
    heart.pass_time(50)
    assert delivered(heart) == [b"before", b"since"]


def test_a_clock_set_back_while_away_delays_by_the_level_at_most(heart: Harness) -> None:
    """Parked when the clock was years ahead: delivered one delay after the start, and nothing is stuck."""
    heart.pass_time(50)
    send(heart, 3, b"ahead")
    heart.close()
    heart.now_ms = START_MS - 1000 * HOUR_MS
    heart.open()
    send(heart, 3, b"behind it")
    wait_until(heart, heart.now_ms + 9999)
    assert delivered(heart) == []
    wait_until(heart, heart.now_ms + 1)
    assert delivered(heart) == [b"ahead", b"behind it"]
