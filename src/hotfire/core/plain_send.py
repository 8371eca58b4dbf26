"""Many sends under way on one connection: frames written, answers read. The specification of sendpipe.c.

A target is the frame of a send to one queue, cut where messages differ:

    (queue, queue id, head, middle, tail, end)
    header = head + time of birth + middle + properties + tail + opaque + end

Knows that frame and its answer, in JSON, and only the plain kind of each: what else there is, `send` refuses
by returning False, and `receive` hands back as it came. Futures are resolved here; deadlines are looked
at when asked.
"""

from __future__ import annotations

import json
import re
import struct
from contextlib import suppress
from typing import Any

OPAQUE_FIRST = 0x4000_0000
"""From here on upwards opaques are a pipe's; its connection uses those below."""

OPAQUE_COUNT = 0x4000_0000
SPAN_MAX = 65_536
"""From the oldest send under way to the newest."""

TEXT_BYTES_MAX = 1024
STORED = (0, 10, 11, 12)
"""Codes of answers that say where a message is."""

Target = tuple[Any, int, bytes, bytes, bytes, bytes]
Left = tuple[Any, Any, str, Any, float]
"""A send taken out unanswered: future, message, message id, queue, deadline."""

FIELDS_MAX = 24
_NUMBERS = ("code", "flag", "opaque")
_TEXTS = ("language", "serializeTypeCurrentRPC")
_PLAIN = re.compile(r"[ !#-\[\]-~]*")
_MOVING = struct.Struct(">IH")
_PREFIX = struct.Struct(">iI")


class Sent:
    """Where a message was stored."""

    __slots__ = ("_code", "_message_id", "_offset_message_id", "_queue", "_queue_offset", "_transaction_id")

    def __init__(
        self,
        code: int,
        message_id: str,
        offset_message_id: str,
        queue: Any,
        queue_offset: int,
        transaction_id: str | None = None,
    ) -> None:
        self._code = code
        self._message_id = message_id
        self._offset_message_id = offset_message_id
        self._queue = queue
        self._queue_offset = queue_offset
        self._transaction_id = transaction_id

    code = property(lambda self: self._code)
    message_id = property(lambda self: self._message_id)
    offset_message_id = property(lambda self: self._offset_message_id)
    queue = property(lambda self: self._queue)
    queue_offset = property(lambda self: self._queue_offset)
    transaction_id = property(lambda self: self._transaction_id)


class SendPipe:
    def __init__(
        self, message_type: type, result_type: type, id_prefix: str, body_max: int, frame_max: int
    ) -> None:
        """`body_max` is the size of the largest body that goes as it is."""
        self._message_type, self._result_type = message_type, result_type
        self._id_prefix = id_prefix
        self._body_max, self._frame_max = body_max, frame_max
        self._counter = 0
        self._first = self._next = 0  # numbers of sends; the oldest not yet past, and the next
        self._under_way: dict[int, tuple[Any, Any, str, Target, float]] = {}
        self._out = bytearray()
        self._pending = b""

    @property
    def in_flight(self) -> int:
        return len(self._under_way)

    @property
    def unsent(self) -> int:
        """Bytes that `take` would give."""
        return len(self._out)

    def send(
        self, message: Any, target: Target, future: Any, now_ms: int, month_ms: int, deadline: float
    ) -> bool:
        """Write the message's frame and remember whom to tell; False, with nothing done, when not plain."""
        if self._next - self._first >= SPAN_MAX or not self._is_message(message):
            return False
        body = message.body
        if type(body) is not bytes or not 0 < len(body) <= self._body_max:
            return False
        if not _is_zero(message.flag) or not _is_zero(message.delay_level):
            return False
        if not _is_zero(message.delay_ms) or message.deliver_at is not None:
            return False
        if type(message.properties) is not dict or message.properties:
            return False
        message_id = (
            f"{self._id_prefix}{_MOVING.pack(now_ms - month_ms, (self._counter + 1) & 0xFFFF).hex().upper()}"
        )
        properties = _properties(message, message_id)
        if properties is None:
            return False
        self._counter = (self._counter + 1) & 0xFFFF
        _, _, head, middle, tail, end = target
        opaque = OPAQUE_FIRST + self._next % OPAQUE_COUNT
        header = b"%s%d%s%s%s%d%s" % (head, now_ms, middle, properties.encode(), tail, opaque, end)
        self._out += _PREFIX.pack(4 + len(header) + len(body), len(header)) + header + body
        self._under_way[self._next] = (future, message, message_id, target, deadline)
        self._next += 1
        return True

    def _is_message(self, message: Any) -> bool:
        return type(message) is self._message_type

    def take(self) -> bytes:
        """Everything written since the last time."""
        out, self._out = bytes(self._out), bytearray()
        return out

    def receive(self, data: bytes | memoryview) -> tuple[bytes, int]:
        """Resolve the futures whose answers `data` completes: what was not for us, and how many were."""
        data = self._pending + data
        self._pending = b""
        rest, resolved, at = bytearray(), 0, 0
        while len(data) - at >= 4:
            (length,) = struct.unpack_from(">I", data, at)
            if not 4 <= length <= self._frame_max:
                return bytes(rest) + data[at:], resolved  # nobody finds a frame in here again
            if len(data) - at < 4 + length:
                break
            frame = data[at : at + 4 + length]
            at += len(frame)
            if self._resolve(frame):
                resolved += 1
            else:
                rest += frame
        self._pending = data[at:]
        return bytes(rest), resolved

    def _resolve(self, frame: bytes) -> bool:
        answer = _plain_answer(frame)
        if answer is None:
            return False
        opaque, code, fields = answer
        number = self._number(opaque)
        if number is None or code not in STORED:
            return False
        future, _, message_id, target, _ = self._under_way[number]
        transaction_id = fields.get("transactionId")
        queue_offset = fields.get("queueOffset", "")
        place = fields.get("msgId", "")
        if fields.get("queueId") != str(target[1]) or not 0 < len(place) <= 64 or not _PLAIN.fullmatch(place):
            return False
        if not re.fullmatch("0|[1-9][0-9]{0,17}", queue_offset, re.ASCII):
            return False
        self._forget(number)
        result = self._result_type(code, message_id, place, target[0], int(queue_offset), transaction_id)
        with suppress(Exception):  # nobody waits for it any more
            future.set_result(result)
        return True

    def _number(self, opaque: int) -> int | None:
        if opaque < OPAQUE_FIRST:
            return None
        number = self._first + (opaque - OPAQUE_FIRST - self._first) % OPAQUE_COUNT
        return number if number in self._under_way else None

    def _forget(self, number: int) -> None:
        del self._under_way[number]
        while self._first < self._next and self._first not in self._under_way:
            self._first += 1

    def pop(self, opaque: int) -> Left | None:
        """Take a send out whose answer somebody else has read."""
        number = self._number(opaque)
        return None if number is None else self._left(number)

    def _left(self, number: int) -> Left:
        future, message, message_id, target, deadline = self._under_way[number]
        self._forget(number)
        return future, message, message_id, target[0], deadline

    def expire(self, now: float) -> list[Left]:
        """Take out those whose time is over. Deadlines are in the order of the sends."""
        late = []
        while self._under_way and self._under_way[self._first][4] <= now:
            late.append(self._left(self._first))
        return late

    def clear(self) -> list[Left]:
        """Take out all."""
        self._out.clear()
        self._pending = b""
        return [self._left(number) for number in tuple(self._under_way)]

    @property
    def next_deadline(self) -> float | None:
        return self._under_way[self._first][4] if self._under_way else None


