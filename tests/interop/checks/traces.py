"""Rows about message traces."""

from __future__ import annotations

from tests.interop.checks.judging import checks
from tests.interop.content import content
from tests.interop.rowrun import Facts

KINDS = ["Pub", "SubBefore", "SubAfter"]
JAVA = ("java498", "java550")


@checks("trace", "trace-java", "trace-python")
def told(facts: Facts) -> None:
    """Each message is told of three times, with its id, its keys, who sent it and who consumed it."""
    topic = f"{facts.client}-{facts.row.id}"
    is_whole = facts.row.id != "trace-python"  # Java's readers are given messages by their keys
    indexes = [index for index in range(facts.row.count) if is_whole or content(index).keys]
    for part in ("self",) if facts.row.id == "trace" else JAVA:
        for index in indexes:
            told = facts.of("told", part=part, index=index)
            entries = sorted(told, key=lambda entry: KINDS.index(entry["kind"]))
            assert [entry["kind"] for entry in entries] == KINDS, entries
            pub, began, ended = entries
            assert (pub["group"], pub["topic"], pub["is_success"]) == (f"{topic}-producer", topic, True)
            assert (began["group"], ended["is_success"]) == (f"{topic}-consumer", True)
            assert pub["keys"] == (content(index).keys or "").split()
            # Java's own view of an entry has no such id.
            assert began.get("request_id") == ended.get("request_id")
