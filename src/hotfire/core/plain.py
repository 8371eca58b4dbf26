"""Plain-Python twins of the compiled queue and journal, and of index and reader, which stand beside it: their
specification, and what runs without a compiler. The flusher here is a Python thread, which waits for the
interpreter lock after every sync; that is why the compiled one exists. Knows bytes, descriptors and tables;
no policy.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import queue
import struct
import threading
import zlib
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from typing import Any, Protocol

from hotfire.core.plain_index import KeyIndex
from hotfire.core.plain_reader import Fetch as Fetch
from hotfire.core.plain_reader import Reader as Reader

ENTRY = struct.Struct(">qiq")  # physical offset, size, tags code
FILLER_SIZE = 0x7FFFFFFF  # an entry that only keeps a place
BLANK = struct.Struct(">II")  # size of the rest of the segment, magic
BLANK_MAGIC, TURN_BYTES_MAX = 0xCBD43194, 32 << 20
PIECES_MAX = 4096  # of one selection, whatever its limits say
WRITE, SYNC, SYNC_MARK = 0, 1, 2  # what the flusher does with a turn


class NoRoom(OSError):
    """A turn found no room on the disk. Nothing of it was synced, so all of it can be written again."""


class Files(Protocol):
    """The system calls of a journal and a reader. The module `os` is one; a simulated disk brings its own."""

    def pwrite(self, fd: int, data: Any, position: int, /) -> int: ...
    def fdatasync(self, fd: int, /) -> None: ...
    def pread(self, fd: int, size: int, position: int, /) -> bytes: ...
    def preadv(self, fd: int, buffers: list[bytearray], position: int, flags: int, /) -> int: ...


Turn = tuple[list[tuple[int, int, bytearray]], int, int]
"""(descriptor, position, bytes) of each piece, what to do with them, the log's end behind them."""


