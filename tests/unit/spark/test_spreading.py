"""A backlog dealt out in rotation: what each queue gets, by arithmetic alone."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotfire.model import MessageQueue
from hotfire.spark.offsets import Range
from hotfire.spark.pipelines.spreading import shifts, spread_counts

RANGES = st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 200)), min_size=1, max_size=12)


@pytest.mark.promise(223)
@given(bounds=RANGES, queues=st.integers(1, 40), first_turn=st.integers(0, 100))
def test_queues_get_as_many_as_any_other_or_one_less(
    bounds: list[tuple[int, int]], queues: int, first_turn: int
) -> None:
    """However long the queues of a backlog are, and wherever they begin, it is dealt evenly."""
    ranges = [
        Range(MessageQueue("T", "b", number), first, first + count)
        for number, (first, count) in enumerate(bounds)
    ]
    turns = shifts(ranges, first_turn)
    dealt = Counter(
        (offset + turns[one.queue]) % queues for one in ranges for offset in range(one.first, one.until)
    )
    counts = [dealt[number] for number in range(queues)]
    assert max(counts) - min(counts) <= 1
    assert counts == spread_counts(sum(counts), queues, first_turn)


@given(rounds=st.lists(st.integers(0, 500), min_size=1, max_size=6), queues=st.integers(1, 40))
def test_rounds_one_after_the_other_stay_even(rounds: list[int], queues: int) -> None:
    """A round goes on with the turn after the last one's, so that queues are even over all of them."""
    sums = [0] * queues
    for total in rounds:
        dealt = spread_counts(total, queues, first_turn=sum(sums) % queues)
        sums = [before + count for before, count in zip(sums, dealt, strict=True)]
    assert max(sums) - min(sums) <= 1
