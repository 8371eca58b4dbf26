"""Where on earth it is noon while the tests run: there the servers under test live.

A broker has things to do once a day: at midnight it remembers its totals, at four it deletes what is old. Two
that are held against each other may have midnight between them, and a test may run at any hour; so no
server sees either. Owns the choice, which holds for one run of the tests: what a store's files are named by
local time must not go back.
"""

from __future__ import annotations

import time


def hours_east(hour_utc: int) -> int:
    """How far east of Greenwich it is noon.

    >>> hours_east(0), hours_east(12), hours_east(23)
    (12, 0, -11)
    """
    return 12 - hour_utc


_EAST = hours_east(time.gmtime().tm_hour)
ENVIRONMENT = {"TZ": f"<{_EAST:+03d}>{-_EAST:+d}"}
"""For programs that ask the C library; POSIX counts westwards, and needs no table of zones."""
JAVA_FLAG = f"-Duser.timezone=GMT{_EAST:+d}"
