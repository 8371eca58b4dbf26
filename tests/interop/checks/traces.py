"""Rows about message traces."""

from __future__ import annotations

from tests.interop.checks.judging import checks
from tests.interop.content import content
from tests.interop.rowrun import Facts

KINDS = ["Pub", "SubBefore", "SubAfter"]


@checks("trace-java")
def told(facts: Facts) -> None:
    """Each message is told of three times, with its id, its keys, who sent it and who consumed it."""
    topic = f"{facts.client}-{facts.row.id}"
    for part in ("java498", "java550"):
        for index in range(facts.row.count):
            entries = facts.of("told", part=part, index=index)
            assert [entry["kind"] for entry in entries] == KINDS, entries
            pub, began, ended = entries
            assert (pub["group"], pub["topic"], pub["is_success"]) == (f"{topic}-producer", topic, True)
            assert (began["group"], ended["is_success"]) == (f"{topic}-consumer", True)
            assert began["request_id"] == ended["request_id"]
            assert pub["keys"] == (content(index).keys or "").split()
