"""The parts of an SQL92 condition while it is compiled: what each yields, and which may stand where.

A node knows what the reference's classes tell apart at this time: constants, properties, conditions that
yield a truth value or NULL, and what has a minus before it, which is neither constant nor condition. Its code
leaves one value on the stack.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass

from hotfire.protocol.sqlcode import JUMP_BYTES, NAMES_MAX, PROGRAM_BYTES_MAX, Op, double, jump, number, text
from hotfire.protocol.sqllexer import Lexer, Word

INT_MAX, LONG_MAX = (1 << 31) - 1, (1 << 63) - 1
DOUBLE_MIN = math.ulp(0.0)
"""The least double above zero: the reference takes no literal below it, not even 0.0."""

Value = bool | int | float | str | None

_CODE = {op: bytes((op,)) for op in Op}
_PROPERTIES = [bytes((Op.PROPERTY, slot)) for slot in range(NAMES_MAX)]
_EQUAL, _UNEQUAL = _CODE[Op.EQUAL], _CODE[Op.EQUAL] + _CODE[Op.NOT]
_CAST, _JUMPS = _CODE[Op.CAST], {Op.AND: Op.IF_FALSE, Op.OR: Op.IF_TRUE}


@dataclass(slots=True)
class Node:
    """`code` may grow: whoever puts a node into another gives it away."""

    code: list[bytes]
    size: int
    at: Word | None
    depth: int = 1
    """Values on the stack while it runs."""
    is_constant: bool = False
    is_boolean: bool = False
    """It yields TRUE, FALSE or NULL."""
    is_property: bool = False
    is_void: bool = False
    """It yields NULL."""
    may_fail: bool = False
    """A run may end in it."""
    value: Value = None
    """Of a number, negative ones too, or a constant."""
    slot: int = 0

    def then(self, *parts: bytes) -> None:
        self.code.extend(parts)
        self.size += sum(map(len, parts))

    def then_all(self, right: Node, last: bytes) -> None:
        """The other's code as one part: brackets in brackets would else be copied part by part each time."""
        self.code += (right.code[0] if len(right.code) == 1 else b"".join(right.code), last)
        self.size += right.size + len(last)
        self.depth = max(self.depth, 1 + right.depth)

    def jumping(self, over: Op, right: Node, last: bytes) -> None:
        """The right side and what joins the two, unless the left one decides."""
        distance = min(right.size + len(last), PROGRAM_BYTES_MAX)  # a longer program is refused
        self.code.append(jump(over, distance))
        self.size += JUMP_BYTES
        self.then_all(right, last)
        self.may_fail = self.may_fail or right.may_fail


def _node(code: list[bytes], at: Word | None, **facts: bool | int | float | str | None) -> Node:
    return Node(code, sum(map(len, code)), at, **facts)  # type: ignore[arg-type]


# --- values ---


def property_of(slot: int, word: Word) -> Node:
    return Node([_PROPERTIES[slot]], 2, word, is_property=True, slot=slot)


def constant(value: Value, code: list[bytes], word: Word) -> Node:
    is_boolean = value is None or isinstance(value, bool)
    return _node(code, word, is_constant=True, is_boolean=is_boolean, value=value)


def integer(words: Lexer, word: Word) -> Node:
    value = int(word.text.rstrip("lL")) if len(word.text) < 24 else LONG_MAX + 1
    if value > LONG_MAX:
        raise words.fault(f"the number is above {LONG_MAX}", word)
    return constant(value, [number(value, is_long=value > INT_MAX)], word)


def floating(words: Lexer, word: Word) -> Node:
    value = float(word.text)
    if value > sys.float_info.max:
        raise words.fault(f"the number is above {sys.float_info.max}", word)
    if value < DOUBLE_MIN:
        raise words.fault(f"the number is below {DOUBLE_MIN}; 0 is written without a point", word)
    return constant(value, [double(value)], word)


def negated(node: Node) -> Node:
    """Minus a number; of anything else it is NULL, once what it stands before has been looked at."""
    value = node.value
    if isinstance(value, int | float) and not isinstance(value, bool):
        is_long = node.code[0][0] == Op.LONG
        code = double(-value) if isinstance(value, float) else number(-value, is_long=is_long)
        return _node([code], node.at, value=-value)
    if not node.may_fail:
        return _node([bytes((Op.NULL,))], node.at, is_void=True)
    node.then(bytes((Op.VOID,)))
    node.is_constant = node.is_boolean = False
    node.is_void = True
    return node


