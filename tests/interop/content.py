"""What message number n looks like: the rules of java/.../Content.java, written a second time.

The checker must not trust the sender's word, so it knows by itself what should arrive.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

# Set by clients and brokers along the way; everything else in a message's properties is the application's.
_ON_THE_WIRE = {"KEYS", "TAGS", "UNIQ_KEY", "WAIT", "CLUSTER", "TRACE_ON", "MSG_REGION"}
# The checksum over the record: ours always, Apache's with enabledAppendPropCRC; consumers see it there too.
_IN_THE_LOG = {"__CRC32#"}
_AT_THE_CONSUMER = {"MIN_OFFSET", "MAX_OFFSET", "CONSUME_START_TIME"}
SYSTEM_PROPERTIES = _ON_THE_WIRE | _IN_THE_LOG | _AT_THE_CONSUMER


@dataclass(frozen=True)
class Content:
    index: int
    body: bytes
    keys: str | None
    tags: str | None
    properties: dict[str, str]


@cache
def content(index: int) -> Content:
    return Content(index, _body(index), _keys(index), _tags(index), _properties(index))


def differences(
    event: dict[str, Any], *, ignoring: Iterable[str] = (), but: Iterable[str] = (), **chosen: Any
) -> list[str]:
    """How a received message differs from the one that was sent; empty when it does not.

    `ignoring` names properties a detour leaves behind, `but` facts that are not asked for; `chosen` replaces
    a fact: a function of the index.
    """
    expected = content(event["index"])
    passing = SYSTEM_PROPERTIES | set(ignoring)
    user = {name: text for name, text in event["properties"].items() if name not in passing}
    facts: dict[str, Any] = {
        "size": len(expected.body),
        "sha1": _sha1(expected.body),
        "keys": expected.keys,
        "tags": expected.tags,
        "reconsumeTimes": 0,
    }
    facts |= {name: choose(expected.index) for name, choose in chosen.items()}
    facts = {name: right for name, right in facts.items() if name not in set(but)}
    seen = {name: event[name] for name in facts} | {"properties": user}
    facts["properties"] = expected.properties
    return [
        f"message {expected.index}: {name} should be {right!r}, is {seen[name]!r}"
        for name, right in facts.items()
        if right != seen[name]
    ]


def _tags(index: int) -> str | None:
    if index % 9 == 8:
        return None
    return "标签" if index % 9 == 7 else f"Tag{index % 5}"


def _keys(index: int) -> str | None:
    return None if index % 10 == 9 else f"key-{index} 键-{index % 97}"


def _properties(index: int) -> dict[str, str]:
    return {
        "index": str(index),
        "colour": f"rouge é 红 🚀 {index % 13}",
        "quoted": f'say "hi" \\ / <&> = ,;:\t{index % 3}',
    }


def _size(index: int) -> int:
    if index % 50 == 0:
        return 4096 + index * 37 % 2049
    return 1 + index * 13 % 16 if index % 7 == 0 else 1 + index * 131 % 900


def _body(index: int) -> bytes:
    pattern = f"«{index}» 消息 é 🚀 ".encode()
    size = _size(index)
    return (pattern * (size // len(pattern) + 1))[:size]


def _sha1(body: bytes) -> str:
    return hashlib.sha1(body, usedforsecurity=False).hexdigest()
