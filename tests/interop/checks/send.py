"""Each way to send, read back by a push consumer."""

from __future__ import annotations

from collections import Counter

from tests.interop.checks.judging import (
    acknowledged,
    by_queue,
    checks,
    each_once,
    indexes,
    place,
    without_gaps,
)
from tests.interop.rowrun import Event, Facts

ORDERS = 100
BATCH = 10
QUEUES = 8
SEND_MESSAGE, SEND_MESSAGE_V2, SEND_BATCH_MESSAGE = 10, 310, 320
HEADERS = {"java498": "ROCKETMQ", "java550": "JSON", "java498json": "JSON", "java550binary": "ROCKETMQ"}


def _arrived(facts: Facts) -> list[Event]:
    """All messages, each once, unchanged, filling their queues up to the ends the broker tells."""
    received = facts.of("message")
    each_once(received, range(facts.row.count))
    without_gaps(received)
    counts = Counter(message["queueId"] for message in received)
    for ends in facts.of("ends"):  # the Go client has no way to ask for them
        assert [counts[queue] for queue in range(len(ends["ends"]))] == ends["ends"]
    return received


def _in_order(messages: list[Event]) -> None:
    """Who waits for each send finds it behind the one before."""
    for lying in by_queue(messages).values():
        assert indexes(lying) == sorted(indexes(lying))


@checks("send-sync", "headers", "send-queue")
def waited_for(facts: Facts) -> None:
    if facts.client in HEADERS:
        assert facts.one("begin")["serialization"] == HEADERS[facts.client]
    received = _arrived(facts)
    ledger = {event["index"]: place(event) for event in acknowledged(facts, facts.row.count)}
    assert {message["index"]: place(message) for message in received} == ledger
    _in_order(received)
    if facts.row.id == "send-queue":
        assert all(message["queueId"] == message["index"] % QUEUES for message in received)


@checks("send-async")
def asynchronous(facts: Facts) -> None:
    received = _arrived(facts)
    ledger = {event["index"]: place(event) for event in acknowledged(facts, facts.row.count)}
    assert {message["index"]: place(message) for message in received} == ledger


@checks("send-oneway")
def oneway(facts: Facts) -> None:
    """Nothing is answered, and nobody promised an order: Apache's threads store what they get first."""
    _arrived(facts)
    assert facts.of("sent") == []
    if requests := facts.of("request", consumer="producer"):
        sends = [event for event in requests if event["code"] in {SEND_MESSAGE, SEND_MESSAGE_V2}]
        assert len(sends) == facts.row.count


@checks("send-selector")
def selected(facts: Facts) -> None:
    received = _arrived(facts)
    acknowledged(facts, facts.row.count)
    _in_order(received)
    for message in received:
        chosen = abs(_java_remainder(_java_hash(f"order-{message['index'] % ORDERS}"), QUEUES))
        assert message["queueId"] == chosen


def _java_hash(text: str) -> int:
    value = 0
    for character in text:
        value = (31 * value + ord(character)) & 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value


def _java_remainder(value: int, divisor: int) -> int:
    return value - int(value / divisor) * divisor


@checks("send-batch")
def batches(facts: Facts) -> None:
    received = {message["index"]: message for message in _arrived(facts)}
    sent = acknowledged(facts, facts.row.count // BATCH)
    for batch in sent:
        members = [received[batch["index"] + step] for step in range(BATCH)]
        assert {message["queueId"] for message in members} == {batch["queueId"]}
        first = int(batch["queueOffset"])
        assert [message["queueOffset"] for message in members] == list(range(first, first + BATCH))
        # The Go client gives the messages of a batch no ids; its readers see where they lie instead.
        assert facts.client == "go" or [message["msgId"] for message in members] == batch["msgId"].split(",")
    assert len({message["msgId"] for message in received.values()}) == facts.row.count
    if requests := facts.of("request", consumer="producer"):
        codes = Counter(event["code"] for event in requests)
        assert codes[SEND_BATCH_MESSAGE] == len(sent)
        assert codes[SEND_MESSAGE] == codes[SEND_MESSAGE_V2] == 0
