"""A store directory -> the partitions of a query: what is read of it, by queues or by the log, and how far.

Partitions are stretches of the log: each is read from one end to the other once, however many queues have
records in it. With queues, a partition holds the records of their entries that begin in its stretch; without,
every record there. Runs on the driver, which looks at names, sizes and a few entries only.
"""

from __future__ import annotations

import json
import logging
import os
from dataclasses import dataclass
from itertools import pairwise

from pyspark.sql.datasource import InputPartition

from hotfire.errors import ConfigError, StoreError
from hotfire.spark.arrow import INT64_MAX
from hotfire.spark.options import Options
from hotfire.spark.planning import ROWS_WORTH_A_TASK
from hotfire.spark.reading import DataLoss
from hotfire.spark.storefiles import Files, Gone, Log, Queue
from hotfire.spark.storeoptions import Selection
from hotfire.store import kinds
from hotfire.store.disk import Disk
from hotfire.store.layout import Layout, QueueFiles, look
from hotfire.store.scan import NEVER

log = logging.getLogger("hotfire.spark")

BYTES_WORTH_A_TASK = 8 << 20
CLOCK_STEPS_MS = 600_000
"""Store times grow, but for a clock that was set: so far around a time the log is read, and rows judged."""
LIGHT_PREFIX = "%LMQ%"
"""Queues whose entries lead to other topics' records: those are read under their own names."""
LOOKS_MAX = 5
TOPICS_TOLD_MAX = 10


@dataclass(frozen=True, slots=True)
class Shape:
    """What a reader has to know of the store."""

    root: str
    log_from: int = 0
    log_until: int = 0
    """The log as far as it is read, whatever is chosen of it."""
    segment_bytes: int = 1
    queue_file_bytes: int = 0
    batch_file_bytes: int = 0
    sound_until: int = 0
    """Before this log offset everything was on disk: what cannot be read there is damage, not a torn end."""
    summed_from: int = NEVER
    gone: tuple[tuple[bytes, int], ...] = ()
    """Deleted topics: their records before that offset are none."""
    broker_name: str = ""


@dataclass(frozen=True, slots=True)
class QueueRange:
    """Entries [first, until) of a queue."""

    directory: str
    topic: str
    queue_id: int
    first: int
    until: int
    of_batches: bool = False


class StorePart(InputPartition):
    """A stretch of the log; with `queues`, of it only what their entries lead to."""

    def __init__(
        self,
        shape: Shape,
        selection: Selection,
        log_from: int,
        log_until: int,
        queues: tuple[QueueRange, ...] | None,
        *,
        is_last: bool,
    ) -> None:
        super().__init__(None)
        self.shape = shape
        self.selection = selection
        self.log_from = log_from
        self.log_until = log_until
        self.queues = queues
        self.is_last = is_last


def plan(options: Options, selection: Selection) -> list[StorePart]:
    """The partitions; none when nothing is wanted, or nothing there."""
    disk = Disk(options["path"])
    gone = ""
    for _ in range(LOOKS_MAX):
        layout = _look(disk)
        files = Files(options["path"])
        try:
            return _Plan(layout, files, options, selection).parts()
        except Gone as error:  # deleted as we look, its topic or its oldest file: what is there now?
            gone = error.file
        finally:
            files.close()
    raise DataLoss(
        f"{disk.root}/{gone} was there each of {LOOKS_MAX} times the store was looked at, and gone when it "
        "was to be read: run the query again when less is deleted, or set option by to log"
    )


def broker_name(options: Options) -> str:
    """What is said, or what a broker of a controller's group keeps: `cluster#name#id`."""
    said: str | None = options["brokerName"]
    if said is not None:
        return said
    fields = (Disk(options["path"]).read_whole("brokerIdentity") or b"").decode("utf-8", "replace").split("#")
    return fields[1] if len(fields) >= 3 else ""


def _look(disk: Disk) -> Layout:
    kinds.refuse_unreadable(disk)
    for tried in range(LOOKS_MAX):
        try:
            return look(disk, with_indexes=False)
        except FileNotFoundError:  # a broker deletes as we look
            if tried + 1 == LOOKS_MAX:
                raise
    raise AssertionError


