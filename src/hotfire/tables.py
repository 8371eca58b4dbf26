"""Rows for people: columns lined up, numbers to the right. And the same as JSON, for programs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

NOTHING = "-"


def table(columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> str:
    """
    >>> print(table(["broker", "lag"], [{"broker": "broker-a", "lag": 12}, {"broker": "b", "lag": None}]))
    BROKER    LAG
    broker-a   12
    b           -
    """
    texts = [[cell_text(row[column]) for column in columns] for row in rows]
    heads = [words(column).upper() for column in columns]
    widths = [max(len(head), *(len(text[at]) for text in texts), 0) for at, head in enumerate(heads)]
    is_right = [all(_is_number(row[column]) for row in rows) and bool(rows) for column in columns]
    lines = [_line(heads, widths, is_right), *(_line(text, widths, is_right) for text in texts)]
    return "\n".join(lines)


def _line(cells: Sequence[str], widths: Sequence[int], is_right: Sequence[bool]) -> str:
    placed = (
        cell.rjust(width) if right else cell.ljust(width)
        for cell, width, right in zip(cells, widths, is_right, strict=True)
    )
    return "  ".join(placed).rstrip()


def _is_number(value: Any) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def words(name: str) -> str:
    """
    >>> words("lastStored")
    'last stored'
    """
    return "".join(f" {one.lower()}" if one.isupper() else one for one in name)


def cell_text(value: Any) -> str:
    """
    >>> cell_text(1234567), cell_text(None), cell_text(0.25)
    ('1234567', '-', '0.2')
    """
    if value is None or value == "":
        return NOTHING
    if isinstance(value, float):
        return f"{value:.1f}"
    # names come from peers: nothing in them moves the cursor
    return "".join(one if one.isprintable() else " " for one in str(value))


def time_text(timestamp_ms: int | None) -> str | None:
    """Local time, to the second."""
    if timestamp_ms is None:
        return None
    try:
        return datetime.fromtimestamp(timestamp_ms / 1000).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    except (ValueError, OverflowError, OSError):  # what a peer calls a time
        return str(timestamp_ms)


def with_times(rows: Sequence[Mapping[str, Any]], *columns: str) -> list[dict[str, Any]]:
    """The rows for people: these columns hold times."""
    return [{**row, **{column: time_text(row[column]) for column in columns}} for row in rows]


def as_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
