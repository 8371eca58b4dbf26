"""The system calls of a simulated disk: `os`, as far as a store uses it, over files in memory.

Every call that changes or syncs something is an operation and has a number, so that a test can cut the power
at any of them, or make the n-th of a kind fail. Calls that only read are not counted.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from typing import Any

from hotfire.testing.inodes import Directory, File, Memory

FIRST_FD = 1 << 20
"""Above any real descriptor: one that strays into a real system call fails."""
KINDS = (
    "create", "truncate", "pwrite", "ftruncate", "fallocate", "sync", "sync_directory",
    "rename", "link", "unlink", "mkdir",
)  # fmt: skip


class PowerCut(BaseException):
    """The power is off. No handler of errors may take it for one: there is nobody left to handle anything.

    >>> disk = SimDisk()
    >>> disk.cut_after(0)
    >>> try:
    ...     disk.make_directory(".")
    ... except PowerCut:
    ...     print("dark")
    dark
    """


class SimSystem:
    """A tree of files in memory and the calls that change it."""

    def __init__(self, root: Directory) -> None:
        self.root = root
        self.operations = 0
        """Operations done so far; the next one has this number."""
        self.trace: list[str] | None = None
        """What each operation was, if a list was put here to hold it."""
        self.between: Callable[[], None] = lambda: None
        """Called before each operation: others have their turn."""
        self._cut_at: int | None = None
        self.is_off = False
        self._why = "switched off"
        self._failures: dict[tuple[str, int], int] = {}
        self._counts = dict.fromkeys(KINDS, 0)
        self._open: dict[int, File | Directory] = {}
        self._next_fd = FIRST_FD
        self._mapped: dict[int, File] = {}

    # --- faults ---

    def cut_after(self, count: int) -> None:
        """Let operations up to `count` happen; that one, numbered from 0, and all later ones are PowerCut."""
        self._cut_at = count

    def fail(self, kind: str, code: int, *, skip: int = 0, times: int = 1) -> None:
        """After `skip` more operations of `kind`, the next `times` fail with error `code`."""
        for number in range(skip, skip + times):
            self._failures[kind, self._counts[kind] + number] = code

    def switch_off(self) -> None:
        self.is_off = True

    def notice(self) -> None:
        """Take down what was stored into maps so far."""
        for key, file in list(self._mapped.items()):
            file.notice(self.operations)
            if not file.data.maps:
                file.unmapped(self.operations)
                del self._mapped[key]

    def _check_power(self) -> None:
        if self.is_off:
            raise PowerCut(self._why)

    def _before(self) -> None:
        """Before an operation looks at anything: others may change it until then, and not after."""
        self._check_power()
        self.between()

    def _begin(self, kind: str, what: str = "") -> int:
        """Count an operation; its moment. Raises what was asked for it."""
        self._check_power()
        self.notice()
        if self.operations == self._cut_at:
            self.is_off, self._why = True, f"at operation {self.operations}, {kind} {what}"
            raise PowerCut(self._why)
        if self.trace is not None:
            self.trace.append(f"{kind} {what}")
        self.operations += 1
        number = self._counts[kind]
        self._counts[kind] += 1
        code = self._failures.pop((kind, number), 0)
        if code:
            raise OSError(code, os.strerror(code))
        return self.operations

    # --- paths ---

    def _find(self, path: str) -> File | Directory:
        node: File | Directory = self.root
        for name in path.split("/"):
            if name in ("", "."):
                continue
            if not isinstance(node, Directory):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
            if name not in node.entries:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            node = node.entries[name]
        return node

    def _place(self, path: str) -> tuple[Directory, str]:
        above, _, name = path.rstrip("/").rpartition("/")
        parent = self._find(above)
        if not isinstance(parent, Directory):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
        return parent, name

    def is_directory(self, path: str) -> bool:
        try:
            return isinstance(self._find(path), Directory)
        except OSError:
            return False

    def file(self, path: str) -> File:
        node = self._find(path)
        if not isinstance(node, File):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        return node

    def _node(self, fd: int) -> File | Directory:
        self._check_power()
        if fd not in self._open:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        return self._open[fd]

    def _opened(self, fd: int) -> File:
        node = self._node(fd)
        if not isinstance(node, File):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        return node

    # --- reading ---

    def stat(self, path: str, /) -> os.stat_result:
        self._check_power()
        return _status(self._find(path))

    def fstat(self, fd: int, /) -> os.stat_result:
        return _status(self._node(fd))

    def listdir(self, path: str, /) -> list[str]:
        self._check_power()
        node = self._find(path)
        if not isinstance(node, Directory):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
        return list(node.entries)

    def pread(self, fd: int, size: int, position: int, /) -> bytes:
        return bytes(self._opened(fd).data[position : position + size])

    def preadv(self, fd: int, buffers: list[bytearray], position: int, flags: int, /) -> int:
        done = 0
        for buffer in buffers:
            found = self.pread(fd, len(buffer), position + done)
            buffer[: len(found)] = found
            done += len(found)
        return done

    def lseek(self, fd: int, position: int, how: int, /) -> int:
        assert how in (os.SEEK_DATA, os.SEEK_HOLE)
        size = len(self._opened(fd).data)
        if position >= size:
            raise OSError(errno.ENXIO, os.strerror(errno.ENXIO))
        return position if how == os.SEEK_DATA else size  # a file without holes

    def posix_fadvise(self, fd: int, position: int, size: int, advice: int, /) -> None:
        """Advice is taken or not."""

    # --- descriptors ---

    def open(self, path: str, flags: int, mode: int = 0o777, /) -> int:
        self._before()
        try:
            node = self._find(path)
        except FileNotFoundError:
            if not flags & os.O_CREAT:
                raise
            parent, name = self._place(path)
            at = self._begin("create", path)
            node = File()
            parent.change(at, name, node, None)
        if flags & os.O_TRUNC and isinstance(node, File) and node.data:
            node.truncate(self._begin("truncate", path))
        self._next_fd += 1
        self._open[self._next_fd] = node
        return self._next_fd

    def close(self, fd: int, /) -> None:
        if not self.is_off:  # else nobody is left to do it; `finally` clauses run here all the same
            self._node(fd)
            del self._open[fd]

    def map(self, fd: int, size: int) -> Memory:
        file = self._opened(fd)
        assert len(file.data) == size, "a map is of the whole file"
        self._mapped[id(file)] = file
        return file.mapped()

    # --- files ---

    def pwrite(self, fd: int, data: Any, position: int, /) -> int:
        self._before()
        file = self._opened(fd)
        at = self._begin("pwrite", f"{len(data)} at {position}")
        file.write(bytes(data), position, at)
        return len(data)

    def ftruncate(self, fd: int, size: int, /) -> None:
        self._before()
        file = self._opened(fd)
        file.resize(size, self._begin("ftruncate", str(size)))

    def posix_fallocate(self, fd: int, position: int, size: int, /) -> None:
        self._before()
        file = self._opened(fd)
        at = self._begin("fallocate", str(size))
        if position + size > len(file.data):
            file.resize(position + size, at)

    def fsync(self, fd: int, /) -> None:
        node = self._node(fd)
        if isinstance(node, Directory):
            self._before()
            self._begin("sync_directory")
            node.sync()
        else:
            self.fdatasync(fd)

    def fdatasync(self, fd: int, /) -> None:
        """Contents and size are durable, not the file's name: that is the directory's."""
        self._before()
        file = self._opened(fd)
        try:
            at = self._begin("sync")
        except OSError:
            file.fail_sync(self.operations)
            raise
        file.sync(at)

    def msync(self, mapped: Memory, start: int, size: int) -> None:
        """A stretch of a map is durable."""
        self._before()
        file = next(file for file in self._mapped.values() if file.data is mapped)
        try:
            at = self._begin("sync")
        except OSError:
            file.fail_sync(self.operations)
            raise
        file.sync_part(start, size, at)

    # --- names ---

    def mkdir(self, path: str, /) -> None:
        self._before()
        parent, name = self._place(path)
        if name in parent.entries:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        parent.change(self._begin("mkdir", path), name, Directory(), None)

    def link(self, old: str, new: str, /) -> None:
        self._before()
        file, (parent, name) = self.file(old), self._place(new)
        if name in parent.entries:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), new)
        parent.change(self._begin("link", new), name, file, None)

    def rename(self, old: str, new: str, /) -> None:
        self._before()
        node, (parent, name), (target, new_name) = self._find(old), self._place(old), self._place(new)
        assert parent is target, "renames stay in their directory"
        parent.change(self._begin("rename", new), new_name, node, name)

    def unlink(self, path: str, /) -> None:
        self._before()
        self.file(path)
        parent, name = self._place(path)
        parent.change(self._begin("unlink", path), None, None, name)


def _status(node: File | Directory) -> os.stat_result:
    is_file = isinstance(node, File)
    mode, size = (
        (stat.S_IFREG | 0o644, len(node.data)) if isinstance(node, File) else (stat.S_IFDIR | 0o755, 0)
    )
    return os.stat_result((mode, id(node), 1, 1 if is_file else 2, 0, 0, size, 0, 0, 0))
