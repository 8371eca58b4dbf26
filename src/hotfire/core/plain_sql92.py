"""Compiled SQL92 conditions, run over raw properties without a compiler: the plain twin of sql92.c.

`protocol/sqlcode.py` says what a program is. Values are None, truth values, numbers and bytes; a number is a
pair of its kind and itself, because Java reads a text as the kind it is compared with. What a run costs is
counted as the compiled twin does, which reads each property as a number once: a pull ends at the same record.
"""

from __future__ import annotations

import operator
import re
import struct
from collections.abc import Callable, Sequence

FAILED, IS_NULL, IS_FALSE, IS_TRUE = -2, -1, 0, 1
FORMAT, NAMES_MAX, STACK_MAX = 1, 128, 250
STEP_COST, DOUBLE_COST = 8, 256
INT, LONG, DOUBLE = 4, 5, 6
RECORD_BYTES_MIN = 91
MAGIC_V1, MAGIC_V2 = 0xDAA320A7, 0xDAA320AB
_BITS = {INT: 31, LONG: 63}
_WHOLE = re.compile(rb"[+-]?[0-9]+")
_REAL = re.compile(
    rb"""[+-]?(?: (?P<word>NaN|Infinity)
               | (?P<hex> 0[xX](?:[0-9a-fA-F]+\.?|[0-9a-fA-F]*\.[0-9a-fA-F]+)[pP][+-]?[0-9]+ )[fFdD]?
               | (?P<plain> (?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)? )[fFdD]? )""",
    re.VERBOSE,
)
_BLANKS = bytes(range(0x21))

Number = tuple[int, int | float]
Value = bool | bytes | Number | None


class _FailedError(Exception):
    """The run ends: a text is no number, or the program is none."""


def sql_verdict(program: bytes, properties: bytes) -> int:
    """1 TRUE, 0 FALSE, -1 NULL, -2: it ended in an error."""
    try:
        return _Run(program).verdict(properties)
    except (_FailedError, IndexError, struct.error):
        return FAILED


def sift_records(
    program: bytes,
    data: bytes,
    pieces: list[tuple[int, int, int]],
    count_max: int,
    bytes_max: int,
    cost_max: int,
) -> tuple[list[int], int, int]:
    """Positions of the records that the condition is TRUE of, how many were looked at, and what that cost."""
    try:
        run: _Run | None = _Run(program)
    except (_FailedError, IndexError, struct.error):
        run = None
    kept: list[int] = []
    at = total = 0
    cost = 0
    for position, piece in enumerate(pieces):
        if position and (len(kept) >= count_max or (kept and total >= bytes_max) or cost >= cost_max):
            return kept, position, cost
        properties = _properties(data[at : at + max(0, piece[1])], piece)
        if properties is None:
            return kept, position, cost
        verdict = FAILED
        if run is not None:
            try:
                verdict = run.verdict(properties)
            except (_FailedError, IndexError, struct.error):
                verdict = FAILED
            cost = run.cost
        if verdict == IS_TRUE:
            if kept and total + piece[1] > bytes_max:
                return kept, position, cost
            kept.append(position)
            total += piece[1]
        at += piece[1]
    return kept, len(pieces), cost


def _properties(record: bytes, piece: tuple[int, int, int]) -> bytes | None:
    """The properties of a record that is laid out as one, and is the one its piece means; else None."""
    physical, size, index = piece
    if size < RECORD_BYTES_MIN or len(record) != size:
        return None
    said, magic = struct.unpack_from(">II", record)
    queue_offset, at_log, flags = struct.unpack_from(">qqI", record, 20)
    if said != size or magic not in (MAGIC_V1, MAGIC_V2) or (queue_offset, at_log) != (index, physical):
        return None
    at = 48 + (20 if flags & 0x10 else 8) + 8 + (20 if flags & 0x20 else 8) + 12
    if at + 4 > size:
        return None
    at += 4 + int.from_bytes(record[at : at + 4])
    length, topic_max = (2, 0x7FFF) if magic == MAGIC_V2 else (1, 0x7F)
    if at + length > size:
        return None
    topic_bytes = int.from_bytes(record[at : at + length])
    at += length
    topic = record[at : at + topic_bytes]
    at += topic_bytes
    if topic_bytes > topic_max or at + 2 > size or not _is_utf8(topic):
        return None
    properties = record[at + 2 :]
    return properties if int.from_bytes(record[at : at + 2]) == len(properties) <= 0x7FFF else None


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


