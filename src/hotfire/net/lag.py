"""How long single callbacks hold the loop, and what they were doing.

Whoever holds the loop makes everyone wait. The server times each of its calls into the heart; one that took
too long is counted, and said at most once a second with what the heart did last. On a busy machine most long
calls were only kept from running: those count too, and are said when they are very long.
"""

from __future__ import annotations

import logging
from time import thread_time

log = logging.getLogger("hotfire.net")

HELD_S_MAX = 0.005
WAITED_S_MAX = 0.1
"""Of a call that took little of the processor: it waited for the machine, or for a disk. So much is a warning
whoever is guilty; less is felt by nobody but those who measure."""
TOLD_EVERY_S = 1.0


class LagMeter:
    """Counts of one loop since its start."""

    def __init__(self) -> None:
        self.held_count = 0
        self.held_max_s = 0.0
        self._told_at_s = -TOLD_EVERY_S
        self._untold = 0
        self._worked_s = 0.0

    def sample(self) -> None:
        """Every tick: what this thread had of the processor so far."""
        self._worked_s = thread_time()

    def note(self, what: str, doing: object, began_s: float, ended_s: float) -> None:
        """A call held the loop for longer than it should. Times are of a clock that is never set."""
        held_s = ended_s - began_s
        self.held_count += 1
        self.held_max_s = max(self.held_max_s, held_s)
        worked_s = min(held_s, thread_time() - self._worked_s)  # at most: the tick may be a while ago
        has_worked = worked_s > HELD_S_MAX
        if ended_s - self._told_at_s < TOLD_EVERY_S or not (has_worked or held_s > WAITED_S_MAX):
            self._untold += 1
            return
        log.log(
            logging.WARNING if held_s > WAITED_S_MAX else logging.INFO,
            "the loop was held ms=%.1f worked_ms=%.1f by=%s doing=%s others_since=%d: %s",
            held_s * 1e3, worked_s * 1e3, what, doing, self._untold,
            "every client waited meanwhile" if has_worked
            else "the machine or its disk is busy with other work; give it more of both",
        )  # fmt: skip
        self._told_at_s, self._untold = ended_s, 0
