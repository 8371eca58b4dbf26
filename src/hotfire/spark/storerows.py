"""What a partition of a store gives: the core's rows, those of the plain road, and what became of damage."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pyarrow as pa

from hotfire.core import Columns
from hotfire.errors import RecordInvalid
from hotfire.protocol.record import Buffer, Record, decode_record, record_checksum_ok
from hotfire.spark.arrow import add_unusual, record_batch
from hotfire.spark.options import Options
from hotfire.spark.reading import BATCH_BYTES, DataLoss
from hotfire.spark.schema import Column, wanted_bits
from hotfire.spark.storedamage import Damage, Damages
from hotfire.spark.storefiles import Gone
from hotfire.spark.storeplan import StorePart

log = logging.getLogger("hotfire.spark")


class Rows:
    """Rows of one partition until they are batches."""

    def __init__(self, options: Options, part: StorePart, chosen: tuple[Column, ...]) -> None:
        shape, selection = part.shape, part.selection
        self._chosen = chosen
        self._selection = selection
        self._root = shape.root
        self._rows_max = options["batchRows"]
        self._fails_on_loss = options["failOnDataLoss"]
        self.summed_from = shape.summed_from
        self.tags = None if selection.tags is None else "\x01".join(selection.tags).encode()
        self.damages = Damages(shape.root, options["damaged"], chosen, shape.broker_name)
        self.columns = Columns(
            wanted_bits(chosen),
            shape.broker_name.encode(),
            selection.stored_from,
            selection.stored_until,
            shape.summed_from,
            selection.queues,
        )

    @property
    def is_full(self) -> bool:
        return self.columns.rows >= self._rows_max or self.columns.size >= BATCH_BYTES

    def full(self) -> Iterator[pa.RecordBatch]:
        """A batch if there is enough for one."""
        if self.is_full:
            yield record_batch(self.columns, self._chosen)
        yield from self.damages.batches()

    def rest(self) -> Iterator[pa.RecordBatch]:
        if self.columns.rows:
            yield record_batch(self.columns, self._chosen)
        yield from self.damages.batches(is_end=True)

    def add(self, record: Buffer) -> None:
        """The messages of one sound record that only the plain road understands."""
        selection = self._selection
        add_unusual(
            self.columns,
            record,
            0,
            first=selection.first,
            until=selection.until,
            tags=selection.tags or (),
            stored_from=selection.stored_from,
            stored_until=selection.stored_until,
        )

    def judge(self, data: Buffer, offset: int) -> Record | str:
        """The one record in `data`, which lies at log offset `offset`, or what is wrong with it."""
        try:
            record = decode_record(data)
        except RecordInvalid as error:
            return str(error)
        if record.size != len(data):
            return f"the record says {record.size} bytes, {len(data)} were expected"
        if not record_checksum_ok(data, require_crc=offset >= self.summed_from):
            return "the record's own checksum does not fit it, or is missing"
        if record.physical_offset != offset:
            return f"the record says it lies at log offset {record.physical_offset}"
        return record

    def harmed(self, damage: Damage) -> None:
        self.damages.add(damage)

    def lost(self, gone: Gone) -> None:
        """A file is not there: an error, or passed over."""
        problem = DataLoss(
            f"{self._root}/{gone.file} is not there: retention deleted it since the query was planned, or "
            "its topic was deleted, or it was lost. Set failOnDataLoss to false to read on without it"
        )
        if self._fails_on_loss:
            raise problem
        log.warning("%s", problem)
