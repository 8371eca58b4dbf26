"""What clients with tracing on tell about their messages: entries in the bodies of the trace topic.

A body is text; each entry ends with byte 2 and its fields have byte 1 between them:

    Pub        time  region  group  topic  msgId  tags  keys  host  bodyBytes  costMs  kind  offsetId  success
    SubBefore  time  region  group  requestId  msgId  retries  keys
    SubAfter   requestId  msgId  costMs  success  keys  code  time  group
    EndTransaction  time  region  group  topic  msgId  tags  keys  host  kind  transactionId  state  checked
    Recall     time  region  group  topic  msgId  success

Older clients leave off the last fields. Whatever a client wrote, reading ends in entries or in nothing: a
trace is a hint. What is not there is written as `null`: Java's reader takes an empty last field for none.
"""

from __future__ import annotations

import enum
from typing import Literal, NamedTuple

FIELD, ENTRY = "\x01", "\x02"

Kind = Literal["Pub", "SubBefore", "SubAfter", "EndTransaction", "Recall"]


class MessageKind(enum.IntEnum):
    """What was sent, by Java's ordinals."""

    NORMAL, HALF, COMMIT, DELAY, ORDER = range(5)


class ReturnCode(enum.IntEnum):
    """How a call of a listener ended, by Java's ordinals."""

    SUCCESS, TIME_OUT, EXCEPTION, RETURNED_NULL, FAILED = range(5)


class TraceEntry(NamedTuple):
    """One thing that happened to one message. None where the entry does not say."""

    kind: Kind
    message_id: str
    group: str | None = None
    topic: str | None = None
    """Told by the producer only."""
    time_ms: int | None = None
    """When it was sent, when its consumption began, or when it ended."""
    cost_ms: int | None = None
    is_success: bool | None = None
    request_id: str | None = None
    """One call of a listener: what it began with and what it ended with share it."""
    retries: int | None = None
    store_host: str | None = None
    """Where it was sent to."""
    state: str | None = None
    """Of a transaction: COMMIT_MESSAGE, ROLLBACK_MESSAGE or UNKNOW."""
    keys: tuple[str, ...] = ()


def decode_trace(body: bytes) -> list[TraceEntry]:
    """
    >>> decode_trace(b"SubBefore\\x011700\\x01r\\x01billing\\x01R1\\x01M1\\x012\\x01k\\x02")[0][:5]
    ('SubBefore', 'M1', 'billing', None, 1700)
    """
    entries = (_entry(text.split(FIELD)) for text in body.decode("utf-8", "replace").split(ENTRY))
    return [entry for entry in entries if entry is not None]


def _entry(fields: list[str]) -> TraceEntry | None:
    kind, count = fields[0], len(fields)
    if kind == "Pub" and count >= 11:
        success = fields[12 if count == 13 else 13] if count > 12 else None  # without offsetId before 4.4
        return TraceEntry(
            "Pub", fields[5], _text(fields[3]), _text(fields[4]), _number(fields[1]), _number(fields[10]),
            _truth(success), store_host=_text(fields[8]), keys=_keys(fields[7]),
        )  # fmt: skip
    if kind == "SubBefore" and count >= 6:
        retries = _number(fields[6]) if count > 6 else None
        return TraceEntry(
            "SubBefore", fields[5], _text(fields[3]), None, _number(fields[1]), request_id=fields[4],
            retries=retries, keys=_keys(fields[7]) if count > 7 else (),
        )  # fmt: skip
    if kind == "SubAfter" and count >= 5:
        ended_ms = _number(fields[7]) if count > 7 else None
        group = _text(fields[8]) if count > 8 else None
        return TraceEntry(
            "SubAfter", fields[2], group, None, ended_ms, _number(fields[3]), _truth(fields[4]), fields[1],
            keys=_keys(fields[5]) if count > 5 else (),
        )  # fmt: skip
    if kind == "EndTransaction" and count >= 12:
        return TraceEntry(
            "EndTransaction", fields[5], _text(fields[3]), _text(fields[4]), _number(fields[1]),
            store_host=_text(fields[8]), state=_text(fields[11]), keys=_keys(fields[7]),
        )  # fmt: skip
    if kind == "Recall" and count >= 7:
        return TraceEntry(
            "Recall", fields[5], _text(fields[3]), _text(fields[4]), _number(fields[1]),
            is_success=_truth(fields[6]),
        )  # fmt: skip
    return None


def _keys(field: str) -> tuple[str, ...]:
    return () if field == "null" else tuple(field.split())


def _text(field: str) -> str | None:
    return None if field in ("", "null") else field


def _number(field: str) -> int | None:
    return int(field) if field.isascii() and field.isdigit() and len(field) < 19 else None


def _truth(field: str | None) -> bool | None:
    return None if field not in ("true", "false") else field == "true"


# --- writing -------------------------------------------------------------------------------------------


def encode_pub(
    *,
    time_ms: int,
    region: str,
    group: str,
    topic: str,
    message_id: str,
    tag: str | None,
    keys: tuple[str, ...],
    store_host: str,
    body_bytes: int,
    cost_ms: int,
    kind: MessageKind,
    offset_message_id: str | None,
    is_success: bool,
) -> str:
    return _line(
        "Pub", time_ms, region, group, topic, message_id, tag, " ".join(keys), store_host, body_bytes,
        cost_ms, int(kind), offset_message_id, is_success,
    )  # fmt: skip


def encode_sub_before(
    *,
    time_ms: int,
    region: str,
    group: str,
    request_id: str,
    message_id: str,
    retries: int,
    keys: tuple[str, ...],
) -> str:
    return _line("SubBefore", time_ms, region, group, request_id, message_id, retries, " ".join(keys))


def encode_sub_after(
    *,
    request_id: str,
    message_id: str,
    cost_ms: int,
    is_success: bool,
    keys: tuple[str, ...],
    code: ReturnCode,
    time_ms: int,
    group: str,
) -> str:
    return _line(
        "SubAfter", request_id, message_id, cost_ms, is_success, " ".join(keys), int(code), time_ms, group
    )


def encode_end_transaction(
    *,
    time_ms: int,
    region: str,
    group: str,
    topic: str,
    message_id: str,
    tag: str | None,
    keys: tuple[str, ...],
    store_host: str,
    kind: MessageKind,
    transaction_id: str | None,
    state: str,
    is_checked: bool,
) -> str:
    return _line(
        "EndTransaction", time_ms, region, group, topic, message_id, tag, " ".join(keys), store_host,
        int(kind), transaction_id, state, is_checked,
    )  # fmt: skip


def encode_recall(
    *, time_ms: int, region: str, group: str, topic: str, message_id: str, is_success: bool
) -> str:
    return _line("Recall", time_ms, region, group, topic, message_id, is_success)


def _line(*fields: str | int | bool | None) -> str:
    return FIELD.join(map(_spelled, fields)) + ENTRY


def _spelled(field: str | int | bool | None) -> str:
    if isinstance(field, bool):
        return "true" if field else "false"
    # what ends a field or an entry cannot be part of one
    return str(field).replace(FIELD, " ").replace(ENTRY, " ") if field not in (None, "") else "null"
