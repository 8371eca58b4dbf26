"""Rows of a query for people and for spreadsheets: a table, or one CSV file."""

from __future__ import annotations

import base64
import csv
import json
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from hotfire.errors import ConfigError
from hotfire.tables import table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

CELL_MAX = 80
"""Characters of a cell in a table; CSV has all of them."""


def to_table(found: DataFrame, rows_max: int) -> str:
    names = _names(found)
    rows = _plain(found).limit(rows_max + 1).collect()
    shown = [{name: _cell(value) for name, value in zip(names, row, strict=True)} for row in rows[:rows_max]]
    more = f"\n(more than {rows_max} rows; --rows shows more)" if len(rows) > rows_max else ""
    return table(names, shown) + more


def to_csv(found: DataFrame, to: str | None) -> None:
    """One file, or standard output; rows pass through the driver a partition at a time."""
    with nullcontext(sys.stdout) if to is None else _new_file(to) as file:
        writer = csv.writer(file)
        writer.writerow(found.columns)
        for row in _plain(found).toLocalIterator(prefetchPartitions=True):
            writer.writerow([value_text(value) for value in row])


def _new_file(to: str) -> TextIO:
    try:
        return Path(to).open("x", encoding="utf-8", newline="")
    except FileExistsError:
        raise ConfigError(f"file {to} exists; name another") from None
    except OSError as error:
        raise ConfigError(f"file {to}: {error.strerror}") from None


def _plain(found: DataFrame) -> DataFrame:
    """Times as text, by Spark, which knows the session's time zone; Python would take them for local ones."""
    from pyspark.sql import functions as f
    from pyspark.sql.types import TimestampType

    # two columns may have one name; here each has its own
    numbered = found.toDF(*(f"c{at}" for at in range(len(found.columns))))
    return numbered.select(
        *(
            f.col(field.name).cast("string")
            if isinstance(field.dataType, TimestampType)
            else f.col(field.name)
            for field in numbered.schema.fields
        )
    )


def _names(found: DataFrame) -> list[str]:
    """A table's columns need names of their own."""
    seen: dict[str, int] = {}
    names = []
    for name in found.columns:
        seen[name] = seen.get(name, 0) + 1
        names.append(name if seen[name] == 1 else f"{name}_{seen[name]}")
    return names


def _cell(value: Any) -> Any:
    if value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
        return value
    text = value_text(value)
    return text if len(text) <= CELL_MAX else f"{text[: CELL_MAX - 1]}…"


def value_text(value: Any) -> str:
    """
    >>> [value_text(value) for value in (b"paid", bytes([255]), {"a": 1}, None, True)]
    ['paid', 'base64:/w==', '{"a": 1}', '', 'true']
    """
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, bytes | bytearray):
        try:
            return bytes(value).decode("utf-8")
        except UnicodeDecodeError:
            return f"base64:{base64.b64encode(value).decode()}"
    if isinstance(value, dict | list | tuple):
        return json.dumps(_jsonable(value), ensure_ascii=False)
    return str(value)


def _jsonable(value: Any) -> Any:
    if hasattr(value, "asDict"):
        value = value.asDict(recursive=True)
    if isinstance(value, dict):
        return {str(key): _jsonable(held) for key, held in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray):
        return [_jsonable(held) for held in value]
    if isinstance(value, int | float | str) or value is None:
        return value
    return value.isoformat() if isinstance(value, datetime) else value_text(value)
