"""Bodies of the trace topic, and what Java's own reader makes of them."""

from __future__ import annotations

from base64 import b64encode
from pathlib import Path

from tests.peers.apache import admin_command
from tests.peers.process import LineProcess

SOURCE = Path(__file__).with_name("Traces.java")
TIMEOUT_S = 120.0


def read_by_java(directory: Path, bodies: list[bytes]) -> list[list[str]]:
    """The fields of all entries."""
    process = LineProcess(admin_command(directory, SOURCE), log=directory / "traces.err")
    try:
        for body in bodies:
            process.tell(b64encode(body).decode())
        process.tell("end")
        process.wait_line(lambda text: text == "done", what="traces", timeout_s=TIMEOUT_S)
        lines = process.lines()
    finally:
        process.kill()
    return [line.removeprefix("entry ").split("|") for line in lines if line.startswith("entry ")]
