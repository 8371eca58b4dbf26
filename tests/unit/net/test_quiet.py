"""A log that strangers cannot fill."""

import logging

from hotfire.net import server
from hotfire.net.quiet import AtMost


def told(quiet: AtMost, text: str, at_s: float) -> str | None:
    record = logging.LogRecord("hotfire.net", logging.WARNING, __file__, 1, text, (7,), None)
    record.created = at_s
    return record.getMessage() if quiet.filter(record) else None


def test_a_flood_is_a_few_lines_and_a_count() -> None:
    """Each kind of line comes a few times a second; the next one counts those left out; others still come."""
    quiet = AtMost(3)
    lines = [told(quiet, "closing peer=%d", 100.5) for _ in range(1000)]
    assert [line for line in lines if line is not None] == ["closing peer=7"] * 3
    assert told(quiet, "another kind %d", 100.6) == "another kind 7"
    assert told(quiet, "closing peer=%d", 101.0) == "closing peer=7 (and 997 more like it before)"
    assert told(quiet, "closing peer=%d", 102.0) == "closing peer=7"


def test_the_servers_log_is_held_to_it() -> None:
    """The logger that tells of peers has the guard on."""
    assert any(isinstance(one, AtMost) for one in server.log.filters)