# --- numbers as Java reads them ---


def _as_long(text: bytes, kind: int) -> Number:
    if _WHOLE.fullmatch(text) is None:
        raise _FailedError
    digits = text.lstrip(b"+-").lstrip(b"0")
    if len(digits) > 19:  # of the largest
        raise _FailedError
    whole = int(text)
    if not -(1 << _BITS[kind]) <= whole < 1 << _BITS[kind]:
        raise _FailedError
    return kind, whole


def _as_double(text: bytes) -> Number:
    text = text.strip(_BLANKS)
    found = _REAL.fullmatch(text)
    if found is None:
        raise _FailedError
    number = text if found["word"] else text[: found.end("hex" if found["hex"] else "plain")]
    if not found["hex"]:
        return DOUBLE, float(number)
    try:
        return DOUBLE, float.fromhex(number.decode())
    except OverflowError:
        return DOUBLE, float("-inf" if number.startswith(b"-") else "inf")


def _bits(value: float) -> int:
    """Of equal doubles: NaN is above all and equals itself, -0.0 is below 0.0."""
    if value != value:
        return (1 << 63) - 1
    return int(struct.unpack(">q", struct.pack(">d", value))[0])


def _order(a: Number, b: Number) -> int:
    x, y = a[1], b[1]
    if DOUBLE in (a[0], b[0]):
        x, y = float(x), float(y)
        if not (x < y or x > y):
            x, y = _bits(x), _bits(y)
    return (x > y) - (x < y)


class _Property(bytes):
    """A property's text; `kinds` are those it has been read as."""

    kinds: set[int]


# --- running ---

_ORDERED: dict[int, Callable[[int, int], bool]] = {
    14: operator.gt, 15: operator.ge, 16: operator.lt, 17: operator.le
}  # fmt: skip
_NULL, _FALSE, _TRUE, _TEXT, _PROPERTY, _VOID, _NOT, _CAST, _IS_NULL, _EQUAL = (
    1,
    2,
    3,
    7,
    8,
    9,
    10,
    11,
    12,
    13,
)
_AND, _OR, _IF_FALSE, _IF_TRUE, _IF_NULL, _IN, _CONTAINS, _NOT_CONTAINS, _NOT_ENDS = (
    18, 19, 20, 21, 22, 23, 24, 27, 29
)  # fmt: skip


def _property(text: bytes | None) -> _Property | None:
    if text is None:
        return None
    made = _Property(text)
    made.kinds = set()
    return made


