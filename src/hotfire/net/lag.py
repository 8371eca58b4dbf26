"""How long single callbacks hold the loop, and what they were doing.

Whoever holds the loop makes everyone wait. The server times each of its calls into the heart; one that took
too long is counted, and said at most once a minute with what the heart did last, one that was felt by clients
at most once a second. On a busy machine most long calls were only kept from running: those count too, and are
said when they are very long.
"""

from __future__ import annotations

import logging
from time import thread_time

log = logging.getLogger("hotfire.net")

HELD_S_MAX = 0.005
WAITED_S_MAX = 0.1
"""Of a call that took little of the processor: it waited for the machine, or for a disk. So much is a warning
whoever is guilty; less is felt by nobody but those who measure."""
TOLD_EVERY_S, WARNED_EVERY_S = 60.0, 1.0


class LagMeter:
    """Counts of one loop since its start."""

    def __init__(self) -> None:
        self.held_count = 0
        self.held_max_s = 0.0
        self._told_at_s, self._warned_at_s = -TOLD_EVERY_S, -WARNED_EVERY_S
        self._untold = 0
        self._untold_max_s = 0.0
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
        has_worked, is_felt = worked_s > HELD_S_MAX, held_s > WAITED_S_MAX
        silent_until_s = self._warned_at_s + WARNED_EVERY_S if is_felt else self._told_at_s + TOLD_EVERY_S
        if ended_s < silent_until_s or not (has_worked or is_felt):
            self._untold += 1
            self._untold_max_s = max(self._untold_max_s, held_s)
            return
        log.log(
            logging.WARNING if is_felt else logging.INFO,
            "the loop was held ms=%.1f worked_ms=%.1f by=%s doing=%s others_since=%d worst_ms=%.1f: %s",
            held_s * 1e3, worked_s * 1e3, what, doing, self._untold, self._untold_max_s * 1e3,
            "every client waited meanwhile" if has_worked
            else "the machine or its disk is busy with other work; give it more of both",
        )  # fmt: skip
        self._told_at_s, self._untold, self._untold_max_s = ended_s, 0, 0.0
        if is_felt:
            self._warned_at_s = ended_s
