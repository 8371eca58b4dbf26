"""What failures look like, without what differs from one to the next: the shape of an error and of a body.

Dead letters are reviewed by the dozen kinds, not by the thousand messages. Numbers, ids, quoted words and the
like are replaced by a sign for their kind, so that messages which failed alike fall together.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

ERROR_PROPERTIES = (
    "ERROR", "EXCEPTION", "error", "exception", "errorMessage", "exceptionMessage", "x-exception-message",
    "x-exception-stacktrace", "x-death-reason", "FAILURE", "failure", "reason",
)  # fmt: skip
"""Where applications and frameworks put why they failed; brokers and RocketMQ's own clients say nothing."""
SHAPE_CHARACTERS_MAX = 120
NAMES_MAX = 12
JSON_BYTES_MAX = 1 << 20

_RULES = (
    (re.compile(r"\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b"), "<uuid>"),
    (re.compile(r"\b\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}(?::\d{2}(?:\.\d+)?)?(?:Z|[+-]\d{2}:?\d{2})?"), "<time>"),
    (re.compile(r"\b\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?\b"), "<address>"),
    (re.compile(r"'[^'\n]*'|\"[^\"\n]*\""), "<text>"),
    (
        re.compile(r"\b0x[0-9a-fA-F]+\b|\b(?=[0-9a-fA-F]*\d)(?=[0-9a-fA-F]*[a-fA-F])[0-9a-fA-F]{8,}\b"),
        "<hex>",
    ),
    (re.compile(r"[-+]?\b\d+(?:[.,]\d+)*\b"), "<n>"),
    (re.compile(r"(?<=[A-Za-z_-])\d+"), "<n>"),
)


def error_text(properties: Mapping[str, str]) -> str | None:
    """Why it failed, where someone said so."""
    return next((properties[name] for name in ERROR_PROPERTIES if properties.get(name)), None)


def error_shape(text: str | None) -> str | None:
    """Of nothing there is none.

    >>> error_shape("Order 4711 of 'Ada' not found\\n  at com.shop.Orders.find(Orders.java:52)")
    'Order <n> of <text> not found'
    """
    if text is None:
        return None
    line = next((one.strip() for one in text.splitlines() if one.strip()), "")
    for pattern, sign in _RULES:
        line = pattern.sub(sign, line)
    return line if len(line) <= SHAPE_CHARACTERS_MAX else line[: SHAPE_CHARACTERS_MAX - 1] + "…"


def body_shape(body: bytes | bytearray | None) -> str:
    """
    >>> body_shape(b'{"id": 7, "items": [{"sku": "a"}], "paid": true}')
    'json {id: number, items: list, paid: boolean}'
    >>> body_shape(b"paid 17"), body_shape(bytes(300)), body_shape(b"")
    ('text, up to 16 bytes', 'binary, up to 512 bytes', 'empty')
    """
    if not body:
        return "empty"
    bound = 16
    while bound < len(body):
        bound *= 2
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return f"binary, up to {bound} bytes"
    if text.lstrip()[:1] in ("{", "[") and len(body) <= JSON_BYTES_MAX:
        try:
            return f"json {_json_shape(json.loads(text))}"
        except (ValueError, RecursionError):
            return f"text that begins like JSON, up to {bound} bytes"
    is_text = all(one.isprintable() or one in "\t\r\n" for one in text[:1000])
    return f"{'text' if is_text else 'binary'}, up to {bound} bytes"


def _json_shape(value: object) -> str:
    if isinstance(value, dict):
        names = sorted(value)
        shown = ", ".join(f"{name}: {_kind(value[name])}" for name in names[:NAMES_MAX])
        return f"{{{shown}{', …' if len(names) > NAMES_MAX else ''}}}"
    if isinstance(value, list):
        return f"[{_json_shape(value[0]) if value else ''}]"
    return _kind(value)


def _kind(value: object) -> str:
    kinds = ((bool, "boolean"), (int, "number"), (float, "number"), (str, "text"), (dict, "object"))
    if value is None:
        return "null"
    return next((name for kind, name in kinds if isinstance(value, kind)), "list")
