"""What leaves the store, and when: the oldest segments of the log, and what was derived from them.

    at the hour         segments older than they are kept
    disk rather full    the same, at any hour
    disk very full      the oldest, whatever their age
    disk full           the same, and nothing more is stored until there is room again
    on demand           expired ones, for the next runs

The last segment stays. One is let go at a time, a moment apart, oldest first: it is no longer part of the log
at once, and its file goes when no read looks at it any more, or after so long all the same: the read keeps
what it has open. Queues and index files follow.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future

from hotfire.store.commitlog import CommitLog
from hotfire.store.config import RetentionConfig
from hotfire.store.consumequeue import ConsumeQueue, QueueKey
from hotfire.store.disk import Disk
from hotfire.store.keyindex import KeyIndexes
from hotfire.store.reading import Reading

log = logging.getLogger("hotfire.store")

DEMANDED_RUNS = 20
LOOK_PERIOD_MS = 1000
"""How often it is looked how full the disk is."""
QUEUES_A_TICK = 20
HOUR_MS = 3_600_000


class Retention:
    """Decides and removes. Ticks with the loop; each step is short."""

    def __init__(
        self,
        disk: Disk,
        config: RetentionConfig,
        commitlog: CommitLog,
        queues: Mapping[QueueKey, ConsumeQueue],
        index: KeyIndexes | None,
        reading: Reading,
    ) -> None:
        self._disk = disk
        self._config = config
        self._log = commitlog
        self._queues = queues
        self._index = index
        self._reading = reading
        self._looked_ms = self._ran_ms = self._removed_ms = 0
        self._ticked_ms = 0
        self._leaps: list[tuple[int, int]] = []
        """When the clock was set forward, and by how much: files from before are that much younger."""
        self._demanded = 0
        self._batch = 0
        self._leaving: deque[tuple[int, int, int, int]] = deque()
        """First offset, descriptor, since when, and how many queries had been asked by then."""
        self._removing: Future[None] | None = None
        self._complaint = ""
        self._is_index_behind = False
        self._following: Iterator[ConsumeQueue] | None = None
        self._followed = commitlog.min_offset
        self.used_ratio = 0.0
        self.spared_ms = 0
        """Segments younger than this have messages that wait for their time."""

    @property
    def is_full(self) -> bool:
        return self.used_ratio > self._config.disk_refuse_ratio

    def demand(self) -> None:
        """Remove what is expired now, whatever the hour."""
        self._demanded = DEMANDED_RUNS

    def clock_moved(self, by_ms: int) -> None:
        self._looked_ms += by_ms
        self._ran_ms += by_ms
        self._removed_ms += by_ms
        self._leaving = deque((start, fd, since + by_ms, asked) for start, fd, since, asked in self._leaving)
        if by_ms < 0 and self._leaps:  # put right again, be it in part
            before_ms, leap_ms = self._leaps.pop()
            by_ms += leap_ms
            self._ticked_ms = before_ms
        if by_ms > 0:
            self._leaps.append((self._ticked_ms, by_ms))

    def age_ms(self, file: str, now_ms: int) -> int:
        """How long ago the file was last written, however the clock was set since the store was opened."""
        try:
            modified_ms = self._disk.modified_ms(file)
        except FileNotFoundError:  # removed by hand: what is gone has no time to wait for
            return now_ms
        leaps_ms = sum(by_ms for before_ms, by_ms in self._leaps if modified_ms < before_ms + by_ms // 2)
        return now_ms - modified_ms - leaps_ms

    def tick(self, now_ms: int, flushed_end: int) -> None:
        """Whatever the disk says to it, the rest of the store's work goes on."""
        self._ticked_ms = now_ms
        try:
            self._step(now_ms, flushed_end)
        except OSError as error:
            self._batch = 0
            if str(error) != self._complaint:
                log.error("old files are not removed, tried again shortly reason=%s", error)
            self._complaint = str(error)

    def _step(self, now_ms: int, flushed_end: int) -> None:
        if now_ms - self._looked_ms >= LOOK_PERIOD_MS:
            self._looked_ms = now_ms
            self._look()
        self._finish(now_ms)
        self._reading.sweep()
        if now_ms - self._ran_ms >= self._config.period_ms:
            self._ran_ms, self._batch = now_ms, self._config.batch_max
            self._demanded = max(0, self._demanded - 1) if self._batch_is_due(now_ms) else self._demanded
        if self._batch and not self._leaving and now_ms - self._removed_ms >= self._config.pause_ms:
            if self._remove_one(now_ms, flushed_end):
                self._removed_ms, self._batch = now_ms, self._batch - 1
            else:
                self._batch = 0
        self._follow()

    def _look(self) -> None:
        was_full = self.is_full
        self.used_ratio = self._disk.used_ratio()
        if self.is_full != was_full:
            log.log(
                logging.ERROR if self.is_full else logging.INFO,
                "%s used=%.1f%% limit=%.0f%% free_bytes=%d root=%s",
                "disk is full, nothing is stored" if self.is_full else "disk has room again",
                self.used_ratio * 100, self._config.disk_refuse_ratio * 100, self._disk.free_bytes(),
                self._disk.root,
            )  # fmt: skip

    # --- deciding ---

    def _batch_is_due(self, now_ms: int) -> bool:
        return (
            self._demanded > 0
            or time.localtime(now_ms / 1000).tm_hour in self._config.hours
            or self.used_ratio > self._config.disk_clean_ratio
        )

    def _remove_one(self, now_ms: int, flushed_end: int) -> bool:
        """Let go of the oldest segment if its time has come."""
        config, segments = self._config, self._log.segments
        oldest = self._log.min_offset
        if len(segments) < 2 or oldest + self._log.segment_bytes > flushed_end:
            return False
        forced = config.may_force and self.used_ratio > config.disk_force_ratio
        if not forced:
            age_ms = self.age_ms(self._log.file(oldest), now_ms)
            kept_ms = max(config.reserved_hours * HOUR_MS, self.spared_ms)
            if age_ms < kept_ms or not self._batch_is_due(now_ms):
                return False
        start, fd = self._log.let_go()
        self._leaving.append((start, fd, now_ms, self._reading.asked))
        if forced:
            log.warning(
                "log segment deleted to make room, whatever its age start=%d used=%.0f%% limit=%.0f%%: its "
                "messages are gone, read or not; cleanFileForciblyEnable=false refuses sends instead",
                start, self.used_ratio * 100, config.disk_force_ratio * 100,
            )  # fmt: skip
        else:
            log.info("expired log segment deleted start=%d used=%.0f%%", start, self.used_ratio * 100)
        return True

    # --- removing ---

    def _finish(self, now_ms: int) -> None:
        """Remove a file that nobody reads any more; before the next one goes it is seen what that brought."""
        if self._removing is not None:
            if not self._removing.done():
                return
            removing, self._removing = self._removing, None
            removing.result()
            self._look()
        if not self._leaving:
            return
        start, fd, since, asked = self._leaving[0]
        is_read = self._reading.is_read(start, asked)
        if is_read and now_ms - since < self._config.forced_after_ms:
            return
        self._leaving.popleft()
        if is_read:
            self._reading.close_later(start, fd)
        else:
            self._disk.close(fd)
        self._removing = self._disk.beside(lambda: self._disk.remove(self._log.file(start)))

    def _follow(self) -> None:
        """Queues and index to where the log begins, some at a time."""
        if self._following is None:
            if self._followed == self._log.min_offset:
                self._follow_index()
                return
            self._followed = self._log.min_offset
            self._is_index_behind = self._index is not None
            self._following = iter(list(self._queues.values()))
        for _ in range(QUEUES_A_TICK):
            queue = next(self._following, None)
            if queue is None:
                self._following = None
                return
            queue.follow(self._followed)

    def _follow_index(self) -> None:
        """A query may be looking at a file that is to go: those asked before must have been answered."""
        if (
            self._is_index_behind
            and self._index is not None
            and self._reading.answered >= self._reading.asked
        ):
            self._index.follow(self._followed)
            self._is_index_behind = False

    def close(self) -> None:
        for start, fd, _, _ in self._leaving:
            self._disk.close(fd)
            self._disk.remove(self._log.file(start))
        self._leaving.clear()
