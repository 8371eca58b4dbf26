"""Checking a store against itself: the log record by record, and everything derived from it against the log.

One pass over the log. What a record must have left in its queue and in the key index is worked out and
compared with the files. Reads only. What the next start of a broker mends by itself (a torn tail after a
crash, entries not yet made) is counted, not reported as damage.
"""

from __future__ import annotations

import operator
from collections.abc import Callable

from hotfire.errors import HotfireError
from hotfire.model import SCHEDULE_TOPIC
from hotfire.protocol import bodies
from hotfire.protocol.record import SysFlag
from hotfire.store.checkpoint import FILE as CHECKPOINT_FILE
from hotfire.store.checkpoint import MAGIC, MARK_AT, MARK_BYTES, SECTOR_BYTES, Checkpoint, decode_mark
from hotfire.store.commitlog import ROOT as LOG_ROOT
from hotfire.store.config import DELAY_LEVELS, delays_ms
from hotfire.store.consumequeue import ROOT as QUEUE_ROOT
from hotfire.store.facts import log_end
from hotfire.store.findings import Damage, Findings
from hotfire.store.layout import Layout, QueueFiles
from hotfire.store.logwalk import Fault, LogWalk, Progress, Window
from hotfire.store.tables import ROOT as TABLE_ROOT
from hotfire.store.verify_index import IndexCheck
from hotfire.store.verify_indexfile import Key
from hotfire.store.verify_queues import QueueCheck
from hotfire.store.verify_units import BatchCheck, check_ext

"""The reference's messageDelayLevel."""
LIGHT_TOPIC_PREFIX = "%LMQ%"
"""Queues that a message names itself, beside its own; the reference fills them if enableLmq is set."""
_BINARY_TABLES = {"timercheck", "timercheck.bak"}


def verify(
    layout: Layout,
    tell: Callable[[Damage], None],
    *,
    delay_levels: str = DELAY_LEVELS,
    progress: Progress = lambda done: None,
) -> Findings:
    """Check everything in the store; `tell` hears of each damage as it is found."""
    findings = Findings(layout, tell)
    _check_names(layout, findings)
    _check_checkpoint(layout, findings)
    _check_tables(layout, findings)
    _Verifier(layout, findings, delays_ms(delay_levels), progress).run()
    return findings


