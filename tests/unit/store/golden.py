"""The stores recorded from the reference implementation, unpacked; their absence is a failure."""

from __future__ import annotations

import gzip
import json
import tarfile
from pathlib import Path
from typing import Any

from hotfire.store.config import StoreConfig

GOLDEN = Path(__file__).parents[4] / "shared" / "golden"
CONFIG = StoreConfig(segment_bytes=262_144, queue_file_bytes=4000, index_slots=500, index_entries=1000)


def unpack(name: str, target: Path) -> Path:
    """The store's directory below `target`."""
    with tarfile.open(GOLDEN / name / "store.tar.xz") as archive:
        archive.extractall(target, filter="data")
    return target / "store"


def read(name: str, file: str) -> Any:
    return json.loads((GOLDEN / name / file).read_text())


def manifest(name: str) -> list[dict[str, Any]]:
    """One entry per record of the log."""
    path = GOLDEN / name / "manifest.jsonl"
    lines = path.read_text() if path.exists() else gzip.open(f"{path}.gz", "rt").read()  # noqa: SIM115
    return [json.loads(line) for line in lines.splitlines()]
