"""Bytes of the reference implementation, recorded beside this repository; their absence is a failure."""

import base64
import functools
import json
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

GOLDEN = Path(__file__).resolve().parents[3] / "shared" / "golden"
RAW_FILES = {"ha.jsonl"}  # replication traffic, not frames


@dataclass(frozen=True)
class GoldenFrame:
    """One recorded frame and what the recorder says of it."""

    file: str
    facts: dict[str, Any]
    data: bytes

    @property
    def key(self) -> tuple[str, int, str, int]:
        return self.file, self.facts["conn"], self.facts["dir"], self.facts["opaque"]

    @property
    def header(self) -> bytes:
        return self.data[8 : 8 + int.from_bytes(self.data[5:8], "big")]

    @property
    def body(self) -> bytes:
        return self.data[8 + len(self.header) :]

    @property
    def request_code(self) -> int:
        code: int = self.facts.get("request_code", self.facts["code"])
        return code


@functools.cache
def frames() -> tuple[GoldenFrame, ...]:
    files = sorted(path for path in (GOLDEN / "frames").glob("*.jsonl") if path.name not in RAW_FILES)
    assert files, f"no recorded frames in {GOLDEN}"
    found = []
    for path in files:
        for line in path.read_text("utf-8").splitlines():
            facts = json.loads(line)
            found.append(GoldenFrame(path.name, facts, base64.b64decode(facts.pop("base64"))))
    return tuple(found)


def unpack_store(name: str, directory: Path) -> list[Path]:
    """The segments of a recorded commit log, in order."""
    with tarfile.open(GOLDEN / name / "store.tar.xz") as archive:
        archive.extractall(directory, filter="data")
    return sorted((directory / "store" / "commitlog").iterdir())


def manifest(name: str) -> list[dict[str, Any]]:
    lines = (GOLDEN / name / "manifest.jsonl").read_text("utf-8").splitlines()
    return [json.loads(line) for line in lines]
