"""Recalls that lie in the queue of timers and not yet in the wheel: they hold from when they were stored.

The slot of the message they take back may be open already, and its chain read. Bounded: who sends more is
told to wait until these are taken up.
"""

from __future__ import annotations

from hotfire.errors import BrokerRefused
from hotfire.protocol.codes import ResponseCode

WAITING_MAX = 20_000


class Recalls:
    """What is to be deleted, by second and key, in the order of the queue."""

    def __init__(self) -> None:
        self._waiting: dict[tuple[int, str], int] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def check_room(self) -> None:
        if len(self._waiting) >= WAITING_MAX:
            raise BrokerRefused(
                ResponseCode.SYSTEM_ERROR,
                f"timer message is under flow control: {len(self._waiting)} recalls wait to be taken up, "
                f"at most {WAITING_MAX} may, try again later",
            )

    def add(self, time_s: int, key: str, queue_offset: int) -> None:
        self._waiting.pop((time_s, key), None)  # the later one counts, and stands behind
        self._waiting[time_s, key] = queue_offset

    def holds(self, time_s: int, key: str) -> bool:
        return (time_s, key) in self._waiting

    def taken_up(self, position: int) -> None:
        """Those below the position are in the wheel, and their slots know them."""
        done = []
        for recall, queue_offset in self._waiting.items():
            if queue_offset >= position:
                break
            done.append(recall)
        for recall in done:
            del self._waiting[recall]
