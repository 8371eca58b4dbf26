"""Blocks and tables of a page of documentation."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

_FENCE = re.compile(r"^```(\w*)$")
_UNTIL = re.compile(r"^<!-- until: (.+) -->$")
_PROGRAM = re.compile(r"^(?:asyncio\.run\(|\w+\.run\(\)$)", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """Lines between fences. `until` is what a program that goes on for ever is to print."""

    page: str
    line: int
    language: str
    text: str
    until: str | None

    @property
    def is_program(self) -> bool:
        """Runs by itself, and not in a loop that runs already."""
        return bool(_PROGRAM.search(self.text))

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks(page: str) -> Iterator[Block]:
    lines = (ROOT / page).read_text().splitlines()
    start: int | None = None
    language, until = "", None
    for number, line in enumerate(lines, start=1):
        fence = _FENCE.match(line)
        if fence and start is None:
            start, language = number, fence[1]
        elif fence:
            yield Block(page, start + 1, language, "\n".join(lines[start : number - 1]) + "\n", until)
            start, until = None, None
        elif start is None and (asked := _UNTIL.match(line)):
            until = asked[1]
    assert start is None, f"{page}:{start}: a block without an end"


def table(page: str, heading: str) -> dict[str, list[str]]:
    """The rows of the first table below a heading, by their first cell without its marks."""
    text = (ROOT / page).read_text()
    _, found, below = text.partition(f"\n{heading}\n")
    assert found, f"{page} has no heading {heading}"
    rows: dict[str, list[str]] = {}
    for line in re.split(r"\n#+ ", below)[0].splitlines():
        if line.startswith("| `"):
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            name = cells[0].strip("`")
            assert name not in rows, f"{page}, {heading}: two rows of {name}"
            rows[name] = cells[1:]
    return rows
