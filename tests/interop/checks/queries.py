"""Rows about messages that are looked for."""

from __future__ import annotations

from tests.interop.checks.judging import acknowledged, checks, each_once, place
from tests.interop.rowrun import Facts

MANY = (42, 236, 333, 430, 527, 624, 721, 818, 915)
"""All that have the key: every 97th but those without keys. Parts end before 400, 700 and 1000."""
QUESTIONS: dict[str, tuple[int, ...]] = {
    **{f"{how}-{index}": (index,) for index in (0, 50, 998, 999) for how in ("place", "id")},
    "no-place": (),
    "key": (55,),
    "no-key": (),
    "all": MANY,
    "to-first": MANY[:3],
    "first-to-second": MANY[3:6],
    "from-second": MANY[6:],
    "before": (),
    "newest": MANY[-4:],
    "newest-to-second": MANY[4:6],
}


@checks("query")
def found(facts: Facts) -> None:
    """Each question finds just its messages, whole and with their places; none of another topic."""
    sent = {event["index"]: event for event in acknowledged(facts, facts.row.count)}
    assert [event["by"] for event in facts.of("found")] == list(QUESTIONS)
    for name, wanted in QUESTIONS.items():
        messages = facts.of("message", consumer=name)
        each_once(messages, wanted)
        assert facts.one("found", by=name)["count"] == len(wanted)
        for message in messages:
            assert place(message) == place(sent[message["index"]]), name
            assert message["topic"] == f"{facts.client}-{facts.row.id}"
