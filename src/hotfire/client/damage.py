"""Records of a pull's answer that are not what was stored: which they are, and how to go past them.

A record whose checksum or layout is wrong may have been harmed on its way, so what came before it is taken
and it is asked for once more. Coming the same way again it is lost: a group's consumer passes over it, which
is told and counted; who reads by hand gets an error that says where to go on. Java's clients hand out a body
whose checksum is wrong, and drop the rest of an answer they cannot read without a word.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple

from hotfire.errors import MessageDamaged
from hotfire.model import MessageQueue, ReceivedMessage

log = logging.getLogger("hotfire.client")


class Damage(NamedTuple):
    """A record that cannot be read."""

    before_count: int
    """So many messages of the answer are before it."""
    declared_offset: int
    """Where it says it is in its queue; not to be relied on."""
    reason: str
    is_rest: bool
    """Where it ends is unknown, and so is what follows it."""


class Sound(NamedTuple):
    """What is to be taken of an answer, and where to go on."""

    messages: list[ReceivedMessage]
    next_offset: int


class Damages:
    """For one group: what came damaged once, and how many were passed over."""

    def __init__(self, group: str, *, may_pass: bool) -> None:
        self.passed_count = 0
        self._group = group
        self._may_pass = may_pass
        self._suspects: dict[MessageQueue, int] = {}

    def forget(self, queue: MessageQueue) -> None:
        self._suspects.pop(queue, None)

    def sound(
        self,
        queue: MessageQueue,
        offset: int,
        next_offset: int,
        messages: list[ReceivedMessage],
        damages: Sequence[Damage],
    ) -> Sound:
        """What may be taken of an answer to a pull from `offset` on; MessageDamaged when nothing may."""
        least = offset  # that the next damaged one can have
        for number, damage in enumerate(damages):
            if damage.before_count:
                least = max(least, messages[damage.before_count - 1].queue_offset + 1)
            at = _place(damage, least, next_offset, messages)
            if damage.is_rest or damage.before_count in [one.before_count for one in damages[number + 1 :]]:
                behind = at + 1
            else:
                is_last = damage.before_count == len(messages)
                behind = max(next_offset if is_last else messages[damage.before_count].queue_offset, at + 1)
            error = MessageDamaged(queue, at, behind, damage.reason)
            if not self._may_pass or self._suspects.get(queue) != at:
                self._suspects[queue] = at
                if least > offset:
                    return Sound(messages[: damage.before_count], least)
                raise error
            self._pass(error)
            if damage.is_rest:
                return Sound(messages[: damage.before_count], behind)
            least = at + 1
        return Sound(messages, next_offset)

    def _pass(self, lost: MessageDamaged) -> None:
        self.forget(lost.queue)
        self.passed_count += 1
        log.error(
            "group=%s topic=%s queue=%s/%d offset=%d came damaged twice and is passed over, going on at %d: "
            "%s; look at the broker's store",
            self._group, lost.queue.topic, lost.queue.broker_name, lost.queue.queue_id, lost.queue_offset,
            lost.next_offset, lost.reason,
        )  # fmt: skip


def _place(damage: Damage, least: int, next_offset: int, messages: list[ReceivedMessage]) -> int:
    """Where the damaged one is: as it says if that can be, for a filter may have left out what was before it.

    Of one whose end is unknown nothing is believed: what lies between would be lost without a word.
    """
    is_last = damage.before_count == len(messages)
    limit = next_offset if is_last else messages[damage.before_count].queue_offset
    declared = damage.declared_offset
    return declared if not damage.is_rest and least <= declared < limit else least