class _Run:
    """A program, and where it stands."""

    def __init__(self, program: bytes) -> None:
        if len(program) < 3 or program[0] != FORMAT or program[1] > STACK_MAX or program[2] > NAMES_MAX:
            raise _FailedError
        self._program, self._at, self._stack_max = program, 3, program[1]
        self._names = [self._text() for _ in range(program[2])]
        self._code_at = self._at
        self._values: list[_Property | None] = []
        self.cost = 0

    def verdict(self, properties: bytes) -> int:
        self._find(properties)
        self._at = self._code_at
        stack: list[Value] = []
        while self._at < len(self._program):
            op = self._program[self._at]
            self._at += 1
            self.cost += STEP_COST
            self._step(op, stack)
            if len(stack) > self._stack_max:
                raise _FailedError
        if len(stack) != 1 or not (stack[0] is None or isinstance(stack[0], bool)):
            raise _FailedError
        return IS_NULL if stack[0] is None else int(stack[0])

    def _find(self, properties: bytes) -> None:
        """Pairs without a name or a value are none; of several with one name the last counts."""
        found = {}
        for pair in properties.split(b"\x02"):
            name, _, value = pair.partition(b"\x01")
            if name and value:
                found[name] = value
                self.cost += len(self._names)
        self._values = [None] * len(self._names)
        for slot, name in enumerate(self._names):
            if self._names.index(name) == slot:  # of a program that names one twice the first has it
                self._values[slot] = _property(found.get(name))
        self.cost += len(properties)

    def _step(self, op: int, stack: list[Value]) -> None:
        if op <= _PROPERTY:
            stack.append(self._pushed(op))
        elif op == _IN:
            stack.append(self._is_listed())
        elif _IF_FALSE <= op <= _IF_NULL:
            distance = self._number(2)
            if distance > len(self._program) - self._at:
                raise _FailedError
            if stack[-1] is {_IF_FALSE: False, _IF_TRUE: True, _IF_NULL: None}[op]:
                self._at += distance
        elif _EQUAL <= op <= _OR:
            right, left = stack.pop(), stack.pop()
            stack.append(self._joined(op, left, right))
        else:
            stack.append(self._replaced(op, stack.pop()))

    def _pushed(self, op: int) -> Value:
        if op in (_NULL, _FALSE, _TRUE):
            return {_NULL: None, _FALSE: False, _TRUE: True}[op]
        if op == _TEXT:
            return self._text()
        if op == _PROPERTY:
            return self._values[self._number(1)]
        if op == DOUBLE:
            bits = self._taken(8)
            return DOUBLE, float(struct.unpack(">d", bits)[0])
        if op in (INT, LONG):
            return op, int.from_bytes(self._taken(8), signed=True)
        raise _FailedError

    def _joined(self, op: int, left: Value, right: Value) -> Value:
        if op in (_AND, _OR):
            decides = op == _OR
            if left is decides or right is decides:
                return decides
            return None if left is None or right is None else not decides
        if op == _EQUAL:
            return self._equals(left, right)
        return self._compares(_ORDERED[op], left, right)

    def _equals(self, a: Value, b: Value) -> bool | None:
        if a is None or b is None:
            return True if a is b else None if a is None else False
        if isinstance(a, bytes) and isinstance(b, bytes):
            self.cost += len(a)
            return a == b
        if isinstance(a, bool):
            if isinstance(b, bytes):
                raise _FailedError
            return a is b
        if isinstance(b, bool):
            return isinstance(a, bytes) and (a.lower() == b"true") is b
        return self._ordered(a, b) == 0

    def _compares(self, holds: Callable[[int, int], bool], a: Value, b: Value) -> bool | None:
        if a is None or b is None:
            return None
        if isinstance(a, bool) or isinstance(b, bool):
            raise _FailedError
        if isinstance(a, bytes) and isinstance(b, bytes):
            a, b = self._converted(a, DOUBLE), self._converted(b, DOUBLE)
        return holds(self._ordered(a, b), 0)

    def _ordered(self, a: bytes | Number, b: bytes | Number) -> int:
        if isinstance(b, tuple):
            a = self._converted(a, b[0])
        assert isinstance(a, tuple)
        return _order(a, self._converted(b, a[0]))

    def _converted(self, value: bytes | Number, kind: int) -> Number:
        if isinstance(value, tuple):
            return value
        read_as = DOUBLE if kind == DOUBLE else LONG
        if not isinstance(value, _Property) or read_as not in value.kinds:
            self.cost += (DOUBLE_COST if kind == DOUBLE else STEP_COST) + len(value)
        if isinstance(value, _Property):
            value.kinds.add(read_as)
        return _as_double(value) if kind == DOUBLE else _as_long(value, kind)

    def _replaced(self, op: int, value: Value) -> Value:
        if op == _VOID:
            return None
        if op == _IS_NULL:
            return value is None
        if op == _NOT:
            return None if value is None else value is not True
        if op == _CAST:
            return None if value is None else value is True
        if not _CONTAINS <= op <= _NOT_ENDS:
            raise _FailedError
        return self._finds(op, value, self._text())

    def _finds(self, op: int, value: Value, sought: bytes) -> bool:
        if not isinstance(value, bytes) or not sought:
            return False
        is_not = op >= _NOT_CONTAINS
        self.cost += len(value if (op - _CONTAINS) % 3 == 0 else sought)
        looks: Sequence[Callable[[], bool]] = (
            lambda: sought in value,
            lambda: value.startswith(sought),
            lambda: value.endswith(sought),
        )
        return looks[(op - _CONTAINS) % 3]() is not is_not

    def _is_listed(self) -> bool | None:
        value = self._values[self._number(1)]
        texts = [self._text() for _ in range(self._number(2))]
        self.cost += STEP_COST * len(texts)
        return None if value is None else value in texts

    def _text(self) -> bytes:
        return self._taken(self._number(2))

    def _number(self, size: int) -> int:
        return int.from_bytes(self._taken(size))

    def _taken(self, size: int) -> bytes:
        taken = self._program[self._at : self._at + size]
        if len(taken) != size:
            raise _FailedError
        self._at += size
        return taken
