"""What reaches the disk beside the loop: ASYNC_FLUSH's log, queue files, key index, checkpoint.

SYNC_FLUSH's log is the journal's own affair; here is everything that no acknowledgement waits for. One piece
of work is under way at a time, on the disk's thread. A failed sync is final and becomes the store's fault;
anything else is tried again. Queue files are many: when syncing them takes long, it is done so much less
often that it takes at most a tenth of the time.
"""

from __future__ import annotations

import logging
import select
from collections.abc import Callable, Mapping
from concurrent.futures import Future

from hotfire.store.checkpoint import Checkpoint, CheckpointFile
from hotfire.store.commitlog import CommitLog
from hotfire.store.config import StoreConfig
from hotfire.store.consumequeue import ConsumeQueue, QueueKey
from hotfire.store.disk import Disk, SyncFailed
from hotfire.store.keyindex import KeyIndexes
from hotfire.store.scan import NEVER
from hotfire.store.syncing import sync_many

log = logging.getLogger("hotfire.store")

PAGE_BYTES = 4096
SHARE_MAX = 0.1
"""Of the time, spent on syncing queue files."""
INTERVAL_MS_MAX = 60_000
WAIT_MS_MAX = 30_000
NO_INDEX = -1
"""Counted in place of keys: an index switched on later is made of all of the log."""


class _LeftOff(Exception):
    """The store is being closed: what is not synced yet is synced there, together with the rest."""


