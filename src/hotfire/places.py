"""Places as people write them: the name server on this machine; the earliest message, the latest, a time.

Help needs it, so it stands on the standard library alone.
"""

from __future__ import annotations

import argparse
import re
from typing import Literal, NamedTuple

_AGO = re.compile(r"([0-9]{1,9})([smhd])")
_CLOCK = re.compile(r"[0-9]{1,2}:[0-9]{2}(:[0-9]{2})?")
_UNIT_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}

DEFAULT_NAMESRV = "127.0.0.1:9876"
"""Asked by commands when neither they nor NAMESRV_ADDR say whom to ask."""

TIME_HELP = "a time is 15m or 2h ago, 10:30 today, or 2026-01-31T10:30"


class Place(NamedTuple):
    """`value` is an offset, a number of messages, or a time in ms; 0 for the two ends."""

    kind: Literal["earliest", "latest", "offset", "shift", "time"]
    value: int = 0


def start_place(text: str) -> Place:
    """For reading: an end, an offset in every queue, or a time."""
    if text.isascii() and text.isdigit():
        return Place("offset", int(text))
    return _end_or_time(text, "neither earliest, latest, an offset nor a time")


def reset_place(text: str) -> Place:
    """For a group: an end, a time, or so many messages on or back from where it is."""
    if re.fullmatch(r"[+-][0-9]{1,18}", text):
        return Place("shift", int(text))
    return _end_or_time(text, "neither earliest, latest, a time, nor +N or -N messages")


def _end_or_time(text: str, otherwise: str) -> Place:
    if text == "earliest":
        return Place("earliest")
    if text == "latest":
        return Place("latest")
    timestamp_ms = time_ms(text)
    if timestamp_ms is None:
        raise argparse.ArgumentTypeError(f"{text!r} is {otherwise}; {TIME_HELP}")
    return Place("time", timestamp_ms)


def time_ms(text: str) -> int | None:
    """
    >>> time_ms("2026-01-31T10:30:00Z"), time_ms("1970-01-01T00:00:01+00:00"), time_ms("soon")
    (1769855400000, 1000, None)
    """
    from datetime import datetime, timedelta

    now = datetime.now().astimezone()
    if ago := _AGO.fullmatch(text):
        since = timedelta(seconds=int(ago[1]) * _UNIT_S[ago[2]])
        return max(int((now.timestamp() - since.total_seconds()) * 1000), 0)
    if _CLOCK.fullmatch(text):
        text = f"{now.date().isoformat()}T{text.zfill(8 if text.count(':') == 2 else 5)}"
    try:
        return int(datetime.fromisoformat(text).astimezone().timestamp() * 1000)
    except (ValueError, OverflowError, OSError):
        return None
