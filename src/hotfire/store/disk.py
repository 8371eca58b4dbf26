"""The only module of this room that opens, writes, syncs, renames or deletes.

A `Disk` is one directory and the operations the store needs below it, each as durable as its name says.
Paths are relative to the root. Nothing here knows what the bytes mean.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import shutil
import struct
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Set
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import ClassVar, TypeVar

from hotfire import core
from hotfire.errors import StoreError
from hotfire.store.asker import Asker
from hotfire.store.system import System, syncfs

T = TypeVar("T")
Mapped = mmap.mmap  # a file as memory

STEP_BYTES = 64 << 10
_ZEROS = bytes(STEP_BYTES)
_FLOCK = struct.Struct("@hhqqi4x")
"""Type, whence, start, length, process: struct flock where off_t has 64 bits."""


class SyncFailed(OSError):
    """The disk did not take what was written. Asked again it may say yes to pages it has forgotten."""


class Bell:
    """A descriptor that becomes readable when another thread rings; made when it is first asked for."""

    _fd = -1

    def fileno(self) -> int:
        if self._fd < 0:
            self._fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        return self._fd

    def ring(self) -> None:
        if self._fd >= 0:
            os.eventfd_write(self._fd, 1)

    def silence(self) -> None:
        if self._fd >= 0:
            with suppress(BlockingIOError):
                os.eventfd_read(self._fd)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    __del__ = close  # a store may be given up without being closed


class Disk:
    """A directory on the real file system, unless `system` says otherwise."""

    syncs_at_once: ClassVar[int] = 16
    has_descriptors: ClassVar[bool] = True
    """Whether what it opens can be read by compiled code."""

    def __init__(self, root: Path | str, system: System = os) -> None:
        self.root = Path(root)
        self._system = system
        self._worker: ThreadPoolExecutor | None = None
        self._askers: defaultdict[bool, Asker] = defaultdict(Asker)
        self._lock_fd = -1
        self._sure: set[Path] = set()
        """Directories whose entry this disk has synced, or will with the next it is told to."""
        self._unsynced: set[str] = set()

    def path(self, relative: str) -> str:
        return str(self.root / relative)

    def below(self, relative: str) -> Disk:
        """The same disk seen from one of its directories."""
        return Disk(self.root / relative, self._system)

    # --- directories ---

    def make_directory(self, relative: str, *, later: bool = False) -> None:
        """The directory and its parents, each entry synced so that it outlives a power cut.

        One that is there already may have been made by a process that was killed before it could sync it.
        With `later`, the syncing is left to whoever calls `take_unsynced`.
        """
        unsure = []
        path = self.root / relative
        while path not in self._sure and (path.is_relative_to(self.root) or not self._exists(str(path))):
            unsure.append(path)
            path = path.parent
        for path in reversed(unsure):
            with suppress(FileExistsError):
                self._system.mkdir(str(path))
            self._sync_directory(path.parent, later=later)
            self._sure.add(path)

    def names(self, relative: str) -> list[str]:
        """Names in a directory, sorted; none when there is no such directory."""
        try:
            return sorted(self._system.listdir(self.path(relative)))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def sync_directory(self, relative: str, *, later: bool = False) -> None:
        self._sync_directory(self.root / relative, later=later)

    def take_unsynced(self) -> Set[str]:
        """Directories left for later: a power cut may take names in them unless the caller syncs them."""
        taken, self._unsynced = self._unsynced, set()
        return taken

    def _sync_directory(self, path: Path, *, later: bool = False) -> None:
        if later:
            self._unsynced.add(str(path))
            return
        fd = self._system.open(str(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self._system.fsync(fd)
        except OSError as error:
            raise SyncFailed(error.errno, error.strerror) from None
        finally:
            self._system.close(fd)

    # --- log segments ---

    def allocate(self, relative: str, size: int) -> int:
        """A new file of `size` zero bytes, on disk under its name before this returns. Descriptor of it."""
        unfinished = self.path(relative + ".new")
        fd = self._system.open(unfinished, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            self._system.posix_fallocate(fd, 0, size)
            self._system.fsync(fd)
            self._system.rename(unfinished, self.path(relative))
            self._sync_directory(Path(self.path(relative)).parent)
        except OSError:
            self._system.close(fd)
            with suppress(FileNotFoundError):  # half a segment takes the room a smaller thing might have had
                self._system.unlink(unfinished)
            raise
        return fd

    def open(self, relative: str) -> int:
        return self._system.open(self.path(relative), os.O_RDWR | os.O_CLOEXEC)

    def open_to_read(self, relative: str) -> int:
        """Descriptor through which nothing can be changed."""
        return self._system.open(self.path(relative), os.O_RDONLY | os.O_CLOEXEC)

    def size(self, relative: str) -> int:
        return self._system.stat(self.path(relative)).st_size

    def size_on_disk(self, relative: str) -> int:
        """Bytes of the blocks the file has; holes have none."""
        return self._system.stat(self.path(relative)).st_blocks * 512

    def written_ranges(self, fd: int, start: int, end: int) -> Iterator[tuple[int, int]]:
        """(position, size) of steps of [start, end) that are not holes, in order."""
        for at, hole in self._extents(fd, start, end):
            while at < hole:
                step = min(STEP_BYTES - at % STEP_BYTES, hole - at)
                yield at, step
                at += step

    def _extents(self, fd: int, start: int, end: int) -> list[tuple[int, int]]:
        """All found before anything is read: a page that was read, be it of zeros, counts as written."""
        if start >= end:
            return []
        self._system.posix_fadvise(fd, start, end - start, os.POSIX_FADV_DONTNEED)  # what was read ahead
        extents: list[tuple[int, int]] = []
        at = start
        while at < end:
            try:
                at = self._system.lseek(fd, at, os.SEEK_DATA)
                hole = self._system.lseek(fd, at, os.SEEK_HOLE)
            except OSError as error:
                if error.errno == errno.ENXIO:  # nothing up to the end of the file
                    break
                raise
            if at < end:
                extents.append((at, min(hole, end)))
            at = hole
        return extents

    def zero(self, fd: int, start: int, size: int, *, later: bool = False) -> int:
        """Zeros over [start, start + size), synced unless `later`; how many bytes were none."""
        changed = 0
        for at, step in self.written_ranges(fd, start, start + size):
            found = self._system.pread(fd, step, at)
            if found != _ZEROS[:step]:
                changed += step - found.count(0)
                self.write(fd, _ZEROS[:step], at)
        if not later:
            self._sync(fd)
        return changed

    def read(self, fd: int, size: int, position: int) -> bytes:
        return self._system.pread(fd, size, position)

    def write(self, fd: int, data: bytes, position: int) -> None:
        done = 0
        while done < len(data):
            done += self._system.pwrite(fd, data[done:], position + done)

    def sync(self, fd: int) -> None:
        """What was written to `fd` is on the disk when this returns; else SyncFailed, which is final."""
        self._sync(fd)

    def _sync(self, fd: int) -> None:
        try:
            self._system.fdatasync(fd)
        except OSError as error:
            raise SyncFailed(error.errno, error.strerror) from None

    def close(self, fd: int) -> None:
        self._system.close(fd)

    # --- mapped files ---

    def map(self, relative: str, size: int, *, page_by_page: bool = False, later: bool = False) -> Mapped:
        """The file as shared memory, made sparse at `size` if it does not exist, its name synced or `later`.

        With `page_by_page`, touching a page brings none of its neighbours into memory: of thousands of files
        that are each written at one place, what the system reads ahead would fill all of it.
        """
        fd = self._system.open(self.path(relative), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            if self._system.fstat(fd).st_size < size:
                self._system.ftruncate(fd, size)
                self._sync_directory(Path(self.path(relative)).parent, later=later)
            mapped = self._map(fd, size)
        finally:
            self._system.close(fd)
        if page_by_page and isinstance(mapped, mmap.mmap):  # a simulated disk maps memory of its own
            mapped.madvise(mmap.MADV_RANDOM)
        return mapped

    def _map(self, fd: int, size: int) -> Mapped:
        return mmap.mmap(fd, size, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)

    def map_to_read(self, relative: str) -> Mapped:
        """The whole file as memory that cannot be written. The file must not be empty."""
        fd = self.open_to_read(relative)
        try:
            return mmap.mmap(fd, 0, mmap.MAP_SHARED, mmap.PROT_READ)
        finally:
            self._system.close(fd)

    def scratch(self, size: int) -> Mapped:
        """Memory of `size` zero bytes behind which there is no file; what is not touched costs nothing."""
        return mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)

    def reserve(self, relative: str, size: int) -> None:
        """Blocks for the file's first `size` bytes, so that a store into the map cannot meet a full disk."""
        fd = self._system.open(self.path(relative), os.O_RDWR | os.O_CLOEXEC)
        try:
            self._system.posix_fallocate(fd, 0, size)
        finally:
            self._system.close(fd)

    def sync_file(self, relative: str) -> None:
        """Everything written to the file, through maps too, is on disk when this returns."""
        fd = self._system.open(self.path(relative), os.O_RDWR | os.O_CLOEXEC)
        try:
            self._sync(fd)
        finally:
            self._system.close(fd)

    def sync_file_system(self, paths: Iterable[str]) -> bool:
        """Everything on the disk in one go; False where that does not cover these paths, or failed.

        An error may be of any file, of others even: then each is to be asked for its own. The descriptor is
        the one that was opened first of all, which hears of every error since.
        """
        if self._lock_fd < 0 or self._system is not os:
            return False
        device = os.fstat(self._lock_fd).st_dev
        for path in paths:
            with suppress(FileNotFoundError):
                if os.stat(self.path(path)).st_dev != device:
                    return False
        return syncfs(self._lock_fd)

    def sync_map(self, mapped: Mapped, start: int, size: int) -> None:
        """These bytes of a map are on disk when this returns. Takes no lock of the interpreter meanwhile."""
        try:
            core.sync_map(mapped, start, size)
        except OSError as error:
            raise SyncFailed(error.errno, error.strerror) from None

    # --- small files ---

    def read_whole(self, relative: str) -> bytes | None:
        try:
            fd = self._system.open(self.path(relative), os.O_RDONLY | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            return None
        try:
            data = b""
            while piece := self._system.pread(fd, STEP_BYTES, len(data)):
                data += piece
            return data
        except OSError as error:
            error.filename = self.path(relative)  # the system was told a number
            raise
        finally:
            self._system.close(fd)

    def write_whole(self, relative: str, data: bytes, *, keep: str | None = None) -> None:
        """The file holds `data` or, after a crash at any point, what it held before, kept as `keep` too."""
        temporary, final = self.path(relative + ".tmp"), self.path(relative)
        fd = self._system.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            self.write(fd, data, 0)
            self._system.fsync(fd)
        finally:
            self._system.close(fd)
        if keep is not None and self._exists(final):
            with suppress(FileNotFoundError):
                self._system.unlink(self.path(keep))
            self._system.link(final, self.path(keep))
        self._system.rename(temporary, final)
        self._sync_directory(Path(final).parent)

    def read_part(self, relative: str, size: int, position: int) -> bytes:
        """Bytes of a file that is not kept open; none when it does not exist."""
        try:
            fd = self.open_to_read(relative)
        except FileNotFoundError:
            return b""
        try:
            return self._system.pread(fd, size, position)
        finally:
            self._system.close(fd)

    def rename(self, old: str, new: str) -> None:
        """A file or directory under another name, on disk when this returns."""
        self._system.rename(self.path(old), self.path(new))
        self._sure.clear()  # a directory of the old name is to be made anew
        for path in {Path(self.path(old)).parent, Path(self.path(new)).parent}:
            self._sync_directory(path)

    def remove_tree(self, relative: str) -> None:
        """A directory and everything in it, or nothing when it does not exist."""
        with suppress(FileNotFoundError):
            shutil.rmtree(self.path(relative))
            self._sure.clear()
            self._sync_directory(Path(self.path(relative)).parent)

    def remove(self, relative: str) -> None:
        with suppress(FileNotFoundError):
            self._system.unlink(self.path(relative))
            self._sync_directory(Path(self.path(relative)).parent)

    def exists(self, relative: str) -> bool:
        return self._exists(self.path(relative))

    def _exists(self, path: str) -> bool:
        try:
            self._system.stat(path)
        except OSError:
            return False
        return True

    def modified_ms(self, relative: str) -> int:
        """When the file was last written to."""
        return self._system.stat(self.path(relative)).st_mtime_ns // 1_000_000

    def free_bytes(self) -> int:
        status = os.statvfs(self.root)
        return status.f_bavail * status.f_frsize

    def total_bytes(self) -> int:
        status = os.statvfs(self.root)
        return status.f_blocks * status.f_frsize

    def is_directory(self, relative: str) -> bool:
        return os.path.isdir(self.path(relative))

    def used_ratio(self) -> float:
        """Share of the file system that is taken, as df counts it: without what is kept for root."""
        status = os.statvfs(self.root)
        used = status.f_blocks - status.f_bfree
        return used / (used + status.f_bavail) if used + status.f_bavail else 0.0

    def memory_bytes(self) -> int:
        """Memory of the machine, most of which is this disk's cache."""
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")

    # --- whole stores ---

    def link_from(self, other: Disk, relative: str) -> bool:
        """The other disk's file here too, under the same name, as the same bytes; False where that cannot be.

        The name outlives a power cut once its directory is synced.
        """
        try:
            self._system.link(other.path(relative), self.path(relative))
        except OSError as error:
            # another file system; one without links, or a file of another user's; as many as there may be
            if error.errno in (errno.EXDEV, errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK):
                return False
            raise
        return True

    def publish(self, root: Path) -> None:
        """Give the directory its name, which nothing but an empty directory may have; on disk at return."""
        self._sync_directory(self.root)
        self._system.rename(str(self.root), str(root))
        self.root = root
        self._sure.clear()
        self._sync_directory(root.parent)

    def discard(self) -> None:
        """Delete the directory and everything in it."""
        shutil.rmtree(self.root, ignore_errors=True)
        self._sure.clear()

    # --- one owner ---

    def lock(self, relative: str) -> None:
        """A record lock on byte 0, as Java's, so that no two brokers of any kind share the directory."""
        fd = self._system.open(self.path(relative), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            self._lock(fd)
        except OSError:
            self._system.close(fd)
            raise StoreError(
                f"store {self.root} is in use by another broker: stop it or choose another directory"
            ) from None
        if self._system.fstat(fd).st_size == 0:
            self._system.pwrite(fd, b"lock", 0)
        self._lock_fd = fd

    def _lock(self, fd: int) -> None:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)

    def unlock(self) -> None:
        if self._lock_fd >= 0:
            self._system.close(self._lock_fd)
            self._lock_fd = -1

    def lock_holder(self, relative: str) -> int | None:
        """Process that holds the lock, -1 if the system does not say which; the file is only looked at.

        Not for a process that holds it itself: closing any descriptor of the file would let the lock go.
        """
        try:
            fd = self.open_to_read(relative)
        except FileNotFoundError:
            return None
        try:
            asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
            kind, _, _, _, process = _FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_GETLK, asked))
        finally:
            self._system.close(fd)
        if kind == fcntl.F_UNLCK:
            return None
        return process if process > 0 else -1

    # --- threads of the log ---

    def journal(self, end: int, turn_bytes_max: int) -> core.Journal:
        """The journal whose flusher writes to this disk."""
        return core.Journal(end, turn_bytes_max)

    def reader(self) -> core.Reader:
        return core.Reader()

    # --- work beside the loop ---

    def beside(self, work: Callable[[], T]) -> Future[T]:
        """Run blocking disk work on this disk's own thread."""
        if self._worker is None:
            self._worker = ThreadPoolExecutor(1, thread_name_prefix="hotfire-disk")
        return self._worker.submit(work)

    def aside(self, work: Callable[[], T], *, rests: bool, own: bool = False) -> Future[T]:
        """Run a query, of a client or the broker's `own`, on a thread for such; with `rests` after a rest."""
        return self._askers[own].submit(work, rests=rests)

    def finish(self) -> None:
        """Wait for the work beside the loop and end its threads."""
        for threads in (self._worker, *self._askers.values()):
            if threads is not None:
                threads.shutdown(wait=True)
        self._worker = None
        self._askers.clear()
