"""A backlog spread over queues in rotation: each gets as many as any other, or one less.

A message's turn follows from where it lies: its queue's first turn and its place in the queue. So tasks need
not talk to each other, no row is moved between them, and a task that runs again deals its rows to the same
queues.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.sql import Column
from pyspark.sql import functions as F

from hotfire.model import MessageQueue
from hotfire.spark.offsets import Range


def shifts(ranges: Sequence[Range], first_turn: int = 0) -> dict[MessageQueue, int]:
    """What is added to a message's offset to have its turn: turns follow each other through all ranges.

    >>> queues = [MessageQueue("T", "b", number) for number in (0, 1)]
    >>> list(shifts([Range(queues[0], 10, 13), Range(queues[1], 0, 5)]).values())
    [-10, 3]
    """
    found: dict[MessageQueue, int] = {}
    turn = first_turn
    for one in ranges:
        found[one.queue] = turn - one.first
        turn += one.count
    return found


def spread_counts(total: int, queues: int, first_turn: int = 0) -> list[int]:
    """How many messages each queue gets of so many, dealt from a turn on.

    >>> spread_counts(7, 3), spread_counts(7, 3, first_turn=2)
    ([3, 2, 2], [2, 2, 3])
    """
    turns = [(number - first_turn) % queues for number in range(queues)]
    return [total // queues + (turn < total % queues) for turn in turns]


def turn(by_queue: Mapping[MessageQueue, int], queues: int) -> Column:
    """The number of the queue, among so many, that each message goes to."""
    pairs = [part for queue, shift in by_queue.items() for part in (F.lit(_name(queue)), F.lit(shift))]
    shift = F.element_at(F.create_map(*pairs), F.concat_ws("/", "topic", "brokerName", "queueId"))
    return F.pmod(F.col("queueOffset") + shift, F.lit(queues)).cast("int")


def _name(queue: MessageQueue) -> str:
    return f"{queue.topic}/{queue.broker_name}/{queue.queue_id}"
