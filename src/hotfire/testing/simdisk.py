"""A disk in memory that does what disks do on a bad day, the same way each time for the same seed.

    disk = SimDisk(seed)
    Store(disk, config) ...                  it is a `Disk`, down to its sequences of system calls
    disk.cut_after(disk.operations + 7)      the power goes seven operations from now: PowerCut
    after = disk.power_cut(random.Random(1)) one of the disks a cut at this moment may leave
    after = disk.kill(random.Random(1))      only the process dies: all is there, but no more is durable
    disk.fail("sync", errno.EIO)             the next sync fails; "pwrite", "create", ... likewise
    disk.flip("commitlog/000...0", 4711)     one bit is not what it was
    disk.hold(); disk.release()              turns of the log stay under way until the test says so

Work beside the loop and turns of the log are done at once or some operations later, as the seed has it: a
store must not care. There are no threads; whoever waits for work that is still to come has it done then.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import ClassVar, Self, TypeVar, cast

from hotfire import core
from hotfire.core import plain
from hotfire.store.disk import Disk, Mapped, SyncFailed
from hotfire.testing.cuts import Fate, survivors
from hotfire.testing.inodes import Directory, File, Memory, reachable
from hotfire.testing.simsystem import PowerCut, SimSystem

__all__ = ["PowerCut", "SimDisk"]

T = TypeVar("T")
ROOT = "/disk"
MEMORY_BYTES = 1 << 30


class SimDisk(Disk):
    """A directory in memory. A second one with the same seed and the same calls is the same.

    >>> disk = SimDisk(seed=7)
    >>> disk.make_directory(".")
    >>> disk.write_whole("table", b"kept")
    >>> disk.power_cut(random.Random(7)).tree()
    {'table': b'kept'}
    """

    system_type: ClassVar[type[SimSystem]] = SimSystem
    syncs_at_once = 1  # a second run must be the same
    has_descriptors = False

    def __init__(self, seed: int = 0, root: Directory | None = None) -> None:
        self.system = self.system_type(Directory() if root is None else root)
        super().__init__(ROOT, self.system)
        self.system.between = self._let_others
        self._rng = random.Random(seed)
        self._work: deque[SimFuture[object]] = deque()
        self._turns: deque[Callable[[], None]] = deque()
        self._is_holding = self._is_busy = False
        self.fate = ""
        """How the cut that made this disk was drawn, for those who look into a failure."""
        self._journals: list[SimJournal] = []
        self._readers: list[SimReader] = []

    # --- faults ---

    @property
    def operations(self) -> int:
        """Operations done so far; the next one has this number."""
        return self.system.operations

    @property
    def is_off(self) -> bool:
        """The power went, or the disk was switched off."""
        return self.system.is_off

    @property
    def is_pending(self) -> bool:
        """Something has been changed and not been synced."""
        self.system.notice()
        return any(node.is_pending for node in reachable(self.system.root))

    def cut_after(self, count: int) -> None:
        """Operation `count`, numbered from 0, raises PowerCut, and so does every later one."""
        self.system.cut_after(count)

    def power_cut(self, rng: random.Random) -> Self:
        """A disk as a loss of power at this moment may leave it. This one is off from now on."""
        after = self.after(rng)
        self.switch_off()
        return after

    def after(self, rng: random.Random, kind: str = "") -> Self:
        """The same, and this one goes on. Kind "kept" or "lost": all that was not synced, or none."""
        self.system.notice()
        fate = Fate(self.system.root, self.operations, rng, kind)
        after = type(self)(rng.getrandbits(32), survivors(self.system.root, fate))
        after.fate = str(fate)
        return after

    def kill(self, rng: random.Random) -> Self:
        """The same disk after its process was killed: all that was written is there, and no more durable.

        A turn or work that was under way is lost. The disk this was asked of is off from now on.
        """
        self.system.notice()
        self.switch_off()
        for node in reachable(self.system.root):
            if isinstance(node, File):
                node.forget_maps()
        after = type(self)(rng.getrandbits(32), self.system.root)
        after.system.operations = self.operations
        after.fate = "process killed"
        return after

    def switch_off(self) -> None:
        """Nothing more happens on this disk. What it holds of the real system is given back."""
        self.system.switch_off()
        for journal in self._journals:
            journal.close()
        for reader in self._readers:
            reader.close()

    def fail(self, kind: str, code: int, *, skip: int = 0, times: int = 1) -> None:
        """After `skip` more operations of `kind`, the next `times` fail with error `code`.

        A failed sync is as bad as a real one: what was to be synced is forgotten, and a later sync that
        succeeds says nothing of it.
        """
        self.system.fail(kind, code, skip=skip, times=times)

    def flip(self, relative: str, bit: int) -> None:
        """Turn one bit of a file, on the disk and in memory."""
        file = self.system.file(self.path(relative))
        for data in (file.data, held := bytearray(file.durable)):
            if bit // 8 < len(data):
                data[bit // 8] ^= 1 << bit % 8
        file.durable = bytes(held)

    def tree(self) -> dict[str, bytes]:
        """Every file by its path from the root, as it is now."""
        found: dict[str, bytes] = {}

        def walk(directory: Directory, above: str) -> None:
            for name, node in directory.entries.items():
                if isinstance(node, File):
                    found[above + name] = bytes(node.data)
                else:
                    walk(node, f"{above}{name}/")

        top = self.system.root.entries.get(ROOT[1:])
        if isinstance(top, Directory):
            walk(top, "")
        return found

    # --- others: the flusher, and work beside the loop ---

    def hold(self) -> None:
        """Turns handed over from now on stay under way until `release`."""
        self._is_holding = True

    def release(self) -> None:
        self._is_holding = False
        self._flush()

    def beside(self, work: Callable[[], T]) -> Future[T]:
        future = SimFuture(self, work)
        self._work.append(cast("SimFuture[object]", future))
        if self._rng.random() < 0.5:
            self._do_work()
        return future

    def finish(self) -> None:
        self._do_work()

    def _let_others(self) -> None:
        """Between two operations of one, the others may have done theirs."""
        if (self._work or self._turns) and not self._is_busy and self._rng.random() < 0.2:
            self._do_work() if self._work and self._rng.random() < 0.5 else self._flush()

    def _do_work(self) -> None:
        is_busy, self._is_busy = self._is_busy, True
        try:
            while self._work:
                self._work.popleft().do()
        finally:
            self._is_busy = is_busy

    def _flush(self) -> None:
        if self._is_holding:
            return
        is_busy, self._is_busy = self._is_busy, True
        try:
            while self._turns:
                self._turns.popleft()()
        finally:
            self._is_busy = is_busy

    def _hand_over(self, turn: Callable[[], None]) -> None:
        self._turns.append(turn)
        if self._rng.random() < 0.5:
            self._flush()

    # --- what is not a system call of the disk's own ---

    def _map(self, fd: int, size: int) -> Mapped:
        return cast(Mapped, self.system.map(fd, size))

    def sync_map(self, mapped: Mapped, start: int, size: int) -> None:
        try:
            self.system.msync(cast(Memory, mapped), start, size)
        except OSError as error:
            raise SyncFailed(error.errno, error.strerror) from None

    def aside(self, work: Callable[[], T], *, rests: bool, own: bool = False) -> Future[T]:
        future = SimFuture(self, work)
        future.do()
        return future

    def modified_ms(self, relative: str) -> int:
        return 0

    def free_bytes(self) -> int:
        return MEMORY_BYTES

    def total_bytes(self) -> int:
        return MEMORY_BYTES

    def is_directory(self, relative: str) -> bool:
        return self.system.is_directory(self.path(relative))

    def _lock(self, fd: int) -> None:
        """One disk, one store: there is no other to lock out."""

    def used_ratio(self) -> float:
        return 0.0

    def memory_bytes(self) -> int:
        return MEMORY_BYTES

    def journal(self, end: int, turn_bytes_max: int) -> core.Journal:
        journal = SimJournal(end, turn_bytes_max, files=self.system)
        journal.disk = self
        self._journals.append(journal)
        return cast(core.Journal, journal)

    def reader(self) -> core.Reader:
        reader = SimReader(files=self.system)
        self._readers.append(reader)
        return cast(core.Reader, reader)


class SimFuture(Future[T]):
    """Work still to be done, which waiting for it does."""

    def __init__(self, disk: SimDisk, work: Callable[[], T]) -> None:
        super().__init__()
        self._disk, self._callable = disk, work

    def do(self) -> None:
        try:
            self.set_result(self._callable())
        except Exception as error:  # noqa: BLE001  # whoever asks for the result gets it
            self.set_exception(error)

    def result(self, timeout: float | None = None) -> T:
        self._disk._do_work()
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self._disk._do_work()
        return super().exception(timeout)


class SimJournal(plain.Journal):
    """The journal, its turns written by the disk that owns it."""

    disk: SimDisk

    def _hand_over(self, turn: plain.Turn) -> None:
        self.disk._hand_over(lambda: self._write(turn))

    def fileno(self) -> int:
        if not self.disk.is_off:
            self.disk._flush()  # whoever asks is about to wait
        return super().fileno()


class SimReader(plain.Reader):
    """The reader of cold bytes, which are there when they are asked for."""

    def _hand_over(self, fetch: plain.Fetch) -> None:
        self._read(fetch)
