"""Fills the status column of docs/promises.md from the reports of test runs, and counts.

    python tools/promises.py docs/promises.md build/promises/*.json
    python tools/promises.py --check docs/promises.md build/promises/*.json

A row is kept when a test that claims it passed and none failed, broken when one failed, unclaimed otherwise.
A row whose tests exist but were not part of these runs stays as it was. `--check` writes nothing and fails
when the page says more than the runs have shown. A claimed number that the page does not have is an error.
"""

import argparse
import json
import re
import sys
from pathlib import Path

NOT_RUN = "not run"
TESTS_NAMED_MAX = 2
ROW = re.compile(r"^\| (?P<number>\d+) \|.*\| (?P<status>(?:kept|broken|unclaimed)\b[^|]*) \|$")
NUMBERED = re.compile(r"^\| (\d+) \|")


def numbers(page: str) -> dict[int, str]:
    """Every row's number and present status."""
    found: dict[int, str] = {}
    for line in page.splitlines():
        if not NUMBERED.match(line):
            continue
        row = ROW.match(line)
        if row is None:
            raise ValueError(f"a row without a kept, broken or unclaimed status at its right: {line[:60]}")
        number = int(row["number"])
        if number in found:
            raise ValueError(f"row {number} is there twice")
        found[number] = row["status"]
    return found


def merge(reports: list[dict[str, list[dict[str, str]]]]) -> dict[int, dict[str, str]]:
    """Row number -> test -> outcome. A test that one run left out and another ran counts as run."""
    merged: dict[int, dict[str, str]] = {}
    for report in reports:
        for number, claims in report.items():
            tests = merged.setdefault(int(number), {})
            for claim in claims:
                before = tests.get(claim["test"], NOT_RUN)
                # failed in one run and passed in another is failed
                if before == NOT_RUN or claim["outcome"] == "failed":
                    tests[claim["test"]] = claim["outcome"]
    return merged


def name(test: str) -> str:
    """`tests/unit/x.py::Class::test_y[param]` -> `test_y`: a parameter is not another proof."""
    return test.split("[", 1)[0].rsplit("::", 1)[-1]


def status(before: str, tests: dict[str, str]) -> str:
    by_outcome = {
        outcome: sorted({name(test) for test, got in tests.items() if got == outcome})
        for outcome in ("failed", "passed", NOT_RUN)
    }
    for word, outcome in (("broken", "failed"), ("kept", "passed")):
        if shown := by_outcome[outcome]:
            more = f" +{len(shown) - TESTS_NAMED_MAX}" if len(shown) > TESTS_NAMED_MAX else ""
            return f"{word} ({', '.join(shown[:TESTS_NAMED_MAX])}{more})"
    # the status stands only as long as a test it names is still there to be run
    if any(test in re.findall(r"\w+", before) for test in by_outcome[NOT_RUN]):
        return before
    return "unclaimed"


def fill(page: str, claims: dict[int, dict[str, str]]) -> str:
    before = numbers(page)
    if unknown := sorted(set(claims) - set(before)):
        raise ValueError(f"claimed, but not in the list: {unknown}")
    lines = []
    for line in page.splitlines():
        if row := ROW.match(line):
            number = int(row["number"])
            line = f"{line[: row.start('status')]}{status(before[number], claims.get(number, {}))} |"
        lines.append(line)
    return "\n".join(lines) + "\n"


def counts(page: str) -> dict[str, int]:
    words = [each.split(" ", 1)[0] for each in numbers(page).values()]
    return {word: words.count(word) for word in ("kept", "broken", "unclaimed")}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="fill the status column of the list of promises")
    parser.add_argument(
        "--check", action="store_true", help="write nothing; fail when the page says too much"
    )
    parser.add_argument("page", type=Path)
    parser.add_argument("reports", type=Path, nargs="+")
    options = parser.parse_args(arguments)

    before = options.page.read_text("utf-8")
    try:
        after = fill(before, merge([json.loads(path.read_text("utf-8")) for path in options.reports]))
    except ValueError as error:
        print(f"promises: {error}", file=sys.stderr)
        return 2
    totals = counts(after)
    print(" ".join(f"{word}={count}" for word, count in totals.items()))

    shown = numbers(after)
    broken = [number for number, text in shown.items() if text.startswith("broken")]
    for number in broken:
        print(f"promises: row {number} is {shown[number]}", file=sys.stderr)
    if not options.check:
        options.page.write_text(after, "utf-8")
        return 1 if broken else 0
    overclaimed = [
        number
        for number, text in numbers(before).items()
        if text.startswith("kept") and not shown[number].startswith("kept")
    ]
    for number in overclaimed:
        print(f"promises: row {number} says kept and the runs say {shown[number]}", file=sys.stderr)
    if before != after:
        print("promises: the page is behind the tests; `make promises` fills it")
    return 1 if broken or overclaimed else 0


if __name__ == "__main__":
    sys.exit(main())
