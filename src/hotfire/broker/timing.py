"""When a message with a time of its own is due: what its properties ask for, and how it waits.

Three properties ask for a time, and the first of them counts: TIMER_DELAY_SEC and TIMER_DELAY_MS from now on,
TIMER_DELIVER_MS a time of day. The second before it is written into TIMER_OUT_MS, as the reference rounds it:
the slot of the wheel. The millisecond is found again in the property itself. Knows records and settings, no
files.

A recall handle is what the sender of such a message may take it back by: topic, broker, slot and unique key.
"""

from __future__ import annotations

import dataclasses

from hotfire import model
from hotfire.broker.config import BrokerConfig
from hotfire.errors import BrokerRefused
from hotfire.protocol.codes import ResponseCode
from hotfire.protocol.recall import Handle, number
from hotfire.protocol.record import Record, encode_properties, parse_properties

DELIVER_MS, DELAY_SEC, DELAY_MS = "TIMER_DELIVER_MS", "TIMER_DELAY_SEC", "TIMER_DELAY_MS"
TIMES = (DELIVER_MS, DELAY_SEC, DELAY_MS)
"""Times of delivery to the millisecond: a delay level is preferred to them, and they are removed."""
OUT_MS, ENQUEUE_MS, DEQUEUE_MS = "TIMER_OUT_MS", "TIMER_ENQUEUE_MS", "TIMER_DEQUEUE_MS"
ROLL_TIMES, DELETES = "TIMER_ROLL_TIMES", "TIMER_DEL_UNIQKEY"
SHIFT_MS = "TIMER_SHIFT_MS"
"""Ours: by how much a delay ends later, for the clock was set before the message was put in anew."""
PRECISION_MS = 1000
DELETE_KEY_MAX = 512
"""Characters of what a recall names: a topic has up to 127, a unique key some 32."""


def asks_for_time(topic: str, named: dict[str, str]) -> bool:
    """Whether a message wants to wait for its time. One that has waited still says so, and its slot too."""
    return topic != model.TIMER_TOPIC and OUT_MS not in named and any(name in named for name in TIMES)


def is_relative(named: dict[str, str]) -> bool:
    """Whether its time counts from when it was sent, and not by the clock."""
    return DELAY_SEC in named or DELAY_MS in named


def due_ms(config: BrokerConfig, named: dict[str, str], now_ms: int) -> int:
    """When the message is due; one that is due already is an ordinary one. Refused when it cannot be."""
    if not config.timer_wheel_enable:
        raise BrokerRefused(
            ResponseCode.SYSTEM_ERROR,
            "accurate timer message is not enabled, timerWheelEnable is false: send without "
            "TIMER_ properties or with a delay level",
        )
    due = _asked_ms(named, now_ms)
    most_ms = config.timer_max_delay_sec * 1000
    if due is None:
        asked = {name: named[name][:40] for name in TIMES if name in named}
        raise _illegal(f"{asked} is no time in whole numbers", most_ms)
    if due - now_ms > most_ms:
        raise _illegal(f"this one asks for {due - now_ms}ms", most_ms)
    if due <= now_ms and DELETES in named:
        raise _illegal("what this one is to delete is due already", most_ms)
    return due


def check_deletes(topic: str, named: dict[str, str]) -> None:
    """Refuse a message that deletes, unless it names one of the topic it was let into, and briefly."""
    key = named.get(DELETES)
    if key is None:
        return
    if not key.startswith(delete_key(topic, "")) or len(key) == len(topic) + 1:
        raise BrokerRefused(
            ResponseCode.MESSAGE_ILLEGAL,
            f"timer message illegal, {DELETES} {key!r:.80} names no message of topic {topic}: it is the "
            "topic, + and the unique key",
        )
    if len(key) > DELETE_KEY_MAX:
        raise BrokerRefused(
            ResponseCode.MESSAGE_ILLEGAL,
            f"timer message illegal, {DELETES} has {len(key)} characters, at most {DELETE_KEY_MAX} are taken",
        )


def _illegal(what: str, most_ms: int) -> BrokerRefused:
    return BrokerRefused(
        ResponseCode.MESSAGE_ILLEGAL,
        f"timer message illegal, the delay time should not be bigger than the max delay {most_ms}ms; or if "
        f"set del msg, the delay time should be bigger than the current time: {what}",
    )


def _asked_ms(named: dict[str, str], now_ms: int) -> int | None:
    """The time asked for, by the first property that asks; None when it is no number."""
    for name, unit_ms, since_ms in ((DELAY_SEC, 1000, now_ms), (DELAY_MS, 1, now_ms), (DELIVER_MS, 1, 0)):
        text = named.get(name)
        if text is not None:
            value = number(text)
            return None if value is None else since_ms + value * unit_ms
    return None


def out_ms(due: int) -> int:
    """The slot of a time: it holds what is due in the second behind it."""
    return (due - 1) // PRECISION_MS * PRECISION_MS


def parked(record: Record, due: int) -> Record:
    """The record as it waits for its time."""
    named = parse_properties(record.properties)
    named |= {OUT_MS: str(out_ms(due)), "REAL_TOPIC": record.topic, "REAL_QID": str(record.queue_id)}
    return dataclasses.replace(
        record, topic=model.TIMER_TOPIC, queue_id=0, properties=encode_properties(named)
    )


def parked_due_ms(named: dict[str, str], stored_ms: int) -> int | None:
    """When a record that waits is due, to the millisecond; None when it does not say.

    Never before its slot's second begins nor behind its end, whatever its other properties say. One that was
    put into the wheel again has another store time, and was told the millisecond then.
    """
    slot_ms = number(named.get(OUT_MS))
    if slot_ms is None or slot_ms <= 0:
        return None
    if ROLL_TIMES in named and DELIVER_MS in named:
        asked = number(named[DELIVER_MS])
    else:
        asked = _asked_ms(named, stored_ms)
    latest = slot_ms + PRECISION_MS
    return latest if asked is None else max(slot_ms + 1, min(asked, latest))


def shift_ms(named: dict[str, str]) -> int:
    return number(named.get(SHIFT_MS)) or 0


def rolled(record: Record, named: dict[str, str], due: int, shift: int, now_ms: int) -> Record:
    """The record as it waits once more; with its time of day, should it have none.

    Its slot stays the same, however the clock was set: a recall has been told of that one.
    """
    times = number(named.get(ROLL_TIMES)) or 0
    named = {**named, ROLL_TIMES: str(times + 1), **_stamps(record, now_ms), DELIVER_MS: str(due)}
    if shift:
        named[SHIFT_MS] = str(shift)
    named.pop("__CRC32#", None)
    return dataclasses.replace(record, properties=encode_properties(named))


def stamped(record: Record, now_ms: int) -> Record:
    """The record as it goes to its real topic: with the times at which it came into the wheel and left it."""
    named = parse_properties(record.properties)
    return dataclasses.replace(record, properties=encode_properties(named | _stamps(record, now_ms)))


def _stamps(record: Record, now_ms: int) -> dict[str, str]:
    return {
        ENQUEUE_MS: str(record.store_timestamp // PRECISION_MS * PRECISION_MS),
        DEQUEUE_MS: str(now_ms),
    }


# --- recall ---


def handle_for(broker_name: str, record: Record, unique_key: str, due: int) -> str | None:
    """The handle told to who sent the message; none for what consumers put into their retry topics."""
    if record.topic.startswith(model.RETRY_PREFIX):
        return None
    return Handle(record.topic, broker_name, out_ms(due) + 1, unique_key).encode()


def delete_key(topic: str, unique_key: str) -> str:
    return f"{topic}+{unique_key}"
