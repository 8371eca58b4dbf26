"""Errors of a simulated disk: a full disk and a failed sync cost nothing that was acknowledged."""

import errno
import logging
from collections import Counter, defaultdict

import pytest

from hotfire.errors import StoreFull, StoreReadOnly
from hotfire.testing import PowerCut
from tests.sim.lives import Life, pull_all

LIVES = 40
ACTIONS_MAX = 60


@pytest.fixture(autouse=True)
def quiet() -> object:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


class FailingLife(Life):
    """A life whose disk refuses an operation of one kind now and then, before its power goes."""

    kinds: tuple[str, ...]
    code: int

    def _work_until_cut(self) -> None:
        rng, disk = self.rng, self.disk
        if self.cut_number == 1:
            self._open()
        kind = rng.choice(self.kinds)
        disk.fail(kind, self.code, skip=rng.randrange(rng.choice((3, 20))), times=rng.choice((1, 3)))
        self.say(f"from now on {kind} may fail")
        actions = (
            [self._append] * 10 + [self._turn] * 3 + [self._submit, self._complete, self._tick, self._save]
        )
        try:
            for _ in range(rng.randrange(ACTIONS_MAX)):
                try:
                    rng.choice(actions)()
                except StoreFull as full:
                    self.say(str(full))
                    self.tally["refused"] += 1
                except StoreReadOnly as refused:
                    self.say(str(refused))
                    self.tally["read-only"] += 1
                    self._stay_read_only()
                    break
                except OSError as error:  # a table that could not be saved
                    self.say(str(error))
                    self.tally["tables refused"] += 1
                self._learn()
        except PowerCut as cut:
            raise AssertionError("no cut was asked for") from cut

    def _stay_read_only(self) -> None:
        """Nothing is acknowledged any more; what was acknowledged can be read."""
        store = self.store
        self._learn()
        readable, flushed = store.readable_end, store.flushed_end
        with pytest.raises(StoreReadOnly):
            self._append()
        assert not store.submit()
        store.tick(self.now_ms + 10_000)
        assert (store.readable_end, store.flushed_end) == (readable, flushed)
        by_queue = defaultdict(list)
        for sent in self.sent:
            if sent.end <= readable:
                by_queue[sent.topic, sent.queue_id].append(sent.physical)
        for key, wanted in by_queue.items():
            found = [record[2] for record in pull_all(store, *key)]
            assert found == wanted[: len(found)], f"{key}: {found}, wanted {wanted}"
            assert store.dispatch_behind or found == wanted


class FullDisk(FailingLife):
    kinds = "pwrite", "create", "fallocate", "ftruncate", "mkdir"
    code = errno.ENOSPC


class FailedSync(FailingLife):
    kinds = "sync", "sync", "sync_directory"
    code = errno.EIO
    kill_chance = 0.0


class FailedSyncAndKill(FailedSync):
    """The machine is not started anew: its cache shows what the failed sync never brought to the disk."""

    kill_chance = 0.25


@pytest.mark.parametrize("kind", [FullDisk, FailedSync])
@pytest.mark.parametrize("sync_flush", [True, False])
def test_an_error_of_the_disk_costs_nothing_acknowledged(kind: type[FailingLife], sync_flush: bool) -> None:
    """Refused, or read-only and readable; after a restart everything that was acknowledged is there."""
    tally: Counter[str] = Counter()
    for seed in range(LIVES):
        tally += kind(seed, sync_flush=sync_flush).live(4)
    assert tally["read-only" if kind is FailedSync else "refused"] > 0
    assert tally["states"] > LIVES * 4


def test_a_failed_sync_costs_nothing_after_a_kill_either() -> None:
    """What recovery reads back is on the disk, whatever a failed sync before it has forgotten."""
    for seed in range(LIVES):
        FailedSyncAndKill(seed).live(4)
