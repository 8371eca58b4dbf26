"""What must come out of each row of `rows.toml`: a function per row, given the facts its clients wrote.

A check trusts no client's word for what it sent: contents are known from `tests/interop/content.py`.
"""

from __future__ import annotations

from tests.interop.checks import (
    asked,
    consume,
    filters,
    groups,
    offsets,
    queries,
    requests,
    retry,
    send,
    timers,
    traces,
    transactions,
)
from tests.interop.checks.judging import Check, known

__all__ = ["Check", "check_of"]

_MODULES = (
    asked, consume, filters, groups, offsets, queries, requests, retry, send, timers, traces, transactions,
)  # fmt: skip


def check_of(row: str) -> Check:
    """The judge of a row; a row without one is a mistake in the table."""
    return known()[row]
