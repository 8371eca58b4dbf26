"""JSON as the Java side really writes it.

fastjson leaves keys of maps bare when they are not strings: integers (`{0:"ip:port"}`) and whole
objects (`{{"brokerName":"b","queueId":0,"topic":"t"}:7}`). `loads` reads ordinary JSON and that
dialect, `loads_standard` ordinary JSON only; `dumps` writes ordinary JSON, `dumps_bare_keys` the
dialect. Owns text only; which body has which shape is in `bodies`.

Any input gives a value or RemoteProtocolError. The dialect is parsed in Python, a hundred times slower
than the standard library parses JSON; bodies that never hold bare keys should use `loads_standard`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from json.encoder import encode_basestring
from typing import Any, NoReturn

from hotfire.errors import RemoteProtocolError
from hotfire.model import MessageQueue
from hotfire.protocol.command import Buffer

DEPTH_MAX = 64
"""Nesting the dialect reader follows. The deepest body of the reference implementation has six levels."""

_SPACE = re.compile(r"[ \t\r\n]*")
_INTEGER = re.compile(r"-?[0-9]{1,19}")
_SURROGATE = re.compile(r"[\ud800-\udfff]")
_QUEUE_KEYS = {"brokerName", "queueId", "topic"}


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"{text:.40} is beyond any number")
    return value


_STANDARD = json.JSONDecoder(parse_float=_finite, parse_constant=_refuse_constant, strict=False)


def loads_standard(data: Buffer) -> Any:
    """The value in ordinary JSON."""
    return _loads(data, dialect=False)


def loads(data: Buffer) -> Any:
    """The value in ordinary JSON or the dialect.

    Bare integer keys become ints; object keys become MessageQueue, or a sorted tuple of their items.

    >>> loads(b'{0:"a","1":{{"brokerName":"b","queueId":2,"topic":"t"}:3}}')
    {0: 'a', '1': {MessageQueue(topic='t', broker_name='b', queue_id=2): 3}}
    """
    return _loads(data, dialect=True)


def _loads(data: Buffer, *, dialect: bool) -> Any:
    try:
        text = str(data, "utf-8")
        try:
            tree = _STANDARD.decode(text)
        except ValueError:
            if not dialect:
                raise
            tree = _Dialect(text).parse()
        # Half a surrogate pair can only come from an escape. It has no UTF-8 form; Java would write `?`.
        return _without_surrogates(tree) if "\\ud" in text or "\\uD" in text else tree
    except (ValueError, RecursionError) as error:
        raise RemoteProtocolError(f"JSON body of {len(data)} bytes: {error}") from None


def _without_surrogates(tree: Any) -> Any:
    if isinstance(tree, str):
        return _SURROGATE.sub("?", tree)
    if isinstance(tree, list):
        return [_without_surrogates(item) for item in tree]
    if isinstance(tree, dict):
        return {_without_surrogates(key): _without_surrogates(value) for key, value in tree.items()}
    return tree


class _Dialect:
    """A reader of one text, with its place in it."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def parse(self) -> Any:
        tree = self._value(0)
        if self._peek():
            self._fail("more text after the value")
        return tree

    def _value(self, depth: int) -> Any:
        if depth > DEPTH_MAX:
            self._fail(f"nested deeper than {DEPTH_MAX}")
        first = self._peek()
        if first == "{":
            return self._object(depth)
        if first == "[":
            return self._array(depth)
        return self._scalar()

    def _object(self, depth: int) -> dict[Any, Any]:
        self.at += 1
        tree: dict[Any, Any] = {}
        while self._peek() != "}":
            if tree:
                self._take(",")
            key = self._key(depth)
            self._take(":")
            tree[key] = self._value(depth + 1)
        self.at += 1
        return tree

    def _key(self, depth: int) -> Any:
        first = self._peek()
        if first == '"':
            return self._scalar()
        if first == "{":
            return object_key(self._value(depth + 1))
        match = _INTEGER.match(self.text, self.at)
        if match is None:
            self._fail("a key is a string, an integer or an object")
        self.at = match.end()
        return int(match[0])

    def _array(self, depth: int) -> list[Any]:
        self.at += 1
        items: list[Any] = []
        while self._peek() != "]":
            if items:
                self._take(",")
            items.append(self._value(depth + 1))
        self.at += 1
        return items

    def _scalar(self) -> Any:
        value, self.at = _STANDARD.raw_decode(self.text, self.at)
        return value

    def _peek(self) -> str:
        match = _SPACE.match(self.text, self.at)
        assert match is not None, "the pattern matches nothing, too"
        self.at = match.end()
        return self.text[self.at : self.at + 1]

    def _take(self, character: str) -> None:
        if self._peek() != character:
            self._fail(f"expected {character}")
        self.at += 1

    def _fail(self, problem: str) -> NoReturn:
        raise ValueError(f"{problem} at {self.at}: {self.text[self.at : self.at + 20]!r}")


def object_key(tree: Mapping[Any, Any]) -> MessageQueue | tuple[tuple[str, Any], ...]:
    """An object as something a dict can be keyed by."""
    if tree.keys() == _QUEUE_KEYS:
        name, queue_id, topic = tree["brokerName"], tree["queueId"], tree["topic"]
        if isinstance(name, str) and isinstance(topic, str) and type(queue_id) is int:
            return MessageQueue(topic, name, queue_id)
    for key, value in tree.items():
        if not isinstance(key, str) or not isinstance(value, str | int | float | None):
            raise ValueError("an object that is a key holds plain values under names")
    return tuple(sorted(tree.items()))


def dumps(value: Any) -> bytes:
    """Ordinary JSON, compact, non-ASCII raw; integer keys become strings."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.encode("utf-8", "replace")


def dumps_bare_keys(value: Any) -> bytes:
    """The dialect: integers, MessageQueues and tuples of items stay bare as keys.

    >>> dumps_bare_keys({0: "a", MessageQueue("t", "b", 2): 3}).decode()
    '{0:"a",{"brokerName":"b","queueId":2,"topic":"t"}:3}'
    """
    return _bare(value).encode("utf-8", "replace")


class Spelled(str):
    """Text of the dialect already: `dumps_bare_keys` takes it as it is.

    >>> dumps_bare_keys({"T": Spelled("{0:1}")}).decode()
    '{"T":{0:1}}'
    """

    __slots__ = ()


def spelled(value: Any) -> Spelled:
    return Spelled(_bare(value))


def _bare(value: Any) -> str:
    if isinstance(value, Spelled):
        return value
    if isinstance(value, str):
        return encode_basestring(value)
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{_bare_key(key)}:{_bare(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(_bare, value)) + "]"
    return json.dumps(value, allow_nan=False)


def _bare_key(key: Any) -> str:
    if isinstance(key, str):
        return encode_basestring(key)
    if isinstance(key, MessageQueue):
        return _bare({"brokerName": key.broker_name, "queueId": key.queue_id, "topic": key.topic})
    if isinstance(key, tuple):
        return _bare(dict(key))
    return str(int(key))
