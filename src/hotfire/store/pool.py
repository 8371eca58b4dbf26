"""The transient pool: turns filled in memory that is never swapped, and written with a time of their own.

What is in it is acknowledged and not yet with the kernel: a crash of the process loses it. Off by default.
"""

from __future__ import annotations

import errno
import logging

from hotfire import core
from hotfire.store.config import StoreConfig
from hotfire.store.flushing import PAGE_BYTES

log = logging.getLogger("hotfire.store")


class Pool:
    """The locked memory of a journal's turns, and when they are due to be written."""

    def __init__(self, config: StoreConfig, journal: core.Journal) -> None:
        self._config = config
        self._journal = journal
        self._written_ms = 0
        if config.pool_buffers:
            self._lock(config.pool_buffers * config.segment_bytes)

    def _lock(self, size: int) -> None:
        """As much as the reference takes."""
        failed = self._journal.set_pool(size)
        if failed:
            log.warning(
                "transient pool of %d bytes is not locked in memory and may be swapped reason=%s: raise the "
                "limit of locked memory (ulimit -l) to at least that, or set transientStorePoolSize lower",
                size, errno.errorcode.get(failed, str(failed)),
            )  # fmt: skip

    def is_due(self, now_ms: int) -> bool:
        config, since = self._config, now_ms - self._written_ms
        enough = self._journal.pending >= config.commit_least_pages * PAGE_BYTES
        due = since >= config.commit_thorough_interval_ms or (enough and since >= config.commit_interval_ms)
        if due:
            self._written_ms = now_ms
        return due

    def clock_moved(self, by_ms: int) -> None:
        self._written_ms += by_ms
