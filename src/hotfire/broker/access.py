"""Who may do what. Every request declares what it needs; this is the one place that will judge it.

Until users and policies exist everyone may do everything the request's own checks allow.
"""

from __future__ import annotations

from typing import Any

from hotfire.broker.call import Call


def check(call: Call[Any]) -> None:
    """Raise NO_PERMISSION unless the caller may do all that the request `needs`."""