# --- conditions ---


def boolean(words: Lexer, node: Node, more: list[bytes]) -> Node:
    """`node` as a condition, and what is done with its outcome."""
    if node.is_property:
        node.code.append(_CAST)
        node.size += 1
    elif not node.is_boolean:
        raise words.fault("a condition is expected: this is neither true nor false", node.at)
    if more:
        node.then(*more)
    return _condition(node)


def cast(words: Lexer, node: Node) -> Node:
    return boolean(words, node, [])


def _condition(node: Node) -> Node:
    node.is_boolean, node.is_constant, node.is_property, node.is_void = True, False, False, False
    node.value = None
    return node


def joined(words: Lexer, op: Op, left: Node, right: Node) -> Node:
    """AND and OR: the right side is not run when the left one decides."""
    left, right = cast(words, left), cast(words, right)
    left.jumping(_JUMPS[op], right, _CODE[op])
    return left


def is_null(left: Node, *, is_not: bool) -> Node:
    left.then(bytes((Op.IS_NULL, Op.NOT) if is_not else (Op.IS_NULL,)))
    return _condition(left)


def equal(words: Lexer, sign: Word, left: Node, right: Node) -> Node:
    for side in (left, right):
        if side.is_constant and side.value is None:
            raise words.fault("nothing equals NULL: IS NULL or IS NOT NULL is expected", sign)
    if left.is_constant and left.is_boolean and right.is_constant and not right.is_boolean:
        raise words.fault("TRUE and FALSE are compared with neither numbers nor texts", sign)
    left.then_all(right, _EQUAL if sign.kind == "=" else _UNEQUAL)
    left.may_fail = True
    return _condition(left)


def _check_ordered(words: Lexer, *sides: Node) -> None:
    for side in sides:
        if side.is_boolean or (side.is_constant and isinstance(side.value, str)):
            raise words.fault("greater and less are for numbers and properties alone", side.at)


def _ordered(op: Op, left: Node, right: Node) -> Node:
    if left.is_void:  # NULL, whatever is on the right, which is not run
        return _condition(left)
    if right.may_fail:  # and is not run either when the left side turns out to be NULL
        left.jumping(Op.IF_NULL, right, _CODE[op])
    else:
        left.then_all(right, _CODE[op])
    left.may_fail = True
    return _condition(left)


def compared(words: Lexer, sign: Word, op: Op, left: Node, right: Node) -> Node:
    _check_ordered(words, left, right)
    return _ordered(op, left, right)


def between(words: Lexer, word: Word, value: Node, low: Node, high: Node, *, is_not: bool) -> Node:
    _check_ordered(words, value, low, high)
    if low.is_constant and high.is_constant and not is_not and _is_above(low, high):
        raise words.fault(f"the lower bound {low.value} is above the upper one, {high.value}", low.at)
    again = _node([b"".join(value.code)], value.at, is_void=value.is_void)
    if value.is_void:
        return _condition(value)
    if is_not:
        left, right = _ordered(Op.LESS, value, low), _ordered(Op.GREATER, again, high)
        left.jumping(Op.IF_TRUE, right, bytes((Op.OR,)))
    else:
        left, right = _ordered(Op.GREATER_EQUAL, value, low), _ordered(Op.LESS_EQUAL, again, high)
        left.jumping(Op.IF_FALSE, right, bytes((Op.AND,)))
    return left


def _is_above(low: Node, high: Node) -> bool:
    """Compared as the reference does: as doubles when one of the two is."""
    first, second = low.value, high.value
    assert isinstance(first, int | float)
    assert isinstance(second, int | float)
    if isinstance(first, float) or isinstance(second, float):
        return float(first) > float(second)
    return first > second


def listed(words: Lexer, word: Word, left: Node, texts: list[str], *, is_not: bool) -> Node:
    if not left.is_property:
        raise words.fault("a property is expected before IN", left.at or word)
    head = bytes((Op.IN, left.slot)) + len(texts).to_bytes(2)
    code = [head, *map(text, texts)] + ([bytes((Op.NOT,))] if is_not else [])
    return _condition(_node(code, left.at))


def searched(op: Op, left: Node, sought: str) -> Node:
    """In nothing but a text is anything found; nor is it found to be missing."""
    if not sought:
        return _condition(_node([bytes((Op.FALSE,))], left.at))
    left.then(bytes((op,)), text(sought))
    return _condition(left)
