"""Durable steps of delays and of retries: which a record is of, and what must be found of what was parked.

Owns the names of the steps, for kills and power cuts alike, and the account of it all: whatever was promised
is there, nothing is there more often than it was asked for, and nothing came before its time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from hotfire.broker import schedule
from hotfire.broker.handlers import sendback
from hotfire.broker.put import REAL_TOPIC
from hotfire.model import DLQ_PREFIX, RETRY_PREFIX, SCHEDULE_TOPIC, dlq_topic, retry_topic
from hotfire.protocol.record import Record, parse_properties
from hotfire.protocol.requests import ConsumerSendMsgBack

Step = tuple[str, str]
STEPS: list[Step] = [("delay", step) for step in schedule.DURABLE_STEPS] + [
    ("retry", step) for step in sendback.DURABLE_STEPS
]
TABLES = ("delay", "progress"), ("retry", "send-back")
"""Steps that write a table; all others are records of the log."""
RETRIES_MAX = 2
"""Failures after which the next makes a dead letter."""


def step_of(record: Record) -> Step | None:
    """The step that is done once this record is safe."""
    topic = parse_properties(record.properties).get(REAL_TOPIC, "")
    if record.topic == SCHEDULE_TOPIC:
        return ("retry" if topic.startswith(RETRY_PREFIX) else "delay"), "park"
    if record.topic.startswith(RETRY_PREFIX):
        return "retry", "deliver"
    if record.topic.startswith(DLQ_PREFIX):
        return "retry", "dead letter"
    return ("delay", "re-put") if topic == record.topic else None


class Place(NamedTuple):
    """Where an attempt of a message is to be found."""

    topic: str
    body: bytes
    times: int = 0
    """How often consumers have failed at it."""

    @classmethod
    def of(cls, record: Record) -> Place:
        topic = record.topic
        if topic == SCHEDULE_TOPIC:
            topic = parse_properties(record.properties)[REAL_TOPIC]
        return cls(topic, record.body, record.reconsume_times)

    @classmethod
    def after(cls, record: Record, group: str) -> Place:
        """Of a message the group could not handle: behind one more failure."""
        is_dead = record.reconsume_times >= RETRIES_MAX
        topic = dlq_topic(group) if is_dead else retry_topic(group)
        return cls(topic, record.body, record.reconsume_times + 1)


def send_back(record: Record, group: str, level: int) -> ConsumerSendMsgBack:
    return ConsumerSendMsgBack(
        offset=record.physical_offset, group=group, delay_level=level, max_reconsume_times=RETRIES_MAX
    )


class Account:
    """What was asked for, what of it was promised, and when it may come at the earliest."""

    def __init__(self) -> None:
        self.asked: Counter[Place] = Counter()
        self.promised: set[Place] = set()
        self.due_ms: dict[Place, int] = {}

    def ask(self, place: Place, due_ms: int) -> None:
        self.asked[place] += 1
        self.due_ms[place] = min(due_ms, self.due_ms.get(place, due_ms))

    def settle(self, found: Iterable[Record]) -> int:
        """Hold it against all that is there; how many messages that is."""
        counts: Counter[Place] = Counter()
        for record in found:
            place = Place.of(record)
            counts[place] += 1
            early_ms = self.due_ms.get(place, 0) - record.store_timestamp
            assert early_ms <= 0, f"{place} {early_ms} ms early"
        lost = sorted(self.promised - counts.keys())
        assert not lost, f"{len(lost)} promised and not there: {lost[:5]}"
        more = {place: (count, self.asked[place]) for place, count in counts.items()}
        more = {place: count for place, count in more.items() if count[0] > count[1]}
        assert not more, f"there more often than asked for: {more}"
        return counts.total()
