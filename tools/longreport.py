"""Make a page of what the long tests did: `longreport.py [--onto] JUNIT_XML... PAGE`.

Reads pytest's own records, and of a test that was run again the last; writes what ran, when, how long it
took, how it ended, and what each noted of itself. With `--onto` those rows of the page stay whose tests were
not run now.
"""

from __future__ import annotations

import os
import platform
import re
import sys
from pathlib import Path
from xml.etree import ElementTree

ROW = re.compile(r"\| `(?P<name>[^`]+)` \| [^|]+ \| \d+ \| (?P<ended>\w+) \|")
HEAD = "| test | begun, UTC | seconds | ended | noted |\n|---|---|---|---|---|\n"


def main(records: list[Path], page: Path, *, onto: bool = False) -> int:
    rows, failed = kept(page) if onto else ({}, set())
    for suite in (each for xml in records for each in ElementTree.parse(xml).iter("testsuite")):  # noqa: S314
        begun = (suite.get("timestamp") or "")[:16].replace("T", " ")
        for case in suite.iter("testcase"):
            if not case.get("name"):  # it was interrupted
                continue
            ended = next(
                (kind for kind in ("failure", "error", "skipped") if case.find(kind) is not None), "passed"
            )
            notes = ", ".join(f"{p.get('name')} {p.get('value')}" for p in case.iter("property"))
            name = f"{case.get('classname', '').replace('tests.', '', 1)}::{case.get('name')}"
            rows[name] = f"| `{name}` | {begun} | {float(case.get('time', 0)):.0f} | {ended} | {notes} |"
            (failed.add if ended in ("failure", "error") else failed.discard)(name)
    page.write_text(
        "# The long run\n\n"
        f"`make long`, {os.cpu_count()} cores, the newest on Linux {platform.release()}.\n\n"
        + HEAD
        + "\n".join(rows[name] for name in sorted(rows))
        + "\n"
    )
    print(f"{len(rows)} long tests, {len(failed)} failed: {page}")
    return 1 if failed or not rows else 0


def kept(page: Path) -> tuple[dict[str, str], set[str]]:
    """The rows of a page that was made before, and which of them failed."""
    found = [row for row in map(ROW.match, page.read_text().splitlines()) if row]
    return (
        {row["name"]: row.string for row in found},
        {row["name"] for row in found if row["ended"] in ("failure", "error")},
    )


if __name__ == "__main__":
    words = [word for word in sys.argv[1:] if word != "--onto"]
    sys.exit(main([Path(word) for word in words[:-1]], Path(words[-1]), onto="--onto" in sys.argv))
