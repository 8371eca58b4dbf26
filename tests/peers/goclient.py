"""The interop program written in Go: built once, kept in `.cache/peers` of the repository.

Owns the build; `go.sum` pins what the Go proxy may hand out.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.peers.jars import CACHE, RESOLVE_TIMEOUT_S, ROOT, locked_cache

SOURCES = ROOT / "tests" / "interop" / "go"


def program() -> Path:
    """The program, compiled from the sources as they are now."""
    place = CACHE / "go"
    digest = hashlib.sha256()
    for source in sorted(SOURCES.glob("*")):
        digest.update(source.read_bytes())
    built, stamp = place / "interop", place / "stamp"
    with locked_cache():
        if stamp.exists() and stamp.read_text() == digest.hexdigest() and built.exists():
            return built
        place.mkdir(parents=True, exist_ok=True)
        done = subprocess.run(
            ["go", "build", "-mod=readonly", "-trimpath", "-o", str(built), "."],
            cwd=SOURCES,
            env={**os.environ, "CGO_ENABLED": "0"},
            capture_output=True,
            text=True,
            timeout=RESOLVE_TIMEOUT_S,
            check=False,
        )
        if done.returncode != 0:
            raise RuntimeError(f"go could not build {SOURCES}: {done.stdout[-2000:]}{done.stderr[-4000:]}")
        stamp.write_text(digest.hexdigest())
    return built


def main() -> int:
    """Build and say where it is."""
    if shutil.which("go") is None:
        sys.stderr.write("missing program: go; install Go 1.21 or newer\n")
        return 1
    sys.stdout.write(f"client go: {program()}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
