"""What a compiled SQL92 condition is: the bytes the core runs over a message's properties.

    at  size  field
     0     1  format, 1
     1     1  values the stack must hold
     2     1  how many properties are named
     3     -  each name: 2 bytes of length, UTF-8
     -     -  instructions; the result is the one value left

Instructions push, take and replace values on a stack. Jumps go forward by 2 bytes, counted from behind them,
and leave the value they look at. Numbers are big-endian. Owns the numbers of the instructions; the twins
`core/sql92.c` and `core/plain_sql92.py` hold the same ones.
"""

from __future__ import annotations

import struct
from enum import IntEnum

FORMAT = 1
NAMES_MAX = 128
STACK_MAX = 250
PROGRAM_BYTES_MAX = 0xFFFF


class Op(IntEnum):
    """Instructions, and what follows each."""

    NULL = 1
    FALSE = 2
    TRUE = 3
    INT = 4
    """8 bytes: of the type that holds 32 bits."""
    LONG = 5
    """8 bytes."""
    DOUBLE = 6
    """8 bytes."""
    TEXT = 7
    """2 bytes of length, UTF-8."""
    PROPERTY = 8
    """1 byte: which name."""
    VOID = 9
    """Any value becomes NULL."""
    NOT = 10
    CAST = 11
    """What is no truth value becomes FALSE."""
    IS_NULL = 12
    EQUAL = 13
    GREATER = 14
    GREATER_EQUAL = 15
    LESS = 16
    LESS_EQUAL = 17
    AND = 18
    OR = 19
    IF_FALSE = 20
    """2 bytes: how far to jump, past the right side of an AND."""
    IF_TRUE = 21
    IF_NULL = 22
    IN = 23
    """1 byte: which name; 2 bytes: how many texts; the texts."""
    CONTAINS = 24
    """A text follows these six."""
    STARTS_WITH = 25
    ENDS_WITH = 26
    NOT_CONTAINS = 27
    NOT_STARTS_WITH = 28
    NOT_ENDS_WITH = 29


_NUMBER = struct.Struct(">Bq")
_DOUBLE = struct.Struct(">Bd")
_JUMP = struct.Struct(">BH")
JUMP_BYTES = _JUMP.size


def op(op: Op) -> bytes:
    return bytes((op,))


def number(value: int, *, is_long: bool) -> bytes:
    return _NUMBER.pack(Op.LONG if is_long else Op.INT, value)


def double(value: float) -> bytes:
    return _DOUBLE.pack(Op.DOUBLE, value)


def jump(op: Op, distance: int) -> bytes:
    return _JUMP.pack(op, distance)


def text(value: str) -> bytes:
    """A text's length and bytes. What is no character, half of a pair, can be in no message either."""
    data = value.encode("utf-8", "replace")
    return len(data).to_bytes(2) + data


def program(stack: int, names: list[str], code: bytes) -> bytes:
    head = bytes((FORMAT, stack, len(names)))
    return head + b"".join(map(text, names)) + code
