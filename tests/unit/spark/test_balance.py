"""What was counted, and what is wrong with it."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from hotfire.model import MessageQueue
from hotfire.spark.pipelines.balance import (
    GroupCount,
    QueueCount,
    TopicCount,
    by_count,
    faults,
    passed_and_waiting,
)

SOUND = TopicCount("orders", stored=10, holes=0, repeats=0, sent=10, unknown=0)
GROUP = GroupCount("billing", "orders", stored=10, passed=8, waiting=2, retrying=1, dead=1, aged=0)


def test_all_accounted_for_is_no_fault() -> None:
    """Messages that wait, are tried again or lie among dead letters are not lost."""
    assert faults([SOUND], [GROUP], once=True) == []
    assert GROUP.done == 6


def test_each_kind_of_loss_is_a_fault() -> None:
    """A hole, a message sent and not stored, one gone unread, one passed and not consumed: each is told."""
    for topic in (replace(SOUND, holes=1), replace(SOUND, missing=1)):
        assert len(faults([topic], [GROUP])) == 1
    for group in (replace(GROUP, aged=1), replace(GROUP, unconsumed=1)):
        assert len(faults([SOUND], [group])) == 1


def test_repeats_are_faults_only_for_those_who_say_once() -> None:
    """Delivery is at least once; not one more is asked for by name."""
    topic, group = replace(SOUND, repeats=1, unknown=2), replace(GROUP, consumed_again=3)
    assert faults([topic], [group]) == []
    assert len(faults([topic], [group], once=True)) == 3


def test_repeats_fill_no_gap_in_a_count() -> None:
    """Ten sent, ten stored, one of them twice: one is missing."""
    counted = by_count(TopicCount("orders", stored=10, holes=0, repeats=1), 10)
    assert (counted.missing, counted.unknown) == (1, 0)
    assert by_count(TopicCount("orders", stored=12, holes=0, repeats=0), 10).unknown == 2


SPANS = st.lists(
    st.tuples(st.integers(0, 50), st.integers(0, 50), st.none() | st.integers(0, 120)), min_size=1, max_size=5
)


@given(spans=SPANS)
def test_what_is_stored_is_passed_or_waits(spans: list[tuple[int, int, int | None]]) -> None:
    """Wherever a group's offsets are, each place of the log is on one side of them."""
    counts, committed = [], {}
    for number, (first, count, place) in enumerate(spans):
        queue = MessageQueue("orders", "b", number)
        counts.append(QueueCount(queue, first, first + count, count))
        if place is not None:
            committed[queue] = place
    passed, waiting, aged = passed_and_waiting(counts, committed)
    assert passed + waiting == sum(count for _, count, _ in spans)
    assert aged == sum(max(first - place, 0) for first, _, place in spans if place is not None)
