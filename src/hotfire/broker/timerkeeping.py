"""How far the timers are, as far as the disk surely has it: what `config/timercheck` may say.

A note says what would be true of the disk, were it synced now; it is kept once the last record it speaks of
is safe. Knows no slots and no messages.
"""

from __future__ import annotations

from collections import deque

from hotfire.store.store import Store
from hotfire.store.timercheck import TimerCheck
from hotfire.store.timerfiles import TimerFiles


class Keeping:
    """Notes on their way to the checkpoint."""

    def __init__(self, store: Store, files: TimerFiles) -> None:
        self._store = store
        self._files = files
        self._pending: deque[tuple[int, int, int, int]] = deque()
        """Position, log end, where the last record ends, second."""
        self._kept = 0, 0, 0
        self.has_progress = False
        """Seconds were done with since the last checkpoint."""

    def note(self, position: int, record_end: int, read_s: int) -> None:
        noted = position, self._files.log.end, record_end, read_s
        if not self._pending or self._pending[-1] != noted:
            self._pending.append(noted)
        safe = self._store.flushed_end
        while self._pending and self._pending[0][2] <= safe:
            position, end, _, read_s = self._pending.popleft()
            self._kept = position, end, read_s

    @property
    def is_due(self) -> bool:
        """Whether there is anything the last checkpoint does not say."""
        before, (position, end, _) = self._files.check, self._kept
        return any(self._kept) and (
            (position, end) != (before.queue_offset, before.log_end) or self.has_progress
        )

    def check(self, now_ms: int) -> TimerCheck:
        position, end, read_s = self._kept
        counter = self._files.check.counter + 1
        return TimerCheck(read_s * 1000, end, position, position, 0, now_ms, counter, is_ours=True)
