"""What the judges of rows share: how they are named, and the questions most of them ask."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

from tests.interop.content import differences
from tests.interop.rowrun import Event, Facts

Check = Callable[[Facts], None]
_checks: dict[str, Check] = {}


def checks(*rows: str) -> Callable[[Check], Check]:
    """Make a function the judge of rows."""

    def register(check: Check) -> Check:
        for row in rows:
            assert row not in _checks, f"row {row} is judged twice"
            _checks[row] = check
        return check

    return register


def known() -> dict[str, Check]:
    return _checks


def indexes(messages: Iterable[Event]) -> list[int]:
    return [message["index"] for message in messages]


def unchanged(messages: Iterable[Event], **options: Any) -> None:
    """Every message is what was sent; the options are those of `differences`."""
    lines = [line for message in messages for line in differences(message, **options)]
    assert lines[:5] == []


def each_once(messages: list[Event], wanted: Iterable[int], **options: Any) -> None:
    assert sorted(indexes(messages)) == sorted(wanted)
    unchanged(messages, **options)


def place(event: Event) -> tuple[str, int, int]:
    """A message's unique id and where it lies."""
    return event["msgId"], event["queueId"], event["queueOffset"]


def by_queue(messages: Iterable[Event]) -> dict[int, list[Event]]:
    """Messages of each queue in the order of their offsets."""
    queues: dict[int, list[Event]] = defaultdict(list)
    for message in sorted(messages, key=lambda message: int(message["queueOffset"])):
        queues[message["queueId"]].append(message)
    return dict(queues)


def without_gaps(messages: Iterable[Event]) -> None:
    """The messages fill their queues from the first offset on."""
    for queue, lying in by_queue(messages).items():
        offsets = [message["queueOffset"] for message in lying]
        assert offsets == list(range(len(offsets))), (
            f"queue {queue} has offsets {offsets[:3]}..{offsets[-3:]}"
        )


def acknowledged(facts: Facts, count: int) -> list[Event]:
    """Every send succeeded."""
    assert facts.of("failed") == []
    sent = facts.of("sent")
    assert len(sent) == count
    assert {event["status"] for event in sent} == {"SEND_OK"}
    return sent