class _Verifier:
    """The pass over the log."""

    def __init__(
        self, layout: Layout, findings: Findings, delays: tuple[int, ...], progress: Progress
    ) -> None:
        self._layout, self._findings, self._delays = layout, findings, delays
        checkpoint = layout.checkpoint
        self._walk = LogWalk(layout, summed_from=checkpoint.summed_from, progress=progress)
        self._queues: dict[tuple[bytes, int], QueueCheck] = {}
        self._batches: dict[tuple[bytes, int], BatchCheck] = {}
        self._index = IndexCheck(layout, findings)
        self._stamp = 0
        self._is_torn = False
        self._known_end = checkpoint.durable if checkpoint.is_ours else log_end(layout)
        if not checkpoint.is_ours and layout.was_unclean:
            self._known_end = 0

    def run(self) -> None:
        for files in self._layout.queues.values():
            if files.topic.startswith(LIGHT_TOPIC_PREFIX):
                self._findings.note(
                    f"{files.directory}: entries lead to records of other topics; not checked"
                )
            else:
                self._open_queue(files, exists=True)
        for (topic, queue_id), files in self._layout.batches.items():
            self._batches[topic.encode(), queue_id] = BatchCheck(self._layout, self._findings, files)
        for window in self._walk.windows():
            self._take(window)
            if window.blank is not None:
                self._check_blank(*window.blank)
            if window.fault is not None and not self._judge(window.fault):
                break
        self._check_end()
        for key, queue in self._queues.items():
            queue.finish()
            ext = self._layout.exts.get((key[0].decode(), key[1]))
            if ext is not None:
                check_ext(self._layout, self._findings, ext, queue.addresses)
        for batch in self._batches.values():
            batch.finish()
        self._index.finish()

    def _open_queue(self, files: QueueFiles, *, exists: bool) -> QueueCheck:
        delay = None
        if files.topic == SCHEDULE_TOPIC and files.queue_id < len(self._delays):
            delay = self._delays[files.queue_id]
        queue = QueueCheck(self._layout, self._findings, files, exists=exists, delay_ms=delay)
        self._queues[files.topic.encode(), files.queue_id] = queue
        return queue

    # --- records ---

    def _take(self, window: Window) -> None:
        keys: list[Key] = []
        touched: list[QueueCheck] = []
        queues, gone = self._queues, self._layout.gone
        for record in window.records:
            physical, size, topic, queue_id, queue_offset, tags, timestamp, flag, hashes = record
            kind = flag & SysFlag.TRANSACTION_MASK
            if kind != SysFlag.TRANSACTION_ROLLBACK:
                for hash_ in hashes:
                    keys.append((hash_, physical, timestamp))
            if kind in (SysFlag.TRANSACTION_PREPARED, SysFlag.TRANSACTION_ROLLBACK):
                continue  # they never get a queue entry
            if gone and physical < gone.get(topic, 0):
                continue  # the topic was deleted since
            if self._batches and (topic, queue_id) in self._batches:
                self._batches[topic, queue_id].add(record, window.raw(record))
                continue
            queue = queues.get((topic, queue_id)) or self._new_queue(topic, queue_id)
            if queue_offset != queue.next and not queue.jump(physical, queue_offset):
                continue
            if not queue.pending:
                touched.append(queue)
            if queue.delay_ms is not None:
                tags = timestamp + queue.delay_ms
            queue.next = queue_offset + 1
            queue.pending.append((physical, size, tags))
            queue.times.append(timestamp)
        for queue in touched:
            queue.flush()
        self._index.feed(keys, window)
        self._findings.records += len(window.records)
        self._check_times(window)

    def _new_queue(self, topic: bytes, queue_id: int) -> QueueCheck:
        name = topic.decode()
        return self._open_queue(QueueFiles(f"{QUEUE_ROOT}/{name}/{queue_id}", name, queue_id), exists=False)

    def _check_times(self, window: Window) -> None:
        """Store times of our own records never go back, whatever the clock did."""
        from_ = self._layout.checkpoint.summed_from
        if not window.records or window.records[0].physical < from_:
            return
        times = [self._stamp, *(record.store_timestamp for record in window.records)]
        self._stamp = times[-1]
        if all(map(operator.le, times, times[1:])):
            return
        for record, before in zip(window.records, times, strict=False):
            if record.store_timestamp < before:
                problem = (
                    f"record at {record.physical} was stored at {record.store_timestamp}, "
                    f"the one before it at {before}"
                )
                self._findings.log_damage(record.physical, problem)

    # --- between and behind the records ---

    def _check_blank(self, offset: int, size: int) -> None:
        layout = self._layout
        end = offset - offset % layout.segment_bytes + layout.segment_bytes
        if size != end - offset:
            self._findings.log_damage(
                offset, f"blank says {size} bytes, {end - offset} are left in its segment"
            )
        self._check_zeros(offset + 8, end, "behind a blank")

    def _check_zeros(self, low: int, high: int, where: str) -> None:
        stale = self._walk.stale_behind(low, high)
        if stale is None:
            return
        checkpoint = self._layout.checkpoint
        if checkpoint.is_ours and not self._layout.was_unclean and checkpoint.summed_from <= low:
            self._findings.log_damage(stale, f"byte {where} at {low} is not zero")
        else:
            file, position = self._layout.place(stale)
            self._findings.note(f"{file} byte {position}: stale bytes {where} at {low}; they do no harm")

    def _judge(self, fault: Fault) -> bool:
        """Say whether a fault is damage; whether the log goes on behind it."""
        layout, findings = self._layout, self._findings
        behind = fault.resumed_at
        is_known = fault.offset < self._known_end
        may_be_torn = layout.was_unclean and not is_known
        if may_be_torn and (behind is None or layout.checkpoint.is_ours):
            self._is_torn = True
            file, position = layout.place(fault.offset)
            findings.note(
                f"{file} byte {position}: torn tail ({fault.reason}); the next start cuts the log here"
            )
            return False
        if behind is None and not is_known:
            return True  # bytes of no record behind the end; told with the zeros that are missing
        until = max(self._known_end, fault.offset + 1) if behind is None else behind
        findings.add_hole(fault.offset, until)
        more = "nothing sound follows" if behind is None else f"the next sound record lies at {behind}"
        findings.log_damage(fault.offset, f"no sound record at {fault.offset}: {fault.reason}; {more}")
        return True

    def _check_end(self) -> None:
        end, findings = self._walk.end, self._findings
        if self._is_torn:
            return
        if self._layout.checkpoint.is_ours and end < self._known_end:
            if not findings.in_hole(end):
                findings.log_damage(end, f"log ends at {end}, it was durable up to {self._known_end}")
        else:
            self._check_zeros(end, self._layout.log_limit, "behind the log's end")


