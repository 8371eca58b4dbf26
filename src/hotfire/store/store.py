"""The store's front: append to the log, flush it turn by turn, read a queue.

    append ... append          fill a turn (or the compiled lane does)
    submit()                   the flusher writes and syncs it while the next one fills
    fileno() rings, complete() the readable end moves; queue entries of those records become visible

In SYNC_FLUSH a turn is complete once it is synced, in ASYNC_FLUSH once it is written. Nothing is readable
before its turn is complete. A failed write or sync makes the store read-only for good: what the kernel did
with those pages is unknown, and trying again would only hide it.

No sockets, no event loop, no clock of its own: `now_ms` comes with each call.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import select
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum

from hotfire import core
from hotfire.core.plain import select_entries
from hotfire.errors import StoreFull, StoreReadOnly
from hotfire.protocol.record import (
    CRC_PROPERTY_BYTES,
    Record,
    encode_record,
    key_hash,
    keys_of,
    parse_properties,
    tags_code,
)
from hotfire.store.checkpoint import FILE as CHECKPOINT_FILE
from hotfire.store.checkpoint import Checkpoint
from hotfire.store.commitlog import CommitLog
from hotfire.store.config import StoreConfig
from hotfire.store.consumequeue import ConsumeQueue
from hotfire.store.disk import Disk, SyncFailed
from hotfire.store.keyindex import KeyIndexes
from hotfire.store.kinds import refuse_foreign
from hotfire.store.queueext import open_ext
from hotfire.store.recovery import Recovered, recover
from hotfire.store.scan import NEVER
from hotfire.store.tables import Table

log = logging.getLogger("hotfire.store")

ABORT_FILE, LOCK_FILE = "abort", "lock"
COUNT_MAX_MEMORY, COUNT_MAX_DISK = 32, 8
BYTES_MAX_MEMORY, BYTES_MAX_DISK = 256 << 10, 64 << 10
SCAN_ENTRIES_MAX = 800
PULL_LIMITS = (COUNT_MAX_MEMORY, COUNT_MAX_DISK, BYTES_MAX_MEMORY, BYTES_MAX_DISK, SCAN_ENTRIES_MAX)
WAIT_MS_MAX = 30_000
MEMORY_SHARE = 0.4
"""Records within this share of the machine's memory of the log's end are taken to be in the page cache."""


class ReadStatus(Enum):
    """Outcome of a read; the names are the remarks of pull replies."""

    FOUND = "FOUND"
    NO_MATCHED_MESSAGE = "NO_MATCHED_MESSAGE"
    MESSAGE_WAS_REMOVING = "MESSAGE_WAS_REMOVING"
    OFFSET_FOUND_NULL = "OFFSET_FOUND_NULL"
    OFFSET_OVERFLOW_BADLY = "OFFSET_OVERFLOW_BADLY"
    OFFSET_OVERFLOW_ONE = "OFFSET_OVERFLOW_ONE"
    OFFSET_TOO_SMALL = "OFFSET_TOO_SMALL"
    NO_MESSAGE_IN_QUEUE = "NO_MESSAGE_IN_QUEUE"


@dataclass(slots=True)
class Read:
    """What a pull found. FOUND without `data` means the bytes are cold: fetch `pieces` beside the loop."""

    status: ReadStatus
    next_offset: int
    min_offset: int
    max_offset: int
    data: bytes | None = None
    pieces: list[tuple[int, int]] = dataclasses.field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Appended:
    """Where a record went. It may be acknowledged once the readable end has reached `end`."""

    physical_offset: int
    queue_offset: int
    end: int


class Store:
    """One directory of log, queues and tables, owned by one loop."""

    def __init__(self, disk: Disk, config: StoreConfig) -> None:
        self._disk = disk
        self._config = config
        self._log = CommitLog(disk, config)
        self._queues: dict[tuple[str, int], ConsumeQueue] = {}
        self._index = KeyIndexes(disk, config) if config.index_enable else None
        self._reader: core.Reader
        self._background: Future[None] | None = None
        self._flushed_log_at = self._flushed_queues_at = 0
        self._memory_window = int(disk.memory_bytes() * MEMORY_SHARE)
        self._synced = self._derived = 0
        self._counted = 0, 0, 0
        self._stamp = self._handed_stamp = 0
        self._summed_from = NEVER
        self._owed: set[str] = set()
        """Queue files taken for a sync that has not succeeded yet."""
        self._complaint = ""
        self._is_closed = False
        self.fault: str | None = None
        self.recovered = Recovered(0)
        self.was_unclean = False

    # --- open and close ---

    def open(self) -> None:
        """Take the directory, recover what is in it, be ready to append."""
        disk = self._disk
        refuse_foreign(disk)
        disk.make_directory(".")
        disk.lock(LOCK_FILE)
        self.was_unclean = disk.exists(ABORT_FILE)
        checkpoint = Checkpoint.decode(disk.read_whole(CHECKPOINT_FILE))
        self._log.load()
        self.recovered = recover(
            disk,
            self._config,
            self._log,
            checkpoint,
            self._open_queue,
            self._index,
            was_unclean=self.was_unclean,
        )
        self._log.start(self.recovered.end)
        self.journal.last_timestamp = self._stamp = self.recovered.last_timestamp
        if self._index is not None:
            self._index.start(self.journal)
        self._synced = self._derived = self.recovered.end
        if self._config.append_crc:
            self._summed_from = min(checkpoint.summed_from, self.recovered.end)
        self._reader = disk.reader()
        if self.was_unclean:
            log.warning("store was not closed cleanly root=%s end=%d", disk.root, self.recovered.end)
        self._sync_queues(self._dirty_files(), self._checkpoint())
        disk.write_whole(ABORT_FILE, str(os.getpid()).encode())

    def close(self) -> None:
        """Flush what was appended, write the checkpoint, leave no `abort` behind. Waits for the disk."""
        self._is_closed = True
        self._settle_background(wait=True)
        while self.fault is None and (self.journal.busy or self.journal.pending):
            self.submit()
            _wait(self.journal.fileno())
            with suppress(StoreReadOnly):  # then `fault` ends this, and `abort` stays
                self.complete()
        if self.fault is None:
            try:
                self._leave_clean()
            except OSError as error:  # `abort` stays, and the next start looks closely
                self.fail(f"the store could not be closed cleanly: {error.strerror}")
        self._reader.close()
        self._log.close()
        for queue in self._queues.values():
            queue.close()
        if self._index is not None:
            self._index.close()
        self._disk.finish()
        self._disk.unlock()

    def _leave_clean(self) -> None:
        for fd in self._log.holding(self.flushed_end, self.readable_end):
            self._disk.sync(fd)
        self._synced = self.readable_end
        self._sync_queues(self._owed | self._dirty_files(), self._checkpoint())
        self._disk.remove(ABORT_FILE)

    def table(self, name: str) -> Table:
        return Table(self._disk, name)

    # --- positions ---

    @property
    def journal(self) -> core.Journal:
        return self._log.journal

    @property
    def end(self) -> int:
        """First offset not yet assigned."""
        return self.journal.end

    @property
    def readable_end(self) -> int:
        """First offset not yet safe to acknowledge or read."""
        return self.journal.written

    @property
    def flushed_end(self) -> int:
        """First offset not known to be on the disk."""
        return self.journal.written if self._config.sync_flush else self._synced

    @property
    def min_offset(self) -> int:
        return self._log.min_offset

    @property
    def dispatch_behind(self) -> int:
        """Bytes of the log that are safe but whose queue entries are still to be made."""
        return self.readable_end - self._derived

    def disk_used_ratio(self) -> float:
        return self._disk.used_ratio()

    @property
    def memory_window(self) -> int:
        return self._memory_window

    @property
    def append_crc(self) -> bool:
        return self._config.append_crc

    # --- append ---

    def queue(self, topic: str, queue_id: int) -> core.Queue:
        """The queue, made in memory if it does not exist; its files come with its first entry."""
        return self._open_queue(topic, queue_id).entries

    def find_queue(self, topic: str, queue_id: int) -> core.Queue | None:
        queue = self._queues.get((topic, queue_id))
        return None if queue is None else queue.entries

    def append(self, record: Record, now_ms: int) -> Appended:
        """Place `record` in this turn. Its offsets and store time are given here, whatever it holds."""
        self.check_writeable()
        queue = self.queue(record.topic, record.queue_id)
        journal = self.journal
        placed = dataclasses.replace(
            record, queue_offset=queue.next, store_timestamp=max(now_ms, journal.last_timestamp)
        )
        size = len(encode_record(placed, append_crc=False))
        if self._config.append_crc:
            size += CRC_PROPERTY_BYTES + bool(record.properties and not record.properties.endswith(b"\x02"))
        physical = self._reserve(size)
        data = encode_record(
            dataclasses.replace(placed, physical_offset=physical), append_crc=self._config.append_crc
        )
        assert len(data) == size, (len(data), size)
        properties = parse_properties(record.properties)
        end = journal.append(
            data,
            queue,
            queue.claim(),
            tags_code(properties),
            placed.store_timestamp,
            tuple(key_hash(record.topic, key) for key in keys_of(properties)),
        )
        journal.last_timestamp = placed.store_timestamp
        return Appended(physical, placed.queue_offset, end)

    def _reserve(self, size: int) -> int:
        try:
            return self._log.reserve(size)
        except BlockingIOError:
            raise
        except OSError as error:
            raise StoreFull(
                f"no room for the log: {error.strerror}; free some space below {self._disk.root}"
            ) from None

    @property
    def is_writeable(self) -> bool:
        return self.fault is None and not self._is_closed

    def check_writeable(self) -> None:
        if self._is_closed:
            raise StoreReadOnly("the store is closed: the broker is stopping")
        if self.fault is not None:
            raise StoreReadOnly(
                f"the store is read-only: {self.fault}; repair the disk and restart the broker"
            )

    def fail(self, fault: str) -> None:
        """Accept nothing more until the store is opened anew."""
        if self.fault is None:
            self.fault = fault
            log.critical("store is read-only fault=%s end=%d", fault, self.journal.written)

    def add_segment(self) -> None:
        self._log.add_segment()

    # --- turns ---

    def submit(self) -> bool:
        """Hand the filled turn to the flusher if it is idle."""
        handed = self.fault is None and self.journal.submit(self._config.sync_flush)
        if handed:
            self._handed_stamp = self.journal.last_timestamp
        return handed

    def fileno(self) -> int:
        """Readable when a turn is done."""
        return self.journal.fileno()

    def complete(self) -> list[core.Queue]:
        """Move the readable end over the turn that is done. Watched queues that got entries."""
        before = self.readable_end
        try:
            readable = self.journal.complete()
        except OSError as error:
            self.fail(f"the log could not be written: {error.strerror}")
            raise StoreReadOnly(f"the store is read-only: {self.fault}") from error
        if readable > before:
            self._stamp = self._handed_stamp
        return self._derive(readable)

    def _derive(self, readable: int) -> list[core.Queue]:
        try:
            woken = self.journal.derive(readable) or []
        except OSError as error:  # the log holds the records; their entries follow when there is room again
            log.error("queue entries wait reason=%s", error)
            return []
        self._derived = readable
        return woken

    def tick(self, now_ms: int) -> list[core.Queue]:
        """Work with a period: the next segment, ASYNC_FLUSH's sync, queue files and checkpoint."""
        if self.fault is not None:
            return []
        self._log.prepare()
        self._settle_background(wait=False)
        if self._background is None and self.fault is None:
            self._flush_beside(now_ms)
        return self._derive(self.readable_end)

    def clock_moved(self, by_ms: int) -> None:
        self._flushed_log_at += by_ms
        self._flushed_queues_at += by_ms

    def _settle_background(self, *, wait: bool) -> None:
        """Take in what became of the flush beside the loop. Only a failed sync is final."""
        if self._background is None or not (wait or self._background.done()):
            return
        background, self._background = self._background, None
        failure = background.exception()
        if isinstance(failure, SyncFailed):
            self.fail(f"sync failed: {failure.strerror}")
        elif failure is not None and str(failure) != self._complaint:
            log.error("queues and checkpoint not written, tried again shortly reason=%s", failure)
        if failure is None:
            self._owed.clear()
        self._complaint = "" if failure is None else str(failure)

    def _flush_beside(self, now_ms: int) -> None:
        config, target = self._config, self.readable_end
        log_due = (
            not config.sync_flush
            and target > self._synced
            and now_ms - self._flushed_log_at >= config.flush_interval_ms
        )
        queues_due = now_ms - self._flushed_queues_at >= config.queue_flush_interval_ms
        if not (log_due or queues_due):
            return
        descriptors = self._log.holding(self.flushed_end, target)
        if queues_due:
            self._owed |= self._dirty_files()
        dirty = set(self._owed) if queues_due else set()
        checkpoint = self._checkpoint()
        self._flushed_log_at = now_ms
        if queues_due:
            self._flushed_queues_at = now_ms

        def work() -> None:
            for fd in descriptors:
                self._disk.sync(fd)
            if descriptors:
                self._synced = target
            if dirty:
                self._sync_queues(dirty, checkpoint)

        if descriptors or dirty:
            self._background = self._disk.beside(work)

    def _dirty_files(self) -> set[str]:
        dirty = set().union(*(queue.take_dirty() for queue in self._queues.values()))
        return dirty if self._index is None else dirty | self._index.take_dirty()

    def _checkpoint(self) -> Checkpoint:
        """True of the disk once the log and the dirty queue files have been synced."""
        if not self.dispatch_behind:  # else entries behind `_derived` may be there and would be counted too
            entries = sum(queue.entries.max for queue in self._queues.values())
            self._counted = self._derived, entries, 0 if self._index is None else self._index.count
        derived, entries, keys = self._counted
        return Checkpoint(
            self._stamp,
            self._stamp,
            derived=derived,
            durable=self.journal.written,
            entries=entries,
            summed_from=self._summed_from,
            keys=keys,
        )

    def _sync_queues(self, files: set[str], checkpoint: Checkpoint) -> None:
        for file in files:
            self._disk.sync_file(file)
        self._disk.write_whole(CHECKPOINT_FILE, checkpoint.encode())

    # --- read ---

    def read(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        *,
        count_max: int,
        bytes_max: int,
        codes: tuple[int, ...] | None = None,
    ) -> Read:
        """Messages of one pull: from `offset`, at most so many, of these tag hashes."""
        consume_queue = self._queues.get((topic, queue_id))
        if consume_queue is None:
            # the reference makes a queue when it is first asked for, so none is ever missing
            return Read(ReadStatus.NO_MESSAGE_IN_QUEUE, 0, 0, 0)
        queue = consume_queue.entries
        low, high = queue.min, queue.max
        if high == 0:
            return Read(ReadStatus.NO_MESSAGE_IN_QUEUE, 0, low, high)
        if offset < low:
            return Read(ReadStatus.OFFSET_TOO_SMALL, low, low, high)
        if offset == high:
            return Read(ReadStatus.OFFSET_OVERFLOW_ONE, offset, low, high)
        if offset > high:
            return Read(ReadStatus.OFFSET_OVERFLOW_BADLY, high, low, high)
        memory_from = self.readable_end - self._memory_window
        for _ in range(2):  # once more after the file was opened
            if codes is None or consume_queue.ext is None:
                pieces, following, _, missing = queue.select(
                    offset, count_max, bytes_max, memory_from, codes, PULL_LIMITS
                )
            else:  # entries that are addresses do not tell their tags by themselves
                pieces, following, _, missing = select_entries(
                    queue,
                    offset,
                    count_max,
                    bytes_max,
                    memory_from,
                    codes,
                    PULL_LIMITS,
                    consume_queue.ext.tags,
                )
            if not missing or pieces or not consume_queue.show(following):
                break
        if not pieces:
            status = ReadStatus.OFFSET_FOUND_NULL if missing else ReadStatus.NO_MATCHED_MESSAGE
            return Read(status, following, low, high)
        return Read(ReadStatus.FOUND, following, low, high, self.journal.fetch(pieces), pieces)

    def reader_fileno(self) -> int:
        return self._reader.fileno()

    def fetch_beside(self, pieces: list[tuple[int, int]], token: object) -> None:
        """Read log bytes that are not in memory; `fetched()` has them with `token` once the reader rings."""
        self._reader.submit(self.journal, pieces, token)

    def fetched(self) -> list[tuple[object, bytes | int]]:
        return self._reader.take()

    # --- inside ---

    def _open_queue(self, topic: str, queue_id: int) -> ConsumeQueue:
        key = topic, queue_id
        queue = self._queues.get(key)
        if queue is None:
            queue = self._queues[key] = ConsumeQueue(
                self._disk,
                topic,
                queue_id,
                self._config.queue_file_bytes,
                open_ext(self._disk, self._config, topic, queue_id),
                extends=self._config.queue_ext,
            )
        return queue


def _wait(fd: int) -> None:
    poll = select.poll()  # select() takes no descriptor above 1023
    poll.register(fd, select.POLLIN)
    poll.poll(WAIT_MS_MAX)
