"""SQL92 conditions and properties at random, cheaply: by the grammar, spoilt a little, or of mere words."""

from __future__ import annotations

import random

from hotfire.protocol.record import encode_properties

NAMES = ("a", "b", "c", "_d$", "TAGS")
NUMBERS = (
    "0", "1", "2", "3", "7L", "10", "2147483647", "2147483648", "9223372036854775807", "1.5", "2.", ".5",
    "1E3", "1e-3", "3.0", "1e300", "9007199254740993", "9007199254740992.0",
)  # fmt: skip
TEXTS = (
    "''",
    "'x'",
    "'1'",
    "'true'",
    "'it''s'",
    "'ab'",
    "'b'",
    "'ä€'",
    "'1.5'",
    "' '",
    "'\U0001f600'",
    "'NaN'",
)
VALUES = (
    "0", "1", "2", "3", "-1", "+3", "00012", "7", "10", "2147483647", "2147483648", "-2147483648",
    "-2147483649", "9223372036854775807", "9223372036854775808", "-9223372036854775808", "1.5", " 1.5 ",
    "1.5f", "2.D", ".5d", "1e3", "1E-3", "1e", "0x1.8p1", "0x1p-2f", "0xp1", "0x1", "1e400", "-1e400",
    "1e-400", "NaN", "-NaN", "nan", "Infinity", "-Infinity", "+Infinity", "inf", "-0", "0.0", "-0.0",
    "9007199254740993", "true", "TRUE", "False", "x", "X", "ab", "abx", "bab", "it's", "ä€",
    "\U0001f600", " ", "1 ", "1_0", "+", ".", "--1", "1.5.", "1e5x", "12345678901234567890123",
    "0" * 40 + "5", "1" * 400, "\t3\n",
)  # fmt: skip
KEYWORDS = (
    "NOT", "AND", "OR", "BETWEEN", "IN", "TRUE", "FALSE", "NULL", "IS", "CONTAINS", "STARTSWITH", "ENDSWITH",
    "and", "Or", "not", "like", "escape", "exists",
)  # fmt: skip
MARKS = (
    "=",
    "<>",
    "<",
    ">",
    "<=",
    ">=",
    "(",
    ")",
    ",",
    "+",
    "-",
    "--",
    "/*",
    "*/",
    "'",
    '"',
    "\n",
    ".",
    "!",
    "/",
)
ORDERED = (">", ">=", "<", "<=")


def properties(rng: random.Random) -> dict[str, str]:
    return {name: rng.choice(VALUES) for name in NAMES if rng.random() < 0.7}


def raw_properties(rng: random.Random) -> bytes:
    """As stored; now and then with what no sender of ours would write."""
    made = encode_properties(properties(rng))
    if rng.random() < 0.1:
        at = rng.randrange(len(made) + 1)
        made = (
            made[:at]
            + rng.choice((b"\x01", b"\x02", b"\x02a\x013\x02", b"\x02a\x01\x02", b"\xff"))
            + made[at:]
        )
    return made


def valid(rng: random.Random, depth: int = 3) -> str:
    """By the grammar; nearly all of them are right by the rules for types, too."""
    kind = rng.random()
    if depth > 0 and kind < 0.35:
        op = rng.choice((" AND ", " OR ", " and ", "\tor\n"))
        return op.join(_bracketed(rng, depth - 1) for _ in range(rng.choice((2, 2, 3))))
    if depth > 0 and kind < 0.45:
        return f"NOT ({valid(rng, depth - 1)})"
    if depth > 0 and kind < 0.55:
        return f"({valid(rng, depth - 1)}) {rng.choice(('=', '<>'))} {_truth(rng, depth)}"
    return _leaf(rng, depth)


def _bracketed(rng: random.Random, depth: int) -> str:
    inner = valid(rng, depth)
    return inner if rng.random() < 0.3 else f"({inner})"


