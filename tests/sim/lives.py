"""A store's life on a simulated disk, from a seed: work, a power cut, recovery, more work, the next cut.

    python -m tests.sim.lives SEED [--async] [--cuts N]

lives one again and shows how it went. Owns the list of what was sent, which the store is held against, and
no promise: those are the tests'.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections import Counter, defaultdict
from typing import Any, NamedTuple

from hotfire.protocol.record import Record, encode_properties, iter_records, key_hash
from hotfire.store.config import StoreConfig
from hotfire.store.reading import ReadStatus
from hotfire.store.store import Store
from hotfire.store.tables import Table
from hotfire.testing import PowerCut, SimDisk
from tests.unit.store.driven import NOW_MS, message, ring

TOPICS = "orders", "stocks", "bills2"
KEYS = "k0", "k1", "k2", "k3", "k4", "k5"
QUEUES = 3
BODY_SIZES = 0, 10, 90, 90, 300, 300, 700, 1500
OPERATIONS_MAX = 220
"""Between two cuts."""
NEVER = 1 << 62
TABLE_FILES = "topics.json", "consumerOffset.json"


class LifeFailed(AssertionError):
    """A promise was broken. The message says how to see it again."""


class Sent(NamedTuple):
    """What was asked for, and where the store said it went."""

    topic: str
    queue_id: int
    body: bytes
    properties: bytes
    keys: tuple[str, ...]
    physical: int
    queue_offset: int
    end: int


class Saved:
    """A table's contents: what is surely on the disk, and what may be."""

    def __init__(self) -> None:
        self.sure: dict[str, Any] | None = None
        self.maybe: list[dict[str, Any]] = []
        self.is_beside = False

    def allows(self, found: dict[str, Any] | None) -> bool:
        return found == self.sure or (found is not None and found in self.maybe)


