"""The records of a transaction: half message, commit copy, op, the half stored anew, the one laid aside.

    half   RMQ_SYS_TRANS_HALF_TOPIC     the message as sent, its real topic and queue among its properties
    copy   the real topic               the same with the system flag COMMIT and the half's log offset
    op     RMQ_SYS_TRANS_OP_HALF_TOPIC  body `12,15,`: these places of the half queue are dealt with
    aside  TRANS_CHECK_MAX_TIME_TOPIC   a half nobody knew the end of

Knows bytes and properties; when and why one is written is `transactions`' affair.
"""

from __future__ import annotations

import dataclasses
import re

from hotfire import model
from hotfire.broker.put import REAL_QUEUE, REAL_TOPIC, unparked
from hotfire.protocol.record import (
    Host,
    Record,
    SysFlag,
    encode_properties,
    encode_record,
    parse_properties,
    without_crc,
)
from hotfire.protocol.requests import CheckTransactionState
from hotfire.store.store import Appended

STEPS = ("half", "copy", "op", "progress")
"""What becomes durable, in this order; a crash between any two loses nothing and repeats nothing."""

HALF_MARK, PRODUCER_GROUP, UNIQUE_KEY, TRANSACTION_ID = "TRAN_MSG", "PGROUP", "UNIQ_KEY", "__transactionId__"
CHECK_TIMES, IMMUNITY = "TRANSACTION_CHECK_TIMES", "CHECK_IMMUNITY_TIME_IN_SECONDS"
FIRST_HALF = "TRAN_PREPARED_QUEUE_OFFSET"
"""The reference's broker notes it in the halves of its own whose time of immunity is not over."""
OP_TAG = "d"
OP_BYTES_MAX = 4096
"""Of one op's body, as the reference has it by default."""
_OP_PROPERTIES = encode_properties({"TAGS": OP_TAG, "WAIT": "true"})
_NUMBER = re.compile(r"[0-9]{1,18}")

Identity = tuple[str, int, bytes, int]
"""What a half and all made of it have in common: unique key, born when, by whom, checksum of the body."""


def number(text: str | None) -> int | None:
    """A count or an offset that a property or a body holds; None when it is none."""
    return int(text) if text is not None and _NUMBER.fullmatch(text) else None


def half(record: Record, named: dict[str, str]) -> Record:
    """A message as it waits for the outcome of its transaction."""
    added = {REAL_TOPIC: record.topic, REAL_QUEUE: str(record.queue_id), TRANSACTION_ID: named[UNIQUE_KEY]}
    if added.keys() & named.keys():
        properties = encode_properties(parse_properties(record.properties) | added)
    else:
        properties = record.properties + encode_properties(added)
    return dataclasses.replace(
        record,
        topic=model.HALF_TOPIC,
        queue_id=0,
        sys_flag=record.sys_flag & ~SysFlag.TRANSACTION_MASK,
        properties=properties,
    )


def committed(record: Record) -> Record:
    """The half as it goes to its real topic; Undeliverable when it does not say which.

    Of its properties only the place to go to is left out, as the reference's broker does.
    """
    moved = unparked(record)
    named = parse_properties(moved.properties)
    del named[REAL_TOPIC], named[REAL_QUEUE]
    return dataclasses.replace(
        moved,
        properties=encode_properties(named),
        sys_flag=record.sys_flag & ~SysFlag.TRANSACTION_MASK | SysFlag.TRANSACTION_COMMIT,
        prepared_transaction_offset=record.physical_offset,
    )


def again(record: Record, check_times: int) -> Record:
    """The half as it is stored anew behind the others: asked about so many times."""
    named = parse_properties(without_crc(record.properties))
    named[CHECK_TIMES] = str(check_times)
    return dataclasses.replace(record, properties=encode_properties(named), prepared_transaction_offset=0)


def aside(record: Record) -> Record:
    """The half as it is kept when it was asked about often enough."""
    properties = without_crc(record.properties)
    return dataclasses.replace(
        record,
        topic=model.CHECK_MAX_TIME_TOPIC,
        queue_id=0,
        properties=properties,
        prepared_transaction_offset=0,
    )


def resumed(record: Record) -> Record:
    """One that was laid aside, as if nobody had asked about it yet."""
    return dataclasses.replace(again(record, 0), topic=model.HALF_TOPIC, queue_id=0)


def op(body: bytes, queue_id: int, host: Host, now_ms: int) -> Record:
    """Says that these places of a half queue are dealt with, each with a comma behind it."""
    flag = (SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6) if host.is_v6 else 0
    return Record(
        topic=model.HALF_OP_TOPIC,
        queue_id=queue_id,
        body=body,
        born_timestamp=now_ms,
        born_host=host,
        store_timestamp=0,
        store_host=host,
        properties=_OP_PROPERTIES,
        sys_flag=flag,
    )


def ended_by(record: Record) -> list[int]:
    """The places an op names; its body is a list, or one number without a comma before version 5."""
    if parse_properties(record.properties).get("TAGS") != OP_TAG:
        return []
    found = (number(text.strip()) for text in record.body.decode("ascii", "replace").split(","))
    return [offset for offset in found if offset is not None]


def question(record: Record, placed: Appended, broker_name: str) -> CheckTransactionState:
    """Asks a producer about a half that was just stored anew, and shows it the message as it sent it."""
    named = parse_properties(record.properties)
    key = named.get(UNIQUE_KEY)
    queue_id = number(named.get(REAL_QUEUE)) or 0
    shown = dataclasses.replace(
        record,
        topic=named.get(REAL_TOPIC, record.topic),
        queue_id=queue_id if queue_id < 1 << 31 else 0,
        queue_offset=placed.queue_offset,
        physical_offset=placed.physical_offset,
        store_timestamp=placed.store_timestamp,
        properties=encode_properties(named | {"WAIT": "false"}),  # as the reference shows it
    )
    stored = dataclasses.replace(record, physical_offset=placed.physical_offset)
    return CheckTransactionState(
        topic=record.topic,
        tran_state_table_offset=placed.queue_offset,
        commit_log_offset=placed.physical_offset,
        msg_id=key,
        transaction_id=key,
        offset_msg_id=stored.message_id,
        broker_name=broker_name,
        body=encode_record(shown, append_crc=False),
    )


def identity(record: Record) -> Identity:
    key = parse_properties(record.properties).get(UNIQUE_KEY, "")
    return (
        key,
        record.born_timestamp,
        b"".join((record.born_host.address, record.born_host.port.to_bytes(4))),
        (record.body_crc),
    )


def is_copy(record: Record, of: Identity) -> bool:
    """Whether the record is what a commit made of a half, in its real topic or parked on its way there."""
    kind = record.sys_flag & SysFlag.TRANSACTION_MASK
    return kind == SysFlag.TRANSACTION_COMMIT and identity(record) == of
