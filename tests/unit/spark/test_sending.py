"""Rows let out at a rate."""

from hypothesis import given
from hypothesis import strategies as st

from hotfire.spark.pipelines.sending import STEP_S, Pace


class Clock:
    """Time passes while someone sleeps, or works."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, span_s: float) -> None:
        self.now_s += span_s


@given(
    rows=st.integers(0, 3000),
    rate=st.integers(1, 20_000),
    works_s=st.lists(st.floats(0, 0.01), min_size=1, max_size=5),
)
def test_no_more_rows_are_out_than_the_rate_allows(rows: int, rate: int, works_s: list[float]) -> None:
    """However long sending takes, at no time is more out than rate, time and one piece."""
    clock = Clock()
    pace = Pace(rate, clock=clock, sleep=clock.sleep)
    began_s = clock.now_s
    for out in range(1, rows + 1):
        assert pace(None)
        assert out <= rate * (clock.now_s - began_s) + max(rate * STEP_S, 1) + 1e-6 * out
        clock.sleep(works_s[out % len(works_s)])


def test_a_rate_is_reached() -> None:
    """A thousand rows at a thousand a second take a second, not two."""
    clock = Clock()
    pace = Pace(1000, clock=clock, sleep=clock.sleep)
    for _ in range(1000):
        pace(None)
    assert 0.8 <= clock.now_s - 100.0 <= 1.0


def test_time_without_rows_is_not_made_up_for() -> None:
    """After a pause rows come as slowly as before it, not all at once."""
    clock = Clock()
    pace = Pace(100, clock=clock, sleep=clock.sleep)
    pace(None)
    clock.sleep(60.0)
    began_s = clock.now_s
    for _ in range(100):
        pace(None)
    assert clock.now_s - began_s >= 0.7
