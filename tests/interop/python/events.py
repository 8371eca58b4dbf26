"""One JSON object per line on standard output, and what the parent says on standard input."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
import time
from collections import defaultdict
from typing import Any

PARENT_GONE = 3
_fulfilled: dict[str, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(0))


def write(event: str, **facts: Any) -> None:
    told = {"event": event, "at": time.time_ns() // 1_000_000, **facts}
    pass_on(json.dumps(told, ensure_ascii=False, separators=(",", ":")))


def pass_on(line: str) -> None:
    """A line as it is, from here or from a child."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def listen() -> None:
    """The parent writes the name of a row whose wish it fulfilled; when it goes away, so do we."""
    loop = asyncio.get_running_loop()

    def read() -> None:
        for line in sys.stdin:
            loop.call_soon_threadsafe(_fulfilled[line.strip()].release)
        os._exit(PARENT_GONE)

    threading.Thread(target=read, name="parent", daemon=True).start()


async def broker(row: str, state: str, timeout_s: float, **facts: Any) -> None:
    """Ask the parent to kill the broker ("down"), to start it again ("up"), or to look at its file until a
    group's offsets of a topic have a sum ("written"); and wait until that is done."""
    write("broker-wanted", row=row, state=state, **facts)
    async with asyncio.timeout(timeout_s):
        await _fulfilled[row].acquire()
