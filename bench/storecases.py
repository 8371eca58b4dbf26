"""What the store is measured for, one function a case. Contenders take turns within a case.

Processor time is the process's own clock: all its threads, the flusher and the disk's worker among them. Wall
time is said where waiting for the disk is the point. No case checks a goal; they return what they saw.
"""

from __future__ import annotations

import dataclasses
import os
import random
import resource
import sqlite3
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from bench.storerig import BORN_HOST, HOST, SUFFIX, TOPIC, TURN, Rig, frame, turns
from hotfire import core
from hotfire.broker.fastlane import NEXT_FULL
from hotfire.protocol.record import Record, encode_properties, encode_record, key_hash
from hotfire.store.checkpoint import FILE as CHECKPOINT_FILE
from hotfire.store.checkpoint import SECTOR_BYTES, Checkpoint
from hotfire.store.config import StoreConfig
from hotfire.store.disk import Disk
from hotfire.store.kinds import ABORT_FILE
from hotfire.store.scan import scan_records, scan_records_plain
from hotfire.store.store import Store

BODY_BYTES = 128
RECORD_BYTES = 358
"""Of such a message in the log, with the properties a broker adds."""
GIB = 1 << 30
ANSWERED, ONE_WAY = b'"flag":0', b'"flag":2'

Values = dict[str, list[float]]
"""Of each contender, round by round."""


@dataclasses.dataclass(frozen=True)
class Size:
    """How much is done: of everything, or a taste of it."""

    rounds: int = 9
    turns: int = 200
    disk_turns: int = 300
    scattered_turns: int = 20
    recovery_bytes: int = GIB
    queues: int = 10_000
    queue_rounds: int = 15
    queue_seconds: float = 1.5


QUICK = Size(
    rounds=3, turns=50, disk_turns=60, scattered_turns=5, recovery_bytes=GIB // 8, queues=2000,
    queue_rounds=3, queue_seconds=1.0,
)  # fmt: skip


@contextmanager
def _timed(values: Values, name: str, count: float, *, wall: bool = False) -> Iterator[None]:
    """Microseconds per one of `count`."""
    clock = time.perf_counter if wall else time.process_time
    before = clock()
    yield
    values.setdefault(name, []).append((clock() - before) / count * 1e6)


# --- append ---


def append(root: Path, size: Size) -> Values:
    """CPU per message of turns of 64 written into the page cache, not synced.

    `served` is all the lane does, `one way` leaves out the reply; `parsed` is the reading of such a frame
    alone: offered to a lane whose turn is full, less the cost of a call that finds no frame. `append` is the
    difference. A call looks up its topic once, which here falls to every frame: some 0.05 µs too much.
    `by hand` does the same with a call from Python for each step.
    """
    values: Values = {}
    served = turns(size.turns, BODY_BYTES)
    one_way = [data.replace(ANSWERED, ONE_WAY) for data in served]
    frames = [frame(n, 4, bytes(BODY_BYTES)).replace(ANSWERED, ONE_WAY) for n in range(2000)]
    count = size.turns * TURN
    with Rig(root, sync_flush=False, turn_bytes_max=1 << 20) as rig:
        for data in served * 5:  # every page of the index's slots is touched once
            rig.turn(data)
        for _ in range(size.rounds):
            rig.rest()
            for name, every in (("served", served), ("one way", one_way)):
                with _timed(values, name, count):
                    for data in every:
                        rig.overlap(data)
                    rig.flush()
            with _timed(values, "by hand", count):
                _append_by_hand(rig, size.turns)
            while not rig.store.journal.is_full:
                rig.fill(frames[0])
            with _timed(values, "full", len(frames)):
                for data in frames:
                    rig.lane.serve(data, 0, BORN_HOST, 0)
            with _timed(values, "nothing", len(frames)):
                for _ in frames:
                    rig.lane.serve(b"", 0, BORN_HOST, 0)
            assert rig.lane.serve(frames[0], 0, BORN_HOST, 0)[1] == NEXT_FULL
            rig.flush()
    full, nothing = values.pop("full"), values.pop("nothing")
    values["parsed"] = [both - call for both, call in zip(full, nothing, strict=True)]
    values["append"] = [each - median(values["parsed"]) for each in values["one way"]]
    return values


def _append_by_hand(rig: Rig, turns_count: int) -> None:
    journal, queue = rig.store.journal, rig.store.queue(TOPIC, 0)
    topic, body, host = TOPIC.encode(), bytes(BODY_BYTES), HOST.address + HOST.port.to_bytes(4)
    properties = encode_properties({"UNIQ_KEY": "7F000001000100000000000000000000", "WAIT": "true"})
    hashes = (key_hash(TOPIC, "7F000001000100000000000000000000"),)
    now = journal.last_timestamp
    size = RECORD_BYTES
    for _ in range(turns_count):
        for _ in range(TURN):
            physical = journal.reserve(size)
            if physical is None:
                rig.store.add_segment()
                physical = journal.reserve(size)
            assert physical is not None
            index = queue.claim()
            record = core.encode_record(
                topic, body, properties, SUFFIX, host, host, 0, 0, 0, 0, index, physical, now, now, 0, True
            )
            assert len(record) == size, len(record)
            journal.append(record, queue, index, 0, now, hashes)
        rig.flush()


