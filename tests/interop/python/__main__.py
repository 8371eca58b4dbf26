"""Runs rows in one process, several at a time, and writes what happened as JSON lines; others judge.

    python -m tests.interop.python rows LABEL NAMESRV AT_A_TIME ROW=COUNT[/alone|/PART]...

Rows marked alone follow all others one by one. With a part we are a child of the row, and no more than that.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import traceback
from collections.abc import Awaitable, Callable

from tests.interop.python import (
    askedrows,
    capture,
    consumerows,
    events,
    filterrows,
    grouprows,
    mixedrows,
    offsetrows,
    plainrows,
    queryrows,
    requestrows,
    retryrows,
    sendrows,
    timerrows,
    tracerows,
    transactionrows,
)
from tests.interop.python.row import Row

MODULES = (
    sendrows, filterrows, consumerows, retryrows, transactionrows, timerrows, grouprows, mixedrows,
    offsetrows, queryrows, askedrows, plainrows, requestrows, tracerows,
)  # fmt: skip
STORIES: dict[str, Callable[[Row], Awaitable[None]]] = {
    name: story for module in MODULES for name, story in module.STORIES.items()
}


async def tell(row: Row) -> None:
    row.write("row-begin", count=row.count)
    try:
        async with row:
            await STORIES[row.name](row)
            row.write("row-told")
    except Exception:  # noqa: BLE001  # whatever it was, the row's judge is told
        row.write("row-failed", error=traceback.format_exc())
    row.write("row-end")


async def run(label: str, namesrv: str, at_a_time: int, wanted: list[str]) -> None:
    events.listen()
    capture.install()
    events.write("begin", serialization="JSON")
    together: list[Row] = []
    alone: list[Row] = []
    for entry in wanted:
        name, _, rest = entry.partition("=")
        count, _, part = rest.partition("/")
        row = Row(label, name, namesrv, int(count))
        if part and part != "alone":
            async with row:
                await STORIES[f"{name}/{part}"](row)
            return
        (alone if part else together).append(row)
    room = asyncio.Semaphore(at_a_time)

    async def in_turn(row: Row) -> None:
        async with room:
            await tell(row)

    await asyncio.gather(*map(in_turn, together))
    for row in alone:
        await tell(row)
    events.write("finished")


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    if sys.argv[1:2] != ["rows"] or len(sys.argv) < 6:
        raise SystemExit("usage: rows LABEL NAMESRV AT_A_TIME ROW=COUNT[/alone|/PART]...")
    asyncio.run(run(sys.argv[2], sys.argv[3], int(sys.argv[4]), sys.argv[5:]))


if __name__ == "__main__":
    main()
