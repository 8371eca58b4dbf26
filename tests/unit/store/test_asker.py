"""Questions beside the loop: each is answered, and the thread rests in between."""

from __future__ import annotations

import pytest

from hotfire.store import asker
from hotfire.store.asker import REST_S_MAX, REST_S_MIN, REST_TIMES, Asker


class Clock:
    """Time that only passes when somebody works or sleeps."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.worked_s = 0.0
        self.slept: list[float] = []

    def monotonic(self) -> float:
        return self.now_s

    def thread_time(self) -> float:
        return self.worked_s

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now_s += seconds

    def work(self, seconds: float) -> None:
        self.now_s += seconds
        self.worked_s += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(asker, "time", made)
    return made


def test_it_rests_for_what_the_question_before_used_of_a_processor(clock: Clock) -> None:
    """Three times as long, and 10 ms at most; the first question waits for nothing, nor does one that comes
    late; one that failed counts as any other."""
    thread = Asker()

    def fail() -> None:
        clock.work(0.003)
        raise ValueError("no")

    thread.submit(lambda: clock.work(0.002), rests=True).result()
    assert clock.slept == []
    with pytest.raises(ValueError, match="no"):
        thread.submit(fail, rests=True).result()
    thread.submit(lambda: clock.work(1.0), rests=True).result()
    thread.submit(lambda: None, rests=True).result()
    assert clock.slept == pytest.approx([REST_TIMES * 0.002, REST_TIMES * 0.003, REST_S_MAX])
    clock.now_s += 1.0
    thread.submit(lambda: None, rests=True).result()
    assert len(clock.slept) == 3
    thread.shutdown(wait=True)


def test_waiting_for_the_disk_is_no_work(clock: Clock) -> None:
    """A question that took a second, all of it the disk's, is followed after a moment."""
    thread = Asker()

    def wait() -> None:
        clock.now_s += 1.0

    thread.submit(wait, rests=True).result()
    thread.submit(wait, rests=True).result()
    assert clock.slept == pytest.approx([REST_S_MIN])
    thread.shutdown(wait=True)


def test_with_nobody_storing_anything_there_is_no_rest(clock: Clock) -> None:
    """Nobody would have anything of it."""
    thread = Asker()
    for _ in range(3):
        thread.submit(lambda: clock.work(0.005), rests=False).result()
    assert clock.slept == []
    thread.shutdown(wait=True)
