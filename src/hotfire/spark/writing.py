"""A partition's rows on their way to brokers: Arrow batches in, requests out, counts at the end."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import reduce
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from hotfire.client.bridge import Bridge
from hotfire.client.checks import BODY_BYTES_MAX, RESERVED_PROPERTIES
from hotfire.client.messages import Outgoing, prepare
from hotfire.client.prepared import PreparedProducer
from hotfire.client.uniques import patiently
from hotfire.core import encode_rows
from hotfire.errors import HotfireError, LocalProtocolError
from hotfire.model import RETRY_PREFIX, Message, MessageQueue
from hotfire.spark.delivery import ID_BYTES, Delivery, delivery_of
from hotfire.spark.outbox import Counts, Outbox
from hotfire.spark.points import reached
from hotfire.spark.sinkoptions import SinkOptions, check_target
from hotfire.spark.sinkplan import Selection, by_queue, by_topic
from hotfire.spark.sinkrows import Layout, RowRefused, SinkRows
from hotfire.spark.task import TaskFacts, keep_imports

log = logging.getLogger("hotfire.spark")

LEFT_OUT = (*sorted(RESERVED_PROPERTIES), "TRANSACTION_CHECK_TIMES", "__transactionId__")
"""Properties that are the system's: a source reads them along, and the next broker gives its own."""
_LEFT_OUT = tuple(name.encode() for name in LEFT_OUT)
_OF_RETRIES = ("RETRY_TOPIC", "ORIGIN_MESSAGE_ID")
"""What a message of a retry topic tells its consumer: for which of its listeners it is, and what it was."""


