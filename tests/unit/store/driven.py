"""A store driven by hand, one call after another: appends, turns waited for, reads, crash images.

Owns no promise of its own. `Driven.sent` is the plain list the store is held against.
"""

from __future__ import annotations

import select
import shutil
from pathlib import Path
from typing import Any, NamedTuple, Self

from hotfire.protocol.record import Host, Record, encode_properties, iter_records
from hotfire.store.checkpoint import MARK_AT
from hotfire.store.config import StoreConfig
from hotfire.store.disk import Disk
from hotfire.store.reading import ReadStatus
from hotfire.store.store import Store

HOST = Host(bytes([127, 0, 0, 1]), 10911)
WAIT_MS_MAX = 20_000
NOW_MS = 1_700_000_000_000
SMALL = {
    "segment_bytes": 8192,
    "queue_file_bytes": 140,
    "index_slots": 8,
    "index_entries": 20,
    "busy_ms": 1 << 60,
}
"""Files so small that their ends come often."""


class Sent(NamedTuple):
    """What was asked for, and where the store said it went."""

    topic: str
    queue_id: int
    body: bytes
    properties: bytes
    physical: int
    queue_offset: int
    end: int


def message(topic: str, queue_id: int, body: bytes, properties: bytes = b"") -> Record:
    return Record(topic, queue_id, body, NOW_MS, HOST, 0, HOST, properties)


class Driven:
    """One store directory. Small files unless told otherwise, so that their ends come often."""

    def __init__(self, root: Path, **config: Any) -> None:
        self.root = root
        self.config = StoreConfig(**{**SMALL, **config})
        self.store = Store(Disk(root), self.config)
        self.sent: list[Sent] = []
        self.now_ms = NOW_MS

    def open(self) -> Self:
        self.store.open()
        return self

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(self, *_: object) -> None:
        self.store.close()

    def forget_mark(self) -> None:
        """As if the power had failed: the mark behind the last checkpoint is not on the disk."""
        with (self.root / "checkpoint").open("r+b") as file:
            file.seek(MARK_AT)
            file.write(bytes(20))

    def on(self, root: Path) -> Driven:
        """The same settings and the same list over the directory `root`, not opened yet."""
        other = Driven(root)
        other.config, other.store = self.config, Store(Disk(root), self.config)
        other.sent, other.now_ms = list(self.sent), self.now_ms
        return other

    def reopened(self) -> Driven:
        """The same directory after a clean close, open again."""
        self.store.close()
        return self.on(self.root).open()

    def crash_image(self, target: Path) -> Driven:
        """What a killed process leaves: every file as it is now. Not opened yet."""
        self.store._disk.beside(lambda: None).result()  # a file that is being made has no name to copy it by
        shutil.copytree(self.root, target)
        return self.on(target)

    # --- append ---

    def send(self, topic: str, queue_id: int, body: bytes, **properties: str) -> Sent:
        stored = encode_properties(properties)
        placed = self.store.append(message(topic, queue_id, body, stored), self.now_ms)
        sent = Sent(topic, queue_id, body, stored, placed.physical_offset, placed.queue_offset, placed.end)
        self.sent.append(sent)
        return sent

    def turn(self) -> None:
        """Everything appended so far is written, synced if the store syncs, and readable."""
        store = self.store
        while store.journal.busy or store.journal.pending:
            if not (store.submit() or store.journal.busy):
                self.tick(1)  # too much is unsynced: the disk first
                continue
            ring(store.fileno())
            store.complete()

    def tick(self, advance_ms: int = 0) -> None:
        """A tick, and the work it started beside the loop done."""
        self.now_ms += advance_ms
        self.store.tick(self.now_ms)
        self.store._flushing.settle(self.now_ms, wait=True)
        if self.store.retention._removing is not None:
            self.store.retention._removing.result()

    # --- read ---

    def pull(self, topic: str, queue_id: int, offset: int, **limits: Any) -> tuple[list[Record], int]:
        """Records of one pull and the next offset; cold bytes are waited for."""
        found = self.store.read(topic, queue_id, offset, **{"count_max": 32, "bytes_max": 1 << 30, **limits})
        if found.status is not ReadStatus.FOUND:
            return [], found.next_offset
        data = found.data
        if data is None:
            self.store.fetch_beside(found, (topic, queue_id), None)
            ring(self.store.reader_fileno())
            ((_, error),) = self.store.fetched()
            assert not error, f"cold read failed: error {error}"
            data = found.data or b""
        return list(iter_records(data)), found.next_offset

    def pull_all(self, topic: str, queue_id: int) -> list[Record]:
        records: list[Record] = []
        offset = 0
        while True:
            got, following = self.pull(topic, queue_id, offset)
            records += got
            if following <= offset:
                return records
            offset = following

    def check(self, expected: list[Sent]) -> None:
        """Every queue holds exactly `expected`, in order, where the store said each would be."""
        by_queue: dict[tuple[str, int], list[Sent]] = {}
        for sent in expected:
            by_queue.setdefault((sent.topic, sent.queue_id), []).append(sent)
        for (topic, queue_id), sent_here in by_queue.items():
            queue = self.store.find_queue(topic, queue_id)
            assert queue is not None
            assert queue.max == len(sent_here), (topic, queue_id)
            records = self.pull_all(topic, queue_id)
            found = [
                (
                    r.topic,
                    r.queue_id,
                    r.body,
                    r.physical_offset,
                    r.queue_offset,
                    r.properties[: len(s.properties)],
                )
                for r, s in zip(records, sent_here, strict=True)
            ]
            wanted = [
                (s.topic, s.queue_id, s.body, s.physical, s.queue_offset, s.properties) for s in sent_here
            ]
            assert found == wanted

    def log_bytes(self) -> bytes:
        """The whole log, segment after segment."""
        segments = (path for path in (self.root / "commitlog").iterdir() if path.name.isdecimal())
        return b"".join(path.read_bytes() for path in sorted(segments))


def ring(fd: int) -> None:
    """Wait for an eventfd."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    assert poll.poll(WAIT_MS_MAX), f"descriptor {fd} did not ring within {WAIT_MS_MAX} ms"


def tree(root: Path, *, below: str = "") -> dict[str, bytes]:
    """Every file below `root` by its relative path."""
    base = root / below
    return {str(path.relative_to(root)): path.read_bytes() for path in base.rglob("*") if path.is_file()}
