"""Where the benches keep things, and what they say of the machine and the version they measured."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import UTC, datetime

from tests.peers.jars import ROOT

__all__ = ["RESULTS", "ROOT", "SCRATCH", "facts"]

RESULTS = ROOT / "bench" / "results"
SCRATCH = ROOT / "build" / "bench"
"""Stores, and the results of partial runs. Not below /tmp, which may be memory, where a sync is free."""


def facts() -> dict[str, str]:
    """When, on what, and of which commit: the head of every page and of every raw file."""
    asked = subprocess.run(
        ["git", "-C", str(ROOT), "describe", "--always", "--dirty"],
        capture_output=True,
        text=True,
        check=False,
    )
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "machine": f"{os.cpu_count()} cores, Linux {platform.release()}",
        "Hotfire": f"{asked.stdout.strip() or 'unknown'}, Python {platform.python_version()}",
    }
