"""SQL92 conditions on a message's properties -> programs that the core runs over their raw bytes.

    condition   = conjunction { OR conjunction }
    conjunction = equality { AND equality }
    equality    = comparison { (= | <>) comparison | IS [NOT] NULL }
    comparison  = value { (> | >= | < | <=) value
                        | [NOT] BETWEEN value AND value
                        | [NOT] IN '(' text { , text } ')'
                        | [NOT] (CONTAINS | STARTSWITH | ENDSWITH) text }
    value       = { + | - | NOT } ( number | text | TRUE | FALSE | NULL | name | '(' condition ')' )

What each means, NULL and numbers that properties are read as, is the reference's to the last oddity: `NOT`
binds before `=`, a minus before anything but a number makes NULL, of two missing properties each equals the
other. One thing is not: words behind a condition's end, which the reference passes over, are an error here.

Compiling is bounded by the condition's length, words and nesting; a run by the program's size and the
properties'.
"""

from __future__ import annotations

from functools import lru_cache

from hotfire.protocol.sqlcode import NAMES_MAX, PROGRAM_BYTES_MAX, STACK_MAX, Op, program, text
from hotfire.protocol.sqllexer import (
    CHARACTERS_MAX,
    END,
    FLOAT,
    INTEGER,
    NAME,
    TEXT,
    WORDS_MAX,
    ConditionError,
    Lexer,
    Word,
)
from hotfire.protocol.sqlnodes import (
    Node,
    between,
    boolean,
    cast,
    compared,
    constant,
    equal,
    floating,
    integer,
    is_null,
    joined,
    listed,
    negated,
    property_of,
    searched,
)

__all__ = [
    "CHARACTERS_MAX", "NESTING_MAX", "SQL92", "WORDS_MAX", "ConditionError", "compile_anew",
    "compile_condition",
]  # fmt: skip

SQL92 = "SQL92"
"""The type of such subscriptions, on the wire."""
NESTING_MAX = 64
"""Brackets and signs within each other: five calls of ours for each."""
KEPT_MAX = 256
"""Conditions that are remembered, wrong ones too: a pull may bring its own each time."""

_ORDERED = {">": Op.GREATER, ">=": Op.GREATER_EQUAL, "<": Op.LESS, "<=": Op.LESS_EQUAL}
_SEARCHED = {
    "CONTAINS": (Op.CONTAINS, Op.NOT_CONTAINS),
    "STARTSWITH": (Op.STARTS_WITH, Op.NOT_STARTS_WITH),
    "ENDSWITH": (Op.ENDS_WITH, Op.NOT_ENDS_WITH),
}
_SIGNS = frozenset(["+", "-", "NOT"])
_COMPARED = frozenset([*_ORDERED, *_SEARCHED, "NOT", "BETWEEN", "IN"])
_VALUE = "a property, a number, a text in single quotes, TRUE, FALSE, NULL or '(' is expected"


def compile_condition(condition: str) -> bytes:
    """The program of a condition; a ConditionError that points at what is wrong with it.

    >>> len(compile_condition("a between 0 and 3"))
    34
    """
    if len(condition) > CHARACTERS_MAX:  # too long to be remembered
        return compile_anew(condition)
    found = _compiled(condition)
    if isinstance(found, bytes):
        return found
    raise ConditionError(condition, *found)


def compile_anew(condition: str) -> bytes:
    """The same, and nothing is remembered."""
    return _Parser(condition).program()


@lru_cache(maxsize=KEPT_MAX)
def _compiled(condition: str) -> bytes | tuple[int, str]:
    """The program, or where the condition is wrong and why."""
    try:
        return compile_anew(condition)
    except ConditionError as error:
        return error.at, error.reason