class Life:
    """One store on one disk after another, each what a power cut left of the one before."""

    kill_chance = 0.25
    """How often only the process dies, and the disk keeps what was never synced."""

    def __init__(self, seed: int, *, sync_flush: bool = True, disk_type: type[SimDisk] = SimDisk) -> None:
        self.seed = seed
        self.rng = rng = random.Random(seed)
        self.config = StoreConfig(
            segment_bytes=rng.choice((4096, 8192)),
            queue_file_bytes=140,
            index_slots=8,
            index_entries=20,
            sync_flush=sync_flush,
            busy_ms=1 << 60,  # a turn held back is not a busy machine
            turn_bytes_max=rng.choice((4500, 32 << 20)) if sync_flush else 32 << 20,
        )
        # records of one size: where one ends another once began
        self.body_sizes = (rng.choice((0, 90, 300)),) if rng.random() < 0.6 else BODY_SIZES
        self.disk = disk_type(seed)
        self.store: Store
        self.tables: dict[str, Table]
        self.saved = {file: Saved() for file in TABLE_FILES}
        self.sent: list[Sent] = []
        self.safe_end = 0
        self.lost = 0
        """Records the last cut took."""
        self.now_ms = NOW_MS
        self.tally: Counter[str] = Counter()
        self.story: list[str] = []
        self.cut_number = 0

    def __str__(self) -> str:
        mode = "" if self.config.sync_flush else " --async"
        last = self.story[-1] if self.story else "nothing happened yet"
        return f"python -m tests.sim.lives {self.seed}{mode} --cuts {self.cut_number}: {last}"

    def say(self, what: str) -> None:
        self.story.append(what)

    def live(self, cuts: int) -> Counter[str]:
        """So many power cuts; what happened, counted. LifeFailed when the store broke its word."""
        try:
            while self.cut_number < cuts:
                self.cut_number += 1
                self._work_until_cut()
                self._come_back()
        except Exception as error:
            self.disk.switch_off()
            raise LifeFailed(f"{self}\n{type(error).__name__}: {error}") from error
        self.disk.switch_off()
        return self.tally

    # --- work ---

    def _work_until_cut(self) -> None:
        disk, rng = self.disk, self.rng
        actions_left = NEVER
        if rng.random() < 0.5:
            disk.cut_after(disk.operations + rng.randrange(rng.choice((6, 30, OPERATIONS_MAX))))
        else:
            actions_left = rng.randrange(rng.choice((2, 8, 60)))
        actions = (
            [self._append] * 10 + [self._turn] * 3 + [self._submit] * 2 + [self._complete] * 2
            + [self._tick] * 3 + [self._save] + [self._reopen] * (rng.random() < 0.5)
        )  # fmt: skip
        try:
            if not self.sent and self.cut_number == 1:
                self._open()
            if self.lost > 1 and rng.random() < 0.8:
                self._send_fewer()
            while True:
                rng.choice(actions)() if actions_left else self._lose_a_turn()
                actions_left -= 1
                self._learn()
        except PowerCut as cut:
            self._learn()
            self.say(f"cut {cut}; safe end {self.safe_end}")

    def _open(self) -> None:
        """Open the store; what it shows then is as good as acknowledged."""
        self.store = Store(self.disk, self.config)
        self.store.open()
        self.tables = {file: self.store.table(file) for file in TABLE_FILES}

    def _learn(self) -> None:
        """What the store has promised by now."""
        if hasattr(self.store, "_log") and hasattr(self.store._log, "journal"):
            self.safe_end = max(self.safe_end, self.store.flushed_end)

    def _append(self) -> None:
        rng = self.rng
        if self.store.journal.is_full:
            self._turn()
        keys = tuple(rng.sample(KEYS, rng.choice((0, 1, 1, 2)))) if len(self.body_sizes) > 1 else (KEYS[0],)
        properties = encode_properties({"KEYS": " ".join(keys)} if keys else {})
        topic, queue_id = rng.choice(TOPICS), rng.randrange(QUEUES)
        body = rng.randbytes(rng.choice(self.body_sizes))
        placed = self.store.append(message(topic, queue_id, body, properties), self.now_ms)
        at = placed.physical_offset, placed.queue_offset, placed.end
        self.sent.append(Sent(topic, queue_id, body, properties, keys, *at))
        self.say(f"sent {self.sent[-1][0:2]} at {at}")

    def _submit(self) -> None:
        self.say(f"submit to {self.store.end}: {self.store.submit()}")

    def _complete(self) -> None:
        self.store.complete()
        self.say(f"complete to {self.store.readable_end}")

    def _turn(self) -> None:
        store = self.store
        while store.journal.busy or store.journal.pending:
            store.check_writeable()
            self._submit()
            ring(store.fileno())
            self._complete()

    def _send_fewer(self) -> None:
        """Fewer records than were just lost, then a cut: what lies behind them must stay lost."""
        for _ in range(self.rng.randrange(1, self.lost)):
            self._append()
        self._turn()
        self.disk.cut_after(self.disk.operations + self.rng.randrange(5))

    def _lose_a_turn(self) -> None:
        """A turn of many records, and the power goes before it is synced, or soon after."""
        self._turn()
        for _ in range(self.rng.randrange(4, 30)):
            self._append()
        self.disk.cut_after(self.disk.operations + self.rng.choice((1, 1, 2, 3)))
        self._turn()

    def _tick(self) -> None:
        self.now_ms += self.rng.choice((1, 100, 600, 1100))
        self.say(f"tick {self.now_ms - NOW_MS}")
        self.store.tick(self.now_ms)

    def _save(self) -> None:
        file = self.rng.choice(TABLE_FILES)
        saved, table = self.saved[file], self.tables[file]
        tree = {"number": len(self.story), "rows": [len(self.story)] * self.rng.choice((1, 300))}
        self._settle(file)
        saved.maybe.append(tree)
        self.say(f"save {file} number {tree['number']}")
        if self.rng.random() < 0.5:
            table.save(tree)
            saved.sure, saved.maybe = tree, []
        else:
            saved.is_beside = True
            table.save_beside(lambda: tree)

    def _settle(self, file: str) -> None:
        """Wait for a save beside the loop. One that failed may yet be what a restart finds."""
        saved = self.saved[file]
        is_sure = self.tables[file].settle() and saved.is_beside
        saved.is_beside = False
        if is_sure:
            saved.sure, saved.maybe = saved.maybe[-1], []

    def _reopen(self) -> None:
        self.say("close")
        for file in TABLE_FILES:
            self._settle(file)
        self.store.close()
        self.safe_end = self.sent[-1].end if self.sent else 0
        self.say("open")
        self._open()
        self.tally["clean restarts"] += 1

    # --- what came of it ---

    def _come_back(self) -> None:
        """Recovery, once undisturbed and once with cuts in the middle of it: the same is there."""
        rng = self.rng
        self._interrupt()
        twin = None if self.disk.is_pending else self.disk.after(rng, "kept")
        while rng.random() < 0.6:
            self.disk.cut_after(self.disk.operations + rng.randrange(40))
            try:
                self._open()
            except PowerCut as cut:
                self.say(f"cut in recovery {cut}")
                self.tally["cuts in recovery"] += 1
                self._interrupt()
            else:
                break
        else:
            self._open()
        self.disk.cut_after(NEVER)
        found = self._check()
        self._forget()
        if twin is not None:
            self._compare(twin, found)
        if rng.random() < 0.5:
            self.say("one more cut, of an idle store")
            self._interrupt()
            self._open()
            assert self._check() == found, "what was found after a start was not all there after the next"

    def _interrupt(self) -> None:
        """The power goes, or only the process."""
        is_kill = self.rng.random() < self.kill_chance
        self.disk = self.disk.kill(self.rng) if is_kill else self.disk.power_cut(self.rng)
        self.say(f"then: {self.disk.fate}")

    def _compare(self, twin: SimDisk, found: list[Any]) -> None:
        """The same start without cuts in the middle of it leads to the same store."""
        disk, store, tables = self.disk, self.store, self.tables
        self.disk = twin
        self._open()
        assert self._check() == found, "cuts in recovery made a difference"
        twin.switch_off()
        self.disk, self.store, self.tables = disk, store, tables

    def _check(self) -> list[tuple[Any, ...]]:
        """Everything safe is there once, in order and equal; nothing is there that was never sent."""
        store, end = self.store, self.store.recovered.end
        assert end >= self.safe_end, f"log ends at {end}, but {self.safe_end} was safe"
        expected = [sent for sent in self.sent if sent.end <= end]
        last = expected[-1].end if expected else 0
        assert end - last < self.config.segment_bytes, f"log ends at {end}, last record sent at {last}"
        by_queue: dict[tuple[str, int], list[tuple[Any, ...]]] = defaultdict(list)
        for sent in expected:
            by_queue[sent.topic, sent.queue_id].append(
                (sent.body, sent.properties, sent.physical, sent.queue_offset)
            )
        found = {key: pull_all(store, *key) for key in sorted(store._queues)}
        for key in sorted(by_queue.keys() | found.keys()):
            assert found.get(key, []) == by_queue[key], _difference(key, found.get(key, []), by_queue[key])
        self._check_keys(expected)
        self._check_tables()
        self.tally["states"] += 1
        self.tally["records lost"] += len(self.sent) - len(expected)
        self.tally["states with loss"] += len(self.sent) > len(expected)
        self.tally["segments rolled"] += end // self.config.segment_bytes
        return [(end, found, [table.load() for table in self.tables.values()])]

    def _check_keys(self, expected: list[Sent]) -> None:
        index = self.store._index
        assert index is not None
        for topic in TOPICS:
            for key in KEYS:
                wanted = {s.physical for s in expected if s.topic == topic and key in s.keys}
                hash_ = key_hash(topic, key)
                got = [at for file in index.newest_first() for at in file.query(hash_, 1 << 20, 0, 1 << 62)]
                same = {s.physical for s in expected for k in s.keys if key_hash(s.topic, k) == hash_}
                assert wanted <= set(got) <= same, f"{topic} {key}: {sorted(got)}, wanted {sorted(wanted)}"
                assert len(set(got)) == len(got), f"{topic} {key} twice: {got}"

    def _check_tables(self) -> None:
        for file, table in self.tables.items():
            found = table.load()
            saved = self.saved[file]
            assert saved.allows(found), f"{file}: {found}, neither {saved.sure} nor {saved.maybe}"

    def _forget(self) -> None:
        """What was not found again never was; what was found is safe."""
        end = self.store.recovered.end
        kept = [sent for sent in self.sent if sent.end <= end]
        self.lost = len(self.sent) - len(kept)
        self.sent, self.safe_end = kept, end
        for file, table in self.tables.items():
            saved = self.saved[file]
            saved.sure, saved.maybe, saved.is_beside = table.load(), [], False


