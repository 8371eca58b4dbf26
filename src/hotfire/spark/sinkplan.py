"""Which rows go where: by topic, then by queue, each group in the rows' own order. Pure, and Arrow's work."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from hotfire.core import spread_rows
from hotfire.errors import ConfigError
from hotfire.model import MessageQueue
from hotfire.spark.sinkrows import SinkRows, text_column

ANY_QUEUE = -1


@dataclass(frozen=True, slots=True)
class Selection:
    """Rows of a batch: places `at` to `end` of `numbers`, or the rows themselves where there are none."""

    numbers: Any
    at: int
    end: int

    @property
    def count(self) -> int:
        return self.end - self.at

    @property
    def buffer(self) -> Any:
        """For the core."""
        if self.numbers is None:
            return None
        assert self.numbers.offset == 0, "numbers are made here, and never a slice"
        return self.numbers.buffers()[1]

    def rows(self) -> Sequence[int]:
        if self.numbers is None:
            return range(self.at, self.end)
        listed: list[int] = self.numbers[self.at : self.end].to_pylist()
        return listed

    def of(self, array: Any) -> Any:
        """The selected cells of a column."""
        if self.numbers is None:
            return array[self.at : self.end]
        return array.take(self.numbers[self.at : self.end])

    def where(self, mask: Any) -> Selection:
        """Those for which the mask, a boolean for each selected row, is true."""
        numbers = pa.array(self.rows(), pa.int32()).filter(mask)
        return Selection(numbers, 0, len(numbers))


def chosen(rows: Sequence[int]) -> Selection:
    return Selection(pa.array(rows, pa.int32()), 0, len(rows))


def everything(rows: SinkRows) -> Selection:
    return Selection(None, 0, rows.count)


def by_topic(rows: SinkRows, topic: str | None) -> Iterator[tuple[str, Selection]]:
    """Each topic's rows; all are of the one given. ValueError(row, problem) for a row without."""
    if topic is not None:
        yield topic, everything(rows)
        return
    if rows.topic.null_count:
        raise ValueError(pc.index(rows.topic.is_null(), True).as_py(), "its topic is null")
    encoded = rows.topic.dictionary_encode()
    names = encoded.dictionary.to_pylist()
    for code, selected in _grouped(everything(rows), encoded.indices):
        yield names[code], selected


def by_queue(
    rows: SinkRows, selected: Selection, queues: Sequence[MessageQueue], *, orders_by_key: bool
) -> Iterator[tuple[MessageQueue | None, Selection]]:
    """The queue that rows must go to, and those rows; None for those that may go to any."""
    codes = None
    sharding = rows.keys if orders_by_key else rows.sharding_key
    if sharding is not None:
        spread = spread_rows(
            rows.count, text_column(sharding), selected.buffer, selected.at, selected.end, len(queues)
        )
        codes = pa.Array.from_buffers(pa.int32(), selected.count, [None, pa.py_buffer(spread)])
    if rows.queue_id is not None:
        codes = _asked_for(rows, selected, queues, codes)
    if codes is None:
        yield None, selected
        return
    for code, group in _grouped(selected, codes):
        yield (None if code == ANY_QUEUE else queues[code]), group


def _asked_for(rows: SinkRows, selected: Selection, queues: Sequence[MessageQueue], others: Any) -> Any:
    """The rows' own queues, as places in `queues`; where a row names none, what `others` say."""
    ids = selected.of(rows.queue_id)
    brokers = sorted({queue.broker_name for queue in queues})
    if rows.broker_name is not None:
        wanted = pc.binary_join_element_wise(selected.of(rows.broker_name), ids.cast(pa.string()), " ")
        known = pa.array([f"{queue.broker_name} {queue.queue_id}" for queue in queues])
    elif len(brokers) == 1:
        wanted, known = ids, pa.array([queue.queue_id for queue in queues], pa.int64())
    else:
        raise ConfigError(
            f"column queueId: topic {queues[0].topic} is on brokers {', '.join(brokers)}; "
            "add a column brokerName that says which"
        )
    places = pc.index_in(wanted, value_set=known)
    wrong = pc.and_(ids.is_valid(), places.is_null())
    if pc.any(wrong).as_py():
        place = pc.index(wrong, True).as_py()
        has = ", ".join(f"{queue.broker_name} {queue.queue_id}" for queue in queues[:32])
        said = wanted[place].as_py()
        raise ValueError(
            selected.rows()[place],
            f"its queue is {said or 'at no broker'}, and topic {queues[0].topic} has {has}",
        )
    return pc.coalesce(places, pa.scalar(ANY_QUEUE, pa.int32()) if others is None else others)


def _grouped(selected: Selection, codes: Any) -> Iterator[tuple[int, Selection]]:
    """Rows of each code, in the order they had."""
    counted = pc.value_counts(codes)
    if len(counted) == 1:
        yield counted[0]["values"].as_py(), selected
        return
    order = pc.sort_indices(codes)  # a stable sort
    numbers = order.cast(pa.int32())
    if selected.numbers is not None:
        numbers = selected.numbers.take(
            order.cast(pa.int64()) if not selected.at else pc.add(order, selected.at)
        )
    elif selected.at:
        numbers = pc.add(numbers, pa.scalar(selected.at, pa.int32()))
    at = 0
    for code, count in sorted((one["values"].as_py(), one["counts"].as_py()) for one in counted):
        yield code, Selection(numbers, at, at + count)
        at += count