class _Parser:
    """One condition, read once from left to right."""

    def __init__(self, condition: str) -> None:
        self._words = Lexer(condition)
        self._names: dict[str, int] = {}
        self._nesting = 0

    def program(self) -> bytes:
        words = self._words
        whole = cast(words, self._condition())
        if not words.is_over:
            raise words.fault(f"{_said(words.word)} is left over: AND, OR or the end is expected")
        if whole.depth > STACK_MAX:
            raise words.fault(f"it needs {whole.depth} values at once, at most {STACK_MAX} are kept")
        made = program(whole.depth, list(self._names), b"".join(whole.code))
        if len(made) > PROGRAM_BYTES_MAX:
            raise words.fault(f"it takes {len(made)} bytes compiled, at most {PROGRAM_BYTES_MAX} are run")
        return made

    def _condition(self) -> Node:
        left = self._conjunction()
        while self._words.word.kind == "OR":
            self._words.take()
            left = joined(self._words, Op.OR, left, self._conjunction())
        return left

    def _conjunction(self) -> Node:
        left = self._equality()
        while self._words.word.kind == "AND":
            self._words.take()
            left = joined(self._words, Op.AND, left, self._equality())
        return left

    def _equality(self) -> Node:
        words, left = self._words, self._comparison()
        while True:
            kind = words.word.kind
            if kind in ("=", "<>"):
                sign = words.take()
                left = equal(words, sign, left, self._comparison())
            elif kind == "IS":
                words.take()
                is_not = self._took("NOT")
                if not self._took("NULL"):
                    raise words.fault("NULL is expected" if is_not else "NULL or NOT NULL is expected")
                left = is_null(left, is_not=is_not)
            else:
                return left

    def _comparison(self) -> Node:
        words, left = self._words, self._value()
        while (word := words.word).kind in _COMPARED:
            if (ordered := _ORDERED.get(word.kind)) is not None:
                words.take()
                left = compared(words, word, ordered, left, self._value())
                continue
            is_not = word.kind == "NOT"
            if is_not:
                words.take()
            if words.word.kind == "BETWEEN":
                left = self._between(left, is_not=is_not)
            elif words.word.kind == "IN":
                left = self._in(left, is_not=is_not)
            elif (search := _SEARCHED.get(words.word.kind)) is not None:
                words.take()
                left = searched(search[is_not], left, self._text())
            else:
                raise words.fault("BETWEEN, IN, CONTAINS, STARTSWITH or ENDSWITH is expected behind NOT")
        return left

    def _between(self, value: Node, *, is_not: bool) -> Node:
        word = self._words.take()
        low = self._value()
        if not self._took("AND"):
            raise self._words.fault("AND and the upper bound of BETWEEN are expected")
        return between(self._words, word, value, low, self._value(), is_not=is_not)

    def _in(self, left: Node, *, is_not: bool) -> Node:
        words, word = self._words, self._words.take()
        if (listed_texts := words.take_texts()) is not None:
            return listed(words, word, left, listed_texts, is_not=is_not)
        if not self._took("("):
            raise words.fault("'(' and texts in single quotes are expected behind IN")
        texts = [self._text()]
        while self._took(","):
            texts.append(self._text())
        if not self._took(")"):
            raise words.fault("',' or ')' is expected")
        return listed(words, word, left, texts, is_not=is_not)

    def _value(self) -> Node:
        """Signs and NOTs are kept aside and applied from the innermost on."""
        words, signs = self._words, list[Word]()
        if words.word.kind not in _SIGNS:
            return self._primary()
        while words.word.kind in _SIGNS:
            signs.append(words.take())
            self._check_nesting(len(signs), signs[-1])
        self._nesting += len(signs)
        node = self._primary()
        self._nesting -= len(signs)
        for sign in reversed(signs):
            if sign.kind == "-":
                node = negated(node)
            elif sign.kind == "NOT":
                node = boolean(words, node, [bytes((Op.NOT,))])
        return node

    def _primary(self) -> Node:
        words = self._words
        word = words.word
        if word.kind == "(":
            self._check_nesting(1, word)
            words.take()
            self._nesting += 1
            node = self._condition()
            self._nesting -= 1
            if not self._took(")"):
                raise words.fault("AND, OR or ')' is expected")
            return node
        if word.kind == NAME:
            return property_of(self._name(words.take()), word)
        if word.kind == TEXT:
            return constant(_unquoted(words.take()), [bytes((Op.TEXT,)), text(_unquoted(word))], word)
        if word.kind == INTEGER:
            return integer(words, words.take())
        if word.kind == FLOAT:
            return floating(words, words.take())
        if word.kind in ("TRUE", "FALSE", "NULL"):
            value = {"TRUE": True, "FALSE": False, "NULL": None}[words.take().kind]
            return constant(value, [bytes((Op[word.kind],))], word)
        raise words.fault(f"{_VALUE}, not {_said(word)}")

    def _text(self) -> str:
        if self._words.word.kind != TEXT:
            raise self._words.fault(f"a text in single quotes is expected, not {_said(self._words.word)}")
        return _unquoted(self._words.take())

    def _name(self, word: Word) -> int:
        slot = self._names.setdefault(word.text, len(self._names))
        if slot >= NAMES_MAX:
            raise self._words.fault(f"more than {NAMES_MAX} properties are named", word)
        return slot

    def _took(self, kind: str) -> bool:
        if self._words.word.kind != kind:
            return False
        self._words.take()
        return True

    def _check_nesting(self, more: int, word: Word) -> None:
        if self._nesting + more > NESTING_MAX:
            raise self._words.fault(f"brackets and signs within each other, more than {NESTING_MAX}", word)


def _said(word: Word) -> str:
    return "the end" if word.kind == END else repr(word.text[:20])


def _unquoted(word: Word) -> str:
    return word.text[1:-1].replace("''", "'")
