"""Not one more, not one less: what was counted of topics and groups, and what is wrong with it.

Values and sums only; `reconcile` counts. A message is lost when it was sent and is neither stored nor held
back for later, when the log has a hole where it was, or when it left the log before a group that reads it
came to it. One that waits, is tried again or lies among dead letters is accounted for. A repeat is no loss:
delivery is at least once; it is told, and is a failure only for those who say `once`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from hotfire.model import MessageQueue

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class QueueCount:
    """One queue: where it begins and ends, and how many places between have a message that can be read."""

    queue: MessageQueue
    first: int
    end: int
    readable: int

    @property
    def holes(self) -> int:
        return self.end - self.first - self.readable


@dataclass(frozen=True, slots=True)
class TopicCount:
    """One topic. None where nobody said."""

    topic: str
    stored: int
    holes: int
    repeats: int
    """Messages whose unique id another of the topic has already."""
    sent: int | None = None
    held: int = 0
    """Sent with a delay and not due yet; found by their ids, so only with a ledger."""
    missing: int = 0
    """In the ledger, and neither stored nor held."""
    unknown: int | None = None
    """Stored, and not in the ledger."""

    def row(self) -> Row:
        return {
            "topic": self.topic, "sent": self.sent, "stored": self.stored, "held": self.held,
            "missing": self.missing, "unknown": self.unknown, "holes": self.holes, "repeats": self.repeats,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class GroupCount:
    """What one group did with one topic. What it did before the log's first message is not known."""

    group: str
    topic: str
    stored: int
    passed: int
    """Before its committed offsets: consumed, or given back."""
    waiting: int
    retrying: int
    dead: int
    aged: int
    """Left the log before the group came to them."""
    unconsumed: int | None = None
    """Passed, not retrying nor dead, and not in the group's own ledger of what it consumed."""
    consumed_again: int | None = None

    @property
    def done(self) -> int:
        return max(self.passed - self.retrying - self.dead, 0)

    def row(self) -> Row:
        return {
            "group": self.group, "topic": self.topic, "stored": self.stored, "done": self.done,
            "waiting": self.waiting, "retrying": self.retrying, "dead": self.dead, "aged": self.aged,
            "unconsumed": self.unconsumed, "consumedAgain": self.consumed_again,
        }  # fmt: skip


def passed_and_waiting(
    counts: Iterable[QueueCount], committed: dict[MessageQueue, int]
) -> tuple[int, int, int]:
    """Of one topic, by a group's committed offsets: passed, waiting, and gone unread.

    A queue the group has committed nothing of waits as a whole: a group that starts at the newest message
    commits that as its first.
    """
    passed = waiting = aged = 0
    for count in counts:
        place = committed.get(count.queue, count.first)
        aged += max(count.first - place, 0)
        place = min(max(place, count.first), count.end)
        passed += place - count.first
        waiting += count.end - place
    return passed, waiting, aged


def faults(topics: Sequence[TopicCount], groups: Sequence[GroupCount], *, once: bool = False) -> list[str]:
    """What is wrong, a sentence each; nothing when every message is accounted for."""
    found: list[str] = []
    for topic in topics:
        name = f"topic {topic.topic}"
        if topic.holes:
            found.append(f"{name}: {topic.holes} of its places hold no readable message")
        if topic.missing:
            found.append(f"{name}: {topic.missing} of {topic.sent} messages sent are not stored")
        if once and topic.repeats:
            found.append(f"{name}: {topic.repeats} messages are stored again")
        if once and topic.unknown:
            found.append(f"{name}: {topic.unknown} messages stored are not in the ledger")
    for group in groups:
        name = f"group {group.group}, topic {group.topic}"
        if group.aged:
            found.append(f"{name}: {group.aged} messages left the log before it read them")
        if group.unconsumed:
            found.append(f"{name}: {group.unconsumed} messages it passed are not in its ledger")
        if once and group.consumed_again:
            found.append(f"{name}: {group.consumed_again} messages were consumed again")
    return found


def by_count(topic: TopicCount, sent: int) -> TopicCount:
    """The topic held against a number instead of ids: a repeat fills no gap, so only different ones count."""
    different = topic.stored - topic.repeats
    return TopicCount(
        topic.topic, topic.stored, topic.holes, topic.repeats,
        sent=sent, missing=max(sent - different, 0), unknown=max(different - sent, 0),
    )  # fmt: skip
