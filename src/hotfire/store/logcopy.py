"""A log copied while it grows: full segments linked, the others record by record as far as records are sound.

Knows segments and records, not what else a store holds.
"""

from __future__ import annotations

from collections.abc import Callable

from hotfire.errors import StoreCorrupt
from hotfire.protocol.record import BLANK_BYTES
from hotfire.store.checkpoint import Checkpoint
from hotfire.store.commitlog import ROOT as LOG_ROOT
from hotfire.store.disk import Disk
from hotfire.store.scan import scan_records

WINDOW_BYTES = 4 << 20

Progress = Callable[[int, int], None]
"""Bytes copied so far, bytes to copy at most."""


class LogCopy:
    """Copies a log segment by segment up to the last sound record."""

    def __init__(
        self, source: Disk, part: Disk, size: int, checkpoint: Checkpoint, progress: Progress
    ) -> None:
        self._source = source
        self._part = part
        self._size = size
        self._summed_from = checkpoint.summed_from
        self._progress = progress
        self._done = self._total = 0
        self.end = 0
        self.linked = self.copied = 0

    def copy(self, starts: list[int], durable: int) -> None:
        """Segments of those that begin at `starts`; what is below `durable` is known to be sound."""
        self.end = starts[0]
        if durable > starts[-1] + self._size:
            raise StoreCorrupt(
                f"the log in {self._source.path(LOG_ROOT)} ends at {starts[-1] + self._size}, but was "
                f"durable up to {durable}: segments are missing; no copy was made"
            )
        self._total = len(starts) * self._size
        for start in starts:
            is_full = start + self._size <= durable
            if is_full and self._part.link_from(self._source, _name(start)):
                self.linked += 1
                self.end = start + self._size
                self._total -= self._size
            elif not self._copy_segment(
                start, min(max(0, durable - start), self._size), is_first=start == starts[0]
            ):
                break
        if not durable:  # without our marks the end is only where sound records end
            self._refuse_more(starts)
        self._progress(self._done, self._done)

    def _refuse_more(self, starts: list[int]) -> None:
        """Records in segments behind the end show that it is no end but damage: half a copy is none."""
        for start in starts:
            if start >= self.end and any(self._source.read_part(_name(start), BLANK_BYTES, 0)):
                raise StoreCorrupt(
                    f"log is damaged at {self.end} in {self._source.path(LOG_ROOT)}: there are records "
                    "behind it; look at it with `hotfire store verify`; no copy was made"
                )

    def _copy_segment(self, start: int, known: int, *, is_first: bool) -> bool:
        """The first `known` bytes as they are, the rest while records are sound. Whether it is full."""
        fd = self._source.open_to_read(_name(start))
        try:
            if not (known or is_first or any(self._source.read(fd, BLANK_BYTES, 0))):
                return False  # made ready ahead
            out = self._part.allocate(_name(start), self._size)
            try:
                at = self._copy_known(fd, out, known)
                at = self._copy_sound(fd, out, start, at)
                self._part.sync(out)
            finally:
                self._part.close(out)
        finally:
            self._source.close(fd)
        self.copied += 1
        self.end = start + at
        return at == self._size

    def _copy_known(self, fd: int, out: int, known: int) -> int:
        at = 0
        while at < known:
            data = self._source.read(fd, min(WINDOW_BYTES, known - at), at)
            if not data:
                raise StoreCorrupt(
                    f"a log segment in {self._source.path(LOG_ROOT)} was cut short; start over"
                )
            self._write(out, data, at)
            at += len(data)
        return at

    def _copy_sound(self, fd: int, out: int, start: int, at: int) -> int:
        """Copy what was looked at, not what is read again: the broker is writing here. Where it ended."""
        window_bytes = WINDOW_BYTES
        while at < self._size:
            data = self._source.read(fd, min(window_bytes, self._size - at), at)
            _, consumed, reason = scan_records(data, start + at, True, self._summed_from)
            if reason == "blank":
                self._write(out, data[: consumed + BLANK_BYTES], at)
                return self._size
            self._write(out, data[:consumed], at)
            at += consumed
            if reason == "partial" and not consumed and len(data) < self._size - at:
                window_bytes *= 2  # a record larger than the window
            elif reason != "partial" or not consumed:
                break
        return at

    def _write(self, out: int, data: bytes, at: int) -> None:
        self._part.write(out, data, at)
        self._done += len(data)
        self._progress(self._done, self._total)


def _name(start: int) -> str:
    return f"{LOG_ROOT}/{start:020d}"
