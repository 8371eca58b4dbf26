"""What an orderly end leaves of the timers' files, for ourselves and for the reference's broker."""

from pathlib import Path

import pytest

from hotfire.store import timerwheel
from hotfire.store.disk import Disk
from hotfire.store.timerfiles import TimerFiles
from hotfire.store.timerlog import DELETE, Unit
from tests.unit.broker.conftest import Make
from tests.unit.broker.harness import START_MS, Harness
from tests.unit.broker.timered import PARKED, delivered, recall, send, stored, wait_until

pytestmark = pytest.mark.core


@pytest.fixture(autouse=True)
def small_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wheel of hours instead of weeks: each test makes one."""
    monkeypatch.setattr(timerwheel, "SLOTS", 16_384)


def test_an_orderly_end_leaves_no_delivered_message_in_the_wheel(heart: Harness) -> None:
    """Closed within a second: its slot leads to what is left of it, for brokers that look no copies up."""
    for n in range(10):
        send(heart, b"%d" % n, TIMER_DELIVER_MS=START_MS + 1050 + 100 * n)
    wait_until(heart, START_MS + 1500)
    assert len(delivered(heart)) == 5
    heart.close()
    files = TimerFiles(Disk(heart.root), heart.config.mapped_file_size_timer_log)
    files.open(was_unclean=False)
    head = files.wheel.get(START_MS // 1000 + 1)
    assert head is not None
    chain = list(files.log.chain(head.time_s, head.last))
    left = [unit.time_ms + 1 for unit in chain if not unit.magic & DELETE]
    files.close()
    assert left == [START_MS + 1050 + 100 * n for n in reversed(range(5, 10))]
    assert head.count == 5
    heart.open()
    wait_until(heart, START_MS + 3000)
    assert delivered(heart) == [b"%d" % n for n in range(10)]


def as_the_reference_starts(root: Path, file_bytes: int) -> tuple[int, dict[int, list[Unit]]]:
    """Where the reference's broker takes up the queue of this store, and what each slot leads it to.

    It goes through the whole timer log and lets the slot of each unit end there, whatever the wheel says; the
    message of the last one is the last it takes as taken up.
    """
    files = TimerFiles(Disk(root), file_bytes)
    check = files.open(was_unclean=False).check
    units = dict(files.log.units(0, check.log_end))
    heads = {unit.slot: at for at, unit in units.items()}
    slots = {slot: list(files.log.chain(slot, at)) for slot, at in heads.items()}
    files.close()
    last = next(reversed(units.values()))
    return last.physical, {slot: chain for slot, chain in slots.items() if slot * 1000 >= check.read_ms}


@pytest.mark.parametrize("at_ms", [1500, 1990])
def test_after_an_orderly_end_the_reference_repeats_nothing(heart: Harness, at_ms: int) -> None:
    """Closed within a second, with all or some of its messages delivered: no slot leads to these, and nothing
    behind the last unit would be taken up again."""
    for n in range(10):
        send(heart, b"%d" % n, TIMER_DELIVER_MS=START_MS + 1050 + 100 * n)
    send(heart, b"later", TIMER_DELIVER_MS=START_MS + 60_000)
    wait_until(heart, START_MS + at_ms)
    came = delivered(heart)
    parked = stored(heart, PARKED)
    heart.close()
    last, slots = as_the_reference_starts(heart.root, heart.config.mapped_file_size_timer_log)
    bodies_at = {record.physical_offset: record.body for record in parked}
    waiting = {bodies_at[u.physical] for chain in slots.values() for u in chain if not u.magic & DELETE}
    assert waiting == set(bodies_at.values()) - set(came)
    assert bodies_at[last] == b"later"


def test_an_orderly_end_keeps_recalls(make: Make) -> None:
    """Closed between the first and the last message of a second: what was taken back does not come later."""
    heart = make(recall_message_enable=True)
    heart.create_topic("T")
    send(heart, b"first", TIMER_DELIVER_MS=START_MS + 3100)
    handle = send(heart, b"no", TIMER_DELIVER_MS=START_MS + 3800).recall_handle
    assert recall(heart, handle).code == 0
    wait_until(heart, START_MS + 3500)
    heart.reopen()
    wait_until(heart, START_MS + 3600)
    heart.reopen()
    wait_until(heart, START_MS + 5000)
    assert delivered(heart) == [b"first"]


def test_after_the_clock_was_set_the_reference_takes_up_nothing_again(heart: Harness) -> None:
    """A message put off is behind younger ones in the timer log: an orderly end still tells the last one."""
    send(heart, b"delay", TIMER_DELAY_SEC=5)
    send(heart, b"time", TIMER_DELIVER_MS=START_MS + 8000_000)
    wait_until(heart, START_MS + 1000)
    heart.now_ms += 3600_000
    heart.broker.clock_moved(3600_000)
    wait_until(heart, heart.now_ms + 3000)
    _, newest = stored(heart, PARKED)
    heart.close()
    last, _ = as_the_reference_starts(heart.root, heart.config.mapped_file_size_timer_log)
    assert last == newest.physical_offset
