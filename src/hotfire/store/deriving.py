"""What recovery makes of the records it reads: their queue entries and the keys they are found by.

`derive` says what becomes of one record. Most are ordinary, and the compiled core does those many at a time:
of a queue that is open, their entry the next one and its block there, their keys with room in the index. It
leaves the first record that is anything else to `derive`, which is what makes files, opens queues and knows
the exceptions. Knows queues and the index; where the log begins and ends is `recovery`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from hotfire import core
from hotfire.protocol.record import SysFlag
from hotfire.store.consumequeue import ConsumeQueue, QueueKey
from hotfire.store.keyindex import KeyIndexes
from hotfire.store.scan import Scanned

SCHEDULE_TOPIC = b"SCHEDULE_TOPIC_XXXX"

OpenQueue = Callable[[str, int], ConsumeQueue]


class Deriving:
    """The queues and the index of one store while they are made to agree with the log."""

    def __init__(
        self,
        queues: dict[QueueKey, ConsumeQueue],
        open_queue: OpenQueue,
        index: KeyIndexes | None,
        delays_ms: tuple[int, ...],
        batch_topics: set[str],
        stale: set[QueueKey],
        gone: Mapping[str, int],
    ) -> None:
        self._queues = queues
        self._open_queue = open_queue
        self._index = index
        self._delays_ms = delays_ms
        self._batch_topics = batch_topics
        self._gone = gone
        """Deleted topics: of those before that offset there are no entries."""
        self._stale = stale
        """Queues of which nothing is believed: they begin with their first record in the log."""
        self._ordinary: dict[bytes, core.Queue] = {}
        """Topic and four bytes of queue id -> the queue, if its entries hold their records' tags."""
        for topic, queue_id in queues:
            if topic not in gone:  # else with its first record behind the deletion
                self._note(topic.encode(), queue_id)

    def one(self, entry: Scanned) -> None:
        """Queue entry and keys of any record."""
        key = entry.topic.decode(), entry.queue_id
        if entry.physical < self._gone.get(key[0], 0):
            put_keys(entry, self._index)
            return
        if key in self._stale and has_entry(entry, self._batch_topics):
            self._stale.remove(key)
            self._queues[key].begin_at(entry.queue_offset)
        derive(entry, self._queues, self._open_queue, self._index, self._delays_ms, self._batch_topics)
        self._note(entry.topic, entry.queue_id)

    def _note(self, topic: bytes, queue_id: int) -> None:
        key = topic.decode(), queue_id
        if topic == SCHEDULE_TOPIC or key in self._stale:
            return
        if key[0] not in self._batch_topics and key in self._queues:
            self._ordinary[topic + (queue_id & 0xFFFFFFFF).to_bytes(4)] = self._queues[key].entries

    def many(
        self, view: memoryview, base: int, last_timestamp: int, summed_from: int
    ) -> tuple[int, int, int]:
        """The ordinary records that lead `view`, done: how many, their bytes, the last one's store time.

        `base` is the view's log offset and `last_timestamp` the store time of the record before it; both
        and `summed_from` as the scanner has them.
        """
        index = None if self._index is None else self._index.newest
        if not core.COMPILED or (self._index is not None and index is None):
            return 0, 0, last_timestamp
        return core.derive_records(view, base, summed_from, last_timestamp, self._ordinary, index)


def has_entry(entry: Scanned, batch_topics: set[str]) -> bool:
    """Whether the record has an entry in a queue that we keep."""
    if entry.sys_flag & SysFlag.TRANSACTION_MASK in (
        SysFlag.TRANSACTION_PREPARED,
        SysFlag.TRANSACTION_ROLLBACK,
    ):
        return False
    # batches lie in queues of another kind, which stay as they are
    return not (entry.sys_flag & SysFlag.INNER_BATCH or entry.topic.decode() in batch_topics)


def put_keys(entry: Scanned, index: KeyIndexes | None) -> None:
    kind = entry.sys_flag & SysFlag.TRANSACTION_MASK
    if index is not None and kind != SysFlag.TRANSACTION_ROLLBACK:
        for hash_ in entry.key_hashes:
            index.put(hash_, entry.physical, entry.store_timestamp)


def derive(
    entry: Scanned,
    queues: dict[QueueKey, ConsumeQueue],
    open_queue: OpenQueue,
    index: KeyIndexes | None,
    delays_ms: tuple[int, ...],
    batch_topics: set[str],
) -> None:
    put_keys(entry, index)
    if not has_entry(entry, batch_topics):
        return
    key = entry.topic.decode(), entry.queue_id
    queue = queues.get(key)
    if queue is None:
        queue = queues[key] = open_queue(*key)
    if entry.queue_offset >= queue.entries.max:
        tags = entry.tags
        if entry.topic == SCHEDULE_TOPIC:  # parked until then: a queue for each level
            tags = due_ms(entry.queue_id, entry.store_timestamp, delays_ms)
        queue.put(entry.queue_offset, entry.physical, entry.size, tags, entry.store_timestamp)


def due_ms(queue_id: int, stored_ms: int, delays_ms: tuple[int, ...]) -> int:
    """When a message parked in this queue is to be delivered; a level no longer in the ladder is its last."""
    return stored_ms + delays_ms[min(queue_id, len(delays_ms) - 1)]
