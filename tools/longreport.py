"""Make a page of what the long tests did: `longreport.py JUNIT_XML... PAGE`.

Reads pytest's own records, and of a test that was run again the last; writes what ran, how long it took, how
it ended, and what each noted of itself.
"""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path
from xml.etree import ElementTree


def main(records: list[Path], page: Path) -> int:
    rows: dict[str, str] = {}
    failed: set[str] = set()
    suites = [suite for xml in records for suite in ElementTree.parse(xml).iter("testsuite")]  # noqa: S314
    begun = ", ".join((suite.get("timestamp") or "")[:16].replace("T", " ") for suite in suites)
    cases = [case for xml in records for case in ElementTree.parse(xml).iter("testcase")]  # noqa: S314
    for case in cases:
        ended = next(
            (kind for kind in ("failure", "error", "skipped") if case.find(kind) is not None), "passed"
        )
        notes = ", ".join(f"{p.get('name')} {p.get('value')}" for p in case.iter("property"))
        name = f"{case.get('classname', '').replace('tests.', '', 1)}::{case.get('name')}"
        rows[name] = f"| `{name}` | {float(case.get('time', 0)):.0f} | {ended} | {notes} |"
        (failed.add if ended in ("failure", "error") else failed.discard)(name)
    page.write_text(
        "# The long run\n\n"
        f"`make long`, begun {begun} UTC, "
        f"{os.cpu_count()} cores, Linux {platform.release()}.\n\n"
        "| test | seconds | ended | noted |\n|---|---|---|---|\n"
        + "\n".join(rows[name] for name in sorted(rows))
        + "\n"
    )
    print(f"{len(rows)} long tests, {len(failed)} failed: {page}")
    return 1 if failed or not rows else 0


if __name__ == "__main__":
    sys.exit(main([Path(word) for word in sys.argv[1:-1]], Path(sys.argv[-1])))
