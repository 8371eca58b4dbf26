"""Places in a set of queues: next to read, everywhere, and as the JSON that Spark logs and users write.

    {"orders": {"broker-a": {"0": 17, "1": 20}}, "#from": {…}, "#parts": 4, "#initial": true}

`#from` says where a batch begins in queues that the offset before it does not have, or that begin anew, and
`#parts` into how many partitions it is cut: so a batch replayed after a crash, on any machine, reads what it
read the first time, and a sink that knows its rows by their partition finds them. Spark keeps the place
where a query begins nowhere: it asks for it again after a crash in the first batch, by when `latest` is
somewhere else. So the first batch's end carries it in `#from`, and that, which Spark has logged, wins over
what is asked for anew. No topic's name has a `#`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from hotfire.errors import ConfigError
from hotfire.model import MessageQueue

EARLIEST, LATEST = -2, -1
"""In what users write for a queue: Kafka's numbers."""
FROM, PARTS, INITIAL = "#from", "#parts", "#initial"

PARTS_MAX = 1 << 31

Offsets = dict[MessageQueue, int]


@dataclass(frozen=True, slots=True)
class Place:
    """What Spark calls an offset."""

    until: Offsets
    since: Offsets = field(default_factory=dict)
    is_initial: bool = False
    parts: int | None = None
    """Partitions of the batch that ends here."""

    def json(self) -> dict[str, Any]:
        data: dict[str, Any] = to_json(self.until)
        if self.since:
            data[FROM] = to_json(self.since)
        if self.parts is not None:
            data[PARTS] = self.parts
        if self.is_initial:
            data[INITIAL] = True
        return data

    @classmethod
    def read(cls, data: Mapping[str, Any]) -> Place:
        plain = {topic: brokers for topic, brokers in data.items() if not topic.startswith("#")}
        parts = data.get(PARTS)
        if parts is not None and (not isinstance(parts, int) or not 0 <= parts <= PARTS_MAX):
            raise ConfigError(f"{PARTS} is {parts!r}, and must be a number of partitions up to {PARTS_MAX}")
        since, is_initial = from_json(data.get(FROM, {})), bool(data.get(INITIAL, False))
        return cls(from_json(plain), since, is_initial, parts)


@dataclass(frozen=True, slots=True)
class Range:
    """Messages of one queue: from `first` up to, not including, `until`."""

    queue: MessageQueue
    first: int
    until: int

    @property
    def count(self) -> int:
        return self.until - self.first

    def __str__(self) -> str:
        queue = self.queue
        return f"{queue.topic}/{queue.broker_name}/{queue.queue_id}[{self.first}, {self.until})"


def to_json(offsets: Mapping[MessageQueue, int]) -> dict[str, Any]:
    data: dict[str, dict[str, dict[str, int]]] = {}
    for queue, offset in sorted(offsets.items()):
        data.setdefault(queue.topic, {}).setdefault(queue.broker_name, {})[str(queue.queue_id)] = offset
    return data


def from_json(data: Mapping[str, Any]) -> Offsets:
    """ConfigError says where the JSON is not of this shape."""
    offsets: Offsets = {}
    for topic, brokers in data.items():
        for broker, queues in _object(brokers, topic).items():
            for queue_id, offset in _object(queues, f"{topic}.{broker}").items():
                if not queue_id.isdigit() or not isinstance(offset, int) or isinstance(offset, bool):
                    raise ConfigError(
                        f"offset {topic}.{broker}.{queue_id} is {offset!r}: a queue's number and an offset "
                        'are wanted, like {"topic": {"broker": {"0": 17}}}'
                    )
                offsets[MessageQueue(topic, broker, int(queue_id))] = offset
    return offsets


def _object(value: object, where: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ConfigError(f'at {where} an object is wanted, like {{"topic": {{"broker": {{"0": 17}}}}}}')
    return value


def between(start: Place, end: Place) -> list[Range]:
    """What a batch reads. A queue that neither place gives a beginning is an offset log that was changed."""
    ranges = []
    for queue, until in sorted(end.until.items()):
        first = end.since.get(queue, start.until.get(queue))
        if first is None:
            raise ConfigError(
                f"queue {queue.topic}/{queue.broker_name}/{queue.queue_id} ends at {until} and begins "
                "nowhere: the query's checkpoint was changed or is another query's; use a new one"
            )
        if until > first:
            ranges.append(Range(queue, first, until))
    return ranges


def limited(start: Mapping[MessageQueue, int], ends: Mapping[MessageQueue, int], most: int) -> Offsets:
    """At most about `most` messages, shared out in proportion to what waits; no queue starves."""
    waiting = {queue: max(end - start.get(queue, end), 0) for queue, end in ends.items()}
    total = sum(waiting.values())
    if total <= most:
        return dict(ends)
    # Rounded up, as in Kafka's connector: a queue with one message among millions gets its turn.
    return {
        queue: start.get(queue, ends[queue]) + min(waits, -(-most * waits // total))
        for queue, waits in waiting.items()
    }


def queues_of(offsets: Iterable[MessageQueue]) -> str:
    """For a message: a few of them by name."""
    listed = sorted(offsets)
    shown = ", ".join(f"{queue.topic}/{queue.broker_name}/{queue.queue_id}" for queue in listed[:5])
    return shown if len(listed) <= 5 else f"{shown} and {len(listed) - 5} more"
