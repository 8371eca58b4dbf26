"""The handle by which who sent a message that waits for its time may take it back.

    base64, in its alphabet for addresses, of   v1 TOPIC BROKER TIME_MS UNIQUE_KEY

The time is the first millisecond of the second in which the message is due: recalls are told the second, and
the message itself by its unique key.
"""

from __future__ import annotations

import base64
import binascii
import re
from dataclasses import dataclass

VERSION = "v1"
HANDLE_BYTES_MAX = 4096
_NUMBER = re.compile(r"[+-]?[0-9]{1,19}")
_TIME_MAX = 1 << 53
"""Some 285 thousand years: a larger number is a mistake, and sums of it stay numbers of the log."""


def number(text: str | None) -> int | None:
    """A whole number as Java reads one; None when it is none, or beyond any time.

    >>> number("+12"), number("1e3")
    (12, None)
    """
    if text is None or not _NUMBER.fullmatch(text):
        return None
    value = int(text)
    return value if -_TIME_MAX < value < _TIME_MAX else None


@dataclass(frozen=True, slots=True)
class Handle:
    """Which message is meant.

    >>> Handle.decode(Handle("T", "broker-a", 1700000000001, "7F00").encode()).broker_name
    'broker-a'
    """

    topic: str
    broker_name: str
    time_ms: int
    unique_key: str

    def encode(self) -> str:
        text = f"{VERSION} {self.topic} {self.broker_name} {self.time_ms} {self.unique_key}"
        return base64.urlsafe_b64encode(text.encode()).decode()

    @classmethod
    def decode(cls, text: str) -> Handle | None:
        """None when it is none."""
        if not text or len(text) > HANDLE_BYTES_MAX:
            return None
        try:
            padded = text.encode("ascii") + b"=" * (-len(text) % 4)
            parts = base64.b64decode(padded, altchars=b"-_", validate=True).decode().split(" ")
        except (binascii.Error, UnicodeError, ValueError):
            return None
        if len(parts) < 5 or parts[0] != VERSION:
            return None
        time_ms = number(parts[3])
        return cls(parts[1], parts[2], -1 if time_ms is None else time_ms, parts[4])
