"""Power loss on a simulated disk: what was acknowledged is there after any cut, and nothing else is.

Each life is a store that works, loses its power at any operation, recovers (losing it again in the middle of
that, as often as not) and works on. A failure names the life; `python -m tests.sim.lives` shows it again.
"""

import logging
import random
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from hotfire import core
from hotfire.errors import RecordInvalid, StoreCorrupt
from hotfire.store.config import StoreConfig
from hotfire.store.disk import Mapped
from hotfire.store.store import Store
from hotfire.testing import PowerCut, SimDisk
from hotfire.testing.inodes import File
from hotfire.testing.simsystem import SimSystem
from tests.sim.lives import Life, LifeFailed
from tests.unit.store.driven import NOW_MS, SMALL, message, ring

CUTS = 4
LIVES = 50
SYNC_BLOCKS, ASYNC_BLOCKS = 4, 2


@pytest.fixture(autouse=True)
def quiet() -> object:
    """A thousand unclean starts have much to say, and nothing new."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def lives(seeds: range, cuts: int, *, sync_flush: bool) -> Counter[str]:
    tally: Counter[str] = Counter()
    for seed in seeds:
        tally += Life(seed, sync_flush=sync_flush).live(cuts)
    return tally


@pytest.mark.parametrize("block", range(SYNC_BLOCKS))
def test_what_was_acknowledged_survives_any_cut(block: int) -> None:
    """SYNC_FLUSH: each acknowledged message once, in order, equal, found by its keys; none never sent.

    Tables hold their old or their new content. A cut in the middle of recovery changes nothing.
    """
    tally = lives(range(block * LIVES, (block + 1) * LIVES), CUTS, sync_flush=True)
    assert tally["states"] > LIVES * CUTS
    # what would be a poor test if it never happened
    assert tally["states with loss"] > LIVES
    assert tally["cuts in recovery"] > LIVES
    assert tally["clean restarts"] > LIVES // 10
    assert tally["segments rolled"] > LIVES


@pytest.mark.parametrize("block", range(ASYNC_BLOCKS))
def test_what_was_flushed_survives_any_cut(block: int) -> None:
    """ASYNC_FLUSH: everything before the flushed position survives; what survives behind it is a prefix."""
    tally = lives(range(block * LIVES, (block + 1) * LIVES), CUTS, sync_flush=False)
    assert tally["states with loss"] > LIVES


def test_what_was_flushed_survives_a_cut_after_many_small_turns() -> None:
    """ASYNC_FLUSH: many turns lie between two syncs, and a cut may leave a hole anywhere among them."""
    for seed in range(LIVES):
        life = Life(seed, sync_flush=False)
        life.config = replace(life.config, turn_bytes_max=1500)
        life.live(CUTS)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("sync_flush", [True, False])
def test_long_lives(sync_flush: bool) -> None:
    """The same, 500 lives of ten cuts each."""
    lives(range(100_000, 100_500), 10, sync_flush=sync_flush)


def test_names_made_by_a_killed_process_are_made_durable_by_the_next() -> None:
    """A kill at any operation of a first start, a second start, a power cut: log and tables are there."""
    total = first_start(SimDisk())
    for at in range(total):
        disk = SimDisk()
        disk.cut_after(at)
        with suppress(PowerCut):
            first_start(disk)
        disk = disk.kill(random.Random(at))
        store = open_store(disk)
        table = store.table("topics.json").load()
        placed = store.append(message("t", 0, b"acknowledged"), NOW_MS)
        flush(store)
        assert store.readable_end == placed.end
        for seed in range(8):
            after = open_store(disk.after(random.Random(seed), "lost" if seed % 2 else ""))
            assert after.recovered.end == placed.end, f"kill at operation {at}, cut {seed}"
            assert after.table("topics.json").load() == table, f"kill at operation {at}, cut {seed}"
            after._disk.switch_off()
        disk.switch_off()


def first_start(disk: SimDisk) -> int:
    store = open_store(disk)
    store.append(message("t", 0, bytes(3000)), NOW_MS)
    store.append(message("t", 1, bytes(3000)), NOW_MS)
    flush(store)
    for number in range(2):
        store.table("topics.json").save({"number": number})
    return disk.operations


def open_store(disk: SimDisk) -> Store:
    store = Store(disk, StoreConfig(**{**SMALL, "segment_bytes": 4096}))
    store.open()
    return store


def flush(store: Store) -> None:
    while store.journal.busy or store.journal.pending:
        store.submit()
        ring(store.fileno())
        store.complete()


# --- the tests above notice ---


class NoDirectorySync(SimDisk):
    """Names are never made durable on purpose."""

    def _sync_directory(self, path: Path, *, later: bool = False) -> None:
        pass


class NoZeros(SimDisk):
    """What lies behind the end is left there."""

    def zero(self, fd: int, start: int, size: int, *, later: bool = False) -> int:
        return 0


class NoTurnSync(SimDisk):
    """A turn is called synced when it is only written."""

    def journal(self, *arguments: int) -> core.Journal:
        journal = super().journal(*arguments)
        journal._files = Hasty(self.system)  # type: ignore[attr-defined]
        return journal


class Hasty:
    """A system whose syncs do nothing."""

    def __init__(self, system: SimSystem) -> None:
        self.pwrite, self.pread, self.preadv = system.pwrite, system.pread, system.preadv

    def fdatasync(self, fd: int) -> None:
        pass


class NoFileSyncSystem(SimSystem):
    def fsync(self, fd: int, /) -> None:
        if not isinstance(self._node(fd), File):
            super().fsync(fd)


class NoSyncBeforeRename(SimDisk):
    """A new file gets its name before its bytes are on the disk."""

    system_type = NoFileSyncSystem


class NoSync(SimDisk):
    """What recovery read, and what is to be flushed beside the loop, is taken to be on the disk."""

    def sync(self, fd: int) -> None:
        pass


class NoMapSync(SimDisk):
    """New keys are called durable and are only in memory."""

    def sync_map(self, mapped: Mapped, start: int, size: int) -> None:
        pass


GUARDS_FROM = {NoSync: 34, NoMapSync: 89}
"""The seed at which to begin: one that notices comes soon then."""


def fails(broken: type[SimDisk], *, sync_flush: bool) -> bool:
    """Whether one of the lives above shows that a step is left out, and does not fail with it."""
    first, count = (
        (GUARDS_FROM.get(broken, 0), SYNC_BLOCKS * LIVES) if sync_flush else (0, ASYNC_BLOCKS * LIVES)
    )
    for seed in ((first + number) % count for number in range(count)):
        try:
            Life(seed, sync_flush=sync_flush, disk_type=broken).live(CUTS)
        except LifeFailed as failure:
            Life(seed, sync_flush=sync_flush).live(CUTS)
            return isinstance(failure.__cause__, AssertionError | StoreCorrupt | RecordInvalid)
    return False


@pytest.mark.parametrize(
    "broken", [NoDirectorySync, NoZeros, NoTurnSync, NoSyncBeforeRename, NoSync, NoMapSync]
)
def test_a_step_left_out_is_noticed(broken: type[SimDisk]) -> None:
    """Without any one of these steps, lives like those above fail."""
    assert fails(broken, sync_flush=True)


def test_a_flush_left_out_is_noticed() -> None:
    """ASYNC_FLUSH: a flushed position that moves without a sync fails lives like those above."""
    assert fails(NoSync, sync_flush=False)


def test_a_life_can_be_seen_again() -> None:
    """The same seed, the same operations and the same states, to the byte."""
    first, second = Life(7), Life(7)
    for life in (first, second):
        life.live(CUTS)
    assert first.story == second.story
    assert first.disk.tree() == second.disk.tree()
