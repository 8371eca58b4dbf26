"""Timer messages in adversity: recalls in a hurry, large properties, a short log, long absences."""

import os
import shutil
from pathlib import Path

import pytest

from hotfire.broker import timerrecalls, timers
from hotfire.broker.timershifts import SHIFTS_MAX, Shifts
from hotfire.protocol.record import parse_properties
from hotfire.store import timerwheel
from hotfire.store.disk import Disk
from hotfire.store.tables import Table
from hotfire.store.timerlog import NONE, UNIT_BYTES, TimerLog, Unit
from tests.unit.broker.conftest import Make
from tests.unit.broker.harness import START_MS, Harness
from tests.unit.broker.timered import PARKED, crash, delivered, recall, send, stored, wait_until

pytestmark = pytest.mark.core

DAY_MS, HOUR_MS = 86_400_000, 3_600_000
PROPERTIES_MAX = 32_767


@pytest.fixture(autouse=True)
def small_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wheel of hours instead of weeks: each test makes one."""
    monkeypatch.setattr(timerwheel, "SLOTS", 16_384)


# --- recalls that are not in the wheel yet ---


def stop_taking_up(heart: Harness) -> None:
    heart.broker.timers._retry_ms = heart.now_ms + DAY_MS


def test_a_recall_holds_before_it_is_taken_up(make: Make) -> None:
    """Stored before the slot is opened, and taken up when all is over: what it takes back never comes."""
    heart = make(recall_message_enable=True)
    heart.create_topic("T")
    handle = send(heart, b"no", TIMER_DELIVER_MS=START_MS + 5300).recall_handle
    send(heart, b"yes", TIMER_DELIVER_MS=START_MS + 5300)
    wait_until(heart, START_MS + 1000)
    stop_taking_up(heart)
    assert recall(heart, handle).code == 0
    wait_until(heart, START_MS + 7000)
    assert delivered(heart) == [b"yes"]
    heart.broker.timers._retry_ms = 0
    wait_until(heart, START_MS + 8000)
    assert delivered(heart) == [b"yes"]
    assert not heart.broker.timers.recalls._waiting


def test_a_recall_holds_across_a_kill_before_it_is_taken_up(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the queue held at the start is taken up before anything is delivered, however long that takes."""
    heart = make(recall_message_enable=True)
    heart.create_topic("T")
    handle = send(heart, b"no", TIMER_DELIVER_MS=START_MS + 5300).recall_handle
    wait_until(heart, START_MS + 3000)
    stop_taking_up(heart)
    for n in range(9):
        send(heart, b"%d" % n, TIMER_DELIVER_MS=START_MS + 5400)
    assert recall(heart, handle).code == 0
    heart.now_ms = START_MS + 6000
    monkeypatch.setattr(timers, "STEP_COUNT_MAX", 1)
    monkeypatch.setattr(timers, "COUNT_MAX", 1)
    again = crash(heart, make, "killed", recall_message_enable=True)
    wait_until(again, START_MS + 9000)
    assert sorted(delivered(again)) == [b"%d" % n for n in range(9)]


def test_a_long_recall_holds_when_both_are_overdue(make: Make) -> None:
    """Rolled while its second is over already: it counts for what is delivered behind it."""
    heart = make(timer_roll_window_slot=10, recall_message_enable=True)
    heart.create_topic("T")
    handle = send(heart, b"no", TIMER_DELAY_MS=15_432).recall_handle
    wait_until(heart, START_MS + 5200)
    assert recall(heart, handle).code == 0
    wait_until(heart, START_MS + 5400)
    heart.close()
    heart.now_ms = START_MS + 60_000
    heart.open()
    wait_until(heart, START_MS + 62_000)
    assert delivered(heart) == []


