"""The judges themselves: what they let pass and what they do not."""

from __future__ import annotations

import pytest

from tests.interop.checks.groups import in_one_hand
from tests.interop.rowrun import Event


def told(*lines: str) -> list[Event]:
    """Events of queues consumed in order, each as `KIND CONSUMER [QUEUE OFFSET]`."""
    events = []
    for at, line in enumerate(lines):
        kind, consumer, *place = line.split()
        event: Event = {"event": kind, "at": at, "consumer": consumer}
        events.append(event | dict(zip(("queueId", "queueOffset"), map(int, place), strict=False)))
    return events


def test_an_interrupted_listener_ends_its_own_handling_only() -> None:
    """A member leaves with queue 0 in hand, while another handles queue 1 and goes on with it."""
    in_one_hand(told(
        "message c0 0 0", "message c1 1 0", "closing c0", "error c0 0 0", "handled c1 1 0", "message c1 0 0",
        "message c1 1 1", "handled c1 1 1", "handled c1 0 0",
    ))  # fmt: skip


def test_who_leaves_may_be_overtaken() -> None:
    """Java's shutdown unlocks without waiting for the listener, which ends whenever it does."""
    begun = ("message c0 0 0", "closing c0", "message c1 0 0")
    in_one_hand(told(*begun, "error c0 0 0", "handled c1 0 0", "message c1 0 1"))
    in_one_hand(told(*begun, "handled c1 0 0", "handled c0 0 0", "message c1 0 1"))


@pytest.mark.parametrize(
    ("lines", "fault"),
    [
        (("message c0 2 0", "message c1 2 0"), "queue 2, offset 0: c1 begins, and still busy are {'c0': 0}"),
        (("message c0 2 0", "message c0 2 0"), "queue 2, offset 0: c0 begins, and still busy are {'c0': 0}"),
        (("message c0 2 0", "closing c1", "message c1 2 0"), "c1 begins, and still busy are {'c0': 0}"),
        (("message c0 2 1",), "queue 2, offset 1: c0 leaves out what follows -1"),
        (("message c0 2 0", "error c0 2 0", "message c0 2 1"), "c0 leaves out what follows -1"),
        (("message c0 2 0", "handled c1 2 0"), "queue 2, offset 0: c1 ends, but began None"),
    ],
)
def test_two_hands_and_gaps_are_found(lines: tuple[str, ...], fault: str) -> None:
    """And told with queue, members and what happened around."""
    with pytest.raises(AssertionError) as failed:
        in_one_hand(told(*lines))
    assert fault in str(failed.value)
    assert "at=0 event=message consumer=c0" in str(failed.value)
