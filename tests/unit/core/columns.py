"""What the buffers of `Columns` say, read without Arrow; and both twins."""

from array import array
from itertools import pairwise
from typing import Any

from hotfire.core import _core as compiled
from hotfire.core import plain_columns as plain

NAMES = (
    "topic", "broker_name", "queue_id", "queue_offset", "msg_id", "keys", "tags", "body", "properties",
    "born", "stored", "reconsume_times", "sys_flag", "log_offset",
)  # fmt: skip
ALL = (1 << len(NAMES)) - 1
INT64_MIN, INT64_MAX = plain.INT64_MIN, plain.INT64_MAX
TWINS: dict[str, Any] = {"compiled": compiled.Columns, "plain": plain.Columns}


def _texts(offsets: Any, data: Any) -> list[bytes]:
    places, content = array("i", bytes(offsets)), bytes(data)
    assert places[0] == 0
    assert places[-1] == len(content)
    return [content[begin:end] for begin, end in pairwise(places)]


def taken(columns: Any) -> tuple[int, list[tuple[bytes | None, ...]]]:
    """What `take` gave, as bytes, so that it can be compared."""
    rows, parts = columns.take()
    return rows, [tuple(None if one is None else bytes(one) for one in column) for column in parts]


def rows_of(took: tuple[int, list[tuple[bytes | None, ...]]], wanted: int = ALL) -> list[dict[str, Any]]:
    rows, parts = took
    indices = [i for i in range(len(NAMES)) if wanted >> i & 1]
    values: dict[str, list[Any]] = {}
    for i, column in zip(indices, parts, strict=True):
        if i == plain.PROPERTIES:
            offsets, name_offsets, names, value_offsets, contents = column
            assert offsets is not None
            pairs = list(zip(_texts(name_offsets, names), _texts(value_offsets, contents), strict=True))
            places = array("i", offsets)
            assert (places[0], places[-1]) == (0, len(pairs))
            values[NAMES[i]] = [dict(pairs[a:b]) for a, b in pairwise(places)]
        elif len(column) == 1:
            assert column[0] is not None
            kind = "i" if i in (plain.QUEUE_ID, plain.RECONSUMED, plain.SYS_FLAG) else "q"
            values[NAMES[i]] = list(array(kind, column[0]))
        else:
            valid = column[0]
            values[NAMES[i]] = [
                text if valid is None or valid[at // 8] >> at % 8 & 1 else None
                for at, text in enumerate(_texts(*column[1:]))
            ]
    assert all(len(column) == rows for column in values.values())
    return [{name: column[at] for name, column in values.items()} for at in range(rows)]
