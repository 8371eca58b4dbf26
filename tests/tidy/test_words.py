"""Nothing unfinished, nothing about the workplace, and every module introduces itself."""

import ast
import re

from tests.tidy.source import modules, tracked_text

# in brackets where a plain word would find itself here
BANNED = {
    "an unfinished mark": re.compile(r"\b(?:TO[D]O|FIX[M]E|X[X]X|HA[C]K)\b"),
    "a ticket's number": re.compile(r"\bissue #?\d+", re.IGNORECASE),
    "a tool's name": re.compile(r"clau[d]e|anthro[p]ic|chat[g]pt", re.IGNORECASE),
    "a package registry's address": re.compile(
        r"py[p]i\.org|pythonhos[t]ed|repo\d?\.ma[v]en|ma[v]en\.org|npmj[s]\.(?:org|com)", re.IGNORECASE
    ),
}


def test_no_banned_words() -> None:
    """No tracked file carries an unfinished mark, a ticket's number or the name of a tool or registry."""
    found = [
        f"{name}:{number}: {what}: {line.strip()[:80]}"
        for name, text in tracked_text().items()
        for number, line in enumerate(text.splitlines(), start=1)
        for what, pattern in BANNED.items()
        if pattern.search(line)
    ]
    assert not found, "\n".join(found)


def test_every_module_introduces_itself() -> None:
    """Each module of the package begins with a docstring."""
    silent = [name for name, tree in modules().items() if not ast.get_docstring(tree)]
    assert not silent, f"no docstring: {silent}"
