"""Make a page of what the long tests did: `longreport.py JUNIT_XML PAGE`.

Reads pytest's own record; writes what ran, how long it took, how it ended, and what each noted of itself.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from xml.etree import ElementTree


def main(xml: Path, page: Path) -> int:
    rows, failed = [], 0
    for case in ElementTree.parse(xml).iter("testcase"):  # noqa: S314  # pytest wrote it
        ended = next(
            (kind for kind in ("failure", "error", "skipped") if case.find(kind) is not None), "passed"
        )
        failed += ended in ("failure", "error")
        notes = ", ".join(f"{p.get('name')} {p.get('value')}" for p in case.iter("property"))
        name = f"{case.get('classname', '').replace('tests.', '', 1)}::{case.get('name')}"
        rows.append(f"| `{name}` | {float(case.get('time', 0)):.0f} | {ended} | {notes} |")
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    )
    page.write_text(
        "# The long run\n\n"
        f"`make long`, {datetime.now(UTC):%Y-%m-%d %H:%M} UTC, at {commit.stdout.strip() or 'no commit'}, "
        f"{os.cpu_count()} cores, Linux {platform.release()}.\n\n"
        "| test | seconds | ended | noted |\n|---|---|---|---|\n" + "\n".join(sorted(rows)) + "\n"
    )
    print(f"{len(rows)} long tests, {failed} failed: {page}")
    return 1 if failed or not rows else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
