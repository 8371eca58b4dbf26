"""Going on with parked pulls, a few in each pass of the loop.

A message may be what a thousand groups wait for. To answer them all at once would hold up everyone else, so
queues that got something stand in line here, and each pass looks at so many pulls and answers so few. Those
whose time is up come first: they have waited longest.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from hotfire.broker.parked import Parked, ParkedPull
from hotfire.core import Queue

ANSWERS_PER_PASS_MAX = 12
BYTES_PER_PASS_MAX = 1 << 20
"""What is answered in one pass: about two milliseconds' work, be it many answers, large ones or long looks.
The last look to begin may take some three milliseconds, if its condition is as hard as may be."""
LOOKS_PER_PASS_MAX = 2000
"""Pulls looked at in one pass, most of which have nothing to go on with."""

Work = Callable[[ParkedPull], None]


class Waking:
    """Queues that got something, and the pulls on them that have yet to hear of it."""

    def __init__(self, parked: Parked) -> None:
        self._parked = parked
        self._queues: dict[Queue, None] = {}
        self._pulls: deque[ParkedPull] = deque()
        self._ended: deque[ParkedPull] = deque()
        self._bytes = 0

    def has_more(self, now_ms: int) -> bool:
        return bool(self._queues or self._pulls or self._ended) or self._parked.is_due(now_ms)

    def wake(self, queues: Iterable[Queue]) -> None:
        """Look at the pulls on these queues."""
        self._queues.update(dict.fromkeys(queues))

    def look_again(self, pull: ParkedPull) -> None:
        """The pull has not looked at all there is; those behind it come first."""
        self._pulls.append(pull)

    def end(self, pull: ParkedPull) -> None:
        """Answer the pull, whatever there is for it."""
        if not pull.gone:
            self._parked.remove(pull)
            self._ended.append(pull)

    def worked(self, size: int) -> None:
        """So many bytes went into an answer, or could have in the time that was spent on looking."""
        self._bytes += size

    def go_on(self, now_ms: int, arrived: Work, ended: Work) -> None:
        """One pass: `ended` for pulls whose time is up, `arrived` for those whose queue got something."""
        self._bytes = looks = answers = 0
        while looks < LOOKS_PER_PASS_MAX and answers < ANSWERS_PER_PASS_MAX:
            if self._bytes >= BYTES_PER_PASS_MAX:
                return
            pull = self._parked.next_due(now_ms) or (self._ended.popleft() if self._ended else None)
            if pull is not None:
                answers += 1
                ended(pull)
                continue
            if not self._pulls and not self._next_queue():
                return
            pull = self._pulls.popleft()
            looks += 1
            if not pull.gone and pull.queue.max > pull.scanned:
                answers += 1
                arrived(pull)

    def _next_queue(self) -> bool:
        while self._queues:
            queue = next(iter(self._queues))
            del self._queues[queue]
            self._pulls.extend(self._parked.on_queue(queue))
            if self._pulls:
                return True
        return False
