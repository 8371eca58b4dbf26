"""The plain-Python twin of the compiled reader: cold log bytes, read on a thread of their own.

It neither paces itself nor judges what it read; those are the compiled one's.
"""

from __future__ import annotations

import errno
import os
import queue
import threading
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hotfire.core.plain import Files, Journal

Fetch = tuple[list[tuple[int, int, int]], Any]
"""(descriptor, position, size) of each piece, and the token that goes with them."""


class Reader:
    """Cold reads beside the loop."""

    def __init__(self, *, files: Files = os) -> None:
        self.queued = self.pace_least = 0
        self._files = files
        self._event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._jobs: queue.SimpleQueue[Fetch | None] = queue.SimpleQueue()
        self._done: deque[tuple[Any, bytes | int, int]] = deque()
        self._thread: threading.Thread | None = None

    def fileno(self) -> int:
        return self._event

    def submit(
        self,
        journal: Journal,
        pieces: Sequence[tuple[int, ...]],
        token: Any,
        topic: bytes | None = None,
        queue_id: int = 0,
    ) -> None:
        """The compiled reader also judges the records; here whoever takes the bytes does."""
        parts = [(*journal.locate(physical, size), size) for physical, size, *_ in pieces]
        self.queued += 1
        self._hand_over((parts, token))

    def _hand_over(self, fetch: Fetch) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="hotfire-reader", daemon=True)
            self._thread.start()
        self._jobs.put(fetch)

    def _serve(self) -> None:
        while (fetch := self._jobs.get()) is not None:
            self._read(fetch)

    def _read(self, fetch: Fetch) -> None:
        parts, token = fetch
        try:
            data = b"".join(self._files.pread(fd, size, position) for fd, position, size in parts)
            short = len(data) != sum(size for _, _, size in parts)
            self._done.append((token, errno.EIO if short else data, -1))
        except OSError as error:
            self._done.append((token, error.errno or errno.EIO, -1))
        os.eventfd_write(self._event, 1)

    def take(self) -> list[tuple[Any, bytes | int, int]]:
        with suppress(BlockingIOError):
            os.eventfd_read(self._event)
        taken = []
        while self._done:
            taken.append(self._done.popleft())
        self.queued -= len(taken)
        return taken

    def close(self) -> None:
        if self._event < 0:
            return
        if self._thread is not None:
            self._jobs.put(None)
            self._thread.join()
        os.close(self._event)
        self._event = -1
