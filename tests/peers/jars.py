"""Class paths of the Java peers: resolved from Maven Central once, kept in `.cache/peers` of the repository.

Owns the cache and its stamps; knows nothing of how the programs are run. Run as a module to prepare
everything ahead of the tests: `python -m tests.peers.jars`.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SERVER_VERSION = "5.5.0"
CLIENT_VERSIONS = ("4.9.8", "5.5.0")
RESOLVE_TIMEOUT_S = 600

ROOT = Path(__file__).resolve().parents[2]
CACHE = Path(os.environ.get("HOTFIRE_PEER_CACHE", ROOT / ".cache" / "peers"))
SERVER_POM = ROOT / "tests" / "peers" / "pom.xml"
CLIENT_PROJECT = ROOT / "tests" / "interop" / "java"
EXAMPLE_POM = ROOT / "bench" / "pom.xml"


def server_class_path() -> str:
    """Name server, broker and mqadmin of the reference implementation."""
    place = CACHE / f"server-{SERVER_VERSION}"
    _ensure(place, SERVER_POM, [SERVER_POM], version=SERVER_VERSION, compile_sources=False)
    return f"{place / 'lib'}/*"


def example_class_path() -> str:
    """The reference implementation's own examples, its benchmark producer among them."""
    return class_path(f"example-{SERVER_VERSION}", EXAMPLE_POM)


def class_path(name: str, pom: Path) -> str:
    """All jars that a project without sources names, kept under `name`."""
    place = CACHE / name
    _ensure(place, pom, [pom], version=SERVER_VERSION, compile_sources=False)
    return f"{place / 'lib'}/*"


def client_class_path(version: str) -> str:
    """The interop programs and the Java client of the given version they were compiled against."""
    assert version in CLIENT_VERSIONS, version
    place = CACHE / f"client-{version}"
    pom = CLIENT_PROJECT / "pom.xml"
    sources = sorted((CLIENT_PROJECT / "src").rglob("*.java"))
    _ensure(place, pom, [pom, *sources], version=version, compile_sources=True)
    return f"{place / 'classes'}:{place / 'lib'}/*"


def missing_tools() -> list[str]:
    """Programs without which no peer can be built or run."""
    return [tool for tool in ("java", "mvn", "go") if shutil.which(tool) is None]


def _ensure(place: Path, pom: Path, inputs: list[Path], *, version: str, compile_sources: bool) -> None:
    """Build `place` unless its stamp says that it was made from these very inputs."""
    digest = hashlib.sha256(version.encode())
    for source in inputs:
        digest.update(source.read_bytes())
    stamp = place / "stamp"
    with locked_cache():
        if stamp.exists() and stamp.read_text() == digest.hexdigest():
            return
        shutil.rmtree(place, ignore_errors=True)
        goals = ["compile"] if compile_sources else []
        command = [
            "mvn", "--quiet", "--batch-mode", "--file", str(pom),
            f"-Drocketmq.version={version}", f"-Dbuild.dir={place}",
            *goals, "dependency:copy-dependencies", "-DincludeScope=runtime",
            f"-DoutputDirectory={place / 'lib'}",
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, timeout=RESOLVE_TIMEOUT_S, check=False)
        if done.returncode != 0:
            raise RuntimeError(
                f"maven could not prepare {place.name}: {done.stdout[-4000:]}{done.stderr[-2000:]}"
            )
        stamp.write_text(digest.hexdigest())


@contextmanager
def locked_cache() -> Iterator[None]:
    """Test processes that start together must not build into the same directory."""
    CACHE.mkdir(parents=True, exist_ok=True)
    # The cache ignores itself, wherever HOTFIRE_PEER_CACHE puts it.
    (CACHE / ".gitignore").write_text("*\n")
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def main() -> int:
    """Prepare every class path and say where it is."""
    if missing := missing_tools():
        sys.stderr.write(f"missing programs: {', '.join(missing)}; install a JDK (17), Maven and Go\n")
        return 1
    sys.stdout.write(f"server {SERVER_VERSION}: {server_class_path()}\n")
    for version in CLIENT_VERSIONS:
        sys.stdout.write(f"client {version}: {client_class_path(version)}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
