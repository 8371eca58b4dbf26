"""Messages that come later: delayed, retried, dead."""

from __future__ import annotations

from collections import Counter

from tests.interop.checks.judging import acknowledged, checks, each_once, unchanged
from tests.interop.clients import DELAY_LEVELS
from tests.interop.rowrun import Facts

LEVELS = (1, 2, 99)
RETRIES = 16
LOCAL_MS = 5000
# A delivery is looked for every 100 ms, and on a busy machine the rest of the way takes its time.
LATE_MS_MAX = 8000
DELAYED = {"DELAY", "REAL_TOPIC", "REAL_QID"}
RETRIED = {
    *DELAYED,
    "RETRY_TOPIC",
    "ORIGIN_MESSAGE_ID",
    "RECONSUME_TIME",
    "MAX_RECONSUME_TIMES",
}
DEAD = {*RETRIED, "DLQ_ORIGIN_TOPIC", "DLQ_ORIGIN_MESSAGE_ID"}


def _delay_ms(level: int) -> int:
    ladder = DELAY_LEVELS.split()
    return int(ladder[min(level, len(ladder)) - 1].removesuffix("s")) * 1000


@checks("delay")
def delayed(facts: Facts) -> None:
    received = facts.of("message")
    each_once(received, range(facts.row.count), ignoring=DELAYED)
    acknowledged(facts, facts.row.count)
    for message in received:
        assert message["topic"] == f"{facts.client}-{facts.row.id}"
        delay = _delay_ms(LEVELS[message["index"] % len(LEVELS)])
        waited = message["storeAt"] - message["bornAt"]
        assert delay <= waited <= delay + LATE_MS_MAX, f"message {message['index']} waited {waited} ms"
        assert message["at"] - message["bornAt"] >= delay


@checks("retry")
def retried(facts: Facts) -> None:
    for times in (0, 1):
        seen = facts.of("message", reconsumeTimes=times)
        each_once(seen, range(facts.row.count), ignoring=RETRIED, but=["reconsumeTimes"])
        # The detour over the group's retry topic is not the application's business.
        assert {message["topic"] for message in seen} == {f"{facts.client}-{facts.row.id}"}
    first = {message["index"]: message for message in facts.of("message", reconsumeTimes=0)}
    for message in facts.of("message", reconsumeTimes=1):
        assert message["at"] - first[message["index"]]["at"] >= _delay_ms(3) - 1
        assert message["msgId"] == first[message["index"]]["msgId"]


@checks("dead-letter")
def dead_letter(facts: Facts) -> None:
    count = facts.row.count
    driving = facts.one("driving")["at"]
    handled = facts.of("message", consumer="consumer")
    unchanged(handled, ignoring=DEAD, but=["reconsumeTimes"])
    failed = Counter(
        (message["index"], message["reconsumeTimes"]) for message in handled if message["at"] < driving
    )
    assert failed == {(index, times): 1 for index in range(count) for times in range(RETRIES + 1)}
    dead = facts.of("message", consumer="undertaker")
    each_once(dead, range(count), ignoring=DEAD, but=["reconsumeTimes"])
    assert {message["topic"] for message in dead} == {f"%DLQ%{facts.client}-{facts.row.id}"}
    route = facts.of("dead-route")[-1]
    assert (route["read"], route["write"], route["perm"]) == (1, 1, 6)
    again = [message for message in handled if message["at"] >= driving]
    each_once(again, range(count))


@checks("retry-cut")
def cut_off(facts: Facts) -> None:
    """With nobody to take a failed message back it is handled here again after 5 s, and once only."""
    down, again = facts.one("down")["at"], facts.one("again")["at"]
    received = facts.of("message")
    each_once([message for message in received if message["at"] < down], range(facts.row.count))
    later = [message for message in received if message["at"] >= down]
    each_once(later, range(facts.row.count), ignoring=RETRIED, but=["reconsumeTimes"])
    assert all(down + LOCAL_MS <= message["at"] <= again for message in later)
