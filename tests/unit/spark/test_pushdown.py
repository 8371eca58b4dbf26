"""Filters narrow what is read, never below what was asked for."""

from datetime import UTC, datetime

from pyspark.sql.datasource import (
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
)

from hotfire.spark.pushdown import narrowed


def test_offsets_and_queues_are_bounded() -> None:
    found = narrowed(
        [GreaterThan(("queueOffset",), 5), LessThanOrEqual(("queueOffset",), 9), In(("queueId",), (1, 3))]
    )
    assert (found.least, found.most) == ({"queueOffset": 6, "queueId": 1}, {"queueOffset": 9, "queueId": 3})
    assert [number for number in range(5) if found.admits("queueId", number)] == [1, 2, 3]


def test_names_meet() -> None:
    found = narrowed([In(("topic",), ("a", "b", None)), EqualTo(("topic",), "b")])
    assert found.admits("topic", "b")
    assert not found.admits("topic", "a")
    assert found.admits("brokerName", "any")


def test_a_strict_bound_of_time_keeps_its_own_millisecond() -> None:
    """Times of messages have milliseconds, Spark's have microseconds."""
    moment = datetime(2026, 1, 2, 3, 4, 5, 678_500, tzinfo=UTC)
    whole = int(moment.timestamp() * 1000)
    found = narrowed([GreaterThan(("storeTimestamp",), moment), LessThan(("storeTimestamp",), moment)])
    assert (found.least, found.most) == ({"storeTimestamp": whole}, {"storeTimestamp": whole})


def test_what_is_not_understood_narrows_nothing() -> None:
    naive = datetime(2026, 1, 2)  # noqa: DTZ001
    others = [
        Not(EqualTo(("topic",), "a")),
        IsNull(("tags",)),
        EqualTo(("properties", "a"), "b"),
        GreaterThanOrEqual(("storeTimestamp",), naive),
        EqualTo(("queueOffset",), 1.5),
        EqualTo(("body",), b"x"),
    ]
    found = narrowed(others)
    assert not found.among
    assert not found.least
    assert not found.most
