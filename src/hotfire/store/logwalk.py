"""Reading a whole log for the store's tools: on past a fault to the next sound record, reporting progress.

Recovery stops at the first fault and asks whether it is a torn tail; here everything behind it is of interest
too. Reads only, a window at a time.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from hotfire.store.commitlog import ROOT as LOG_ROOT
from hotfire.store.layout import Layout
from hotfire.store.scan import NEVER, Scanned, scan_records

WINDOW_BYTES = 16 << 20
MAGIC_AT, PHYSICAL_AT, MAGIC_REACH_BYTES = 4, 28, 36
_MAGIC = re.compile(rb"\xda\xa3\x20[\xa7\xab]")

Progress = Callable[[int], None]
"""Called with the log offset reached so far."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A place where no sound record begins, and where the next one does."""

    offset: int
    reason: str
    resumed_at: int | None
    """None: nothing sound behind it."""


@dataclass(slots=True)
class Window:
    """Records that follow each other without a break, and what comes behind them."""

    base: int
    data: bytes
    records: list[Scanned]
    blank: tuple[int, int] | None = None
    """(offset, size it gives itself) of the blank behind the last record."""
    fault: Fault | None = None

    def raw(self, record: Scanned) -> bytes:
        at = record.physical - self.base
        return self.data[at : at + record.size]


@dataclass(slots=True)
class LogWalk:
    """One pass over the log of `layout`, up to `limit` at most."""

    layout: Layout
    verify: bool = True
    summed_from: int = NEVER
    limit: int = NEVER
    progress: Progress = lambda done: None
    end: int = field(default=0, init=False)
    """Where the last record or blank ended."""

    def windows(self, start: int | None = None) -> Iterator[Window]:
        """Every record from `start` on, which must be one's offset; from the oldest if not given."""
        layout = self.layout
        at = self.end = layout.log_start if start is None else start
        while at < min(self.limit, layout.log_limit):
            segment = at - at % layout.segment_bytes
            if segment not in layout.segments:
                following = min((one for one in layout.segments if one > at), default=None)
                yield Window(at, b"", [], fault=Fault(at, "segment is missing", following))
                if following is None:
                    return
                at = following
                continue
            resumed = yield from self._segment(segment, at)
            if resumed is None:
                return
            at = resumed

    def _segment(self, segment: int, at: int) -> Generator[Window, None, int | None]:
        """The rest of one segment from `at`; where to go on, None at the end of the log."""
        segment_end = segment + self.layout.segment_bytes
        stop, window_bytes = min(segment_end, self.limit), WINDOW_BYTES
        with self.opened(segment) as fd:
            while at < stop:
                asked = min(window_bytes, stop - at)
                data = self.layout.disk.read(fd, asked, at - segment)
                records, consumed, reason = scan_records(data, at, self.verify, self.summed_from)
                is_last = at + asked == stop or len(data) < asked
                window = Window(at, data, records)
                at += consumed
                self.end = max(self.end, at)
                self.progress(at)
                if reason == "partial" and not is_last:
                    if not consumed:
                        window_bytes *= 2  # a record larger than any we would write
                    elif records:
                        yield window
                    continue
                if reason == "blank":
                    window.blank = at, int.from_bytes(data[consumed : consumed + 4])
                    self.end = segment_end
                    yield window
                    return segment_end
                if at == segment_end or (reason == "partial" and stop < segment_end):
                    yield window
                    return segment_end if at == segment_end else None
                if reason == "partial":
                    reason = "file ends early" if len(data) < asked else "reaches beyond its segment"
                resumed = self._next_sound(at + 1)
                if reason != "end" or resumed is not None:
                    window.fault = Fault(at, "zeros" if reason == "end" else reason, resumed)
                yield window
                return resumed
        return segment_end

    @contextmanager
    def opened(self, segment: int) -> Iterator[int]:
        disk = self.layout.disk
        fd = disk.open_to_read(f"{LOG_ROOT}/{segment:020d}")
        try:
            yield fd
        finally:
            disk.close(fd)

    def _next_sound(self, offset: int) -> int | None:
        """The first offset from `offset` on where a record begins that says itself it lies there."""
        size = self.layout.segment_bytes
        for segment in sorted(self.layout.segments):
            if segment + size <= offset:
                continue
            with self.opened(segment) as fd:
                for at, step in self.layout.disk.written_ranges(fd, max(0, offset - segment), size):
                    found = self._sound_in(fd, segment, at, step)
                    if found is not None and found < self.limit:
                        return found
        return None

    def _sound_in(self, fd: int, segment: int, at: int, step: int) -> int | None:
        data = self.layout.disk.read(fd, step + MAGIC_REACH_BYTES, at)
        for match in _MAGIC.finditer(data):
            begin = match.start() - MAGIC_AT
            physical = segment + at + begin
            if begin < 0 or data[begin + PHYSICAL_AT : begin + PHYSICAL_AT + 8] != physical.to_bytes(8):
                continue
            length = int.from_bytes(data[begin : begin + 4])
            record = self.layout.disk.read(fd, min(length, self.layout.segment_bytes), at + begin)
            if scan_records(record, physical, False)[0]:
                return physical
        return None

    def stale_behind(self, offset: int, limit: int) -> int | None:
        """The first byte of [offset, limit) that is not zero."""
        size = self.layout.segment_bytes
        for segment in sorted(self.layout.segments):
            low, high = max(offset, segment), min(limit, segment + size)
            if low >= high:
                continue
            with self.opened(segment) as fd:
                for at, step in self.layout.disk.written_ranges(fd, low - segment, high - segment):
                    data = self.layout.disk.read(fd, step, at)
                    rest = data.lstrip(b"\0")
                    if rest:
                        return segment + at + len(data) - len(rest)
        return None