class Queue:
    """A consume queue's entries: claimed in order, made visible in order, selected for a pull."""

    def __init__(self, key: Hashable, grow: Callable[[int], None] | None = None) -> None:
        self.key = key
        self.next = self.max = self.min = 0
        self.watched = 0
        self.extended = 0
        self.extend: Callable[[int, int, int, int], int] | None = None
        self._grow = grow
        self._windows: list[tuple[int, int, memoryview]] = []

    def attach(self, base: int, buffer: Any) -> None:
        view = memoryview(buffer)
        if view.readonly:
            raise BufferError("a window must be writable")
        self._windows.append((base, len(view) // ENTRY.size, view))

    def detach(self, base: int) -> bool:
        for i, (start, _, view) in enumerate(self._windows):
            if start == base:
                view.release()
                del self._windows[i]
                return True
        return False

    def close(self) -> None:
        for _, _, view in self._windows:
            view.release()
        self._windows.clear()

    def claim(self) -> int:
        self.next += 1
        return self.next - 1

    def _find(self, index: int) -> tuple[memoryview, int] | None:
        for base, count, view in reversed(self._windows):
            if base <= index < base + count:
                return view, (index - base) * ENTRY.size
        return None

    def entry(self, index: int) -> tuple[int, int, int] | None:
        found = self._find(index)
        return None if found is None else ENTRY.unpack_from(*found)

    def put(self, index: int, physical: int, size: int, tags: int) -> None:
        found = self._find(index)
        if found is None:
            raise IndexError(f"queue entry {index} has no attached file")
        ENTRY.pack_into(*found, physical, size, tags)

    def show(self, index: int, physical: int, size: int, tags: int, timestamp: int) -> None:
        """Write the entry, asking for a file if there is none yet, and make it visible."""
        if self._find(index) is None and self._grow is not None:
            self._grow(index)
        if self.extend is not None:
            tags = self.extend(tags, timestamp, physical, size)
        self.put(index, physical, size, tags)
        self.max = index + 1

    def select(
        self,
        from_: int,
        count_max: int,
        bytes_max: int,
        memory_from: int,
        codes: tuple[int, ...] | None,
        limits: tuple[int, int, int, int, int],
    ) -> tuple[list[tuple[int, int, int]], int, int, bool]:
        return select_entries(self, from_, count_max, bytes_max, memory_from, codes, limits)


def _int32(value: int) -> int:
    return ((value & 0xFFFFFFFF) ^ 0x80000000) - 0x80000000


class Entries(Protocol):
    """What a selection asks of a queue."""

    max: int

    def entry(self, index: int, /) -> tuple[int, int, int] | None: ...


def select_entries(
    queue: Entries,
    from_: int,
    count_max: int,
    bytes_max: int,
    memory_from: int,
    codes: tuple[int, ...] | None,
    limits: tuple[int, int, int, int, int],
    resolve: Callable[[int], int | None] | None = None,
    may_pass: Callable[[int], bool] | None = None,
) -> tuple[list[tuple[int, int, int]], int, int, bool]:
    """Entries of one pull, within its limits.

    `resolve` turns what an entry holds into its tags code. None, when it cannot be known, goes for every
    code: who asked looks at the message too. `may_pass` says of what an entry holds whether its message is
    worth a look.
    """
    memory_count, disk_count, memory_bytes, disk_bytes, scan_max = limits
    count_max = min(count_max, PIECES_MAX)
    pieces: list[tuple[int, int, int]] = []
    following, total = from_, 0
    for index in range(from_, min(queue.max, from_ + scan_max)):
        entry = queue.entry(index)
        if entry is None:
            return pieces, following, total, True
        physical, size, tags = entry
        if size == FILLER_SIZE or size <= 0:
            following = index + 1
            continue
        in_memory = physical >= memory_from
        if pieces:  # the batch is judged full before each message but never before the first
            if len(pieces) >= min(count_max, memory_count if in_memory else disk_count):
                break
            if total + size > min(bytes_max, memory_bytes if in_memory else disk_bytes):
                break
        following = index + 1
        if codes is not None:
            code = tags if resolve is None else resolve(tags)
            if code is not None and _int32(code) not in codes:
                continue
        if may_pass is not None and not may_pass(tags):
            continue
        pieces.append((physical, size, index))
        total += size
    return pieces, following, total, False


class Journal:
    """Turns of the log: one fills while a thread writes and syncs the one before."""

    def __init__(self, end: int, turn_bytes_max: int = TURN_BYTES_MAX, *, files: Files = os) -> None:
        self.end: int = end
        self.written: int = end
        self.last_timestamp, self.summed_from = 0, (1 << 63) - 1
        self.busy = self.stalled = False
        self.is_written = True  # as far as others are to know: here everything is slow, and they leave room
        self._files = files
        self._mark: tuple[int, int, bytes] | None = None
        self._turn_bytes_max = turn_bytes_max
        self._segments: list[tuple[int, int, int]] = []
        self._chunks: list[tuple[int, int, bytearray]] = []
        self._pending = 0
        self._derivations: deque[tuple[Queue, int, int, int, int, int]] = deque()
        self._shown: dict[Queue, tuple[int, int]] = {}
        self._keyed: deque[tuple[int, int, int]] = deque()
        self._index: KeyIndex | None = None
        self._grow_index: Callable[[int], object] | None = None
        self._event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._jobs: queue.SimpleQueue[Turn | None] = queue.SimpleQueue()
        self._turn: Turn = [], WRITE, end
        self._done: int | OSError | None = None
        self._failed: OSError | None = None
        self._thread: threading.Thread | None = None

    @property
    def is_full(self) -> bool:
        return self._pending >= self._turn_bytes_max

    @property
    def pending(self) -> int:
        return self._pending

    def fileno(self) -> int:
        return self._event

    def add_segment(self, start: int, size: int, fd: int) -> None:
        if self._segments and start < sum(self._segments[-1][:2]):
            raise ValueError(f"segment {start} overlaps the one before")
        self._segments.append((start, size, fd))

    def drop_segment(self, start: int) -> bool:
        kept = [segment for segment in self._segments if segment[0] != start]
        dropped = len(kept) < len(self._segments)
        self._segments = kept
        return dropped

    def _segment(self, offset: int) -> tuple[int, int, int] | None:
        at = bisect_right(self._segments, offset, key=lambda segment: segment[0])
        if at == 0:
            return None
        start, size, fd = self._segments[at - 1]
        return (start, size, fd) if offset < start + size else None

    def reserve(self, size: int) -> int | None:
        """Where a record of `size` bytes will lie; None: the turn is full, or a segment is needed first."""
        segment = None if self.is_full else self._segment(self.end)
        if segment is None:
            return None
        start, segment_size, _ = segment
        left = start + segment_size - self.end
        if size + BLANK.size <= left:
            return self.end
        following = self._segment(start + segment_size)
        if following is None or size + BLANK.size > following[1]:
            return None
        self._place(BLANK.pack(left, BLANK_MAGIC))
        self.end = following[0]
        return self.end

    def append(
        self,
        record: bytes,
        queue: Queue | None,
        index: int,
        tags: int,
        timestamp: int = 0,
        hashes: tuple[int, ...] = (),
    ) -> int:
        physical = self.end
        self._place(record)
        if self._grow_index is not None:
            self._keyed.extend((physical, timestamp, key) for key in hashes)
        if queue is not None:
            self._derivations.append((queue, physical, len(record), index, tags, timestamp))
        return self.end

    def _place(self, data: bytes) -> None:
        segment = self._segment(self.end)
        assert segment is not None, "append without reserve"
        start, _, fd = segment
        position = self.end - start
        last = self._chunks[-1] if self._chunks else None
        if last is not None and last[0] == fd and last[1] + len(last[2]) == position:
            last[2].extend(data)
        else:
            self._chunks.append((fd, position, bytearray(data)))
        self._pending += len(data)
        self.end += len(data)

    def set_pool(self, size: int) -> int:
        """Turns are filled in memory that is never swapped; errno of locking it. Here only locked beside."""
        self._pool = mmap.mmap(-1, size)
        libc = ctypes.CDLL(None, use_errno=True)
        address = ctypes.addressof(ctypes.c_char.from_buffer(self._pool))
        failed = libc.mlock(ctypes.c_void_p(address), ctypes.c_size_t(size))
        self._turn_bytes_max = size // 2
        return ctypes.get_errno() if failed else 0

    def set_mark(self, fd: int, position: int, magic: bytes) -> None:
        """Where the flusher says how far the log is synced, after each turn that marks."""
        self._mark = fd, position, magic

    def submit(self, how: int) -> bool:
        """Hand over the turn. 0: write it; 1: and sync; 2: and mark, when all before it was synced too."""
        if self.busy or self._failed or not self._pending:
            return False
        self.busy = True
        self._turn = self._chunks, how, self.end
        self._chunks, self._pending = [], 0
        self._hand_over(self._turn)
        return True

    def retry(self) -> bool:
        """Write the turn again that found no room on the disk."""
        if not self.stalled:
            return False
        self.stalled = False
        self._hand_over(self._turn)
        return True

    def _hand_over(self, turn: Turn) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._flush, name="hotfire-flusher", daemon=True)
            self._thread.start()
        self._jobs.put(turn)

    def _flush(self) -> None:
        while (turn := self._jobs.get()) is not None:
            self._write(turn)

    def _write(self, turn: Turn) -> None:
        chunks, how, end = turn
        try:
            _write_turn(self._files, chunks, how != WRITE)
            if how == SYNC_MARK and self._mark is not None:
                fd, position, magic = self._mark
                head = magic + end.to_bytes(8)
                with suppress(OSError):  # it only lags
                    self._files.pwrite(fd, head + zlib.crc32(head).to_bytes(4), position)
            self._done = end
        except OSError as error:
            self._done = error
        os.eventfd_write(self._event, 1)

    def complete(self) -> int:
        with suppress(BlockingIOError):
            os.eventfd_read(self._event)
        done, self._done = self._done, None
        if isinstance(done, NoRoom):
            self.stalled = True
        elif isinstance(done, OSError):
            self._failed = done
        if self._failed is not None:
            raise self._failed
        if isinstance(done, int):
            self.written = done
            self.busy = False
        return self.written

    def derive(self, limit: int) -> list[Queue] | None:
        woken: dict[int, Queue] = {}
        while self._derivations:
            queue, physical, size, index, tags, timestamp = self._derivations[0]
            if physical + size > limit:
                break
            queue.show(index, physical, size, tags, timestamp)
            count, sizes = self._shown.get(queue, (0, 0))
            self._shown[queue] = count + 1, sizes + size
            if queue.watched:
                woken[id(queue)] = queue
            self._derivations.popleft()
        self._derive_keys(limit)
        return list(woken.values()) or None

    def take_shown(self) -> list[tuple[Hashable, int, int]]:
        """(queue key, entries, their records' bytes) that became visible since the last call."""
        shown, self._shown = self._shown, {}
        return [(queue.key, count, size) for queue, (count, size) in shown.items()]

    def set_index(self, index: KeyIndex | None, grow: Callable[[int], object]) -> None:
        """Keys go into `index`; grow(timestamp) is called when it is full or not there yet."""
        self._index, self._grow_index = index, grow

    def _derive_keys(self, limit: int) -> None:
        while self._keyed and self._keyed[0][0] < limit:
            physical, timestamp, key = self._keyed[0]
            index = self._index
            is_new = self._grow_index is not None and (index is None or physical >= index.end_offset)
            if is_new and (index is None or not index.put(key, physical, timestamp)):
                assert self._grow_index is not None
                self._grow_index(timestamp)
                if self._index is None or not self._index.put(key, physical, timestamp):
                    raise RuntimeError("the key index did not grow")
            self._keyed.popleft()

    def locate(self, physical: int, size: int) -> tuple[int, int]:
        """Descriptor and position of log bytes; LookupError when no segment holds them."""
        segment = self._segment(physical)
        if segment is None or physical + size > segment[0] + segment[1]:
            raise LookupError(f"no log segment holds {size} bytes at {physical}")
        return segment[2], physical - segment[0]

    def fetch(self, pieces: Sequence[tuple[int, ...]]) -> bytes | None:
        parts = []
        for physical, size, *_ in pieces:
            try:
                fd, position = self.locate(physical, size)
            except LookupError as error:
                raise FileNotFoundError(errno.ENOENT, str(error)) from None
            part = bytearray(size)
            try:
                count = self._files.preadv(fd, [part], position, getattr(os, "RWF_NOWAIT", 0))
            except OSError as error:
                if error.errno in (errno.EAGAIN, errno.EOPNOTSUPP):  # or a file system that cannot tell
                    return None
                raise
            if count != size:
                return None
            parts.append(part)
        return b"".join(parts)

    def close(self) -> None:
        if self._event < 0:
            return
        if self._thread is not None:
            self._jobs.put(None)
            self._thread.join()
        os.close(self._event)
        self._event = -1
        self._derivations.clear()


def _write_turn(files: Files, chunks: list[tuple[int, int, bytearray]], sync: bool) -> None:
    for fd, position, data in chunks:
        view, done = memoryview(data), 0
        while done < len(view):
            try:
                done += files.pwrite(fd, view[done:], position + done)
            except OSError as error:
                if error.errno in (errno.ENOSPC, errno.EDQUOT):
                    raise NoRoom(error.errno, f"pwrite: {error.strerror}") from None
                raise
    if sync:
        for fd in dict.fromkeys(fd for fd, _, _ in chunks):
            files.fdatasync(fd)


def sync_map(mapped: mmap.mmap, start: int, size: int) -> None:
    """These bytes of a map are on disk when this returns."""
    first = start - start % mmap.PAGESIZE
    mapped.flush(first, start + size - first)
