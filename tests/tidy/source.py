"""The files the tidiness rules look at."""

import ast
import functools
import subprocess
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
SRC = ROOT / "src"


@functools.cache
def modules() -> dict[str, ast.Module]:
    """Every module of ours, parsed, by its path from the root."""
    paths = sorted(path for path in SRC.rglob("*.py") if ".egg-info" not in str(path))
    return {str(path.relative_to(ROOT)): ast.parse(path.read_text("utf-8")) for path in paths}


def line_count(name: str) -> int:
    return len((ROOT / name).read_text("utf-8").splitlines())


def tracked_text() -> dict[str, str]:
    """Every tracked or about-to-be-tracked file that is text."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    ).stdout
    texts: dict[str, str] = {}
    for name in filter(None, listed.decode().split("\0")):
        path = ROOT / name
        if not path.is_file():
            continue  # deleted, not committed yet
        content = path.read_bytes()
        if b"\0" not in content:
            texts[name] = content.decode("utf-8", errors="replace")
    return texts


def exceptions(kind: str) -> dict[str, str]:
    listed: dict[str, str] = tomllib.loads((Path(__file__).parent / "exceptions.toml").read_text("utf-8"))[
        kind
    ]
    assert all(listed.values()), f"exceptions.toml: an entry of [{kind}] has no reason"
    return listed
