"""The words of an SQL92 condition, each with its place, and the error that points at one.

Read on demand: what lies behind the end of a condition is never looked at. Must not know what words mean.
"""

from __future__ import annotations

import re
from typing import NamedTuple

CHARACTERS_MAX, WORDS_MAX = 8192, 1024
"""Of a condition: who compiles one holds up others, for some 3 microseconds a word. All the texts behind an
IN are one word, unless there are comments between them: they are read in one go."""
KEYWORDS = frozenset(
    ["NOT", "AND", "OR", "BETWEEN", "IN", "TRUE", "FALSE", "NULL", "IS", "CONTAINS", "STARTSWITH", "ENDSWITH"]
)
FLOAT, INTEGER, TEXT, NAME, MARK, END = "float", "integer", "text", "name", "mark", "end"
SHOWN_CHARACTERS_MAX = 20

_SKIPPED = re.compile(r"(?:[ \t\n\r\f]++|/\*[^*]*+\*(?:\*|[^*/][^*]*+\*)*+/)+")
_LINE = re.compile(r"--[^\n\r]*+(?:\r\n|\n|\r)")
_TEXT = re.compile(r"'((?:[^']|'')*+)'")
_PADDED_TEXT = r"[ \t\n\r\f]*+'(?:[^']|'')*+'[ \t\n\r\f]*+"
_TEXTS = re.compile(rf"{_PADDED_TEXT}(?:,{_PADDED_TEXT})*+\)")
_WORD = re.compile(
    r"""(?P<float>   (?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)? | [0-9]+[eE][+-]?[0-9]+ )
      | (?P<integer> (?:0|[1-9][0-9]*)[lL]? )
      | (?P<text>    '[^']*(?:''[^']*)*' )
      | (?P<name>    [A-Za-z_$][A-Za-z0-9_$]* )
      | (?P<mark>    <>|<=|>=|[=<>(),+-] )""",
    re.VERBOSE,
)


class ConditionError(ValueError):
    """A condition that means nothing: where, and what would have done there.

    >>> print(ConditionError("a > > 1", 4, "a property or a value is expected"))
    column 5, at '> 1': a property or a value is expected
    """

    def __init__(self, condition: str, at: int, reason: str) -> None:
        super().__init__(condition, at, reason)
        self.condition, self.at, self.reason = condition, at, reason

    def __str__(self) -> str:
        before = self.condition[: self.at].replace("\r\n", "\n").replace("\r", "\n")
        line, column = before.count("\n") + 1, len(before) - before.rfind("\n")
        place = f"column {column}" if line == 1 else f"line {line}, column {column}"
        rest = self.condition[self.at : self.at + SHOWN_CHARACTERS_MAX]
        return f"{place}, at {rest!r}: {self.reason}" if rest else f"{place}, at the end: {self.reason}"


class Word(NamedTuple):
    """`kind` is one of those above, or the keyword or mark itself."""

    kind: str
    text: str
    at: int


class Lexer:
    """Words of one condition, one after the other; `word` is the one to be read next."""

    def __init__(self, condition: str) -> None:
        if len(condition) > CHARACTERS_MAX:
            raise ConditionError(
                condition,
                CHARACTERS_MAX,
                f"it has {len(condition)} characters, at most {CHARACTERS_MAX} are read",
            )
        self.condition = condition
        self._at = self._count = 0
        # `--` begins a comment only if its line ends; else each of many would be looked for to the end
        self._last_break = max(condition.rfind("\n"), condition.rfind("\r"))
        self.word = self._next()

    def take(self) -> Word:
        """The next word, which is then behind us."""
        taken = self.word
        self.word = self._next()
        return taken

    def take_texts(self) -> list[str] | None:
        """All texts between brackets that begin with the next word; None if there is more between them."""
        found = _TEXTS.match(self.condition, self._at) if self.word.kind == "(" else None
        if found is None:
            return None
        self._at = found.end()
        self.word = self._next()
        return [text.replace("''", "'") for text in _TEXT.findall(found.group())]

    def fault(self, reason: str, word: Word | None = None) -> ConditionError:
        return ConditionError(self.condition, (self.word if word is None else word).at, reason)

    @property
    def is_over(self) -> bool:
        """Nothing is left, or a comment on the last line."""
        return self.word.kind == END or self.condition.startswith("--", self.word.at)

    def _next(self) -> Word:
        condition, at = self.condition, self._skip()
        if at == len(condition):
            return Word(END, "", at)
        self._count += 1
        if self._count > WORDS_MAX:
            raise ConditionError(condition, at, f"it has more than {WORDS_MAX} words, no more are read")
        found = _WORD.match(condition, at)
        if found is None:
            raise ConditionError(condition, at, _strange(condition, at))
        kind, text = found.lastgroup or "", found.group()
        self._at = found.end()
        if kind == MARK:
            kind = text
        elif kind == NAME and (keyword := text.upper()) in KEYWORDS:
            kind = keyword
        return Word(kind, text, at)

    def _skip(self) -> int:
        """Where the next word begins: behind blanks and comments."""
        condition, at = self.condition, self._at
        while True:
            if (skipped := _SKIPPED.match(condition, at)) is not None:
                at = skipped.end()
            if at + 2 > self._last_break or (line := _LINE.match(condition, at)) is None:
                return at
            at = line.end()


def _strange(condition: str, at: int) -> str:
    if condition[at] == "'":
        return "the text has no closing quote"
    if condition.startswith("/*", at):
        return "the comment has no end */"
    if condition[at] == '"':
        return "texts stand in single quotes"
    if condition.startswith(("!=", "=="), at):
        return "conditions have <> and ="
    return f"{condition[at]!r} is no part of a condition; names are letters, digits, _ and $"