def write_partition(
    batches: Iterable[pa.RecordBatch], options: SinkOptions, layout: Layout, facts: TaskFacts, name: str
) -> Counts:
    """Send every row; all are acknowledged when this returns."""
    keep_imports()
    bridge = Bridge.shared()
    rest = (batch for batch in batches if batch.num_rows)
    first = next(rest, None)
    if first is None:
        return Counts()  # nobody need know that there was nothing
    with _producer(bridge, options) as producer:
        delivery = delivery_of(bridge, producer, options, facts, name)
        outbox = Outbox(bridge, producer, options, confirms=delivery.confirms)
        outbox.half_at = max(first.num_rows // 2, 1)
        partition = _Partition(bridge, producer, options, facts, delivery, outbox)
        delivery.begin()
        try:
            for batch in chain((first,), rest):
                partition.write(batch, layout)
            outbox.finish()
        finally:
            outbox.abandon()
        reached("sink.all-sent-before-return")
        return outbox.counts


@contextmanager
def _producer(bridge: Bridge, options: SinkOptions) -> Iterator[PreparedProducer]:
    producer = PreparedProducer(options["nameServers"], group=options["producerGroup"], tls=options["tls"])
    bridge.run(producer.start())
    try:
        yield producer
    finally:
        bridge.run(producer.close())


class _Partition:
    """What is known while one partition is written."""

    def __init__(
        self,
        bridge: Bridge,
        producer: PreparedProducer,
        options: SinkOptions,
        facts: TaskFacts,
        delivery: Delivery,
        outbox: Outbox,
    ) -> None:
        self._bridge = bridge
        self._producer = producer
        self._options = options
        self._facts = facts
        self._delivery = delivery
        self._outbox = outbox
        self._rows_before = 0
        self._queues: dict[str, tuple[MessageQueue, ...]] = {}
        self._counter = 0

    def write(self, batch: pa.RecordBatch, layout: Layout) -> None:
        try:
            rows = SinkRows(batch, layout)
            for topic, selected in by_topic(rows, self._options["topic"]):
                self._check(topic)
                self._write_topic(topic, rows, selected)
        except ValueError as error:
            if len(error.args) != 2:
                raise
            row, problem = error.args
            self._refuse(row, problem)
        self._rows_before += batch.num_rows

    def _write_topic(self, topic: str, rows: SinkRows, selected: Selection) -> None:
        ids = self._delivery.ids(topic, rows, selected)
        for part, delayed in _by_delay(rows, selected):
            left = self._delivery.missing(topic, part, ids, delayed=delayed)
            self._outbox.counts.skipped += part.count - left.count
            if not left.count:
                continue
            orders_by_key = self._options["orderBy"] == "key"
            for queue, group in by_queue(rows, left, self._queues[topic], orders_by_key=orders_by_key):
                if delayed or topic.startswith(RETRY_PREFIX):
                    for row in group.rows():
                        self._send_alone(topic, rows, row, ids, queue)
                else:
                    self._send_together(topic, rows, group, ids, queue)

    def _check(self, topic: str) -> None:
        if topic not in self._queues:
            check_target(topic)
            patience_s = self._options["requestTimeoutMs"] / 1000
            asked = patiently(lambda: self._producer.queues(topic), patience_s)
            self._queues[topic] = self._bridge.run(asked)

    def _send_together(
        self,
        topic: str,
        rows: SinkRows,
        group: Selection,
        ids: bytearray | None,
        queue: MessageQueue | None,
    ) -> None:
        bytes_max, count_max = self._options["requestBytes"], self._options["requestRows"]
        at, numbers = group.at, group.buffer
        while at < group.end:
            stem = self._producer.id_stem()
            first_id = self._id(rows, group, at, ids, stem)
            body, past, self._counter = encode_rows(
                rows.columns,
                numbers,
                at,
                group.end,
                ids,
                stem,
                self._counter,
                _LEFT_OUT,
                bytes_max,
                count_max,
            )
            if past == at:
                self._send_alone(topic, rows, _row(group, at), ids, queue)
                past = at + 1
            else:
                self._outbox.send(self._producer.batch(topic, body, first_id), past - at, queue)
            at = past

    def _id(self, rows: SinkRows, group: Selection, at: int, ids: bytearray | None, stem: bytes) -> str:
        row = _row(group, at)
        given = b"" if ids is None else ids[ID_BYTES * row : ID_BYTES * (row + 1)]
        if any(given):
            return given.hex().upper()
        return f"{stem.decode()}{(self._counter + 1) & 0xFFFF:04X}"

    def _send_alone(
        self, topic: str, rows: SinkRows, row: int, ids: bytearray | None, queue: MessageQueue | None
    ) -> None:
        """One that is delayed or too large to travel with others."""
        stem = self._producer.id_stem()
        message_id = self._id(rows, Selection(None, row, row + 1), row, ids, stem)
        self._counter = (self._counter + 1) & 0xFFFF
        self._outbox.send(self._prepared(topic, rows, row, message_id), 1, queue)

    def _prepared(self, topic: str, rows: SinkRows, row: int, message_id: str) -> Outgoing:
        body = rows.body[row].as_py()
        if body is None:
            raise ValueError(row, "its body is null")
        held = {} if rows.properties is None else dict(rows.properties[row].as_py() or ())
        message = Message(
            topic,
            body,
            tag=_cell(rows.tags, row),
            keys=tuple((_cell(rows.keys, row) or "").split()),
            properties={key: one for key, one in held.items() if one is not None and _is_sent(key, topic)},
            delay_level=max(_cell(rows.delay_level, row) or 0, 0),
            delay_ms=max(_cell(rows.delay_ms, row) or 0, 0),
            deliver_at=_cell(rows.deliver_at_ms, row),
        )
        try:
            return prepare(
                message, message_id, body_bytes_max=BODY_BYTES_MAX, is_ours=topic.startswith(RETRY_PREFIX)
            )
        except LocalProtocolError as error:
            raise ValueError(row, str(error)) from None

    def _refuse(self, row: int, problem: str) -> None:
        place = f"row {self._rows_before + row} of {self._facts}"
        refused = RowRefused(f"{place}: {problem}; filter or mend such rows before writing")
        try:
            self._outbox.finish()
        except HotfireError as error:
            refused.add_note(str(error))
        refused.add_note(f"{self._outbox.counts.sent} rows of this task were sent and stay sent")
        raise refused from None


def _is_sent(name: str, topic: str) -> bool:
    """Whether a property goes along."""
    return name not in LEFT_OUT or (name in _OF_RETRIES and topic.startswith(RETRY_PREFIX))


def _by_delay(rows: SinkRows, selected: Selection) -> Iterator[tuple[Selection, bool]]:
    """Rows that are not delayed, then those that are."""
    waits = [
        pc.greater(pc.fill_null(selected.of(one), 0), 0)
        for one in (rows.delay_level, rows.delay_ms)
        if one is not None
    ]
    if rows.deliver_at_ms is not None:
        waits.append(selected.of(rows.deliver_at_ms).is_valid())
    late = reduce(pc.or_, waits) if waits else None
    if late is None or not pc.any(late).as_py():
        yield selected, False
        return
    yield selected.where(pc.invert(late)), False
    yield selected.where(late), True


def _row(group: Selection, at: int) -> int:
    return at if group.numbers is None else int(group.numbers[at].as_py())


def _cell(array: pa.Array | None, row: int) -> Any:
    return None if array is None else array[row].as_py()