# --- compiled against plain ---


def twins(size: Size) -> tuple[Values, Values]:
    """CPU per record of the compiled core and of its plain twin: encoding, then scanning with all checks."""
    properties = encode_properties({"UNIQ_KEY": "7F000001000100000000000000000000", "WAIT": "true"}) + SUFFIX
    record = Record(TOPIC, 3, bytes(BODY_BYTES), 1_700_000_000_000, HOST, 1_700_000_000_001, HOST, properties)
    topic, host = TOPIC.encode(), HOST.address + HOST.port.to_bytes(4)
    born, stored = record.born_timestamp, record.store_timestamp

    def compiled(physical: int) -> bytes:
        return core.encode_record(
            topic, record.body, properties, b"", host, host, 3, 0, 0, 0, 7, physical, born, stored, 0, True
        )

    def plain(physical: int) -> bytes:
        return encode_record(placed[physical], append_crc=True)

    count = 2000
    placed = [dataclasses.replace(record, queue_offset=7, physical_offset=n) for n in range(count)]
    assert all(compiled(n) == plain(n) for n in range(count))
    length = len(compiled(0))
    log = b"".join(compiled(n * length) for n in range(count))
    assert scan_records(log, 0, True, 0) == scan_records_plain(log, 0, True, 0)
    encoding: Values = {}
    scanning: Values = {}
    for _ in range(size.rounds):
        for name, encode in (("compiled", compiled), ("plain", plain)):
            with _timed(encoding, name, count):
                for n in range(count):
                    encode(n)
        with _timed(scanning, "compiled", count):
            core.scan_records(log, 0, True, 0)
        with _timed(scanning, "compiled, named", count):
            scan_records(log, 0, True, 0)
        with _timed(scanning, "plain", count):
            scan_records_plain(log, 0, True, 0)
    return encoding, scanning


# --- the disk ---


def sync_flush(root: Path, size: Size, *, per_turn: int, body_bytes: int) -> tuple[Values, int]:
    """Wall time of a turn from submit to the bell, of that and its entries, and of a bare write and sync.

    The same number of bytes into files made the same way, turn about. Also how many bytes a turn has.
    """
    values: Values = {}
    ours = turns(8, body_bytes, per_turn=per_turn)
    bare = Disk(root)
    root.mkdir(parents=True)
    with Rig(root / "store", sync_flush=True) as rig:
        fd = bare.allocate("bare", StoreConfig().segment_bytes)
        position, turn_bytes = 0, 0
        for number in range(size.disk_turns):
            rig.fill(ours[number % len(ours)])
            turn_bytes = rig.store.journal.pending
            data = random.randbytes(turn_bytes)
            for name in ("store", "bare") if number % 2 else ("bare", "store"):
                began = time.perf_counter()
                if name == "store":
                    rig.submit()
                else:
                    os.pwrite(fd, data, position)
                    os.fdatasync(fd)
                values.setdefault(name, []).append((time.perf_counter() - began) * 1e6)
                if name == "store":
                    rig.store.complete()
                    values.setdefault("visible", []).append((time.perf_counter() - began) * 1e6)
            position += turn_bytes
        bare.close(fd)
    return values, turn_bytes