def pull_all(store: Store, topic: str, queue_id: int) -> list[tuple[Any, ...]]:
    records: list[Record] = []
    offset = 0
    while True:
        read = store.read(topic, queue_id, offset, count_max=32, bytes_max=1 << 30)
        if read.status is not ReadStatus.FOUND:
            break
        assert read.data is not None
        records += iter_records(read.data)
        offset = read.next_offset
    return [(r.body, _own(r.properties), r.physical_offset, r.queue_offset) for r in records]


def _difference(key: tuple[str, int], found: list[tuple[Any, ...]], wanted: list[tuple[Any, ...]]) -> str:
    at = next((i for i, (a, b) in enumerate(zip(found, wanted, strict=False)) if a != b), None)
    at = min(len(found), len(wanted)) if at is None else at
    has, had = [record[2:] for record in found[at : at + 3]], [record[2:] for record in wanted[at : at + 3]]
    return (
        f"queue {key} has {len(found)} records, {len(wanted)} were sent; "
        f"from {at} on it has {has}, wanted {had} (offset in the log, in the queue)"
    )


def _own(properties: bytes) -> bytes:
    """Without the checksum the store appends."""
    before, _, _ = properties.rpartition(b"__CRC32#")
    return before


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("seed", type=int)
    parser.add_argument("--async", action="store_true", dest="is_async")
    parser.add_argument("--cuts", type=int, default=4)
    arguments = parser.parse_args()
    life = Life(arguments.seed, sync_flush=not arguments.is_async)
    try:
        sys.stdout.write(f"{dict(life.live(arguments.cuts))}\n")
    finally:
        sys.stdout.write("\n".join(life.story) + "\n")


if __name__ == "__main__":
    main()
