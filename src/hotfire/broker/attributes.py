"""Attributes of topics and groups: `+key=value,-key` changes them, and only to what each attribute allows.

Refusals are the reference's, word for word where it has words. Knows texts only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from hotfire.errors import BrokerRefused
from hotfire.protocol.codes import ResponseCode

LONG_MAX = (1 << 63) - 1
MESSAGE_TYPES = ("UNSPECIFIED", "MIXED", "TRANSACTION", "PRIORITY", "FIFO", "DELAY", "LITE", "NORMAL")
CHANGES_MAX = 64
"""Of one request; there are five attributes."""


class Attribute(NamedTuple):
    """What one may be, and whether it may change once its topic exists."""

    check: Callable[[str], None]
    is_changeable: bool


def one_of(*values: str) -> Callable[[str], None]:
    def check(value: str) -> None:
        if value not in values:
            raise _refused(f"value is not in set: [{', '.join(values)}]")

    return check


def integer_from(low: int, high: int) -> Callable[[str], None]:
    def check(value: str) -> None:
        digits = value[1:] if value[:1] in ("-", "+") else value
        if not (digits.isascii() and digits.isdecimal() and len(digits) <= 19):
            raise _refused(f'For input string: "{value:.40}"')
        if not low <= int(value) <= high:
            raise _refused(f"value is not in range({low}, {high})")

    return check


TOPIC_ATTRIBUTES: Mapping[str, Attribute] = {
    "queue.type": Attribute(one_of("BatchCQ", "SimpleCQ"), False),
    "cleanup.policy": Attribute(one_of("DELETE", "COMPACTION"), False),
    "message.type": Attribute(one_of(*MESSAGE_TYPES), True),
    "reserve.time": Attribute(integer_from(-1, LONG_MAX), True),
    "backlog.max": Attribute(integer_from(0, 10**18 - 1), True),  # ours: how far consumers may be behind
}
GROUP_ATTRIBUTES: Mapping[str, Attribute] = {}


def parse_changes(text: str | None) -> dict[str, str]:
    """Signed keys and their values; those to be removed have none.

    >>> parse_changes("+message.type=FIFO,-reserve.time")
    {'+message.type': 'FIFO', '-reserve.time': ''}
    """
    changes: dict[str, str] = {}
    parts = text.split(",") if text else []
    if len(parts) > CHANGES_MAX:
        raise _refused(f"{len(parts)} attributes are changed at once, at most {CHANGES_MAX} are taken")
    for part in parts:
        key, equals, value = part.partition("=")
        if equals and "+" not in key:
            raise _refused(f"add/alter attribute format is wrong: {key:.100}")
        if not equals and "-" not in key:
            raise _refused(f"delete attribute format is wrong: {key:.100}")
        if equals and not value:
            raise _refused(f"attribute {key:.100} has no value")
        if key in changes:
            raise _refused(f"key duplication: {key:.100}")
        changes[key] = value
    return changes


def changed(
    known: Mapping[str, Attribute], current: Mapping[str, str] | None, changes: Mapping[str, str]
) -> dict[str, str]:
    """`current` with these changes made; None stands for a topic or group that is being made."""
    if len(changes) > CHANGES_MAX:
        raise _refused(f"{len(changes)} attributes are changed at once, at most {CHANGES_MAX} are taken")
    result = dict(current or {})
    seen: set[str] = set()
    for signed, value in changes.items():
        sign, key = signed[:1], signed[1:]
        if not key or "+" in key or "-" in key:
            raise _refused("kv string format wrong.")
        if key in seen:
            raise _refused(f"alter duplication key. key: {key:.100}")
        seen.add(key)
        if current is None and sign != "+":
            raise _refused(f"only add attribute is supported while creating topic. key: {key:.100}")
        if sign == "-" and key not in result:
            raise _refused(f"attempt to delete a nonexistent key: {key:.100}")
        if sign not in ("+", "-"):
            raise _refused(f"wrong format key: {key:.100}")
        attribute = known.get(key)
        if attribute is None:
            raise _refused(f"unsupported key: {key:.100}")
        if current is not None and not attribute.is_changeable:
            raise _refused(f"attempt to update an unchangeable attribute. key: {key:.100}")
        if sign == "-":
            del result[key]
        else:
            attribute.check(value)
            result[key] = value
    return result


def _refused(remark: str) -> BrokerRefused:
    return BrokerRefused(ResponseCode.SYSTEM_ERROR, remark)
