"""Messages with a time of their own."""

from __future__ import annotations

from tests.interop.checks.judging import acknowledged, checks, each_once
from tests.interop.rowrun import Facts

DELAYS_MS = (700, 1500, 3250)
RECALLED_MS = 6000
# The reference delivers by the second, and on a busy machine the rest of the way takes its time.
LATE_MS_MAX = 8000
TIMED = {
    "REAL_TOPIC", "REAL_QID", "TIMER_OUT_MS", "TIMER_ENQUEUE_MS", "TIMER_DEQUEUE_MS", "TIMER_DELAY_MS",
    "TIMER_DELIVER_MS",
}  # fmt: skip


@checks("timer")
def timed(facts: Facts) -> None:
    received = facts.of("message")
    each_once(received, range(facts.row.count), ignoring=TIMED)
    acknowledged(facts, facts.row.count)
    for message in received:
        index, waited = message["index"], message["storeAt"] - message["bornAt"]
        delay = DELAYS_MS[index % len(DELAYS_MS)]
        if index % 2:  # a time of day, set a moment before the message was born
            due = int(message["properties"]["TIMER_DELIVER_MS"])
            assert message["storeAt"] >= due, f"message {index} came {due - message['storeAt']} ms early"
        else:
            assert waited >= delay, f"message {index} waited {waited} ms"
        assert waited <= delay + LATE_MS_MAX, f"message {index} waited {waited} ms"


@checks("recall")
def recalled(facts: Facts) -> None:
    count = facts.row.count
    ids = {sent["index"]: sent["msgId"] for sent in facts.of("sent")}
    answered = {event["index"]: event["msgId"] for event in facts.of("recalled")}
    assert answered == {index: ids[index] for index in range(0, count, 2)}
    received = facts.of("message")
    each_once(received, [*range(1, count, 2), count], ignoring=TIMED)
    acknowledged(facts, count + 1)
