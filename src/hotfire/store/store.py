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

import errno
import logging
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from hotfire import core
from hotfire.core.plain import SYNC_MARK, WRITE
from hotfire.errors import StoreBusy, StoreFull, StoreReadOnly
from hotfire.model import SCHEDULE_TOPIC
from hotfire.protocol.record import Record, encoded_size, parse_properties, tags_code
from hotfire.store.checkpoint import MARK_AT, MARK_MAGIC
from hotfire.store.commitlog import CommitLog
from hotfire.store.config import StoreConfig
from hotfire.store.consumequeue import ConsumeQueue
from hotfire.store.deletions import Deletions
from hotfire.store.deriving import due_ms
from hotfire.store.disk import Disk
from hotfire.store.flushing import WAIT_MS_MAX, Flushing, wait_for
from hotfire.store.keyindex import KeyIndexes
from hotfire.store.kinds import ABORT_FILE, refuse_foreign
from hotfire.store.placing import key_hashes, place
from hotfire.store.pool import Pool
from hotfire.store.queries import Queries
from hotfire.store.queueext import open_ext
from hotfire.store.reading import Read, Reading
from hotfire.store.recovery import Recovered, recover
from hotfire.store.retention import Retention
from hotfire.store.sifting import Bitmaps, Sieve
from hotfire.store.tables import Table

log = logging.getLogger("hotfire.store")

LOCK_FILE = "lock"
ABORT_TOKEN = b"hotfire"


@dataclass(frozen=True, slots=True)
class Appended:
    """Where a record went. It may be acknowledged once the readable end has reached `end`."""

    physical_offset: int
    queue_offset: int
    end: int
    store_timestamp: int = 0


