"""Rows about requests and their replies."""

from __future__ import annotations

import hashlib

from tests.interop.checks.judging import checks, each_once
from tests.interop.content import content
from tests.interop.rowrun import Facts


@checks("request-reply", "request-java", "reply-java")
def replied(facts: Facts) -> None:
    """Each request has its own reply, by way of the broker; one that nobody hears ends in its own error."""
    count = facts.row.count
    each_once(facts.of("message"), range(count), ignoring=("CORRELATION_ID", "REPLY_TO_CLIENT", "TTL"))
    replies = facts.of("replied")
    assert [reply["index"] for reply in replies] == list(range(count))
    for reply in replies:
        body = content(reply["index"]).body
        assert reply["sha1"] == hashlib.sha1(body, usedforsecurity=False).hexdigest()
        assert reply["topic"].endswith("_REPLY_TOPIC")
        assert (reply["type"], reply["pushed"], reply["arrived"], reply["stored"]) == (
            "reply",
            True,
            True,
            True,
        )
    assert facts.one("unheard")["error"] == "timeout"
