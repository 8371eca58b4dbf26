"""Conditions and messages, and what Apache's own evaluator makes of them."""

from __future__ import annotations

import random
from base64 import b64encode
from pathlib import Path

from tests.peers.apache import admin_command
from tests.peers.process import LineProcess
from tests.unit.core.conditions import any_condition, raw_properties, valid

SOURCE = Path(__file__).with_name("Verdicts.java")
TIMEOUT_S = 240.0
MESSAGES = 8

Case = tuple[str, list[bytes]]


def cases(seed: int, count: int, *, garbage: bool = False) -> list[Case]:
    rng = random.Random(seed)
    make = any_condition if garbage else valid
    return [(make(rng), [raw_properties(rng) for _ in range(MESSAGES)]) for _ in range(count)]


def asked_of_java(directory: Path, given: list[Case]) -> list[str]:
    """For each case `refused`, or a letter for each message: T, F, N, E."""
    directory.mkdir(parents=True, exist_ok=True)
    process = LineProcess(admin_command(directory, SOURCE), log=directory / "verdicts.err")
    try:
        for condition, messages in given:
            coded = (b64encode(part).decode() for part in (condition.encode("utf-8", "replace"), *messages))
            process.tell(" ".join(coded))
        process.tell("end")
        process.wait_line(lambda text: text == "done", what="verdicts", timeout_s=TIMEOUT_S)
        lines = process.lines()
    finally:
        process.kill()
    return [line.removeprefix("verdicts ") for line in lines if line.startswith("verdicts ")]
