"""How far a group has come, who says so, and how it is put back."""

from __future__ import annotations

from tests.interop.checks.judging import acknowledged, by_queue, checks, each_once, indexes, unchanged
from tests.interop.rowrun import Facts

FIRST, BEHIND = 1001, 1011
PULL_MESSAGE, UPDATE_CONSUMER_OFFSET = 11, 15
COMMITS = 0x1
"""The bit of a pull's sysFlag that says it carries an offset."""
WRITTEN_MS_MAX = 15_000
"""5 s for the client's timer, 5 s for the broker's, and what a busy machine adds."""


MEMBERS = ("done", "eight", "first")


def groups(facts: Facts) -> list[str]:
    return [f"{facts.client}-{facts.row.id}-{member}" for member in MEMBERS]


@checks("offset-progress")
def progress(facts: Facts) -> None:
    commits = [(event["consumer"], event["wanted"], event["offset"]) for event in facts.of("commit")]
    assert commits == [
        ("done", BEHIND, BEHIND),
        ("eight", FIRST + 8, FIRST + 8),
        ("first", FIRST, FIRST),
        ("first", BEHIND, BEHIND),
    ]
    tracks = {
        event["queueOffset"]: [event["groups"].get(group) for group in groups(facts)]
        for event in facts.of("tracks")
    }
    assert tracks == {
        FIRST - 1: ["CONSUMED", "CONSUMED", "CONSUMED"],
        FIRST + 1: ["CONSUMED", "CONSUMED", "NOT_CONSUME_YET"],
        FIRST + 9: ["CONSUMED", "NOT_CONSUME_YET", "NOT_CONSUME_YET"],
    }, "by topic and key: who has consumed it"
    for member in MEMBERS:
        received = facts.of("message", consumer=member)
        each_once(received, range(facts.row.count))


@checks("offset-kill")
def kill(facts: Facts) -> None:
    """The victim was handed everything; its successor gets what lies at and behind the committed offset."""
    each_once(facts.of("message", consumer="victim"), range(facts.row.count))
    again = facts.of("message", consumer="successor")
    each_once(again, range(FIRST, BEHIND))
    assert sorted(message["queueOffset"] for message in again) == list(range(FIRST, BEHIND))


@checks("offset-file")
def offset_file(facts: Facts) -> None:
    received = facts.of("message")
    each_once(received, range(facts.row.count))
    consumed = max(message["at"] for message in received)
    assert facts.one("written")["at"] - consumed <= WRITTEN_MS_MAX
    pulls = [event["fields"] for event in facts.of("request", code=PULL_MESSAGE)]
    carried = {int(pull["commitOffset"]) for pull in pulls if int(pull["sysFlag"]) & COMMITS}
    assert any(offset > 0 for offset in carried), "no pull carried an offset"
    updates = facts.of("request", code=UPDATE_CONSUMER_OFFSET)
    assert updates != [], "the timer sent no offset"


@checks("reset-by-time")
def reset_by_time(facts: Facts) -> None:
    resetting = facts.one("resetting")
    received = facts.of("message")
    unchanged(received)
    before = [message for message in received if message["at"] < resetting["at"]]
    after = [message for message in received if message["at"] >= resetting["at"]]
    each_once(before, range(facts.row.count))
    each_once(after, range(facts.row.count // 2, facts.row.count))
    assert all(message["storeAt"] >= resetting["moment"] for message in after)
    starts = {queue: lying[0]["queueOffset"] for queue, lying in by_queue(after).items()}
    assert {event["queueId"]: event["offset"] for event in facts.of("reset")} == starts


@checks("reset-by-hand")
def reset_by_hand(facts: Facts) -> None:
    acknowledged(facts, facts.row.count)
    each_once(facts.of("message", consumer="before"), range(facts.row.count))
    by_hand = facts.one("set")
    again = facts.of("message", consumer="after")
    unchanged(again)
    each = facts.row.count // 4
    assert {message["queueId"] for message in again} == {by_hand["queueId"]}
    assert sorted(message["queueOffset"] for message in again) == list(range(by_hand["offset"], each))


@checks("order-restarts")
def order_restarts(facts: Facts) -> None:
    """Strictly in order. A send of unknown outcome was repeated and may be there twice, side by side."""
    assert len(facts.of("sent")) == facts.row.count
    unknown = {event["index"] for event in facts.of("unknown")}
    assert unknown, "the broker was not away while messages were sent"
    received = facts.of("message")
    unchanged(received, but=["reconsumeTimes"])
    stored = indexes(by_queue(received)[0])
    seen = list(dict.fromkeys((message["queueOffset"], message["index"]) for message in received))
    assert seen == sorted(seen), "delivered out of order"
    assert stored == sorted(stored), "stored out of order"
    assert set(stored) == set(range(facts.row.count))
    places = {message["queueOffset"]: message["index"] for message in received}
    twice = {index for index in places.values() if list(places.values()).count(index) > 1}
    assert twice <= unknown