class _Plan:
    def __init__(self, layout: Layout, files: Files, options: Options, selection: Selection) -> None:
        self._layout = layout
        self._files = files
        self._options = options
        self._selection = selection
        self._log = Log(files, layout.segment_bytes)
        is_durable = options["upTo"] == "durable" or (
            options["upTo"] == "auto" and layout.holder is not None and layout.checkpoint.is_ours
        )
        if is_durable and not layout.checkpoint.is_ours:
            raise ConfigError(
                f"upTo is durable, but the checkpoint of {layout.disk.root} does not say how far its log is "
                "on disk: Hotfire's does, unless another broker wrote to the store since; use last"
            )
        # A log that was closed ends where it was synced, and nobody has to look for its end.
        is_closed = layout.checkpoint.is_ours and layout.holder is None and not layout.was_unclean
        self._limit = layout.checkpoint.durable if is_durable or is_closed else layout.log_limit

    def parts(self) -> list[StorePart]:
        layout, selection = self._layout, self._selection
        if not layout.segments or selection.is_nothing:
            return []
        end = min(self._limit, layout.log_limit)
        low, high = self._between_times(layout.log_start, end)
        queues = self._queues(low, high) if self._is_by_queue() else None
        if low >= high or queues == ():
            return []
        if queues is None:
            written = min(high, self._log.written_end(max(layout.segments)))
            cuts = self._cuts(low, max(written, low), self._wanted(written - low, BYTES_WORTH_A_TASK))
            aligned = {found.physical for at in cuts if (found := self._log.next_record(at, high))}
            cuts = sorted(aligned - {low})
        else:
            rows = sum(queue.until - queue.first for queue in queues)
            ends = max((self._last_end(queue) for queue in queues), default=low)
            cuts = self._cuts(low, min(high, ends), self._wanted(rows, ROWS_WORTH_A_TASK))
        shape, bounds = self._shape(), [low, *cuts, high]
        return [
            StorePart(shape, selection, at, until, queues, is_last=until == end)
            for at, until in pairwise(bounds)
            if at < until
        ]

    def _shape(self) -> Shape:
        layout = self._layout
        checkpoint = layout.checkpoint
        return Shape(
            root=str(layout.disk.root),
            log_from=layout.log_start,
            log_until=min(self._limit, layout.log_limit),
            segment_bytes=layout.segment_bytes,
            queue_file_bytes=layout.queue_file_bytes,
            batch_file_bytes=layout.batch_file_bytes,
            sound_until=min(checkpoint.durable, self._limit) if checkpoint.is_ours else 0,
            summed_from=checkpoint.summed_from,
            gone=tuple(sorted(layout.gone.items())),
            broker_name=broker_name(self._options),
        )

    def _wanted(self, amount: int, worth_a_task: int) -> int:
        options = self._options
        wanted = max(min(os.cpu_count() or 1, -(-amount // worth_a_task)), options["minPartitions"] or 1)
        return min(wanted, options["maxPartitions"] or wanted)

    @staticmethod
    def _cuts(low: int, high: int, count: int) -> list[int]:
        """Places that cut [low, high) into `count` stretches."""
        return sorted({low + (high - low) * i // count for i in range(1, count)} - {low})

    def _between_times(self, low: int, high: int) -> tuple[int, int]:
        """A stretch that holds all records of the store times wanted."""
        selection = self._selection
        start, stop = low, high
        if selection.stored_from > CLOCK_STEPS_MS:
            start = self._log.around_time(selection.stored_from - CLOCK_STEPS_MS, low, high)[0]
        if selection.stored_until < INT64_MAX - CLOCK_STEPS_MS:
            stop = self._log.around_time(selection.stored_until + CLOCK_STEPS_MS, low, high)[1]
        return start, stop

    # --- queues --------------------------------------------------------------------------------------

    def _is_by_queue(self) -> bool:
        layout, by = self._layout, self._options["by"]
        if by == "log":
            return False
        why = None
        if kinds.has_foreign_queues(layout.disk):
            why = "its queues are in RocksDB"
        elif not layout.queues and not layout.batches:
            why = "it has no queues"
        else:
            why = self._missing_file()
        if why is not None and by == "queue":
            raise StoreError(
                f"store {layout.disk.root} cannot be read by queues: {why}; set option by to log"
            )
        if why is None and layout.was_unclean and layout.holder is None:
            unclean = "it was left uncleanly, and its queues may lag behind its log"
            if by == "queue":
                log.warning("store=%s: %s; set option by to log for all of it", layout.disk.root, unclean)
            else:
                why = unclean
        if why is not None:
            log.info("store=%s is read record by record: %s", layout.disk.root, why)
        return why is None

    def _missing_file(self) -> str | None:
        for trees, size in (
            (self._layout.queues, self._layout.queue_file_bytes),
            (self._layout.batches, self._layout.batch_file_bytes),
        ):
            for queue in trees.values():
                for before, start in pairwise(queue.files):
                    if start != before + size:
                        return f"{queue.file(before + size)} is missing"
                    if queue.files[before] != size:
                        return f"{queue.file(before)} has {queue.files[before]} bytes, not {size}"
                if queue.files and not size:
                    return f"the files in {queue.directory} do not show their size"
        return None

    def _queues(self, low: int, high: int) -> tuple[QueueRange, ...]:
        """Of each queue wanted, the entries whose records begin in [low, high) of the log."""
        layout = self._layout
        self._refuse_unknown()
        found = []
        for trees, file_bytes, of_batches in (
            (layout.queues, layout.queue_file_bytes, False),
            (layout.batches, layout.batch_file_bytes, True),
        ):
            for (topic, queue_id), files in sorted(trees.items()):
                if files.files and self._is_wanted(topic, queue_id):
                    one = self._queue(files, file_bytes, low, high, of_batches=of_batches)
                    if one is not None:
                        found.append(one)
        return tuple(found)

    def _is_wanted(self, topic: str, queue_id: int) -> bool:
        topics, queues = self._selection.topics, self._selection.queues
        if topic.startswith(LIGHT_PREFIX):
            return False
        return (topics is None or topic in topics) and (queues is None or queue_id in queues)

    def _queue(
        self, files: QueueFiles, file_bytes: int, low: int, high: int, *, of_batches: bool
    ) -> QueueRange | None:
        queue = Queue(self._files, files.directory, file_bytes, of_batches=of_batches)
        last = max(files.files)
        first, until = min(files.files) // queue.unit, (last + files.files[last]) // queue.unit
        until = queue.first_where(first, until, lambda entry: entry[1] == 0)
        # Where nothing is left out nothing is searched for: an entry that is damaged leads a search astray.
        if low:
            first = queue.first_from(first, until, low)
        if high < self._layout.log_limit:
            until = queue.first_from(first, until, high)
        if not of_batches:  # of those, each entry has many offsets
            first, until = max(first, self._selection.first), min(until, self._selection.until)
        if first >= until:
            return None
        return QueueRange(files.directory, files.topic, files.queue_id, first, until, of_batches)

    def _last_end(self, one: QueueRange) -> int:
        """Where the last record of the range ends."""
        layout = self._layout
        size = layout.batch_file_bytes if one.of_batches else layout.queue_file_bytes
        queue = Queue(self._files, one.directory, size, of_batches=one.of_batches)
        try:
            offset, length, *_ = queue.fields(queue.read(one.until - 1, 1))
        except Gone:
            return 0
        return offset + min(max(length, 0), layout.segment_bytes)

    def _refuse_unknown(self) -> None:
        """A topic nobody has heard of is a slip of the pen, not an empty result."""
        layout = self._layout
        known = {topic for topic, _ in (*layout.queues, *layout.batches)}
        for topic in self._selection.topics or ():
            if topic.startswith(LIGHT_PREFIX):
                raise ConfigError(f"{topic} has no records of its own: read the topics it was sent to")
            if topic not in known and topic not in self._declared():
                told = ", ".join(sorted(known)[:TOPICS_TOLD_MAX]) + (
                    ", …" if len(known) > TOPICS_TOLD_MAX else ""
                )
                raise ConfigError(f"store {layout.disk.root} has no topic {topic}; it has {told or 'none'}")

    def _declared(self) -> set[str]:
        """Topics of which there need not be a message."""
        try:
            table = json.loads(self._layout.disk.read_whole("config/topics.json") or b"{}")
            return set(table["topicConfigTable"])
        except (ValueError, KeyError, TypeError):
            return set()