class Flushing:
    """Positions known to be on the disk, and the work that moves them."""

    def __init__(
        self,
        disk: Disk,
        config: StoreConfig,
        commitlog: CommitLog,
        queues: Mapping[QueueKey, ConsumeQueue],
        index: KeyIndexes | None,
        fail: Callable[[str], None],
    ) -> None:
        self._disk = disk
        self._config = config
        self._log = commitlog
        self._queues = queues
        self._index = index
        self._fail = fail
        self.checkpoints = CheckpointFile(disk)
        self.background: Future[None] | None = None
        self.synced = 0
        """ASYNC_FLUSH: first offset not known to be on the disk."""
        self.derived = 0
        """Records before this have their queue entries and keys."""
        self.stamp = 0
        """Store time of the last record before the readable end."""
        self.summed_from = NEVER
        self.turn_bytes = 0
        """Of the largest turn so far."""
        self.reference = Checkpoint()
        """What was there at the start: fields of the reference's that are not ours to change."""
        self.is_distrusted = False
        """A queue entry was found wrong: the next start makes all of them anew."""
        self._is_hurried = self._has_queues = False
        self._counted = 0, 0, 0
        self._log_at = self._thorough_at = self._queues_at = 0
        self._began_ms = self._took_ms = 0
        self._owed: set[str] = set()
        """Queue files taken for a sync that has not succeeded yet."""
        self._owed_directories: set[str] = set()
        self._is_ending = False
        self._complaint = ""

    @property
    def dirty_bytes(self) -> int:
        """ASYNC_FLUSH: bytes written and not known to be on the disk."""
        return 0 if self._config.sync_flush else self._log.journal.written - self.synced

    def clock_moved(self, by_ms: int) -> None:
        self._began_ms += by_ms
        self._log_at += by_ms
        self._thorough_at += by_ms
        self._queues_at += by_ms

    # --- beside the loop ---

    def settle(self, now_ms: int, *, wait: bool = False) -> None:
        """Take in what became of the work beside the loop."""
        if self.background is None or not (wait or self.background.done()):
            return
        background, self.background = self.background, None
        failure = background.exception()
        if failure is None:
            if self._has_queues:
                self._took_ms = max(0, now_ms - self._began_ms)
                self._owed.clear()
                self._owed_directories.clear()
        elif isinstance(failure, _LeftOff):
            return
        elif isinstance(failure, SyncFailed):
            self._fail(f"sync failed: {failure.strerror}")
        elif str(failure) != self._complaint:
            log.error("queues and checkpoint not written, tried again shortly reason=%s", failure)
        if failure is not None and self._index is not None:
            self._index.sync_again()
        self._complaint = "" if failure is None else str(failure)

    def hurry(self) -> None:
        """ASYNC_FLUSH: sync the log as soon as possible, whatever the clock says."""
        self._is_hurried = True

    def due(self, now_ms: int) -> None:
        """Begin what is due. Nothing else must be under way."""
        self._thorough_at = self._thorough_at or now_ms
        log_due, queues_due = self._is_log_due(now_ms), self._is_queues_due(now_ms)
        if not (log_due or queues_due):
            return
        target = self._log.journal.written
        descriptors = [] if self._config.sync_flush else self._log.holding(self.synced, target)
        if descriptors:
            self._log_at = self._thorough_at = now_ms
        ranges = self._index.take_ranges() if self._index is not None and queues_due else []
        if queues_due:
            self._queues_at = now_ms
            self._take_dirty()
            if self._index is not None:
                self._owed |= self._index.take_dirty()
        dirty = set(self._owed) if queues_due else set()
        directories = set(self._owed_directories) if queues_due else set()
        checkpoint = self.checkpoint() if dirty or directories or ranges else None

        def work() -> None:
            for fd in descriptors:
                self._disk.sync(fd)
            if descriptors:
                self.synced = target
                self.checkpoints.mark(target)
            if checkpoint is not None:
                for mapped, start, size in ranges:
                    self._disk.sync_map(mapped, start, size)
                if not sync_many(self._disk, directories, dirty, lambda: self._is_ending):
                    raise _LeftOff
                self.checkpoints.write(checkpoint)

        if descriptors or checkpoint is not None:
            self._began_ms, self._has_queues = now_ms, queues_due
            self.background = self._disk.beside(work)

    def _is_log_due(self, now_ms: int) -> bool:
        config, dirty = self._config, self.dirty_bytes
        if not dirty:
            return False
        if self._is_hurried:
            self._is_hurried = False
            return True
        if now_ms - self._thorough_at >= config.flush_thorough_interval_ms:
            return True
        enough = dirty >= config.flush_least_pages * PAGE_BYTES
        return enough and (not config.flush_timed or now_ms - self._log_at >= config.flush_interval_ms)

    def _is_queues_due(self, now_ms: int) -> bool:
        pause = min(INTERVAL_MS_MAX, int(self._took_ms / SHARE_MAX))
        return now_ms - self._queues_at >= max(self._config.queue_flush_interval_ms, pause)

    # --- now ---

    def flush(self, *, everything: bool = False) -> None:
        """Queue files and checkpoint, waiting for the disk; with `everything`, the log and the index too."""
        journal = self._log.journal
        if everything:
            if not self._config.sync_flush:
                for fd in self._log.holding(self.synced, journal.written):
                    self._disk.sync(fd)
            self.synced = journal.written
        self._take_dirty()
        if self._index is not None:
            self._owed |= self._index.take_files()
        sync_many(self._disk, self._owed_directories, self._owed)
        self._owed.clear()
        self._owed_directories.clear()
        self.checkpoints.write(self.checkpoint())

    def end(self) -> None:
        """Wait for what is under way. Queue files it has not come to are left to the last `flush`."""
        self._is_ending = True
        self.settle(0, wait=True)

    def _take_dirty(self) -> None:
        for queue in self._queues.values():
            self._owed |= queue.take_dirty()
        self._owed_directories |= self._disk.take_unsynced()

    def checkpoint(self) -> Checkpoint:
        """True of the disk once the log, the dirty queue files and the index's ranges have been synced."""
        journal = self._log.journal
        if self.derived >= journal.written:  # else entries behind it may be there and would be counted too
            entries = sum(queue.count for queue in self._queues.values())
            self._counted = self.derived, entries, NO_INDEX if self._index is None else self._index.count
        derived, entries, keys = self._counted
        return Checkpoint(
            self.stamp,
            self.stamp,
            self.stamp,
            self.reference.master_flushed,
            self.reference.confirmed,
            derived=self._log.min_offset if self.is_distrusted else derived,
            durable=journal.written,
            entries=entries,
            summed_from=self.summed_from,
            keys=keys,
            turn_bytes=self.turn_bytes,
        )


def wait_for(fd: int) -> bool:
    """Whether a turn was done within the longest time a disk may take for it."""
    poll = select.poll()  # select() takes no descriptor above 1023
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(WAIT_MS_MAX))