def _is_zero(value: object) -> bool:
    return type(value) is int and value == 0


def _properties(message: Any, message_id: str) -> str | None:
    """In Java's order, in JSON's spelling."""
    tag, keys, wait = message.tag, message.keys, message.wait_stored
    if type(keys) is not tuple or not all(type(key) is str for key in keys) or type(wait) is not bool:
        return None
    text = " ".join(keys)
    if not all(keys) or any(" " in key for key in keys) or not _is_plain(text):
        return None
    if tag is not None and (type(tag) is not str or not tag or "||" in tag or not _is_plain(tag)):
        return None
    parts = [("KEYS", text)] if keys else []
    parts += [("UNIQ_KEY", message_id), ("WAIT", "true" if wait else "false")]
    if tag:
        parts.append(("TAGS", tag))
    return "".join(f"{name}\\u0001{value}\\u0002" for name, value in parts)


def _is_plain(text: str) -> bool:
    return len(text) <= TEXT_BYTES_MAX and _PLAIN.fullmatch(text) is not None


def _plain_answer(frame: bytes) -> tuple[int, int, dict[str, str]] | None:
    """Opaque, code and fields of an answer in the plain dialect: JSON, no remark, all fields text."""
    (mark,) = struct.unpack_from(">I", frame, 4)
    if mark >> 24 or 8 + mark != len(frame) or b"\\" in frame:
        return None
    try:
        tree = json.loads(frame[8:].decode(), object_pairs_hook=_once_each)
    except (ValueError, RecursionError):
        return None
    if type(tree) is not dict or not set(_NUMBERS) <= set(tree) <= {
        *_NUMBERS,
        *_TEXTS,
        "version",
        "extFields",
    }:
        return None
    numbers = [tree.get(key, 0) for key in (*_NUMBERS, "version")]
    if any(type(value) is not int or not -(1 << 31) <= value < 1 << 31 for value in numbers):
        return None
    fields = tree.get("extFields")
    if tree["flag"] != 1 or type(fields) is not dict or len(fields) > FIELDS_MAX:
        return None
    texts = [*(tree.get(key, "") for key in _TEXTS), *fields.values()]
    return (tree["opaque"], tree["code"], fields) if all(type(value) is str for value in texts) else None


def _once_each(pairs: list[tuple[str, object]]) -> dict[str, object]:
    if len(dict(pairs)) != len(pairs):
        raise ValueError
    return dict(pairs)