# --- names, checkpoint, tables ---


def _check_names(layout: Layout, findings: Findings) -> None:
    for start, size in layout.segments.items():
        file = layout.place(start)[0]
        if start % layout.segment_bytes:
            findings.damage(file, 0, f"segment does not begin at a multiple of {layout.segment_bytes}")
        if size != layout.segment_bytes:
            findings.damage(file, size, f"segment has {size} bytes, others have {layout.segment_bytes}")
    for name in layout.strays:
        if name.endswith((".new", ".tmp")):
            findings.note(f"{name}: left by a crash")
        elif name.startswith(f"{LOG_ROOT}/"):
            findings.damage(
                name, 0, "not a log segment, and no broker starts while it is there: move it away"
            )
        else:
            findings.note(f"{name}: not a file of a store")


def _check_checkpoint(layout: Layout, findings: Findings) -> None:
    """One wrong bit is found by trying: put right, the checksum fits again. Anything else may be Apache's."""
    data = layout.disk.read_whole(CHECKPOINT_FILE)
    if data is not None and any(data[MARK_AT : MARK_AT + MARK_BYTES]) and not decode_mark(data):
        findings.damage(CHECKPOINT_FILE, MARK_AT, "the durable mark does not fit its checksum")
    if data is None or layout.checkpoint.is_ours:
        return
    for at in range(min(len(data), SECTOR_BYTES)):  # the checksum speaks of no byte behind them
        for bit in range(8):
            tried = bytearray(data)
            tried[at] ^= 1 << bit
            if Checkpoint.decode(bytes(tried)).is_ours:
                findings.damage(CHECKPOINT_FILE, at, f"bit {bit} is wrong: the checksum fits with the other")
                return
    if MAGIC in data:
        findings.note(
            f"{CHECKPOINT_FILE}: our marks do not fit their checksum: Apache's broker has written to the "
            "store since, or the file is damaged; a start goes without them"
        )


def _check_tables(layout: Layout, findings: Findings) -> None:
    for name in layout.tables:
        file = f"{TABLE_ROOT}/{name}"
        if name in _BINARY_TABLES or layout.disk.is_directory(file):
            continue
        if name.endswith(".tmp"):
            findings.note(f"{file}: left by a crash")
            continue
        try:
            tree = bodies.loads(layout.disk.read_whole(file) or b"")
            if not isinstance(tree, dict):
                raise ValueError(f"{type(tree).__name__} instead of an object")
        except (ValueError, HotfireError) as error:
            findings.damage(file, 0, f"not a table: {error}")