def _truth(rng: random.Random, depth: int) -> str:
    if rng.random() < 0.5:
        return rng.choice(("TRUE", "false", "a", "b"))
    return f"({valid(rng, depth - 1)})"


def _leaf(rng: random.Random, depth: int) -> str:
    name, no = rng.choice(NAMES), rng.choice(("", "NOT "))
    kind = rng.randrange(12)
    if kind <= 2:
        return f"{_number(rng, depth)} {rng.choice(ORDERED)} {_number(rng, depth)}"
    if kind <= 4:
        return f"{_any(rng, depth)} {rng.choice(('=', '<>'))} {_any(rng, depth)}"
    if kind == 5:
        bounds = sorted(rng.sample(range(6), 2))
        return f"{name} {no}between {bounds[0]} and {bounds[1]}"
    if kind == 6:
        return f"{_number(rng, depth)} {no}BETWEEN {_number(rng, depth)} AND {_number(rng, depth)}"
    if kind == 7:
        return f"{name} {no}IN ({', '.join(rng.choices(TEXTS, k=rng.randint(1, 7)))})"
    if kind <= 9:
        search = rng.choice(("CONTAINS", "startswith", "EndsWith"))
        return f"{_any(rng, depth)} {no}{search} {rng.choice(TEXTS)}"
    if kind == 10:
        return f"{_any(rng, depth)} is {rng.choice(('', 'not '))}null"
    return rng.choice((name, "TRUE", "FALSE", "NULL", f"not {name}", f"NOT {name} = 1"))


def _number(rng: random.Random, depth: int) -> str:
    if rng.random() < 0.5:
        return rng.choice(NAMES)
    if rng.random() < 0.1 and depth > 0:
        return f"-({valid(rng, depth - 1)})"
    return rng.choice(("", "", "", "-", "+", "- ")) + rng.choice(NUMBERS)


def _any(rng: random.Random, depth: int) -> str:
    return _number(rng, depth) if rng.random() < 0.6 else rng.choice(TEXTS)


def spoilt(rng: random.Random) -> str:
    """A condition with a part that was lost, doubled or put somewhere else."""
    text = valid(rng, 2)
    at, end = sorted((rng.randrange(len(text) + 1), rng.randrange(len(text) + 1)))
    kind = rng.randrange(4)
    if kind == 0:
        return text[:at] + text[end:]
    if kind == 1:
        return text[:at] + text[at:end] * 2 + text[end:]
    if kind == 2:
        return text[:at] + rng.choice((*KEYWORDS, *MARKS, *NUMBERS)) + text[at:]
    return (
        text[:at]
        + chr(rng.choice((0, 1, 9, 0x27, 0x7F, 0xE4, 0xD800, 0x1F600, rng.randrange(0x110000))))
        + text[at:]
    )


def words(rng: random.Random) -> str:
    return rng.choice((" ", "", "  ")).join(
        rng.choice(rng.choice((NAMES, NUMBERS, TEXTS, KEYWORDS, MARKS))) for _ in range(rng.randint(0, 20))
    )


def nested(rng: random.Random) -> str:
    """Deep, or long, beyond what is taken and short of it."""
    count = rng.choice((10, 63, 64, 65, 500, 4000))
    kind = rng.randrange(5)
    if kind == 0:
        return "(" * count + "a = 1" + ")" * count
    if kind == 1:
        return rng.choice(("NOT ", "-", "+", "- NOT ")) * count + "a"
    if kind == 2:
        return rng.choice((" OR ", " AND ")).join(["a = 1"] * count)
    if kind == 3:
        return "a IN (" + ",".join(["'x'"] * count) + ")"
    return "b contains 'aaaa' or " * count + "a = b"


def any_condition(rng: random.Random) -> str:
    kind = rng.random()
    if kind < 0.4:
        return valid(rng)
    if kind < 0.7:
        return spoilt(rng)
    return words(rng) if kind < 0.998 else nested(rng)
