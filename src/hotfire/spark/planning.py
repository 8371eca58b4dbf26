"""Ranges of queues -> the partitions of a batch: about as many as there are cores to read them.

A task costs as much as reading tens of thousands of messages, so a small batch is one partition however many
queues it touches, and a large one is cut evenly by messages, through queues where need be.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from hotfire.spark.offsets import Range

ROWS_WORTH_A_TASK = 20_000
"""Less than this in a partition, and starting it costs more than reading it."""


def cut(
    ranges: Sequence[Range],
    *,
    at_least: int | None = None,
    at_most: int | None = None,
    rows_max: int | None = None,
    cores: int | None = None,
) -> list[tuple[Range, ...]]:
    """Partitions of about equal size, in the order of the ranges. Together they hold exactly the ranges.

    `at_least` and `rows_max` ask for more partitions than would be made, `at_most` for fewer; between those
    that contradict each other the number asked for last here wins.
    """
    total = sum(one.count for one in ranges)
    return cut_into(ranges, wanted(total, at_least=at_least, at_most=at_most, rows_max=rows_max, cores=cores))


def wanted(
    total: int,
    *,
    at_least: int | None = None,
    at_most: int | None = None,
    rows_max: int | None = None,
    cores: int | None = None,
) -> int:
    """How many partitions so many messages are worth here."""
    if not total:
        return 0
    count = min(cores or os.cpu_count() or 1, -(-total // ROWS_WORTH_A_TASK))
    count = max(count, at_least or 1)
    if at_most is not None:
        count = min(count, at_most)
    if rows_max is not None:
        count = max(count, -(-total // rows_max))
    return min(count, total)


def cut_into(ranges: Sequence[Range], count: int) -> list[tuple[Range, ...]]:
    """Exactly so many partitions, or fewer where there are fewer messages."""
    total = sum(one.count for one in ranges)
    count = min(count, total)
    parts: list[tuple[Range, ...]] = []
    todo = list(reversed(ranges))
    for index in range(count):
        share = total * (index + 1) // count - total * index // count
        parts.append(tuple(_take(todo, share)))
    assert not todo
    return parts


def _take(todo: list[Range], share: int) -> list[Range]:
    """The next `share` messages off the end of `todo`."""
    taken = []
    while share:
        one = todo.pop()
        if one.count > share:
            todo.append(Range(one.queue, one.first + share, one.until))
            one = Range(one.queue, one.first, one.first + share)
        taken.append(one)
        share -= one.count
    return taken