def test_recalls_that_wait_are_bounded(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Too many of them are refused with a reason, until they are taken up."""
    monkeypatch.setattr(timerrecalls, "WAITING_MAX", 2)
    heart = make(recall_message_enable=True)
    heart.create_topic("T")
    handles = [send(heart, b"%d" % n, TIMER_DELIVER_MS=START_MS + 5300).recall_handle for n in range(3)]
    wait_until(heart, START_MS + 100)
    stop_taking_up(heart)
    assert [recall(heart, handle).code for handle in handles] == [0, 0, 1]
    heart.broker.timers._retry_ms = 0
    wait_until(heart, START_MS + 300)
    assert recall(heart, handles[2]).code == 0
    wait_until(heart, START_MS + 7000)
    assert delivered(heart) == []


@pytest.mark.parametrize("key", ["U+K1", "K1", "T+", "TT+K1", "T+" + "k" * 511])
def test_what_a_message_deletes_is_of_its_own_topic_and_short(heart: Harness, key: str) -> None:
    """Who may send to one topic takes nothing back from another, and names it in at most 512 characters."""
    named = {"UNIQ_KEY": "K2", "TIMER_DELIVER_MS": str(START_MS + 5300), "TIMER_DEL_UNIQKEY": key}
    reply = heart.send(named=named)
    assert reply.code == 13
    assert "TIMER_DEL_UNIQKEY" in (reply.remark or "")
    assert heart.log_records() == []


def test_overdue_in_the_slot_it_was_to_be_rolled_from(make: Make) -> None:
    """Rolled and due in one second, with others behind it, when all of it is over: each comes once."""
    heart = make(timer_roll_window_slot=2)
    heart.create_topic("T")
    for n in range(100):
        send(heart, b"%d" % n, TIMER_DELAY_MS=2900)
    wait_until(heart, START_MS + 200)
    heart.close()
    heart.now_ms = START_MS + 60_000
    heart.open()
    wait_until(heart, START_MS + 63_000)
    assert sorted(delivered(heart)) == sorted(b"%d" % n for n in range(100))


def test_taken_up_by_a_clock_read_before_it_was_stored(make: Make) -> None:
    """Its way to its slot counts from when it was stored: no roll is made that a start would not look for."""
    heart = make(timer_roll_window_slot=2, timer_flush_interval_ms=DAY_MS)
    heart.create_topic("T")
    send(heart, b"first", TIMER_DELAY_MS=20)
    wait_until(heart, START_MS + 930)
    heart.now_ms = START_MS + 1110  # no tick since: taken up at the end of the turn that stored it
    send(heart, b"once", TIMER_DELAY_MS=899)
    heart.settle()
    wait_until(heart, START_MS + 1200)
    assert len(stored(heart, PARKED)) == 2
    again = crash(heart, make, "killed", timer_roll_window_slot=2)
    again.now_ms = START_MS + 2500  # by then it is taken up into its own second
    wait_until(again, START_MS + 5000)
    assert delivered(again) == [b"first", b"once"]


def test_rolled_under_a_clock_that_was_set_back(make: Make) -> None:
    """Stored at the newest time of the log, hours ahead: what was rolled is looked for all the same."""
    heart = make(timer_roll_window_slot=10, timer_flush_interval_ms=DAY_MS)
    heart.create_topic("T")
    heart.now_ms = START_MS + HOUR_MS
    heart.tick()
    assert heart.send(body=b"newest").code == 0
    heart.now_ms = START_MS
    heart.broker.clock_moved(-HOUR_MS)
    heart.tick()
    send(heart, b"once", TIMER_DELIVER_MS=START_MS + 75_000)
    heart.settle()
    wait_until(heart, START_MS + 72_000)
    assert len(stored(heart, PARKED)) > 1
    again = crash(heart, make, "killed", timer_roll_window_slot=10)
    wait_until(again, START_MS + 78_000)
    assert delivered(again) == [b"newest", b"once"]


# --- large properties ---


@pytest.mark.parametrize("left", [0, 1, 19, 20, 61, 62, 81, 82, 110, 111, 112])
@pytest.mark.parametrize("window_s", [10, 10_000])
def test_properties_near_their_limit_are_delivered(make: Make, left: int, window_s: int) -> None:
    """What was taken comes, if there is no room for the times of its way without them; rolled or not."""
    heart = make(timer_roll_window_slot=window_s)
    heart.create_topic("T")
    send(heart, b"probe", TIMER_DELIVER_MS=START_MS + 15_300, filler="x")
    (probe,) = stored(heart, PARKED)
    room = PROPERTIES_MAX - len(probe.properties) - left + 1
    send(heart, b"large", key="KEY-probe", TIMER_DELIVER_MS=START_MS + 15_300, filler="x" * room)
    assert len(stored(heart, PARKED)[1].properties) == PROPERTIES_MAX - left
    wait_until(heart, START_MS + 17_000)
    assert sorted(delivered(heart)) == [b"large", b"probe"]
    (copy,) = [record for record in stored(heart) if record.body == b"large"]
    named = parse_properties(copy.properties)
    assert len(named["filler"]) == room
    assert copy.store_timestamp == START_MS + 15_300


# --- the log is kept as long as something waits in it ---


@pytest.mark.parametrize("hours", [0, 1, 24])
def test_what_waits_is_parked_anew_before_its_segment_expires(make: Make, hours: int) -> None:
    """However short fileReservedTime is: no slot is further ahead than the log is kept."""
    heart = make(file_reserved_time=hours)
    heart.create_topic("T")
    window = heart.broker.timers.window
    send(heart, TIMER_DELAY_MS=DAY_MS)
    heart.tick()
    kept_ms = max(hours * HOUR_MS, heart.store.retention.spared_ms)
    assert 0 < window.size_ms <= kept_ms * 3 // 4


def test_expired_segments_stay_while_messages_wait_in_them(make: Make) -> None:
    """fileReservedTime=0 and a deletion asked for: what waits is delivered, and then its segment goes."""
    heart = make(file_reserved_time=0, mapped_file_size_commit_log=8192, delete_commit_log_files_interval=0)
    heart.create_topic("T")
    send(heart, b"late", TIMER_DELAY_MS=30_000)
    for _ in range(30):
        assert heart.send(body=b"x" * 1000).code == 0
    wait_until(heart, START_MS + 1000)
    heart.disk.beside(lambda: None).result()  # the next segment may be being made, under another name
    for file in sorted((heart.root / "commitlog").iterdir()):
        os.utime(file, (START_MS / 1000, START_MS / 1000))
    heart.store.retention.demand()
    wait_until(heart, START_MS + 29_000)
    assert heart.store.min_offset == 0
    heart.close()
    heart.now_ms += 10 * DAY_MS
    heart.open()
    heart.store.retention.demand()
    wait_until(heart, heart.now_ms + 3000)
    assert b"late" in {record.body for record in stored(heart)}


# --- a long absence ---


@pytest.mark.parametrize("taken_up", [True, False])
def test_overdue_by_more_than_24_days(make: Make, taken_up: bool) -> None:
    """A broker that was away for two months takes up and delivers what fell due meanwhile."""
    heart = make()
    heart.create_topic("T")
    send(heart, b"a", TIMER_DELAY_SEC=10)
    wait_until(heart, START_MS + 500)
    if not taken_up:
        stop_taking_up(heart)
    send(heart, b"b", TIMER_DELAY_SEC=20)
    heart.close()
    heart.now_ms = START_MS + 60 * DAY_MS
    heart.open()
    for _ in range(4000):
        heart.now_ms += 1
        heart.tick()
        if len(delivered(heart)) == 2:
            break
    send(heart, b"c", TIMER_DELAY_SEC=1)
    wait_until(heart, heart.now_ms + 2500)
    assert delivered(heart) == [b"a", b"b", b"c"]


def test_a_chain_into_a_file_that_is_gone_ends_there(tmp_path: Path) -> None:
    """Units of another file at the same place are not taken for those of one that was removed."""
    timer_log = TimerLog(Disk(tmp_path), 4096)
    timer_log.load()
    unit = Unit(NONE, 1, 0, 5000, 0, 100, 0)
    positions = []
    for n in range(160):
        at = timer_log.place()
        previous = positions[-1] if positions else NONE
        data = Unit(previous, 1, 0, unit.time_ms, n, 100, 0).encode()
        timer_log.write(at, data)
        positions.append(at)
    assert len(list(timer_log.chain(5, positions[-1]))) == 160
    (tmp_path / "timerlog" / f"{4096:020d}").unlink()
    found = [found.physical for found in timer_log.chain(5, positions[-1])]
    per_file = sum(1 for at in positions if at < 4096)
    timer_log.close()
    assert found == list(range(159, 2 * per_file - 1, -1))
    assert UNIT_BYTES * per_file <= 4096


# --- the clock ---


def test_a_clock_set_forward_is_remembered(heart: Harness) -> None:
    """A delay is as long as it was, over an orderly end and another start."""
    send(heart, b"delay", TIMER_DELAY_SEC=5)
    send(heart, b"time", TIMER_DELIVER_MS=START_MS + 8000)
    wait_until(heart, START_MS + 1000)
    heart.now_ms += HOUR_MS
    heart.broker.clock_moved(HOUR_MS)
    wait_until(heart, heart.now_ms + 1000)
    heart.reopen()
    wait_until(heart, START_MS + HOUR_MS + 4999)
    assert delivered(heart) == [b"time"]
    wait_until(heart, START_MS + HOUR_MS + 5000)
    assert delivered(heart) == [b"time", b"delay"]


def test_a_clock_set_forward_is_remembered_over_a_kill(make: Make, heart: Harness) -> None:
    """It is on the disk a moment after the clock was set."""
    send(heart, b"delay", TIMER_DELAY_SEC=5)
    wait_until(heart, START_MS + 1000)
    heart.now_ms += HOUR_MS
    heart.broker.clock_moved(HOUR_MS)
    wait_until(heart, heart.now_ms + 100)
    heart.broker.timers.shifts._table.settle()
    again = crash(heart, make, "killed")
    wait_until(again, START_MS + HOUR_MS + 4999)
    assert delivered(again) == []
    wait_until(again, START_MS + HOUR_MS + 5000)
    assert delivered(again) == [b"delay"]


def test_a_clock_set_forward_is_remembered_without_the_timer_log(heart: Harness) -> None:
    """Made anew from the queue: a delay whose end was moved is not taken for one that was delivered."""
    send(heart, b"delay", TIMER_DELAY_SEC=5)
    wait_until(heart, START_MS + 1000)
    heart.now_ms += HOUR_MS
    heart.broker.clock_moved(HOUR_MS)
    wait_until(heart, START_MS + HOUR_MS + 3000)
    heart.close()
    shutil.rmtree(heart.root / "timerlog")
    heart.open()
    wait_until(heart, START_MS + HOUR_MS + 4999)
    assert delivered(heart) == []
    wait_until(heart, START_MS + HOUR_MS + 5000)
    assert delivered(heart) == [b"delay"]


def test_a_message_whose_place_is_taken_does_not_hold_up_who_has_it(make: Make, heart: Harness) -> None:
    """After a crash and a rest so long that the wheel comes round to what was not delivered."""
    round_ms = timerwheel.SLOTS * 1000
    send(heart, b"first", TIMER_DELIVER_MS=START_MS + 100_000)
    wait_until(heart, START_MS + 1500)
    send(heart, b"second", TIMER_DELIVER_MS=START_MS + 100_000 + round_ms)
    heart.now_ms = START_MS + round_ms - 4_000_000
    again = crash(heart, make, "killed")
    assert again.broker.timers.position == 1
    wait_until(again, again.now_ms + 3000)
    assert delivered(again) == [b"first"]
    assert again.broker.timers.position == 2


def test_shifts_are_bounded_and_never_shorten_a_delay(tmp_path: Path) -> None:
    """Of too many the oldest are made one; what has left the queue is forgotten."""
    shifts = Shifts(Table(Disk(tmp_path), "timerShifts.json"))
    for n in range(SHIFTS_MAX + 10):
        shifts.add(10 * (n + 1), 1000)
    assert len(shifts._shifts) == SHIFTS_MAX
    for offset in (0, 5, 95, 300, 10 * (SHIFTS_MAX + 10) - 1):
        assert shifts.of(offset) >= 1000 * (SHIFTS_MAX + 10 - offset // 10)
    assert shifts.of(10 * (SHIFTS_MAX + 10)) == 0
    shifts.save()
    shifts.load(500, 600)
    assert shifts.of(499) == sum(1000 for n in range(SHIFTS_MAX + 10) if 10 * (n + 1) > 500)
    assert shifts.of(600) == 0
