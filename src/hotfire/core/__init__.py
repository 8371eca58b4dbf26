"""The compiled core, or its plain twins where no compiler was to be had.

The names here are the same either way: `Queue`, `Journal`, `Reader`, `Halves`, `SendPipe`, `Columns`,
`RowIds` and the encoders of rows; `Lane`, `Sockets`, `Unpacker` and the scanners are None without the
compiled module, and the rooms that use them go their plain road.
HOTFIRE_CORE=plain chooses the twins on purpose. A compiled module built from other sources than those beside
it is refused, because the worst kind of fast is the fast of last week.
"""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from hotfire.core import plain, plain_columns, plain_halves, plain_rows, plain_send, plain_sql92
from hotfire.core.sources import source_hash


def _load() -> tuple[ModuleType | None, str]:
    """The compiled module, or None and why not."""
    if os.environ.get("HOTFIRE_CORE", "") == "plain":
        return None, "HOTFIRE_CORE=plain"
    try:
        module = import_module("hotfire.core._core")
    except ModuleNotFoundError:
        return None, "the compiled core was not built; install a C compiler and reinstall for full speed"
    sources = source_hash(Path(__file__).parent)
    if sources is not None and sources != module.SOURCE_HASH:
        raise ImportError(
            f"the compiled core {module.__file__} was built from sources {module.SOURCE_HASH or 'unknown'}, "
            f"but {sources} lie beside it: run `make install`, or set HOTFIRE_CORE=plain to go without",
            name="hotfire.core._core",
        )
    return module, ""


_module, WHY_PLAIN = _load()
COMPILED = _module is not None

if TYPE_CHECKING:
    from hotfire.core._core import (
        BULK_BYTES,
        Columns,
        Halves,
        Journal,
        KeyIndex,
        Lane,
        Link,
        Pull,
        Queue,
        Reader,
        Replies,
        RowIds,
        SendPipe,
        Sent,
        Sockets,
        Unpacker,
        derive_records,
        encode_record,
        encode_rows,
        java_hash,
        read_frame,
        records_by_key,
        scan_records,
        sift_records,
        sound_records,
        spread_rows,
        sql_verdict,
        sync_map,
        timer_units,
    )
elif _module is not None:
    Pull = tuple
    KeyIndex, Halves = _module.KeyIndex, _module.Halves
    Sent, SendPipe = _module.Sent, _module.SendPipe
    Journal, Queue, Reader, Lane = _module.Journal, _module.Queue, _module.Reader, _module.Lane
    Link, Replies, Sockets = _module.Link, _module.Replies, _module.Sockets
    Unpacker, Columns, BULK_BYTES = _module.Unpacker, _module.Columns, _module.BULK_BYTES
    scan_records, encode_record = _module.scan_records, _module.encode_record
    derive_records, sound_records = _module.derive_records, _module.sound_records
    records_by_key = _module.records_by_key
    sift_records, sql_verdict = _module.sift_records, _module.sql_verdict
    RowIds, encode_rows, spread_rows = _module.RowIds, _module.encode_rows, _module.spread_rows
    read_frame, java_hash, sync_map = _module.read_frame, _module.java_hash, _module.sync_map
    timer_units = _module.timer_units
else:
    Pull = tuple
    KeyIndex, Halves = plain.KeyIndex, plain_halves.Halves
    Sent, SendPipe = plain_send.Sent, plain_send.SendPipe
    Journal, Queue, Reader, Lane = plain.Journal, plain.Queue, plain.Reader, None
    Link = Replies = Sockets = Unpacker = None
    BULK_BYTES, Columns = 0, plain_columns.Columns
    scan_records = sound_records = derive_records = encode_record = read_frame = java_hash = None
    records_by_key = timer_units = None
    sift_records, sql_verdict = plain_sql92.sift_records, plain_sql92.sql_verdict
    RowIds, encode_rows, spread_rows = plain_rows.RowIds, plain_rows.encode_rows, plain_rows.spread_rows
    sync_map = plain.sync_map

__all__ = [
    "BULK_BYTES", "COMPILED", "WHY_PLAIN", "Columns", "Halves", "Journal", "KeyIndex", "Lane", "Link", "Pull",
    "Queue", "Reader", "Replies", "RowIds", "SendPipe", "Sent", "Sockets", "Unpacker", "derive_records",
    "encode_record", "encode_rows", "java_hash", "read_frame", "records_by_key", "scan_records",
    "sift_records", "sound_records", "spread_rows", "sql_verdict", "sync_map", "timer_units",
]  # fmt: skip
