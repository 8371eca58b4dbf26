"""Messages of transactions: committed ones once and unchanged, others never, the unknown asked about."""

from __future__ import annotations

import hashlib

from tests.interop.checks.judging import acknowledged, checks, each_once
from tests.interop.content import content
from tests.interop.rowrun import Facts

MARKS = {"TRAN_MSG", "PGROUP", "__transactionId__", "TRANSACTION_CHECK_TIMES"}
TIME_OUT_MS = 6000


def _received(facts: Facts, wanted: list[int]) -> None:
    received = facts.of("message")
    each_once(received, wanted, ignoring=MARKS)
    for message in received:
        assert message["topic"] == f"{facts.client}-{facts.row.id}"
        named = message["properties"]
        assert named["TRAN_MSG"] == "true"
        assert named["__transactionId__"] == message["msgId"]


def _asked(facts: Facts, producer: str, wanted: dict[int, int]) -> None:
    """Each was asked about so often, of this producer, after its time, and shown as it was sent."""
    asked = facts.of("checked")
    sent = {event["index"]: event["at"] for event in facts.of("sent")}
    counts: dict[int, int] = {}
    for event in asked:
        counts[event["index"]] = counts.get(event["index"], 0) + 1
        assert event["producer"] == producer
        assert event["topic"] == f"{facts.client}-{facts.row.id}"
        body = content(event["index"]).body
        assert event["sha1"] == hashlib.sha1(body, usedforsecurity=False).hexdigest()
        # what was sent is written down after the send, on a busy machine some time after
        assert event["at"] - sent[event["index"]] >= TIME_OUT_MS // 2
    assert counts == wanted


@checks("transaction")
def outcomes(facts: Facts) -> None:
    count = facts.row.count
    acknowledged(facts, count)
    assert sorted(event["index"] for event in facts.of("executed")) == list(range(count))
    assert all(event["hasId"] for event in facts.of("executed"))
    names = ("COMMIT_MESSAGE", "ROLLBACK_MESSAGE", "UNKNOW")
    assert {event["index"]: event["state"] for event in facts.of("state")} == {
        index: names[index % 3] for index in range(count)
    }
    _received(facts, [index for index in range(count) if index % 3 != 1])
    _asked(facts, "producer", {index: 2 for index in range(count) if index % 3 == 2})


@checks("transaction-orphan")
def orphans(facts: Facts) -> None:
    count = facts.row.count
    acknowledged(facts, count)
    _received(facts, list(range(count)))
    _asked(facts, "living", dict.fromkeys(range(count), 1))
