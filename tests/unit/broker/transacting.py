"""What the tests of transactions share: halves sent, outcomes told, questions read, stores after a kill."""

from __future__ import annotations

from typing import Any

from hotfire.protocol.record import Record, parse_offset_message_id
from hotfire.protocol.requests import CheckTransactionState, EndTransaction, SendReply
from tests.unit.broker.conftest import Make
from tests.unit.broker.harness import FakeConnection, Harness, bodies, send_request

HALF, OP, ASIDE = "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC"
COMMIT, ROLLBACK, UNKNOWN = 8, 12, 0
GROUP = "PG"
TIMEOUT_MS, INTERVAL_MS = 6_000, 30_000


def key_of(number: int) -> str:
    return f"AC11000100002A9F{number:016X}"


def half_request(number: int = 1, body: bytes = b"body", **named: str) -> Any:
    marks = {"TRAN_MSG": "true", "PGROUP": GROUP, "UNIQ_KEY": key_of(number), "TAGS": "A"}
    return send_request(body=body, named={**marks, **named}, sys_flag=4)


def prepare(heart: Harness, number: int = 1, body: bytes = b"body", **named: str) -> SendReply:
    """Send a half; the broker's answer."""
    reply = heart.ask(half_request(number, body, **named))
    assert reply.code == 0, reply
    return SendReply.from_command(reply)


def outcome(half: SendReply, kind: int, **changed: Any) -> EndTransaction:
    """What a producer says of a half it sent."""
    made: dict[str, Any] = {
        "producer_group": GROUP,
        "tran_state_table_offset": half.queue_offset,
        "commit_log_offset": parse_offset_message_id(half.msg_id)[1],
        "commit_or_rollback": kind,
        "msg_id": half.transaction_id,
        "transaction_id": half.transaction_id,
    }
    return EndTransaction(**{**made, **changed})


def answer(asked: CheckTransactionState, kind: int) -> EndTransaction:
    """What a producer says when it was asked."""
    return EndTransaction(
        topic=asked.topic,
        producer_group=GROUP,
        tran_state_table_offset=asked.tran_state_table_offset,
        commit_log_offset=asked.commit_log_offset,
        commit_or_rollback=kind,
        from_transaction_check=True,
        msg_id=asked.msg_id or "",
        transaction_id=asked.transaction_id,
    )


def say(heart: Harness, *outcomes: EndTransaction) -> None:
    """Tell outcomes oneway and let the broker do all it has to."""
    for told in outcomes:
        heart.receive(told.to_command(oneway=True))
    work(heart)


def work(heart: Harness) -> None:
    """Until neither turns nor questions to the store are under way."""
    heart.settle()
    while heart.store.queries.waiting:
        heart.ring()
        heart.settle()


def pass_time(heart: Harness, ms: int, step_ms: int = 500) -> None:
    end_ms = heart.now_ms + ms
    while heart.now_ms < end_ms:
        heart.now_ms += min(step_ms, end_ms - heart.now_ms)
        heart.tick()
        work(heart)


def questions(connection: FakeConnection) -> list[CheckTransactionState]:
    """What the broker asked since the last look, and nothing else."""
    frames = connection.take()
    assert all(frame.code == 39 and frame.is_oneway for frame in frames), frames
    return [CheckTransactionState.from_command(frame) for frame in frames]


def visible(heart: Harness, topic: str = "T", queue_id: int = 0) -> list[bytes]:
    """What consumers of the topic get, in its order."""
    work(heart)
    found: list[bytes] = []
    while more := bodies(heart.pull(topic=topic, queue_id=queue_id, offset=len(found))):
        found.extend(more)
    return found


def stored(heart: Harness, topic: str) -> list[Record]:
    work(heart)
    return [record for record in heart.log_records() if record.topic == topic]


def killed(heart: Harness, make: Make, name: str, **settings: Any) -> Harness:
    """A broker over a copy of the files as they are now: what a kill leaves."""
    heart.store._flushing.settle(heart.now_ms, wait=True)
    heart.image(name)
    again = make(name, now_ms=heart.now_ms, **settings)
    again.beat_producer("producer", GROUP)
    return again


def append(heart: Harness, record: Record) -> None:
    """Put a record into the log by hand."""
    heart.store.append(record, heart.now_ms)
    heart.broker.wants_turn = True
    heart.settle()
