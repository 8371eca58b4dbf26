"""Places in queues: next to read, as JSON that Spark logs, and shared out among queues."""

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotfire.errors import ConfigError
from hotfire.model import MessageQueue
from hotfire.spark.offsets import Offsets, Place, Range, between, from_json, limited, to_json
from hotfire.spark.planning import ROWS_WORTH_A_TASK, cut

queues = st.builds(
    MessageQueue, st.sampled_from(["a", "b-c", "%RETRY%g"]), st.sampled_from(["x", "y"]), st.integers(0, 9)
)
places = st.dictionaries(queues, st.integers(0, 1 << 40), max_size=12)
Q0, Q1, Q2 = (MessageQueue("t", "b", number) for number in range(3))


@given(places, places, st.booleans(), st.none() | st.integers(0, 99))
def test_a_place_survives_the_offset_log(
    until: Offsets, since: Offsets, is_initial: bool, parts: int | None
) -> None:
    """What Spark logs and hands back is the place that was given to it."""
    place = Place(until, since, is_initial, parts)
    assert Place.read(json.loads(json.dumps(place.json()))) == place


@pytest.mark.parametrize(
    "said", ['{"t": 1}', '{"t": {"b": 3}}', '{"t": {"b": {"x": 3}}}', '{"t": {"b": {"0": "3"}}}']
)
def test_offsets_of_another_shape_are_refused_with_the_place(said: str) -> None:
    with pytest.raises(ConfigError, match=r"t\b"):
        from_json(json.loads(said))


def test_a_batch_reads_from_the_last_end_and_new_queues_from_where_it_says() -> None:
    start, end = Place({Q0: 5}), Place({Q0: 9, Q1: 4, Q2: 0}, {Q1: 1, Q2: 0})
    assert between(start, end) == [Range(Q0, 5, 9), Range(Q1, 1, 4)]


def test_a_first_batch_read_again_begins_where_it_began_whatever_latest_is_now() -> None:
    """Spark asks for the beginning anew after a crash in the first batch; by then it lies elsewhere."""
    end = Place({Q0: 9}, {Q0: 5})
    assert between(Place({Q0: 8}, is_initial=True), end) == [Range(Q0, 5, 9)]


def test_a_queue_that_begins_nowhere_is_a_changed_checkpoint() -> None:
    with pytest.raises(ConfigError, match="t/b/1 ends at 4 and begins nowhere"):
        between(Place({Q0: 1}), Place({Q0: 2, Q1: 4}))


@given(
    st.dictionaries(queues, st.tuples(st.integers(0, 1000), st.integers(0, 1000)), min_size=1),
    st.integers(1, 500),
)
def test_a_limit_is_shared_in_proportion_and_no_queue_starves(
    spans: dict[MessageQueue, tuple[int, int]], most: int
) -> None:
    start = {queue: first for queue, (first, _) in spans.items()}
    ends = {queue: first + count for queue, (first, count) in spans.items()}
    given_ends = limited(start, ends, most)
    taken = {queue: given_ends[queue] - start[queue] for queue in spans}
    assert all(0 <= taken[queue] <= count for queue, (_, count) in spans.items())
    assert all(taken[queue] for queue, (_, count) in spans.items() if count)
    assert min(most, sum(count for _, count in spans.values())) <= sum(taken.values()) < most + len(spans)


@given(
    st.lists(st.integers(1, 100_000), min_size=1, max_size=10),
    st.none() | st.integers(1, 20),
    st.none() | st.integers(1, 20),
    st.none() | st.integers(1000, 50_000),
)
def test_partitions_hold_exactly_the_ranges_in_even_parts(
    counts: list[int], at_least: int | None, at_most: int | None, rows_max: int | None
) -> None:
    ranges = [Range(MessageQueue("t", "b", number), 7, 7 + count) for number, count in enumerate(counts)]
    parts = cut(ranges, at_least=at_least, at_most=at_most, rows_max=rows_max, cores=4)
    whole = [(one.queue, offset) for one in ranges for offset in (one.first, one.until - 1)]
    flat = [one for part in parts for one in part]
    assert sum(one.count for one in flat) == sum(counts)
    assert all(one.count > 0 for one in flat)
    for earlier, later in itertools.pairwise(flat):
        assert earlier.queue != later.queue or earlier.until == later.first
    assert whole[0] == (flat[0].queue, flat[0].first)
    sizes = [sum(one.count for one in part) for part in parts]
    assert max(sizes) - min(sizes) <= 1
    if rows_max is not None:
        assert max(sizes) <= rows_max


def test_a_small_batch_is_one_partition_however_many_queues_it_touches() -> None:
    ranges = [Range(MessageQueue("t", "b", number), 0, 10) for number in range(100)]
    assert len(cut(ranges, cores=8)) == 1
    large = [Range(Q0, 0, 8 * ROWS_WORTH_A_TASK)]
    assert len(cut(large, cores=8)) == 8
    assert cut([], cores=8) == []


def test_json_of_offsets_names_topic_broker_and_queue() -> None:
    assert to_json({Q1: 4, Q0: 2}) == {"t": {"b": {"0": 2, "1": 4}}}