def scattered(root: Path, size: Size, files: int = 1000) -> Values:
    """Wall time per message: one log synced once a turn of 64, and a file for each of so many queues."""
    raise_descriptors()
    root.mkdir(parents=True)
    disk = Disk(root)
    log = disk.allocate("log", 64 << 20)
    spread = [disk.allocate(f"queue-{n}", 1 << 20) for n in range(files)]
    values: Values = {}
    body, at, number = bytes(RECORD_BYTES), 0, 0
    for _ in range(size.scattered_turns):
        with _timed(values, "one log", TURN, wall=True):
            os.pwrite(log, body * TURN, at)
            os.fdatasync(log)
        at += len(body) * TURN
        with _timed(values, "a file each", TURN, wall=True):
            touched = [spread[(number + n) % files] for n in range(TURN)]
            for fd in touched:
                os.pwrite(fd, body, (number // files) * len(body))
            for fd in touched:
                os.fdatasync(fd)
        number += TURN
    for fd in (log, *spread):
        disk.close(fd)
    return values


def sqlite(root: Path, size: Size) -> tuple[Values, Values]:
    """Wall and CPU time per message, durable turns of 64: our store and SQLite, which syncs each of them.

    One transaction a turn; found by queue and offset and by key, as ours are.
    """
    root.mkdir(parents=True)
    walls: Values = {}
    cpus: Values = {}
    ours = turns(50, BODY_BYTES)
    body, properties = bytes(BODY_BYTES), bytes(RECORD_BYTES - BODY_BYTES - 93)
    table = sqlite3.connect(root / "table.db", isolation_level=None)
    table.execute("PRAGMA journal_mode=WAL")
    table.execute("PRAGMA synchronous=FULL")
    table.execute(
        "CREATE TABLE messages (queue INTEGER, at INTEGER, stored INTEGER, key TEXT, properties BLOB,"
        " body BLOB, PRIMARY KEY (queue, at)) WITHOUT ROWID"
    )
    table.execute("CREATE INDEX by_key ON messages (key)")
    number = 0
    with Rig(root / "store", sync_flush=True) as rig:
        for _ in range(1 + max(4, size.disk_turns // len(ours))):
            for name in ("store", "sqlite"):
                with _timed(walls, name, len(ours) * TURN, wall=True), _timed(cpus, name, len(ours) * TURN):
                    for data in ours:
                        if name == "store":
                            rig.turn(data)
                            continue
                        rows = [
                            (n % 4, n // 4, n, f"7F0000010001{n * 2654435761 % 2**64:020X}", properties, body)
                            for n in range(number, number + TURN)
                        ]
                        number += TURN
                        table.execute("BEGIN")
                        table.executemany("INSERT INTO messages VALUES (?, ?, ?, ?, ?, ?)", rows)
                        table.execute("COMMIT")
            rig.rest()
    table.close()
    for values in (walls, cpus):  # the first round made files and touched them for the first time
        for rounds in values.values():
            del rounds[0]
    return walls, cpus


# --- recovery ---


def recovery(root: Path, size: Size) -> tuple[Values, Values, int]:
    """Wall and CPU time per GiB of 1 KiB records, all of the log read from memory; how many records."""
    walls: Values = {}
    cpus: Values = {}
    config = StoreConfig(sync_flush=False)
    every = turns(8, 1024 - (RECORD_BYTES - BODY_BYTES), queues=8, per_turn=1024)
    with Rig(root, queues=8, sync_flush=False) as rig:
        while rig.store.end < size.recovery_bytes - (9 << 20):
            for data in every:
                rig.turn(data)
        end = rig.store.end
    for segment in (root / "commitlog").iterdir():  # into memory, what is not there still
        with segment.open("rb") as file:
            while file.tell() < end and file.read(1 << 24):
                pass
    records = 0
    for _ in range(max(3, size.rounds // 2)):
        _disbelieve(root)
        store = Store(Disk(root), config)
        with _timed(walls, "store", end / GIB, wall=True), _timed(cpus, "store", end / GIB):
            store.open()
        assert store.recovered.end == end, (store.recovered.end, end)
        records = store.recovered.records
        store.close()
    return walls, cpus, records


def _disbelieve(root: Path) -> None:
    """As after a crash; and queues and index are to be made anew from all of the log."""
    path = root / CHECKPOINT_FILE
    data = path.read_bytes()
    path.write_bytes(dataclasses.replace(Checkpoint.decode(data), derived=0).encode() + data[SECTOR_BYTES:])
    (root / ABORT_FILE).write_bytes(b"1")


# --- many queues ---


def queues(root: Path, size: Size, few: int = 8) -> tuple[Values, Values, Values]:
    """First entries, then the steady state: wall time, CPU time and messages, of few queues and of many.

    In SYNC_FLUSH, ticks and what they start beside the loop included. Wall time is spent for both in turn.
    """
    raise_descriptors()
    firsts: Values = {}
    walls: Values = {}
    cpus: Values = {}
    rigs: dict[str, tuple[Rig, list[bytes]]] = {}
    for count in (few, size.queues):
        name = f"{count} queues"
        data = turns(max(160, -(-count // TURN)), BODY_BYTES, queues=count)
        rig = Rig(root / str(count), queues=count, sync_flush=True)
        rigs[name] = rig, data
        begin = data[: -(-count // TURN)]
        with (
            _timed(firsts, f"{name}, wall", count, wall=True),
            _timed(firsts, f"{name}, CPU", count),
        ):
            for each in begin:
                rig.turn(each)
        rig.rest()
    for _ in range(size.queue_rounds):
        for name, (rig, data) in rigs.items():
            wall, cpu = time.perf_counter(), time.process_time()
            done = 0
            for each in _over(data):
                rig.turn(each)
                done += TURN
                if time.perf_counter() - wall > size.queue_seconds:
                    break
            walls.setdefault(name, []).append((time.perf_counter() - wall) / done * 1e6)
            cpus.setdefault(name, []).append((time.process_time() - cpu) / done * 1e6)
            rig.rest()
    for rig, _ in rigs.values():
        rig.store.close()
    return firsts, walls, cpus


def _over(data: list[bytes]) -> Iterable[bytes]:
    while True:
        yield from data


def raise_descriptors() -> None:
    _, high = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (high, high))