class Store:
    """One directory of log, queues and tables, owned by one loop."""

    def __init__(self, disk: Disk, config: StoreConfig) -> None:
        self._disk = disk
        self._config = config
        self._log = CommitLog(disk, config)
        self.bitmaps = Bitmaps(self._log)
        self._queues: dict[tuple[str, int], ConsumeQueue] = {}
        self._index = KeyIndexes(disk, config) if config.index_enable else None
        self._flushing = Flushing(disk, config, self._log, self._queues, self._index, self.fail)
        self.hurry = self._flushing.hurry
        self._reading: Reading
        self.retention: Retention
        self.deletions = Deletions(disk, self._log, self._queues, self.fail)
        self.queries: Queries
        self._pool: Pool
        self.busy_ms = self._busy_since = 0
        self._busy_with = -1
        self._handed_stamp = 0
        self._derive_complaint = ""
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
        abort = disk.read_whole(ABORT_FILE)
        self.was_unclean = abort is not None
        flushing = self._flushing
        self._log.load()
        checkpoint = flushing.checkpoints.open()
        self.deletions.open()
        if abort is not None and ABORT_TOKEN not in abort:
            checkpoint = checkpoint.without_marks()  # another broker wrote here last, and was cut short
        flushing.reference = checkpoint
        self.recovered = recover(
            disk,
            self._config,
            self._log,
            flushing.checkpoints,
            checkpoint,
            self._open_queue,
            self._index,
            self.deletions.ends,
            was_unclean=self.was_unclean,
        )
        end = self.recovered.end
        self.deletions.log_ends_at(end)
        self._log.start(end)
        journal = self.journal
        journal.set_mark(flushing.checkpoints.fd, MARK_AT, MARK_MAGIC)
        journal.last_timestamp = flushing.stamp = self.recovered.last_timestamp
        if self._index is not None:
            self._index.start(journal)
        flushing.synced = flushing.derived = end
        if self._config.append_crc:
            flushing.summed_from = journal.summed_from = min(checkpoint.summed_from, end)
        self._reading = Reading(disk, self._log, self._distrust_queues, self._config.cold_bytes_per_s)
        self.retention = Retention(
            disk, self._config.retention, self._log, self._queues, self._index, self._reading
        )
        self.queries = Queries(disk, self._log, self._index, self._reading, self._queues)
        self._pool = Pool(self._config, journal)
        if self.was_unclean:
            log.warning("store was not closed cleanly root=%s end=%d", disk.root, end)
        flushing.flush()
        self._write_abort()

    def _write_abort(self) -> None:
        """There until a clean end. The process id is for people, the word tells our crashes from others'."""
        try:
            self._disk.write_whole(ABORT_FILE, b"%d %s" % (os.getpid(), ABORT_TOKEN))
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT) or not self._disk.exists(ABORT_FILE):
                raise  # on a full disk the one from before says as much

    def close(self, last: Callable[[], None] = lambda: None) -> None:
        """Flush what was appended, write the checkpoint, leave no `abort` behind. Waits for the disk.

        `last` is called when all that was appended is on the disk, if that is what came of it.
        """
        self._is_closed = True
        self._flushing.end()
        has_retried = False
        while self.fault is None and (self.journal.busy or self.journal.pending):
            if self.journal.stalled:
                if has_retried:
                    self.fail("the disk is full, the last messages could not be written")
                    break
                has_retried = self.journal.retry()
            self.submit()
            if not wait_for(self.journal.fileno()):
                self.fail(f"the disk has not taken the last turn within {WAIT_MS_MAX} ms")
                break
            with suppress(StoreReadOnly):  # then `fault` ends this, and `abort` stays
                self.complete()
        if self.fault is None:
            try:
                self._flushing.flush(everything=True)
                last()
                if self.dispatch_behind:
                    why = self._derive_complaint
                    log.warning("queue entries are missing, the next start makes them reason=%s", why)
                else:
                    self._disk.remove(ABORT_FILE)
            except OSError as error:  # `abort` stays, and the next start looks closely
                self.fail(f"the store could not be closed cleanly: {error.strerror}")
        self._disk.finish()
        self.queries.close()
        self.retention.close()
        self._reading.close()
        self._flushing.checkpoints.close()
        self._log.close()
        self.deletions.close()
        for queue in self._queues.values():
            queue.close()
        if self._index is not None:
            self._index.close()
        self._disk.unlock()

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
    def acknowledged_end(self) -> int:
        """First offset that may not be acknowledged yet. A transient pool trades safety for time."""
        return self.journal.end if self._config.pool_buffers else self.journal.written

    @property
    def flushed_end(self) -> int:
        """First offset not known to be on the disk."""
        return self.journal.written if self._config.sync_flush else self._flushing.synced

    @property
    def min_offset(self) -> int:
        return self._log.min_offset

    @property
    def dispatch_behind(self) -> int:
        """Bytes of the log that are safe but whose queue entries are still to be made."""
        return self.readable_end - self._flushing.derived

    @property
    def memory_window(self) -> int:
        return self._reading.memory_window

    # --- append ---

    def queue(self, topic: str, queue_id: int) -> core.Queue:
        """The queue, made in memory if it does not exist; its files come with its first entry."""
        return self._open_queue(topic, queue_id).entries

    def find_queue(self, topic: str, queue_id: int) -> core.Queue | None:
        queue = self._queues.get((topic, queue_id))
        return None if queue is None else queue.entries

    def append(self, record: Record, now_ms: int) -> Appended:
        """Place `record` in this turn. Its offsets and store time are given here, whatever it holds."""
        return self.append_all([record], now_ms)[0]

    def append_all(self, records: Sequence[Record], now_ms: int) -> list[Appended]:
        """Place records of one queue one behind the other, in this turn and in one segment: all or none."""
        self.check_writeable()
        queue, journal = self.queue(records[0].topic, records[0].queue_id), self.journal
        stamp, append_crc = max(now_ms, journal.last_timestamp), self._config.append_crc
        sizes = [encoded_size(record, append_crc=append_crc) for record in records]
        physical = self._reserve(sum(sizes))
        made = []
        for offset, (record, size) in enumerate(zip(records, sizes, strict=True), queue.next):
            data = place(
                record, queue_offset=offset, physical_offset=physical, stamp_ms=stamp, append_crc=append_crc
            )
            assert len(data) == size, (len(data), size)
            properties = parse_properties(record.properties)
            tags = tags_code(properties)
            if record.topic == SCHEDULE_TOPIC:
                tags = due_ms(record.queue_id, stamp, self._config.delays_ms)
            made.append((data, offset, tags, key_hashes(record.topic, properties)))
            physical += size
        placed = []  # all are made by now: an offset claimed for one that fails would be a gap for ever
        for data, offset, tags, hashes in made:
            queue.claim()
            end = journal.append(data, queue, offset, tags, stamp, hashes)
            placed.append(Appended(end - len(data), offset, end, stamp))
        journal.last_timestamp = stamp
        return placed

    def _reserve(self, size: int) -> int:
        try:
            return self._log.reserve(size)
        except BlockingIOError:
            raise
        except OSError as error:
            raise StoreFull(f"no room for the log: {error.strerror}: {self.space_text()}") from None

    @property
    def is_writeable(self) -> bool:
        return not (
            self.fault
            or self._is_closed
            or self.journal.stalled
            or self.retention.is_full
            or self._is_page_cache_busy
        )

    @property
    def _is_page_cache_busy(self) -> bool:
        return not self._config.sync_flush and self.busy_ms > self._config.busy_ms

    def check_writeable(self) -> None:
        if self._is_closed:
            raise StoreReadOnly("the store is closed: the broker is stopping")
        if self.fault is not None:
            raise StoreReadOnly(
                f"the store is read-only: {self.fault}; repair the disk and restart the broker"
            )
        if self.journal.stalled or self.retention.is_full:
            raise StoreFull(f"the disk is full: {self.space_text()}")
        if self._is_page_cache_busy:
            raise StoreBusy(
                f"[PCBUSY_CLEAN_QUEUE]broker busy, start flow control for a while: a write of the log takes "
                f"{self.busy_ms} ms so far, {self._config.busy_ms} are allowed"
            )

    def space_text(self) -> str:
        """How much room there is, and what to do about it."""
        limit = self._config.retention.disk_refuse_ratio
        return (
            f"{self._disk.used_ratio():.1%} used, {self._disk.free_bytes()} bytes free below "
            f"{self._disk.root}, sends are refused above {limit:.0%}; free some space, or wait until old "
            "segments have left: the broker goes on by itself"
        )

    def delete_expired(self) -> None:
        """Remove expired segments now, whatever the hour."""
        self.retention.demand()

    def fail(self, fault: str) -> None:
        """Accept nothing more until the store is opened anew."""
        if self.fault is None:
            self.fault = fault
            log.critical("store is read-only fault=%s end=%d", fault, self.journal.written)

    def add_segment(self) -> None:
        self._log.add_segment()

    # --- turns ---

    def submit(self) -> bool:
        """Hand the filled turn to the flusher if it is idle. With a transient pool that has its own time."""
        if self._config.pool_buffers and not (self.journal.is_full or self._is_closed):
            return False
        return self._hand_over()

    def _hand_over(self) -> bool:
        if self.fault is not None:
            return False
        flushing, size = self._flushing, self.journal.pending
        if flushing.dirty_bytes > self._config.dirty_bytes_max and not self._is_closed:
            return False  # senders wait for the disk; whoever syncs it must be the one to hear of its errors
        handed = self.journal.submit(SYNC_MARK if self._config.sync_flush else WRITE)
        if handed:
            flushing.turn_bytes = max(flushing.turn_bytes, size)
            self._handed_stamp = self.journal.last_timestamp
        return handed

    @property
    def is_working(self) -> bool:
        """Whether a thread has something under way that the loop will hear of."""
        busy = self.journal.busy or self.journal.pending or self.queries.waiting or self._reading.in_use
        return self.fault is None and bool(busy)

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
            self._flushing.stamp = self._handed_stamp
        return self._derive(readable)

    def _derive(self, readable: int) -> list[core.Queue]:
        try:
            woken = self.journal.derive(readable) or []
        except OSError as error:  # the log holds the records; their entries follow when there is room again
            if str(error) != self._derive_complaint:
                self._derive_complaint = str(error)
                log.error(
                    "queue entries wait, consumers do not see the newest messages yet, tried again each "
                    "moment behind_bytes=%d reason=%s", self.readable_end - self._flushing.derived, error,
                )  # fmt: skip
            return []
        self._derive_complaint = ""
        self._flushing.derived = readable
        return woken

    def tick(self, now_ms: int) -> list[core.Queue]:
        """Work with a period: the next segment, ASYNC_FLUSH's sync, queue files and checkpoint."""
        if self.fault is not None:
            return []
        self.journal.retry()
        self.deletions.let_go(self._flushing.derived)
        self._watch_turn(now_ms)
        self._log.prepare()
        self._flushing.settle(now_ms)
        if self._flushing.background is None and self.fault is None:
            self.retention.tick(now_ms, self.flushed_end)
            if self._flushing.dirty_bytes > self._config.dirty_bytes_max // 2:
                self._flushing.hurry()
            self._flushing.due(now_ms)
        if self._config.pool_buffers and self._pool.is_due(now_ms):
            self._hand_over()
        return self._derive(self.readable_end)

    def _watch_turn(self, now_ms: int) -> None:
        """How long the turn in the flusher's hands has been there."""
        if not self.journal.busy or self.journal.written != self._busy_with:
            self._busy_with, self._busy_since = self.journal.written, now_ms
        self.busy_ms = now_ms - self._busy_since

    def clock_moved(self, by_ms: int) -> None:
        self._busy_since += by_ms
        self._flushing.clock_moved(by_ms)
        self.retention.clock_moved(by_ms)
        self._pool.clock_moved(by_ms)

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
        sieve: Sieve | None = None,
        bulk: bool = False,
    ) -> Read:
        """Messages of one pull: from `offset`, at most so many, of these tag hashes, or that pass a sieve."""
        queue = self._queues.get((topic, queue_id))
        return self._reading.read(
            queue, offset, count_max=count_max, bytes_max=bytes_max, codes=codes, sieve=sieve, bulk=bulk
        )

    @property
    def evaluated(self) -> int:
        """Messages whose properties a condition was run over, to answer pulls."""
        return self._reading.evaluated

    def queue_ids(self, topic: str) -> list[int]:
        """Queues of a topic that hold or held something."""
        return sorted(queue_id for name, queue_id in self._queues if name == topic)

    def tags_at(self, topic: str, queue_id: int, index: int) -> int | None:
        queue = self._queues.get((topic, queue_id))
        return None if queue is None else queue.tags_at(index)

    def reader_fileno(self) -> int:
        return self._reading.fileno()

    def fetch_beside(self, found: Read, key: tuple[str, int], token: object) -> None:
        """Have the bytes of a read brought: they are there when `fetched()` gives back its token."""
        self._reading.fetch_beside(found, key, token)

    def fetched(self) -> list[tuple[object, int]]:
        """Tokens of the reads that are done, and 0 or the number of the error of each."""
        return self._reading.fetched()

    @property
    def indexed_end(self) -> tuple[int, int]:
        """Store time and offset of the newest record whose keys are in the index."""
        return (0, 0) if self._index is None else self._index.end

    def offset_by_time(
        self, topic: str, queue_id: int, timestamp: int, *, upper: bool, token: object
    ) -> None:
        self.queries.offset_by_time(self._queues.get((topic, queue_id)), timestamp, upper=upper, token=token)

    # --- inside ---

    def _distrust_queues(self) -> None:
        """A queue entry is not what the log says: the next start makes all of them anew."""
        if not self._flushing.is_distrusted:
            self._flushing.is_distrusted = True
            log.error(
                "a queue entry and the log do not agree root=%s: restart the broker soon, a start makes the "
                "queues anew; until then what is harmed is not delivered", self._disk.root,
            )  # fmt: skip

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
                bitmap_of=self.bitmaps.of_record,
            )
        return queue
