"""Timer messages sent to a heart, waited for and looked at; and what a kill leaves of its files."""

from __future__ import annotations

from typing import Any

from hotfire.protocol.command import Command
from hotfire.protocol.record import Record
from hotfire.protocol.requests import RecallMessage, SendReply
from tests.unit.broker.conftest import Make
from tests.unit.broker.harness import Harness, bodies

PARKED = "rmq_sys_wheel_timer"


def send(heart: Harness, body: bytes = b"body", key: str = "", **named: object) -> SendReply:
    keys = {"UNIQ_KEY": key or f"KEY-{body.decode()}", "TAGS": "A"}
    text = {name: str(value) for name, value in named.items()}
    reply = heart.send(body=body, named=keys | text)
    assert reply.code == 0, reply.remark
    return SendReply.from_command(reply)


def wait_until(heart: Harness, ms: int) -> None:
    """Ticks as the server gives them: when something is due, and every 50 ms."""
    while heart.now_ms < ms:
        due = heart.broker.due_ms()
        step = heart.now_ms + 50 if due is None else max(heart.now_ms + 1, min(due, heart.now_ms + 50))
        heart.now_ms = min(ms, step)
        heart.tick()


def delivered(heart: Harness, topic: str = "T", queue_id: int = 0) -> list[bytes]:
    heart.settle()
    found: list[bytes] = []
    while more := bodies(heart.pull(topic=topic, queue_id=queue_id, offset=len(found))):
        found.extend(more)
    return found


def stored(heart: Harness, topic: str = "T") -> list[Record]:
    return [record for record in heart.log_records() if record.topic == topic]


def settle_flush(heart: Harness) -> None:
    """Wait for the flush of the timers' files that is under way."""
    if heart.broker.timers.files._flushing is not None:
        heart.broker.timers.files._flushing.result()


def crash(heart: Harness, make: Make, name: str, **settings: Any) -> Harness:
    """A broker over a copy of the files as they are now: what a kill leaves."""
    heart.store._flushing.settle(heart.now_ms, wait=True)
    settle_flush(heart)
    heart.image(name)
    return make(name, now_ms=heart.now_ms, **settings)


def recall(heart: Harness, handle: str | None, topic: str = "T") -> Command:
    assert handle is not None
    return heart.ask(RecallMessage(producer_group="PG", topic=topic, recall_handle=handle))
